"""Runs a shell command in a sandbox: bubblewrap (`bwrap`), which makes Linux namespaces.

The command sees the system's programs, for reading, and the directory of tools. It has no network,
no other files, no other processes, and no variables of the server. It ends with all that it has
started when its time is over, when nothing needs its output any more, and when the server ends.
"""

import asyncio
import codecs
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final

from specllama.engine import system

PROGRAM: Final = "bwrap"
MAX_SECONDS: Final = 60  # of a command, as in llama-server
SECONDS: Final = 10  # without `timeout`, the same
MAX_OUTPUT: Final = 16 << 10  # bytes, the same
MAX_DISCARDED: Final = 16 << 20  # bytes after them, then the command is ended
MAX_COMMAND: Final = 100_000  # bytes; Linux' limit of one argument is 131072
MEMORY: Final = 4 << 20  # KiB of address space of each process
PROCESSES: Final = 128
FILE_BLOCKS: Final = 2 << 20  # of 512 bytes: the size of a file that it writes
SCRATCH: Final = 256 << 20  # bytes of /tmp
CUT: Final = "\n[output truncated]"
_TRY_SECONDS: Final = 10.0

_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt")
_SETTINGS: Final = tuple(
    f"/etc/{name}"
    for name in (
        *("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types"),
        *("os-release", "passwd", "group", "nsswitch.conf", "ssl/certs", "ssl/openssl.cnf"),
    )
)
_LIMITS: Final = (
    f"ulimit -c 0; ulimit -v {MEMORY}; ulimit -f {FILE_BLOCKS}; "
    f"ulimit -u {PROCESSES} 2>/dev/null || ulimit -p {PROCESSES}; "
    'exec sh -c "$1"'
)
"""Sets limits and then runs its argument: in bash, `-u` limits processes, in dash, `-p` does."""


def sandboxed(root: str, directory: str, command: str, *, program: str = PROGRAM) -> list[str]:
    """Returns the words that run a shell command in the sandbox, in `directory` below `root`."""
    words = [program, "--unshare-all", "--die-with-parent", "--new-session", "--clearenv"]
    words += ["--cap-drop", "ALL", "--hostname", "tools", "--proc", "/proc", "--dev", "/dev"]
    for path in (*_SYSTEM, *_SETTINGS):
        words += ["--ro-bind-try", path, path]
    words += ["--size", str(SCRATCH), "--tmpfs", "/tmp"]
    words += ["--bind", root, root, "--chdir", directory]
    for name, value in (
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        ("HOME", "/tmp"),
        ("LANG", "C.UTF-8"),
    ):
        words += ["--setenv", name, value]
    return [*words, "--", "sh", "-c", _LIMITS, "sh", command]


def problem(root: str) -> str:
    """Returns why commands can't run in the sandbox, as the end of a sentence; "" if they can."""
    if sys.platform != "linux":
        return "needs bubblewrap (bwrap), which exists for Linux alone"
    if shutil.which(PROGRAM) is None:
        return "needs bubblewrap (bwrap), which is not installed"
    try:
        tried = subprocess.run(
            sandboxed(root, root, "true"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TRY_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "needs bubblewrap (bwrap), which can't be run"
    if tried.returncode:
        first = tried.stderr.decode(errors="replace").strip().partition("\n")[0][:200]
        return f"needs bubblewrap (bwrap), which can't make a sandbox here: {first}"
    return ""


class ShellCommand:
    """A running shell command. `how_it_ended` is the end of its output in llama-server's form."""

    def __init__(self, root: str, directory: str, command: str, seconds: int, most: int) -> None:
        """`seconds` and `most`, the bytes of its output, are at most the limits of this module."""
        self.how_it_ended = ""
        self._words = sandboxed(root, directory, command)
        self._seconds = max(0, min(seconds, MAX_SECONDS))
        self._most = max(0, min(most, MAX_OUTPUT))

    async def output(self) -> AsyncGenerator[str, None]:
        """Yields its output, stdout and stderr together, as it arrives. Closing the iterator ends
        the command. Raises OSError if it can't be started."""
        process = await asyncio.create_subprocess_exec(
            *self._words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={},
            start_new_session=True,
        )
        assert process.stdout is not None
        is_late = False
        try:
            try:
                async with asyncio.timeout(self._seconds):
                    async for text in self._read(process):
                        yield text
                    if process.stdout.at_eof():
                        await process.wait()
            except TimeoutError:
                is_late = True
        finally:
            await _end(process)
        code = -1 if process.returncode is None else process.returncode
        self.how_it_ended = f"\n[exit code: {code}]" + " [exit due to timed out]" * is_late

    async def _read(self, process: asyncio.subprocess.Process) -> AsyncIterator[str]:
        assert process.stdout is not None
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        n_bytes = 0
        while data := await process.stdout.read(1 << 16):
            room = max(self._most - n_bytes, 0)
            n_bytes += len(data)
            if text := decoder.decode(data[:room]):
                yield text
            if n_bytes > self._most + MAX_DISCARDED:
                break
        if text := decoder.decode(b"", final=True):
            yield text
        if n_bytes > self._most:
            yield CUT


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ends the sandbox. The system then ends every process in it."""
    assert process.stdout is not None
    if process.returncode is None:
        system.kill_group(process.pid)
    while await process.stdout.read(1 << 16):  # asyncio waits for the end of the output, too
        pass
    await process.wait()
