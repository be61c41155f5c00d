"""A report on the installed llama.cpp, made in a child process, which llama.cpp may crash."""

import os
import subprocess
import sys

import msgspec

from specllama.engine.wire.commands import describe_exit

TIMEOUT = 600.0  # s; testing kernels takes seconds, and a GPU driver may be slow
_COMMAND = (sys.executable, "-P", "-m", "specllama.engine.worker.backend.report")


class Device(msgspec.Struct, frozen=True):
    """A device for offloading; memory in bytes."""

    name: str
    description: str
    free: int
    total: int


class BuildReport(msgspec.Struct, frozen=True, kw_only=True):
    """The library of ggml's CPU kernels (its file, if known), and its build features, with ggml's
    names. `libraries` are all loaded libraries of llama.cpp, where the system lists them."""

    library: str
    libraries: list[str]
    conflict: str
    """The reason why these libraries don't fit together; "" if they do."""
    features: dict[str, str]
    tried: list[str]
    """Features whose kernels were tested; empty if this processor doesn't have them."""
    measure: str
    """The applied measure, see `engine.worker.backend.verdict.Measure`."""
    reason: str
    """The failure; "" if there was none."""
    remark: str
    """One line about the failure, with a remedy."""
    error: str
    """The reason why llama.cpp can't compute at all; "" if it can."""
    devices: list[Device]


class BuildError(Exception):
    """llama.cpp can't be loaded; the message is one line."""


def ask(command: tuple[str, ...] = _COMMAND) -> BuildReport:
    """Load llama.cpp in a child process, and test its kernels. Raises `BuildError`."""
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
