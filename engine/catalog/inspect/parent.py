"""Reads the metadata of model files without loading the models.

Files come from anywhere, and reading a hostile one may take for ever: it is done by a child
process (`engine.catalog.inspect.child`), one for all files of a `read_all`. A process that takes
too long for a file is killed, and another one goes on with the rest.
"""

import asyncio
import logging
import os
from collections.abc import Iterable
from typing import Final

from specllama.engine.catalog.inspect.messages import Outcome, Unreadable, outcome_decoder
from specllama.engine.wire.commands import ONE_BLAS_THREAD, environment, inspect_command
from specllama.engine.wire.framing import JSON, Started, frame
from specllama.engine.wire.process import Child, ChildError

log = logging.getLogger("specllama.engine.catalog.inspect")

TIME_LIMIT: Final = 10.0  # s for one file
MEMORY_LIMIT: Final = 1 << 30  # bytes of address space, the interpreter included
MAX_OUTCOME: Final = 1 << 16  # bytes

Inspector = Child[Started | Outcome]
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
        process: Inspector | None = None
        try:
            for path in paths:
                try:
                    identity = _identity(path)
                except (OSError, ValueError) as e:
                    found[path] = Unreadable(_no_such_file(e))
                    continue
                if (known := self._outcomes.get(identity)) is not None:
                    found[path] = known
                    continue
                if process is None:
                    process = await _start(self._memory_limit, self._time_limit)
                found[path] = await _inspect(process, path, self._time_limit)
                self._outcomes[identity] = found[path]
                if not process.is_alive:
                    process = None
        except (OSError, ChildError) as e:
            # Not the files' fault, so it isn't remembered.
            log.error("model files can't be read: %r", e)
            found |= {
                path: Unreadable("the process that reads model files can't be started")
                for path in paths
                if path not in found
            }
        finally:
            if process is not None:
                await process.bury()
        return found


async def _start(memory_limit: int, time_limit: float) -> Inspector:
    """Raises OSError, TimeoutError or ChildError."""
    return await Child.start_for_jobs(
        inspect_command(memory_limit, time_limit),
        outcome_decoder,
        env={**environment(), **ONE_BLAS_THREAD},
        limit=MAX_OUTCOME,
    )


async def _inspect(process: Inspector, path: str, time_limit: float) -> Outcome:
    """The facts in the file. The process is not alive after this if the file was too much for
    it."""
    try:
        request = frame(path, JSON)
    except UnicodeEncodeError:
        return Unreadable("its path is not valid UTF-8")
    try:
        outcome = await process.ask(request, time_limit)
    except TimeoutError:
        return Unreadable(f"reading it takes more than {time_limit:g} s")
    except ChildError as e:
        return Unreadable(f"reading it ended a process with code {e.code}")
    assert not isinstance(outcome, Started)
    return outcome


def _identity(path: str) -> _Identity:
    status = os.stat(path)
    return path, status.st_mtime_ns, status.st_size


def _no_such_file(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
