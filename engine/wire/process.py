"""The server's side of a child process: its start, its messages, and its end."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, Generic, Protocol, Self, TypeVar, cast

from specllama.engine import system
from specllama.engine.wire.commands import Command, environment
from specllama.engine.wire.framing import MAX_FRAME, Decoder, FrameError, FrameReader, sender
from specllama.engine.wire.head_start import STDERR, STDIN, STDOUT, Adopted, adopt


class Changes:
    """Like `asyncio.Condition`, but `announce` takes no lock, so it can be called outside of
    coroutines."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def announce(self) -> None:
        """Let all waiting tasks check their conditions again."""
        self._next.set()
        self._next = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition()` is true. It may have become false again by the time this
        returns."""
        while not condition():
            await self._next.wait()

    async def within(self, seconds: float | None, condition: Callable[[], bool]) -> bool:
        """Like `until`, for at most `seconds` (None: any time). Returns False if they pass."""
        try:
            async with asyncio.timeout(seconds):
                await self.until(condition)
        except TimeoutError:
            return False
        return True


START_TIMEOUT: Final = 60.0  # s; until a job process is ready
LOOKS: Final = 10
GRACE: Final = 1.0  # s; from the end of its output to the end of the process

M = TypeVar("M")
Transport = asyncio.SubprocessTransport | Adopted


class ChildError(Exception):
    """A process ended, with exit status `code`, instead of answering."""

    def __init__(self, code: int) -> None:
        super().__init__(f"it ended with code {code}")
        self.code = code


class Log(Protocol):
    """Receives a process's stderr."""

    def feed(self, data: bytes) -> None: ...

    def close(self) -> None: ...


class _Pipes(asyncio.SubprocessProtocol, Generic[M]):
    """Handles asyncio's events of a process. It decodes messages directly where the output arrives:
    a separate reader task would delay each message by a turn of the event loop."""

    def __init__(self, frames: FrameReader[M], log: Log | None) -> None:
        self.has_output = False  # there was output since this was last reset
        self.pending: deque[M] = deque()  # messages that nothing has received yet
        self.on_message: Callable[[M], None] | None = self._keep
        self.failure: Exception | None = None  # why its output is invalid
        self.output_ended = asyncio.Event()
        self.log_ended = asyncio.Event()
        self.exited = asyncio.Event()
        self.changes = Changes()
        self._frames = frames
        self._log = log
        if log is None:
            self.log_ended.set()

    def _keep(self, message: M) -> None:
        self.pending.append(message)
        self.changes.announce()

    def _end_output(self) -> None:
        self.output_ended.set()
        self.changes.announce()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == STDERR:
            if self._log is not None:
                self._log.feed(data)
            return
        self.has_output = True
        if self.on_message is None or self.failure is not None:
            return
        try:
            for message in self._frames.feed(data):
                self.on_message(message)
        except Exception as error:  # after any error, later output can't be trusted
            self.failure = error
            self._end_output()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == STDOUT:
            self._end_output()
        elif fd == STDERR and self._log is not None:
            self._log.close()
            self.log_ended.set()

    def process_exited(self) -> None:
        self.exited.set()


class Child(Generic[M]):
    """A process that sends messages `M`. Its starter must `reap` it."""

    first_id = 1
    """The first id of a request to it."""

    def __init__(self, process: Transport, pipes: _Pipes[M], stdin: asyncio.WriteTransport) -> None:
        self.stdin = stdin
        self._process = process
        self._pipes = pipes
        self._ending = False

    @classmethod
    async def start(
        cls,
        command: Command,
        decoder: Decoder[M],
        *,
        first: bytes = b"",
        env: Mapping[str, str] | None = None,
        log: Log | None = None,
        limit: int = MAX_FRAME,
    ) -> Self:
        """Start a process, or adopt one with a head start, and send the frame `first` to it.

        `env` is its environment (default: `environment()`); `log` receives its stderr (default: the
        server's stderr); `limit` is the maximum size of a message in bytes. Raises OSError if the
        system can't start another process.
        """
        pipes = _Pipes(FrameReader(decoder, limit), log)
        process: Transport | None = await adopt(command, pipes, first)
        is_new = process is None
        if process is None:
            process, _ = await asyncio.get_running_loop().subprocess_exec(
                lambda: pipes,
                *command,
                stderr=None if log is None else asyncio.subprocess.PIPE,
                env=environment() if env is None else env,
            )
        # uvloop's transports don't inherit from asyncio's classes, but have the same methods.
        stdin = cast(asyncio.WriteTransport, process.get_pipe_transport(STDIN))
        child = cls(process, pipes, stdin)
        if first and is_new:  # `adopt` has already sent it
            child.say(first)
        return child

    @classmethod
    async def start_for_jobs(
        cls,
        command: Command,
        decoder: Decoder[M],
        *,
        env: Mapping[str, str] | None = None,
        limit: int = MAX_FRAME,
    ) -> Self:
        """`start` a job process (`engine.wire.link.do_jobs`), and wait until it is ready.

        Raises OSError, or TimeoutError or ChildError if it doesn't become ready; then it has been
        ended.
        """
        child = await cls.start(command, decoder, env=env, limit=limit)
        try:
            await child.ask(b"", START_TIMEOUT)
        except BaseException:
            await child.reap()
            raise
        return child

    @property
    def pid(self) -> int:
        return self._process.get_pid()

    @property
    def is_alive(self) -> bool:
        return self._process.get_returncode() is None

    @property
    def failure(self) -> Exception | None:
        """The reason why its output is invalid, or why handling it failed."""
        return self._pipes.failure

    def say(self, data: bytes) -> None:
        """Write to its stdin. Data for an ended process is dropped, as its end is handled
        elsewhere; uvloop's transports would raise an error, unlike asyncio's."""
        if not self.stdin.is_closing():
            self.stdin.write(data)

    def sender(self) -> Callable[[object], None]:
        """Returns a function that sends a message to the process (`engine.wire.framing`)."""
        return sender(self.stdin)

    def listen(self, on_message: Callable[[M], None] | None) -> None:
        """Pass all pending messages, and from now on each new one at its arrival, to `on_message`.
        None: drop all further messages."""
        self._pipes.on_message = on_message
        if on_message is not None:
            while self._pipes.pending:
                on_message(self._pipes.pending.popleft())

    async def output_end(self, silence: float) -> None:
        """Wait until its output ends or becomes invalid. Raises TimeoutError after `silence`
        seconds without output.

        The time is divided into LOOKS parts, and only consecutive parts without output count. A
        time in which this process was stopped (a paused container, a sleeping laptop) counts as one
        part: the other process's output is still in the pipe and is read in the next part.
        """
        pipes, n_silent = self._pipes, 0
        while n_silent < LOOKS:
            pipes.has_output = False
            with suppress(TimeoutError):
                await asyncio.wait_for(pipes.output_ended.wait(), silence / LOOKS)
                return
            n_silent = 0 if pipes.has_output else n_silent + 1
        raise TimeoutError

    async def receive(self) -> M:
        """The next message. Raises EOFError after the last one, FrameError if the output is
        invalid."""
        pipes = self._pipes
        await pipes.changes.until(lambda: bool(pipes.pending) or pipes.output_ended.is_set())
        if pipes.pending:
            return pipes.pending.popleft()
        if pipes.failure is not None:
            raise FrameError(str(pipes.failure)) from pipes.failure
        raise EOFError

    async def ask(self, request: bytes, seconds: float) -> M:
        """The answer to the frame `request`. Raises TimeoutError after `seconds`, ChildError if the
        process ends or its output is invalid; in both cases the process has been ended."""
        try:
            async with asyncio.timeout(seconds):
                self.say(request)
                return await self.receive()
        except TimeoutError:
            await self.reap()
            raise
        except (EOFError, FrameError) as error:
            raise ChildError(await self.reap(GRACE)) from error

    async def end(self, seconds: float) -> bool:
        """Close its stdin, so that it ends; kill it after `seconds`. Returns True if it ended by
        itself."""
        self._ending = True
        self.stdin.close()
        try:
            await asyncio.wait_for(self._pipes.exited.wait(), seconds)
        except TimeoutError:
            self.kill()
            await self._pipes.exited.wait()
            return False
        return True

    def kill(self) -> None:
        """Kill the process. Has no effect if it has already ended."""
        self._ending = True
        self.send_signal(system.KILL)

    def send_signal(self, number: int) -> None:
        """Send a signal to the process. Has no effect if it has already ended.

        asyncio's own method would first ask the system whether the process has ended. The system
        reports an exit status only once, so asyncio's wait for it would then fail.
        """
        if self.is_alive:
            system.send_signal(self.pid, number)

    async def reap(self, grace: float = 0.0) -> int:
        """Make sure that the process has ended. Returns its exit status.

        It is killed unless it ends by itself within `grace` seconds: its pipe closes a moment
        before it ends, and killing it in that moment would hide its own exit status. After `end` or
        `kill`, this only waits.
        """
        if not self._ending:
            if grace:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._pipes.exited.wait(), grace)
            if self.is_alive:
                self.kill()
        await self._pipes.exited.wait()
        with suppress(TimeoutError):  # a debugger that it started may hold its stderr open
            await asyncio.wait_for(self._pipes.log_ended.wait(), GRACE)
        code = self._process.get_returncode()
        assert code is not None, "it has ended"
        self._process.close()
        return code
