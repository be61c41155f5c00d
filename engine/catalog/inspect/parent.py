"""Reads the metadata of model files without loading the models.

Files come from anywhere, and reading a hostile one may take for ever: it is done by a child
process (`engine.catalog.inspect.child`), one for all files of a `read_all`. A process that takes
too long for a file is killed, and another one goes on with the rest.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, Self

import msgspec

from engine.catalog.inspect.messages import Outcome, Started, Unreadable

log = logging.getLogger("engine.catalog.inspect")

TIME_LIMIT: Final = 10.0  # s for one file
MEMORY_LIMIT: Final = 1 << 30  # bytes of address space, the interpreter included
START_TIMEOUT: Final = 60.0  # s until a process is ready
ONE_BLAS_THREAD: Final = {"OPENBLAS_NUM_THREADS": "1"}
"""NumPy's library maps memory for each of its threads: on many cores, more than the limit."""


_decode_outcome = msgspec.json.Decoder(Outcome).decode
_decode_started = msgspec.json.Decoder(Started).decode

_Identity = tuple[str, int, int]  # path, time of the last change in ns, size in bytes


class MetadataReader:
    """Reads files, and remembers their metadata for as long as they don't change."""

    def __init__(self, *, time_limit: float = TIME_LIMIT, memory_limit: int = MEMORY_LIMIT) -> None:
        self._time_limit = time_limit
        self._memory_limit = memory_limit
        self._outcomes: dict[_Identity, Outcome] = {}
        self._turn = asyncio.Lock()

    def known(self, path: str) -> Outcome | None:
        """The outcome for the file as it is now, if it was read already; never waits."""
        try:
            return self._outcomes.get(_identity(path))
        except (OSError, ValueError) as e:
            return Unreadable(_no_such_file(e))

    async def read_all(self, paths: Iterable[str]) -> dict[str, Outcome]:
        """The outcome for each file; of a split model name the first part.

        Raises nothing: a file that can't be read, and one that takes more than the limits allow,
        is `Unreadable`. Cancelling ends the child process.
        """
        async with self._turn:
            return await self._read_all(dict.fromkeys(paths))

    async def _read_all(self, paths: Iterable[str]) -> dict[str, Outcome]:
        found: dict[str, Outcome] = {}
        process: _Process | None = None
        try:
            for path in paths:
                known = self.known(path)
                if known is not None:
                    found[path] = known
                    continue
                if process is None:
                    process = await _Process.start(self._memory_limit, self._time_limit)
                identity = _identity(path)
                found[path] = await process.inspect(path, self._time_limit)
                self._outcomes[identity] = found[path]
                if not process.is_alive:
                    process = None
        except (OSError, EOFError, TimeoutError, msgspec.MsgspecError) as e:
            # Not the files' fault, so it isn't remembered.
            log.error("model files can't be read: %r", e)
            found |= {
                path: Unreadable("the process that reads model files can't be started")
                for path in paths
                if path not in found
            }
        finally:
            if process is not None:
                await process.end()
        return found


class _Process:
    """One child process. Its pipes carry one line of JSON each way for each file."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._stdin, self._stdout = process.stdin, process.stdout

    @classmethod
    async def start(cls, memory_limit: int, time_limit: float) -> Self:
        """Raises OSError, EOFError, TimeoutError or MsgspecError."""
        made = cls(
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "engine.catalog.inspect.child"),
                *(str(memory_limit), str(time_limit)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=os.environ | ONE_BLAS_THREAD,
            )
        )
        try:
            async with asyncio.timeout(START_TIMEOUT):
                _decode_started(await made._line())
        except BaseException:
            await made.end()
            raise
        return made

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    async def inspect(self, path: str, time_limit: float) -> Outcome:
        """The outcome for the file. The process is dead after this if the file broke a limit."""
        try:
            request = msgspec.json.encode(path)
        except UnicodeEncodeError:
            return Unreadable("its path is not valid UTF-8")
        try:
            async with asyncio.timeout(time_limit):
                self._stdin.write(request + b"\n")
                await self._stdin.drain()
                outcome: Outcome = _decode_outcome(await self._line())
                return outcome
        except TimeoutError:
            await self.end()
            return Unreadable(f"reading it takes more than {time_limit:g} s")
        except (EOFError, ConnectionError, msgspec.MsgspecError):
            return Unreadable(f"reading it ended a process with code {await self.end()}")

    async def end(self) -> int:
        """Make sure that the process is no more; its exit code."""
        if self.is_alive:
            with suppress(ProcessLookupError):
                self._process.kill()
        return await self._process.wait()

    async def _line(self) -> bytes:
        return await self._stdout.readuntil(b"\n")  # raises IncompleteReadError, an EOFError


def _identity(path: str) -> _Identity:
    status = os.stat(path)
    return path, status.st_mtime_ns, status.st_size


def _no_such_file(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
