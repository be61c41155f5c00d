"""A pool of helper processes that do one job at a time, such as rendering a template.

Jobs start in the order of their arrival, on any free process, so a slow job occupies only one
process. Each process is started at its first job. A process that failed at a job is ended, and the
next job that needs one starts a new one. If a process that has done other jobs ends during a job,
another process does the job again: an earlier job may have caused the end, or another program may
have killed the process.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping
from contextlib import suppress
from typing import Final, Generic, TypeVar

from specllama.engine.errors import EngineError, server_error, unavailable
from specllama.engine.wire.commands import Command
from specllama.engine.wire.framing import MAX_FRAME, Decoder, Started
from specllama.engine.wire.process import Child, ChildError

PROCESSES: Final = 2
STOP_TIMEOUT: Final = 1.0  # s after which a process that should end is killed

M = TypeVar("M")
T = TypeVar("T")


class Helper(Generic[M]):
    """One process of a pool, which answers with messages `M`.

    `known` numbers the objects that earlier jobs have left in the process. A job sets `is_fit` to
    False if the process has to be ended after it.
    """

    def __init__(self, child: Child[Started | M]) -> None:
        self.child = child
        self.known: dict[Hashable, int] = {}
        self.is_fit = True

    async def ask(self, data: bytes, seconds: float) -> M:
        """Returns the answer to the frame `data`. Ends a process without an answer: raises
        TimeoutError after `seconds`, ChildError if the process ends or its answer is invalid."""
        answer = await self.child.ask(data, seconds)
        assert not isinstance(answer, Started)
        return answer


Job = Callable[[Helper[M]], Awaitable[T]]


class HelperPool(Generic[M]):
    """At most `processes` processes that run `command` and answer with messages `M`."""

    def __init__(
        self,
        name: str,
        command: Command,
        decoder: Decoder[Started | M],
        *,
        processes: int = PROCESSES,
        env: Mapping[str, str] | None = None,
        limit: int = MAX_FRAME,
        idle: float | None = None,
    ) -> None:
        """`name` is for error messages ("a template process"). `env` and `limit` are as in
        `Child.start`. A process without a job is ended after `idle` seconds, unless that is
        None."""
        self._name = name
        self._command = command
        self._decoder = decoder
        self._env = env
        self._limit = limit
        self._idle_limit = idle
        self._turns = asyncio.Semaphore(processes)
        self._idle: list[Helper[M]] = []
        self._busy: set[Helper[M]] = set()
        self._jobs: set[asyncio.Task[object]] = set()
        self._ending: set[asyncio.Task[int]] = set()
        self._preparing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    @property
    def pids(self) -> list[int]:
        """The ids of the running processes."""
        return [helper.child.pid for helper in (*self._idle, *self._busy)]

    def prepare(self) -> None:
        """Starts a process before the first job. If that fails, the first job starts it."""
        self._preparing = asyncio.create_task(self._prepare())

    async def run(self, job: Job[M, T], *, cancels: bool = False) -> T:
        """Returns the result of `job`, which gets a process to itself.

        Cancelling ends the process of a job with `cancels`; all other jobs run to their end. Raises
        the exceptions of `job`, ChildError if a new process ends with it, server_error if no
        process can be started, and unavailable_error after `stop`.
        """
        if cancels:
            async with self._turns:
                return await self._take_turn(job)
        await self._turns.acquire()
        # A separate task: a client that disconnects must not leave the process with an unfinished
        # job.
        task = asyncio.create_task(self._take_turn(job))
        self._jobs.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    async def stop(self) -> None:
        """Ends all processes; open jobs fail."""
        self._stopped = True
        if self._preparing is not None:
            await self._preparing
        for helper in self._busy:
            helper.child.kill()
        await asyncio.gather(*self._jobs, return_exceptions=True)
        self._end_idle()
        await asyncio.gather(*self._ending)

    async def _prepare(self) -> None:
        try:
            with suppress(EngineError):
                self._idle.append(await self._start())
        finally:
            self._preparing = None

    def _done(self, task: "asyncio.Task[object]") -> None:
        self._jobs.discard(task)
        self._turns.release()
        if not task.cancelled():
            task.exception()  # retrieved, even if the client has disconnected

    async def _take_turn(self, job: Job[M, T]) -> T:
        if self._preparing is not None:
            await asyncio.shield(self._preparing)
        while self._idle:
            helper = self._idle.pop()
            if helper.child.is_alive:
                with suppress(ChildError):
                    return await self._do(helper, job)
            else:
                self._end(helper)
        return await self._do(await self._start(), job)

    async def _do(self, helper: Helper[M], job: Job[M, T]) -> T:
        self._busy.add(helper)
        is_fit = False
        try:
            result = await job(helper)
            is_fit = helper.is_fit
        except EngineError:
            is_fit = helper.is_fit
            raise
        finally:
            self._busy.discard(helper)
            if is_fit and helper.child.is_alive and not self._stopped:
                self._idle.append(helper)
                self._wait_idle()
            else:
                helper.child.kill()
                self._end(helper)
        return result

    async def _start(self) -> Helper[M]:
        self._check_running()
        try:
            child: Child[Started | M] = await Child.start_for_jobs(
                self._command, self._decoder, env=self._env, limit=self._limit
            )
        except (TimeoutError, ChildError) as error:
            raise server_error(f"{self._name} could not be started") from error
        except OSError as error:
            raise server_error(f"{self._name} could not be started: {error}") from error
        helper = Helper(child)
        if self._stopped:
            self._end(helper)
        self._check_running()
        return helper

    def _check_running(self) -> None:
        if self._stopped:
            raise unavailable("the server is shutting down")

    def _wait_idle(self) -> None:
        if self._idle_limit is not None:
            if self._timer is not None:
                self._timer.cancel()
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._idle_limit, self._end_idle)

    def _end_idle(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        while self._idle:
            self._end(self._idle.pop())

    def _end(self, helper: Helper[M]) -> None:
        """Ends a process without a job. A task releases its resources."""
        task = asyncio.create_task(_end(helper.child))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


async def _end(child: Child[M]) -> int:
    await child.end(STOP_TIMEOUT)
    return await child.reap()
