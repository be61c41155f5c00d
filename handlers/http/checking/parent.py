"""The asyncio side of the processes that check large bodies (`handlers.http.checking.child`).

Validating many values, and finding the words for what is wrong with them, holds the GIL: done here,
it would stop everybody. There are at most `PROCESSES`, each started when it is needed first and
ended when it has had nothing to do for a while. A job with which a used process ends is done again
by a new one: the fault may be an earlier job's, or somebody killed the process.
"""

import asyncio
import logging
from contextlib import suppress
from typing import Final, cast

import msgspec

from specllama.engine.errors import invalid_request, server_error, unavailable
from specllama.engine.wire.commands import check_command
from specllama.engine.wire.framing import Started, frame
from specllama.engine.wire.process import Child, ChildError
from specllama.handlers.http.checking.messages import Job, Verdict, verdict_decoder
from specllama.handlers.http.errors import RequestError
from specllama.handlers.http.schema import Schema, to_2020_12

log = logging.getLogger(__name__)

PROCESSES: Final = 2
TIME_LIMIT: Final = 30.0  # s for one body
MEMORY: Final = 512 << 20  # bytes of address space, beside what bodies take
PER_BYTE: Final = 10  # of the largest body: in the frame, in the job, decoded
IDLE: Final = 10.0  # s after which a process without a job is ended
STOP_TIMEOUT: Final = 1.0  # s until a process that should end is killed

_Process = Child[Started | Verdict]


class Checker:
    """Holds bodies to their schemas, away from the event loop."""

    def __init__(
        self, max_body: int = 64 << 20, *, time_limit: float = TIME_LIMIT, idle: float = IDLE
    ) -> None:
        """`max_body` is the size of the largest body, in bytes."""
        self._command = check_command(MEMORY + PER_BYTE * max_body, time_limit)
        self._time_limit = time_limit
        self._idle_limit = idle
        self._turns = asyncio.Semaphore(PROCESSES)
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()
        self._told: dict[_Process, set[int]] = {}  # the schemas that each knows
        self._tasks: set[asyncio.Task[Verdict]] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._schemas: dict[int, tuple[Schema, bytes]] = {}  # by identity, with their JSON
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    @property
    def pids(self) -> list[int]:
        """The ids of the present processes."""
        return [process.pid for process in (*self._idle, *self._busy)]

    async def check(self, schema: Schema, body: bytes | bytearray) -> Verdict:
        """The verdict on `body`, a JSON text.

        Raises RequestError (413) if it takes too much memory, EngineError: invalid_request_error if
        it takes too long, server_error if there is no process to do it, unavailable_error after
        `stop`.
        """
        await self._turns.acquire()
        # A task of its own: a client that leaves must not leave the process with a job half done.
        task = asyncio.create_task(self._take_turn(schema, body))
        self._tasks.add(task)
        task.add_done_callback(self._done)
        verdict = await asyncio.shield(task)
        if verdict.exhausted:
            raise RequestError(413, "the values of the body take too much memory")
        return verdict

    async def stop(self) -> None:
        """End all processes; open jobs end with an error."""
        self._stopped = True
        for process in self._busy:
            process.kill()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._give_up()
        await asyncio.gather(*self._ending)

    def _done(self, task: asyncio.Task[Verdict]) -> None:
        self._tasks.discard(task)
        self._turns.release()
        if not task.cancelled():
            task.exception()  # seen, even if the client has left

    async def _take_turn(self, schema: Schema, body: bytes | bytearray) -> Verdict:
        while self._idle:
            with suppress(ChildError):
                return await self._ask(self._idle.pop(), schema, body)
        try:
            return await self._ask(await self._start(), schema, body)
        except ChildError as error:
            raise server_error("checking the body ended the process that did it") from error

    async def _start(self) -> _Process:
        self._check_running()
        try:
            process = await _Process.start_for_jobs(self._command, verdict_decoder)
        except (OSError, TimeoutError, ChildError) as error:
            raise server_error("a process that checks bodies could not be started") from error
        if self._stopped:
            await process.bury()
        self._check_running()
        self._told[process] = set()
        return process

    def _check_running(self) -> None:
        if self._stopped:
            raise unavailable("the server is shutting down")

    async def _ask(self, process: _Process, schema: Schema, body: bytes | bytearray) -> Verdict:
        """Raises ChildError if the process ends."""
        number, told = id(schema), self._told[process]
        source = b"" if number in told else self._source(schema)
        job = Job(number, cast(bytes, body), source)  # both are written alike
        self._busy.add(process)
        fit = False
        try:
            verdict = await process.ask(frame(job), self._time_limit)
            assert isinstance(verdict, Verdict)
            told.add(number)
            fit = not verdict.exhausted
        except TimeoutError:
            raise invalid_request(
                f"checking the body takes more than {self._time_limit:g} s"
            ) from None
        except ChildError as error:
            log.error("a process that checks bodies ended with code %d", error.code)
            raise
        finally:
            self._busy.discard(process)
            if fit and not self._stopped:
                self._idle.append(process)
                self._wait_idle()
            else:
                self._end(process)
        return verdict

    def _source(self, schema: Schema) -> bytes:
        if (known := self._schemas.get(id(schema))) is None:
            # Keeping the schema keeps its id from being used again.
            known = self._schemas[id(schema)] = (schema, msgspec.json.encode(to_2020_12(schema)))
        return known[1]

    def _wait_idle(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._idle_limit, self._give_up)

    def _give_up(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        while self._idle:
            self._end(self._idle.pop())

    def _end(self, process: _Process) -> None:
        """Ends a process without a job. What it holds of the system is given back in a task."""
        self._told.pop(process, None)
        task = asyncio.create_task(_bury(process))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


async def _bury(process: _Process) -> None:
    await process.end(STOP_TIMEOUT)
    await process.bury()
