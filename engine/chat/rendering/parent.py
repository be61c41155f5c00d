"""The asyncio side of the template processes (`engine.chat.rendering.child`).

There are at most `PROCESSES` of them, each started when it is needed first. Jobs take turns in the
order they come, so a slow one leaves the other process to the rest, and the time limit holds for
each job from the moment it begins. A process that breaks the limit or runs out of memory is killed;
the next job that needs one starts a new one. A job with which a used process ends is done again by
a new one: the fault may be an earlier job's, or somebody killed the process.
"""

import asyncio
import logging
from contextlib import suppress
from typing import Final, Self

from specllama.engine.chat.prompt import ChatPrompt
from specllama.engine.chat.rendering.messages import (
    Answer,
    Description,
    Job,
    Refused,
    TemplateSource,
    answer_decoder,
)
from specllama.engine.chat.request import ChatRequest
from specllama.engine.errors import EngineError, invalid_request, server_error, unavailable
from specllama.engine.wire.commands import TEMPLATE_MEMORY, TEMPLATE_SECONDS, template_command
from specllama.engine.wire.framing import JSON, Started, frame
from specllama.engine.wire.process import Child, ChildError

log = logging.getLogger("specllama.engine.chat.rendering")

PROCESSES: Final = 2
STOP_TIMEOUT: Final = 1.0  # s until a process that should end is killed
MAX_DESCRIPTIONS: Final = 64
LARGE: Final = 1 << 20  # bytes of a job


class Renderer:
    """Renders chat templates that are not trusted.

    All methods raise EngineError: server_error if the template itself is not valid or the process
    crashes, invalid_request_error if it takes too long or too much memory, unavailable_error after
    `stop`.
    """

    def __init__(
        self, *, time_limit: float = TEMPLATE_SECONDS, memory_limit: int = TEMPLATE_MEMORY
    ) -> None:
        self._time_limit = time_limit
        self._memory_limit = memory_limit
        self._turns = asyncio.Semaphore(PROCESSES)
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()
        self._tasks: set[asyncio.Task[Answer]] = set()
        self._descriptions: dict[TemplateSource, Description] = {}
        self._preparing: asyncio.Task[None] | None = None
        self._stopped = False

    def prepare(self) -> None:
        """Start a process before it is needed. If that fails, the first job that needs it does."""
        self._preparing = asyncio.create_task(self._prepare())

    async def _prepare(self) -> None:
        with suppress(EngineError):
            self._idle.append(await self._start())
        self._preparing = None

    async def prompt(self, template: TemplateSource, request: ChatRequest) -> ChatPrompt:
        """`engine.chat.template.prompt.chat_prompt`, whose errors are raised, too."""
        answer = await self._do(template, request)
        assert isinstance(answer, ChatPrompt)
        return answer

    async def describe(self, template: TemplateSource) -> Description:
        """The traits of `template`; detected once."""
        if template not in self._descriptions:
            answer = await self._do(template, None)
            assert isinstance(answer, Description)
            if len(self._descriptions) >= MAX_DESCRIPTIONS:
                self._descriptions.clear()
            self._descriptions[template] = answer
        return self._descriptions[template]

    @property
    def pids(self) -> list[int]:
        """The ids of the present processes."""
        return [process.pid for process in (*self._idle, *self._busy)]

    async def stop(self) -> None:
        """End all processes; open jobs end with an error."""
        self._stopped = True
        if self._preparing is not None:
            await self._preparing
        for process in self._busy:
            process.kill()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(process.end() for process in self._idle))
        self._idle.clear()

    async def _do(self, template: TemplateSource, request: ChatRequest | None) -> Answer:
        await self._turns.acquire()
        # A task of its own: a client that leaves must not leave the process with a job half done.
        task = asyncio.create_task(self._take_turn(template, request))
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Task[Answer]) -> None:
        self._tasks.discard(task)
        self._turns.release()
        if not task.cancelled():
            task.exception()  # seen, even if the client has left

    async def _take_turn(self, template: TemplateSource, request: ChatRequest | None) -> Answer:
        if self._stopped:
            raise unavailable("the server is shutting down")
        if self._preparing is not None:
            await asyncio.shield(self._preparing)
        self._idle = [process for process in self._idle if process.is_alive]
        answer: Answer | None = None
        if self._idle:
            with suppress(ChildError):
                answer = await self._let_do(self._idle.pop(), template, request)
        if answer is None:
            try:
                answer = await self._let_do(await self._start(), template, request)
            except ChildError as e:
                raise server_error("the chat template crashed on this request") from e
        if isinstance(answer, Refused):
            raise EngineError(answer.error)
        return answer

    async def _let_do(
        self, process: "_Process", template: TemplateSource, request: ChatRequest | None
    ) -> Answer:
        """Raises ChildError if the process ends."""
        self._busy.add(process)
        try:
            answer = await process.answer(template, request, self._time_limit)
            if isinstance(answer, Refused) and answer.exhausted:
                process.kill()
                await process.end()
        finally:
            self._busy.discard(process)
            if process.is_alive:
                self._idle.append(process)
        return answer

    async def _start(self) -> "_Process":
        process = await _Process.start(self._memory_limit, self._time_limit)
        if self._stopped:
            await process.end()
            raise unavailable("the server is shutting down")
        return process


class _Process:
    """One template process, with one job at a time."""

    def __init__(self, child: Child[Started | Answer]) -> None:
        self._child = child
        self._numbers: dict[TemplateSource, int] = {}  # of the templates it has been given

    @classmethod
    async def start(cls, memory_limit: int, time_limit: float) -> Self:
        """Raises EngineError (server_error) if there is no starting one."""
        command = template_command(memory_limit, time_limit)
        try:
            return cls(await Child.start_for_jobs(command, answer_decoder))
        except (TimeoutError, ChildError) as e:
            raise server_error("a template process could not be started") from e
        except OSError as e:
            raise server_error(f"a template process could not be started: {e}") from e

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def is_alive(self) -> bool:
        return self._child.is_alive

    async def answer(
        self, template: TemplateSource, request: ChatRequest | None, time_limit: float
    ) -> Answer:
        """Do one job. Raises EngineError if it takes too long, ChildError if it ends the
        process."""
        number = self._numbers.get(template, len(self._numbers))
        job = Job(number, None if template in self._numbers else template, request)
        try:
            data = frame(job, JSON)
        except (UnicodeEncodeError, RecursionError) as e:
            raise invalid_request(f"this request can't be given to a chat template: {e}") from e
        if len(data) > LARGE:
            await asyncio.sleep(0)  # writing it copies it: others have their turn first
        try:
            answer = await self._child.ask(data, time_limit)
        except TimeoutError:
            raise invalid_request(
                f"the chat template takes more than {time_limit:g} s for this request and was "
                "stopped"
            ) from None
        except ChildError as e:
            log.error("a template process ended with code %d, in the middle of a job", e.code)
            raise
        assert not isinstance(answer, Started)
        self._numbers[template] = number
        return answer

    async def end(self) -> None:
        """Ends the process, which has no job."""
        await self._child.end(STOP_TIMEOUT)
        await self._child.bury()

    def kill(self) -> None:
        """Its job, if it has one, ends with an error."""
        self._child.kill()
