"""The asyncio side of the process that fetches URLs (`engine.helpers.fetch.fetch_main`).

One process, started at the first job, does up to `MAX_OPEN` jobs at a time; others wait. If it ends
or doesn't answer, its jobs fail, and the next job starts another process.
"""

import asyncio
import itertools
import logging
from typing import Final

from specllama.engine.errors import EngineError, invalid_request, server_error, unavailable
from specllama.engine.helpers.fetch.fetch_jobs import (
    Answer,
    CancelFetch,
    Fetch,
    NotFetched,
    Rules,
    answer_decoder,
)
from specllama.engine.wire.commands import bare_environment, fetch_command
from specllama.engine.wire.framing import FrameError, Started, frame
from specllama.engine.wire.process import Child, ChildError

log = logging.getLogger("specllama.engine.media")

MAX_OPEN: Final = 16
MEMORY_LIMIT: Final = 8 << 30  # bytes of address space: threads reserve far more than they use
GRACE: Final = 30.0  # s that the process gets in addition to a job's time limit
STOP_TIMEOUT: Final = 1.0  # s after which a process that should end is killed

Process = Child[Started | Answer]


class Fetcher:
    """Fetches files that requests name by URL."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(MAX_OPEN)
        self._starting = asyncio.Lock()
        self._process: Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._open: dict[int, asyncio.Future[bytes]] = {}
        self._ids = itertools.count()
        self._stopped = False

    @property
    def pids(self) -> list[int]:
        """The ids of the running processes."""
        return [] if self._process is None else [self._process.pid]

    async def fetch(self, url: str, rules: Rules) -> bytes:
        """Returns the file at `url`.

        Raises EngineError: invalid_request_error if it can't be fetched within the rules,
        server_error if the process fails, unavailable_error after `stop`. Cancelling ends the work.
        """
        async with self._turns:
            process = await self._running()
            id = next(self._ids)
            answer = self._open[id] = asyncio.get_running_loop().create_future()
            try:
                process.say(frame(Fetch(id, url, rules)))
                return await asyncio.wait_for(answer, rules.seconds + GRACE)
            except TimeoutError:
                process.kill()
                raise invalid_request("fetching it takes too long") from None
            except UnicodeEncodeError:
                raise invalid_request("its URL is not valid") from None
            except asyncio.CancelledError:
                process.say(frame(CancelFetch(id)))
                raise
            finally:
                del self._open[id]

    async def stop(self) -> None:
        """Ends the process; open jobs fail."""
        self._stopped = True
        async with self._starting:
            if self._process is not None:
                await self._process.end(STOP_TIMEOUT)
            if self._reader is not None:
                await self._reader

    async def _running(self) -> Process:
        async with self._starting:
            if self._stopped:
                raise unavailable("the server is shutting down")
            if self._process is None:
                self._process = await _started()
                self._reader = asyncio.create_task(self._read(self._process))
            return self._process

    async def _read(self, process: Process) -> None:
        try:
            while True:
                self._take(await process.receive())
        except (EOFError, FrameError):
            pass
        if self._process is process:
            self._process = None
        failure = server_error("the process that fetches media ended")
        if self._stopped:
            failure = unavailable("the server is shutting down")
        self._fail(failure)
        code = await process.reap()
        if not self._stopped:
            log.error("the process that fetches media ended with code %d", code)

    def _take(self, answer: Started | Answer) -> None:
        assert not isinstance(answer, Started)
        waiting = self._open.get(answer.id)
        if waiting is None or waiting.done():  # cancelled meanwhile
            return
        if isinstance(answer, NotFetched):
            waiting.set_exception(invalid_request(answer.reason))
        else:
            waiting.set_result(answer.data)

    def _fail(self, error: EngineError) -> None:
        for waiting in self._open.values():
            if not waiting.done():
                waiting.set_exception(error)


async def _started() -> Process:
    try:
        return await Child.start_for_jobs(
            fetch_command(MEMORY_LIMIT), answer_decoder, env=bare_environment()
        )
    except (TimeoutError, ChildError) as e:
        raise server_error("the process that fetches media could not be started") from e
    except OSError as e:
        raise server_error(f"the process that fetches media could not be started: {e}") from e
