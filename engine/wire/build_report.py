"""A child process's report on the installed llama.cpp, which may end that process."""

import os
import subprocess
import sys

import msgspec

from specllama.engine.wire.commands import describe_exit

TIMEOUT = 600.0  # s; trying kernels takes seconds, and a GPU's driver may take its time
_COMMAND = (sys.executable, "-P", "-m", "specllama.engine.worker.backend.report")


class Device(msgspec.Struct, frozen=True):
    """A device that layers can be offloaded to; memory in bytes."""

    name: str
    description: str
    free: int
    total: int


class BuildReport(msgspec.Struct, frozen=True, kw_only=True):
    """The library of ggml's kernels for the CPU (its file where that is known), and the
    features that it was built with, by ggml's names. `libraries` are all of llama.cpp's, where the
    system tells them."""

    library: str
    libraries: list[str]
    conflict: str
    """The reason why these don't belong together; "" if they do."""
    features: dict[str, str]
    tried: list[str]
    """Features whose kernels were tried just now; none if this processor hasn't them."""
    measure: str
    """The measure against them: see `engine.worker.backend.verdict.Measure`."""
    reason: str
    """The failure; "" if there was none."""
    remark: str
    """One line about that, with a remedy."""
    error: str
    """The reason why nothing can be computed; "" if it can."""
    devices: list[Device]


class BuildError(Exception):
    """llama.cpp can't even be loaded; the message is one line."""


def ask(command: tuple[str, ...] = _COMMAND) -> BuildReport:
    """Load llama.cpp in a child process, and try its kernels. Raises `BuildError`."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT,
            env={**os.environ, "GGML_NO_BACKTRACE": "1"},  # a failed assertion would start gdb
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(str(error)) from None
    if done.returncode != 0:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise BuildError(": ".join([f"the process {describe_exit(done.returncode)}", *last]))
    return msgspec.json.decode(done.stdout, type=BuildReport)
