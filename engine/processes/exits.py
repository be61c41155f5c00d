"""The ends of processes, in words for the administrator."""

import signal
from importlib.metadata import version

_WINDOWS_ILLEGAL_INSTRUCTION = 0xC000001D


def is_illegal_instruction(code: int | None) -> bool:
    """True if the exit status is that of a process that executed an instruction which the processor
    does not have."""
    return code in (-signal.SIGILL, _WINDOWS_ILLEGAL_INSTRUCTION)


def explain_exit(code: int, moment: str = "") -> str:
    """`describe_exit` of a process that ended at some `moment`, with what to do about it where
    that is known."""
    how = describe_exit(code) + (f" {moment}" if moment else "")
    return f"{how}: {other_processor()}" if is_illegal_instruction(code) else how


def other_processor() -> str:
    """Advice about a library with instructions that this processor does not have."""
    package = f"llama-cpp-python=={version('llama-cpp-python')}"
    return (
        "this llama.cpp was built for another processor; install it again with "
        f'CMAKE_ARGS="-DGGML_NATIVE=OFF" pip install --no-cache-dir --force-reinstall {package}'
    )


def describe_exit(code: int) -> str:
    """Says how a process ended, by its exit status `code`; negative: minus a signal's number."""
    if code == _WINDOWS_ILLEGAL_INSTRUCTION:
        return "was ended by an illegal instruction"
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
