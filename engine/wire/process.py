"""The server's side of a child process: started, talked to in frames, and seen to its end."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, Generic, Protocol, Self, TypeVar, cast

from specllama.engine import system
from specllama.engine.wire.commands import Command, environment
from specllama.engine.wire.framing import MAX_FRAME, Decoder, FrameError, FrameReader
from specllama.engine.wire.head_start import STDERR, STDIN, STDOUT, Adopted, adopt


class Changes:
    """Like `asyncio.Condition`, but a change is announced without waiting for a lock, so that
    what changes state need not be a coroutine."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def announce(self) -> None:
        """Something has changed: everybody who waits looks at their condition again."""
        self._next.set()
        self._next = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition()`. It held at some moment, and need not hold any more."""
        while not condition():
            await self._next.wait()


START_TIMEOUT: Final = 60.0  # s until a process that does jobs is ready
LOOKS: Final = 10
GRACE: Final = 1.0  # s from the end of its output to the end of the process

M = TypeVar("M")
Transport = asyncio.SubprocessTransport | Adopted


class ChildError(Exception):
    """A process ended, with this exit status, where it should have answered."""

    def __init__(self, code: int) -> None:
        super().__init__(f"it ended with code {code}")
        self.code = code


class Log(Protocol):
    """Takes a process's stderr."""

    def feed(self, data: bytes) -> None: ...

    def close(self) -> None: ...


class _Pipes(asyncio.SubprocessProtocol, Generic[M]):
    """Asyncio's events of a process. Its messages are handed on where its output arrives: a reader
    in between would cost every one a turn of the event loop."""

    def __init__(self, frames: FrameReader[M], log: Log | None) -> None:
        self.was_heard = False  # whether it has said something since this was set last
        self.unheard: deque[M] = deque()  # messages that were not awaited yet
        self.on_message: Callable[[M], None] | None = self._keep
        self.failure: Exception | None = None  # what was wrong with its output
        self.output_ended = asyncio.Event()
        self.log_ended = asyncio.Event()
        self.exited = asyncio.Event()
        self.changes = Changes()
        self._frames = frames
        self._log = log
        if log is None:
            self.log_ended.set()

    def _keep(self, message: M) -> None:
        self.unheard.append(message)
        self.changes.announce()

    def _end_output(self) -> None:
        self.output_ended.set()
        self.changes.announce()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == STDERR:
            if self._log is not None:
                self._log.feed(data)
            return
        self.was_heard = True
        if self.on_message is None or self.failure is not None:
            return
        try:
            for message in self._frames.feed(data):
                self.on_message(message)
        except Exception as error:  # whatever it is, nothing after it can be trusted
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
    """A process that says messages `M`. Whoever starts one must `reap` it."""

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
        """Start one, or take the one that was given a head start, and say the frame `first` to it.

        `env` is its environment, else `environment()`; `log` takes what it says on stderr, else
        the server's stderr does; `limit` is that of a message, in bytes. Raises OSError if the
        system has no room for another process.
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
        # uvloop's transports are none of asyncio's classes, but have all their methods.
        stdin = cast(asyncio.WriteTransport, process.get_pipe_transport(STDIN))
        child = cls(process, pipes, stdin)
        if first and is_new:  # an adopted one has heard it
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
        """`start` one that does jobs (`stdio.do_jobs`), and wait until it is ready for them.

        Raises OSError; TimeoutError or ChildError if it does not get so far. It is no more then.
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
        """The reason why its output can't be understood, or was too much for its reader."""
        return self._pipes.failure

    def say(self, data: bytes) -> None:
        """Write to its stdin. What it can't hear any more is dropped: that it has ended is seen
        elsewhere. uvloop's transports would raise an error, unlike asyncio's."""
        if not self.stdin.is_closing():
            self.stdin.write(data)

    def listen(self, on_message: Callable[[M], None] | None) -> None:
        """Hand on what it has said and, from now on, each message at the moment it arrives.
        None: no more messages are wanted."""
        self._pipes.on_message = on_message
        if on_message is not None:
            while self._pipes.unheard:
                on_message(self._pipes.unheard.popleft())

    async def output_end(self, silence: float) -> None:
        """Wait until it says nothing more, or nonsense. Raises TimeoutError once it has said
        nothing for `silence` seconds.

        The time is watched in LOOKS parts, and only parts in which nothing came count. If this
        process was stopped for a while (a paused container, a laptop that slept), that is one part,
        however long: what the other one said is still in the pipe and is read in the next.
        """
        pipes, n_silent = self._pipes, 0
        while n_silent < LOOKS:
            pipes.was_heard = False
            with suppress(TimeoutError):
                await asyncio.wait_for(pipes.output_ended.wait(), silence / LOOKS)
                return
            n_silent = 0 if pipes.was_heard else n_silent + 1
        raise TimeoutError

    async def receive(self) -> M:
        """The next message. Raises EOFError after the last one, FrameError if it is nonsense."""
        pipes = self._pipes
        await pipes.changes.until(lambda: bool(pipes.unheard) or pipes.output_ended.is_set())
        if pipes.unheard:
            return pipes.unheard.popleft()
        if pipes.failure is not None:
            raise FrameError(str(pipes.failure)) from pipes.failure
        raise EOFError

    async def ask(self, request: bytes, seconds: float) -> M:
        """The answer to the frame `request`. A process that gives none is no more after that:
        raises TimeoutError after `seconds`, ChildError if it ends or says nonsense."""
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
        """Close its stdin, which asks it to end; kill it after `seconds`. Whether it ended by
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
        """Kills the process; has no effect if it has ended already."""
        self._ending = True
        self.send_signal(system.KILL)

    def send_signal(self, number: int) -> None:
        """Sends the process a signal; has no effect if it has ended already.

        asyncio's transport would ask the system first whether the process has ended. If it has,
        that answer is given once, and asyncio's own wait for the exit status fails then.
        """
        if self.is_alive:
            system.send_signal(self.pid, number)

    async def reap(self, grace: float = 0.0) -> int:
        """Make sure that the process is no more; its exit status.

        It is killed unless it ends by itself within `grace` seconds: its pipe closes a moment
        before it is gone, and killing it in that moment would hide how it ended. One that `end` or
        `kill` was called for is waited for.
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
