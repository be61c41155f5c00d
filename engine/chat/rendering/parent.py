"""The asyncio side of the template processes (`engine.chat.rendering.child`).

There are at most `PROCESSES` of them, each started when it is needed first. Jobs take turns in the
order they come, so a slow one leaves the other process to the rest, and the time limit holds for
each job from the moment it begins. A process that breaks the limit is killed; the next job that
needs one starts a new one.
"""

import asyncio
import logging
from contextlib import suppress
from typing import Final, Self

import msgspec

from engine.chat.prompt import ChatPrompt
from engine.chat.rendering.messages import (
    Answer,
    Description,
    Job,
    Ready,
    Refused,
    TemplateSource,
    answer_decoder,
    renderer_frame,
)
from engine.chat.request import ChatRequest
from engine.errors import EngineError, invalid_request, server_error, unavailable
from engine.processes.commands import TEMPLATE_MEMORY, TEMPLATE_SECONDS, Command, template_command
from engine.processes.framing import HEADER, MAX_FRAME
from engine.processes.head_start import adopt

log = logging.getLogger("engine.chat.rendering")

PROCESSES: Final = 2
START_TIMEOUT: Final = 60.0  # s until a process is ready
STOP_TIMEOUT: Final = 1.0  # s until a process that should end is killed
BUFFER: Final = 1 << 20  # bytes of a frame that are read ahead
MAX_DESCRIPTIONS: Final = 64


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
        """What `template` can express; found out once."""
        if template not in self._descriptions:
            answer = await self._do(template, None)
            assert isinstance(answer, Description)
            if len(self._descriptions) >= MAX_DESCRIPTIONS:
                self._descriptions.clear()
            self._descriptions[template] = answer
        return self._descriptions[template]

    @property
    def pids(self) -> list[int]:
        """Those of the processes that there are."""
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
        process = self._idle.pop() if self._idle else await self._start()
        self._busy.add(process)
        try:
            answer = await process.answer(template, request, self._time_limit)
        finally:
            self._busy.discard(process)
            if process.is_alive:
                self._idle.append(process)
        if isinstance(answer, Refused):
            raise EngineError(answer.error)
        return answer

    async def _start(self) -> "_Process":
        process = await _Process.start(self._memory_limit, self._time_limit)
        if self._stopped:
            await process.end()
            raise unavailable("the server is shutting down")
        return process


class _Process:
    """One template process, with one job at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._stdin, self._stdout = process.stdin, process.stdout
        self._numbers: dict[TemplateSource, int] = {}  # of the templates it has been given

    @classmethod
    async def start(cls, memory_limit: int, time_limit: float) -> Self:
        """Raises EngineError (server_error) if there is no starting one."""
        try:
            process = await _start(template_command(memory_limit, time_limit))
        except OSError as e:
            raise server_error(f"A template process could not be started: {e}") from e
        made = cls(process)
        try:
            async with asyncio.timeout(START_TIMEOUT):
                await made._receive()
        except (TimeoutError, EOFError, ConnectionError) as e:
            await made._bury()
            raise server_error("A template process could not be started") from e
        return made

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    async def answer(
        self, template: TemplateSource, request: ChatRequest | None, time_limit: float
    ) -> Answer:
        """Do one job. Raises EngineError if it takes too long or ends the process."""
        number = self._numbers.get(template, len(self._numbers))
        job = Job(number, None if template in self._numbers else template, request)
        try:
            data = renderer_frame(job)
        except (UnicodeEncodeError, RecursionError) as e:
            raise invalid_request(f"This request can't be given to a chat template: {e}") from e
        try:
            async with asyncio.timeout(time_limit):
                self._stdin.write(data)
                await self._stdin.drain()
                answer = await self._receive()
        except TimeoutError:
            await self._bury()
            raise invalid_request(
                f"The chat template takes more than {time_limit:g} s for this request and was "
                "stopped"
            ) from None
        except (EOFError, ConnectionError, msgspec.MsgspecError) as e:
            with suppress(TimeoutError):  # killing it just now would hide how it ended
                await asyncio.wait_for(self._process.wait(), STOP_TIMEOUT)
            code = await self._bury()
            log.error("a template process ended with code %d, in the middle of a job", code)
            raise server_error("The chat template crashed on this request") from e
        assert not isinstance(answer, Ready)
        self._numbers[template] = number
        return answer

    async def end(self) -> None:
        """For a process without a job."""
        self._stdin.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), STOP_TIMEOUT)
        await self._bury()

    def kill(self) -> None:
        """Its job, if it has one, ends with an error."""
        with suppress(ProcessLookupError):
            self._process.kill()

    async def _bury(self) -> int:
        """Make sure that the process is no more; its exit code."""
        if self._process.returncode is None:
            self.kill()
        return await self._process.wait()

    async def _receive(self) -> Ready | Answer:
        """The next message. Raises EOFError, ConnectionError or MsgspecError."""
        (length,) = HEADER.unpack(await self._stdout.readexactly(HEADER.size))
        if length > MAX_FRAME:
            raise EOFError
        message: Ready | Answer = answer_decoder.decode(await self._stdout.readexactly(length))
        return message


async def _start(command: Command) -> asyncio.subprocess.Process:
    """The process that was given a head start, or a new one. Raises OSError."""
    loop = asyncio.get_running_loop()
    protocol = asyncio.subprocess.SubprocessStreamProtocol(BUFFER, loop)
    early = await adopt(command, protocol)
    if early is not None:
        return asyncio.subprocess.Process(early, protocol, loop)  # type: ignore[arg-type]
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=BUFFER,
    )
