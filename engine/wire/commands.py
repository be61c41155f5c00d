"""The commands that start processes, and texts for their exit statuses. Imports almost nothing."""

import os
import signal
import sys
from typing import Final

Command = tuple[str, ...]

WAIT_POLICY = {"GOMP_SPINCOUNT": "20000"}
"""llama.cpp's OpenMP threads spin while they wait for each other. The default is milliseconds,
which starves the server process (and the threads themselves) on a busy machine; without spinning, a
step of a small model takes twice as long. This value is some hundreds of microseconds."""
ONE_BLAS_THREAD: Final = {"OPENBLAS_NUM_THREADS": "1"}
"""NumPy's OpenBLAS maps memory for each of its threads: with many cores, more than a memory limit
allows."""
_PLAIN: Final = (
    *("PATH", "PYTHON", "VIRTUAL_ENV", "LD_", "DYLD_", "LANG", "LC_", "TZ", "TMP", "TEMP", "HOME"),
    *("SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "SSL_CERT_", "RES_OPTIONS", "LOCALDOMAIN"),
)
"""Prefixes of the names of the environment variables that `bare_environment` keeps."""
TEMPLATE_SECONDS: Final = 10.0  # for one job of a template process
TEMPLATE_MEMORY: Final = 1 << 30  # bytes of its address space, including the interpreter

STUCK: Final = 124
"""The exit status of an engine process that has detected a stuck computation; the same as that of
timeout(1)."""
STACKS_SIGNAL: Final = getattr(signal, "SIGUSR1", None)
"""The signal that ends an engine process after it has written the stacks of its threads. None on
Windows."""


def engine_command() -> Command:
    """The command of an engine process (`engine.worker`)."""
    return _command("engine.worker")


def template_command(memory: int = TEMPLATE_MEMORY, seconds: float = TEMPLATE_SECONDS) -> Command:
    """The command of a template process (`engine.helpers.render.render_main`)."""
    return _command("engine.helpers.render.render_main", memory, seconds)


def inspect_command(memory: int, seconds: float) -> Command:
    """The command of a process that reads model files (`engine.helpers.inspect.inspect_main`)."""
    return _command("engine.helpers.inspect.inspect_main", memory, seconds)


def trial_command(memory: int, seconds: float) -> Command:
    """The command of a process that tries grammars (`engine.helpers.trial.trial_main`)."""
    return _command("engine.helpers.trial.trial_main", memory, seconds)


def check_command(memory: int, seconds: float) -> Command:
    """The command of a process that checks bodies (`engine.helpers.check.check_main`)."""
    return _command("engine.helpers.check.check_main", memory, seconds)


def decode_command(
    memory: int, processor: float, seconds: float, *, videos: bool = False
) -> Command:
    """The command of a process that decodes media (`engine.helpers.decode.decode_main`): videos, or
    everything else."""
    limits = (memory, processor, seconds)
    return (*_command("engine.helpers.decode.decode_main", *limits), *["videos"] * videos)


def fetch_command(memory: int) -> Command:
    """The command of a process that fetches media (`engine.helpers.fetch.fetch_main`)."""
    return _command("engine.helpers.fetch.fetch_main", memory)


def tools_command(memory: int) -> Command:
    """The command of a process that talks to an MCP server (`engine.helpers.tools.tools_main`)."""
    return _command("engine.helpers.tools.tools_main", memory)


def files_command(memory: int, seconds: float) -> Command:
    """The command of a process of the built-in tools (`engine.helpers.files.files_main`)."""
    return _command("engine.helpers.files.files_main", memory, seconds)


def download_command() -> Command:
    """The command of a process that downloads (`engine.helpers.download.download_main`)."""
    return _command("engine.helpers.download.download_main")


def _command(module: str, *arguments: float) -> Command:
    return (sys.executable, "-P", "-m", f"specllama.{module}", *map(str, arguments))


_OF_MCP_SERVERS: Final = "LLAMA_ARG_MCP_SERVERS_JSON"
"""A variable with secrets of MCP servers, which only their own processes get."""


def environment() -> dict[str, str]:
    """The environment of child processes."""
    own = {name: value for name, value in os.environ.items() if name != _OF_MCP_SERVERS}
    return {**WAIT_POLICY, **own}


def bare_environment() -> dict[str, str]:
    """The environment of processes that hostile data may take over: only variables that Python, the
    system's libraries and TLS need, without the server's keys and tokens."""
    names = (name for name in os.environ if name.upper().startswith(_PLAIN))
    return {name: os.environ[name] for name in names} | ONE_BLAS_THREAD


_WINDOWS_ILLEGAL_INSTRUCTION = 0xC000001D


def is_illegal_instruction(code: int | None) -> bool:
    """True for the exit status of a process that executed an instruction which the processor
    doesn't have."""
    return code in (-signal.SIGILL, _WINDOWS_ILLEGAL_INSTRUCTION)


def explain_exit(code: int, moment: str = "") -> str:
    """A text about an engine process that ended with exit status `code` at some `moment`, with a
    remedy if there is one."""
    if code == STUCK:
        how = "ended itself, as a computation did not end"
    elif STACKS_SIGNAL is not None and code == -STACKS_SIGNAL:
        how = "was ended, as it gave no sign of life"
    else:
        how = describe_exit(code)
    how += f" {moment}" if moment else ""
    return f"{how}: {other_processor()}" if is_illegal_instruction(code) else how


def other_processor() -> str:
    """The remedy for a library with instructions that this processor doesn't have."""
    from importlib.metadata import version  # slow to import, and rarely needed

    package = f"llama-cpp-python=={version('llama-cpp-python')}"
    return (
        "this llama.cpp was built for another processor; install it again with "
        f'CMAKE_ARGS="-DGGML_NATIVE=OFF" pip install --no-cache-dir --force-reinstall {package}'
    )


def describe_exit(code: int) -> str:
    """A text about how a process ended, by its exit status `code` (negative: minus a signal's
    number)."""
    if code == _WINDOWS_ILLEGAL_INSTRUCTION:
        return "was ended by an illegal instruction"
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
