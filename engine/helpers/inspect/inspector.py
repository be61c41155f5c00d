"""Reads the metadata of model files without loading the models.

Files are not trusted, and reading a hostile one may take for ever. So a child process
(`engine.helpers.inspect.inspect_main`) reads them, one process for all files of a `read_all`. A
process that takes too long for a file is killed, and another one continues with the next files.
"""

import asyncio
import logging
import os
from collections.abc import Iterable
from typing import Final

from specllama.engine.errors import EngineError
from specllama.engine.helpers.inspect.inspect_jobs import Outcome, Unreadable, outcome_decoder
from specllama.engine.helpers.pool import HelperPool
from specllama.engine.wire.commands import ONE_BLAS_THREAD, environment, inspect_command
from specllama.engine.wire.framing import JSON, frame
from specllama.engine.wire.process import ChildError

log = logging.getLogger("specllama.engine.helpers.inspect")

TIME_LIMIT: Final = 10.0  # s for one file
MEMORY_LIMIT: Final = 1 << 30  # bytes of address space, including the interpreter
MAX_OUTCOME: Final = 1 << 16  # bytes

_Identity = tuple[str, int, int]  # path, time of the last change in ns, size in bytes


class MetadataReader:
    """Reads files, and caches their metadata until they change."""

    def __init__(self, *, time_limit: float = TIME_LIMIT, memory_limit: int = MEMORY_LIMIT) -> None:
        self._time_limit = time_limit
        self._memory_limit = memory_limit
        self._outcomes: dict[_Identity, Outcome] = {}
        self._turn = asyncio.Lock()

    def known(self, path: str) -> Outcome | None:
        """Returns the cached outcome for the current version of the file, if any; never waits."""
        try:
            return self._outcomes.get(_identity(path))
        except (OSError, ValueError) as e:
            return Unreadable(_no_such_file(e))

    async def read_all(self, paths: Iterable[str]) -> dict[str, Outcome]:
        """Returns the outcome for each file; for a split model, pass the first part.

        Never raises: a file that can't be read, or that exceeds the limits, is `Unreadable`.
        Cancelling ends the child process.
        """
        async with self._turn:
            return await self._read_all(dict.fromkeys(paths))

    async def _read_all(self, paths: Iterable[str]) -> dict[str, Outcome]:
        found: dict[str, Outcome] = {}
        pool = self._new_pool()
        try:
            for path in paths:
                try:
                    identity = _identity(path)
                except (OSError, ValueError) as e:
                    found[path] = Unreadable(_no_such_file(e))
                    continue
                if identity not in self._outcomes:
                    self._outcomes[identity] = await self._inspect(pool, path)
                found[path] = self._outcomes[identity]
        except EngineError as e:
            # Not the files' fault, so it isn't cached.
            log.error("model files can't be read: %s", e)
            found |= {
                path: Unreadable("the process that reads model files can't be started")
                for path in paths
                if path not in found
            }
        finally:
            await pool.stop()
        return found

    def _new_pool(self) -> HelperPool[Outcome]:
        return HelperPool(
            "the process that reads model files",
            inspect_command(self._memory_limit, self._time_limit),
            outcome_decoder,
            processes=1,
            env={**environment(), **ONE_BLAS_THREAD},
            limit=MAX_OUTCOME,
        )

    async def _inspect(self, pool: HelperPool[Outcome], path: str) -> Outcome:
        """Returns the outcome for a file. Raises EngineError if no process can be started."""
        try:
            request = frame(path, JSON)
        except UnicodeEncodeError:
            return Unreadable("its path is not valid UTF-8")
        try:
            return await pool.run(
                lambda helper: helper.ask(request, self._time_limit), cancels=True
            )
        except TimeoutError:
            return Unreadable(f"reading it takes more than {self._time_limit:g} s")
        except ChildError as e:
            return Unreadable(f"reading it crashed a process with code {e.code}")


def _identity(path: str) -> _Identity:
    status = os.stat(path)
    return path, status.st_mtime_ns, status.st_size


def _no_such_file(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
