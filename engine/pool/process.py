"""One engine process, seen from the server: its pipes, its signs of life, and its end."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from engine.options import Options
from engine.pool.client import EngineClient
from engine.pool.restarts import Life
from engine.processes.commands import engine_command, environment
from engine.processes.exits import is_illegal_instruction
from engine.processes.head_start import STDERR, STDIN, STDOUT, Adopted, adopt
from engine.protocol.engine_log import EngineLog
from engine.protocol.messages import Frames, Load, ModelInfo, Step, ToEngine, ToServer, frame

log = logging.getLogger("engine.process")

HEARTBEAT_TIMEOUT = 30.0  # s without any output: the process is stuck
GRACE = 1.0  # s from the end of its output to the end of the process
END_TIMEOUT = 6.0  # s for the last step, then the process is killed


class _Pipes(asyncio.SubprocessProtocol):
    """What asyncio tells of a process. Its messages are handed on where its output arrives: a
    reader in between would cost every token a turn of the event loop."""

    def __init__(self, engine_log: EngineLog) -> None:
        self.silent_since = 0.0  # time of the loop at which it said something last
        self.unheard: list[ToServer] = []  # what it said before anybody listened
        self.on_message: Callable[[ToServer], None] | None = self.unheard.append
        self.failure: Exception | None = None  # what was wrong with its output
        self.output_ended = asyncio.Event()
        self.log_ended = asyncio.Event()
        self.exited = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._frames = Frames()
        self._engine_log = engine_log

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == STDERR:
            self._engine_log.feed(data)
            return
        self.silent_since = self._loop.time()
        if self.on_message is None or self.failure is not None:
            return
        try:
            for message in self._frames.feed(data):
                self.on_message(message)
        except Exception as error:  # whatever it is, nothing after it can be trusted
            self.failure = error
            self.output_ended.set()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == STDOUT:
            self.output_ended.set()
        elif fd == STDERR:
            self._engine_log.close()
            self.log_ended.set()

    def process_exited(self) -> None:
        self.exited.set()


class EngineProcess:
    """A process of `engine.worker`, which has been started and must be seen to its end."""

    def __init__(
        self,
        process: asyncio.SubprocessTransport | Adopted,
        pipes: _Pipes,
        sink: asyncio.WriteTransport,
    ) -> None:
        self.client: EngineClient | None = None  # once it is ready
        self.ready_at: float | None = None  # of time.monotonic()
        self.refusal = ""  # why it can't load the model, in its own words
        self._process = process
        self._pipes = pipes
        self._sink = sink
        self._ending = False

    @classmethod
    async def start(cls, options: Options, engine_log: EngineLog) -> "EngineProcess":
        """Start one that loads the model of `options`, or take the one that was given a head
        start. What it says on stderr goes to `engine_log`. Raises OSError if the system has no
        room for another process."""
        pipes, load = _Pipes(engine_log), frame(Load(options))
        process: asyncio.SubprocessTransport | Adopted | None = await adopt(
            engine_command(), pipes, load
        )
        if process is None:
            process, _ = await asyncio.get_running_loop().subprocess_exec(
                lambda: pipes,
                *engine_command(),
                env=environment(),
            )
        # uvloop's transports are none of asyncio's classes, but have all their methods.
        sink = cast(asyncio.WriteTransport, process.get_pipe_transport(STDIN))
        if not isinstance(process, Adopted):  # which has heard it
            sink.write(load)
        return cls(process, pipes, sink)

    @property
    def pid(self) -> int:
        return self._process.get_pid()

    def send(self, message: ToEngine) -> None:
        """For messages whose answer nobody waits for."""
        self._sink.write(frame(message))

    def open(self, info: ModelInfo) -> EngineClient:
        """It is ready: the way to send it requests."""
        self.ready_at = time.monotonic()
        self.client = EngineClient(self._sink, info)
        return self.client

    async def listen(self, take: Callable[[ToServer], None]) -> None:
        """Hand on what the process says, until it is dead, stuck or mad: answers to the client,
        everything else to `take`."""

        def on_message(message: ToServer) -> None:
            if isinstance(message, Step) and self.client is not None:
                self.client.dispatch(message)  # nearly always
            else:
                take(message)

        pipes, loop = self._pipes, asyncio.get_running_loop()
        pipes.silent_since, pipes.on_message = loop.time(), on_message
        for message in pipes.unheard:
            on_message(message)
        while (rest := pipes.silent_since + HEARTBEAT_TIMEOUT - loop.time()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(rest):
                    await pipes.output_ended.wait()
                    break
        else:
            log.error("the engine process gives no sign of life and is replaced")
        pipes.on_message = None
        if pipes.failure is not None:
            log.error("the engine process sends nonsense and is replaced: %s", pipes.failure)

    def kill(self) -> None:
        """For one that has nothing to lose, or that does not listen any more."""
        self._ending = True
        with suppress(ProcessLookupError):
            self._process.kill()

    async def end(self) -> None:
        """Let it finish its step and clean up; kill it if it takes more than END_TIMEOUT."""
        self._ending = True
        self._sink.close()
        try:
            await asyncio.wait_for(self._pipes.exited.wait(), END_TIMEOUT)
        except TimeoutError:
            log.warning("the engine process did not end by itself and is killed")
            self.kill()
            await self._pipes.exited.wait()

    def life(self, code: int) -> Life:
        """Its life, now that it has ended with `code`."""
        return Life(
            ready=self.ready_at is not None,
            served=self.client is not None and self.client.has_served,
            seconds=0.0 if self.ready_at is None else time.monotonic() - self.ready_at,
            illegal=is_illegal_instruction(code),
        )

    async def code(self) -> int:
        """The exit status, for one that is not listened to any more. Kills it if need be."""
        if not self._ending:
            try:
                # Its pipe closes a moment before it is gone. Killing it in that moment would
                # take its exit status away from asyncio.
                await asyncio.wait_for(self._pipes.exited.wait(), GRACE)
            except TimeoutError:
                self.kill()  # stuck, or it closed its pipe in an odd way
        await self._pipes.exited.wait()
        with suppress(TimeoutError):  # a debugger that it started may hold its stderr open
            await asyncio.wait_for(self._pipes.log_ended.wait(), GRACE)
        code = self._process.get_returncode()
        assert code is not None, "it has ended"
        self._process.close()
        return code
