"""The server's handle of one engine process: its pipes, its heartbeat, and its end."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from specllama.engine import system
from specllama.engine.errors import EngineError, ErrorInfo
from specllama.engine.models.client import EngineClient
from specllama.engine.models.lifecycle import ProcessLife
from specllama.engine.options import EngineOptions, Options
from specllama.engine.wire.commands import STACKS_SIGNAL, engine_command, is_illegal_instruction
from specllama.engine.wire.engine_log import EngineLog
from specllama.engine.wire.framing import frame
from specllama.engine.wire.process import GRACE, Child
from specllama.engine.wire.replies import (
    AboutModel,
    Heartbeat,
    Measured,
    ModelInfo,
    Resized,
    SlotState,
    Step,
    ToServer,
    to_server_decoder,
)
from specllama.engine.wire.requests import Load, ToEngine
from specllama.engine.wire.stats import Stats

log = logging.getLogger("specllama.engine.process")

HEARTBEAT_TIMEOUT = 30.0  # s without any output, after which the process counts as stuck
END_TIMEOUT = 6.0  # s for the last step, after which the process is killed


StartProcess = Callable[[EngineOptions, EngineLog, int], Awaitable["EngineProcess"]]
"""`EngineProcess.start`."""
Examine = Callable[[Options, ModelInfo], Awaitable[ModelInfo]]
"""Checks a model that a process has loaded. Returns the information that requests may use. Raises
`EngineError` if the model can't be served."""


class ProcessSnapshot(msgspec.Struct, frozen=True):
    """The last statistics and slots of a process that was stopped because it was idle."""

    stats: Stats
    slots: list[SlotState]


class Process(Protocol):
    """The part of `engine.wire.process.Child` that an `EngineProcess` uses. `engine.fleet.fleet`
    has another implementation: several replicas of a model, which count as one process."""

    first_id: int

    @property
    def pid(self) -> int: ...

    @property
    def failure(self) -> Exception | None: ...

    def sender(self) -> Callable[[ToEngine], None]: ...

    def listen(self, on_message: Callable[[ToServer], None] | None) -> None: ...

    async def output_end(self, silence: float) -> None: ...

    def send_signal(self, number: int) -> None: ...

    def kill(self) -> None: ...

    async def end(self, seconds: float) -> bool: ...

    async def reap(self, grace: float = 0.0) -> int: ...


class EngineProcess:
    """A started process of `engine.worker`, with the state that belongs to this process alone. The
    code that starts one has to wait for its end (`code`)."""

    def __init__(self, child: Process) -> None:
        self.client: EngineClient | None = None  # once it is ready
        self.ready_at: float | None = None  # of system.now()
        self.refusal = ""  # why the model can't be loaded, or not be served
        self.relay: Callable[[ToServer], None] | None = None
        """Receives every message of the process, before the client does."""
        self.send = child.sender()
        """Sends a message to the process. An answer goes to the `client` only if that has sent
        the message."""
        self._child = child
        self._n_slots = 0  # if it has changed before the client was opened

    @classmethod
    async def start(
        cls, options: EngineOptions, engine_log: EngineLog, log_level: int
    ) -> "EngineProcess":
        """Starts a process that loads the model of `options`, or takes over the one of the head
        start (`engine.wire.head_start`). Its stderr goes to `engine_log`, from `log_level` on.
        Raises OSError if the system can't create another process."""
        load = frame(Load(options, log_level))
        return cls(
            await Child.start(engine_command(), to_server_decoder, first=load, log=engine_log)
        )

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def n_running(self) -> int:
        """The number of requests that wait or run in the process."""
        return self.client.n_running if self.client else 0

    def open(self, info: ModelInfo) -> EngineClient:
        """Returns the client of the process, which is ready."""
        self.ready_at = system.now()
        if self._n_slots:
            info = msgspec.structs.replace(info, n_slots=self._n_slots)
        self.client = EngineClient(self.send, info, first_id=self._child.first_id)
        return self.client

    async def snapshot(self) -> ProcessSnapshot | None:
        """Returns the statistics and slots of the process; None if it isn't ready, or ends."""
        if self.client is None:
            return None
        try:
            return ProcessSnapshot(await self.client.stats(), await self.client.slots())
        except EngineError:
            return None

    async def listen(self, take: Callable[[AboutModel], None]) -> None:
        """Reads the process's messages until it ends, is stuck or violates the protocol. Passes the
        messages of steps to the client, and all others except heartbeats to `take`."""

        def on_message(message: ToServer) -> None:
            if self.relay is not None:
                self.relay(message)
            if isinstance(message, Step) and self.client is not None:
                self.client.dispatch(message)  # by far the most frequent message
            elif isinstance(message, Heartbeat):
                if self.client is not None:
                    self.client.n_private = message.n_private
            elif isinstance(message, Resized) and self.client is None:
                self._n_slots = message.n_slots
            elif not isinstance(message, Measured):
                take(message)

        child = self._child
        child.listen(on_message)
        try:
            await child.output_end(HEARTBEAT_TIMEOUT)
        except TimeoutError:
            log.error("the engine process doesn't respond and is replaced")
            if STACKS_SIGNAL is not None:
                child.send_signal(STACKS_SIGNAL)  # if that doesn't end it, `code` kills it
        child.listen(None)
        if child.failure is not None:
            log.error("the engine process violates the protocol and is replaced: %s", child.failure)

    def kill(self) -> None:
        """Kills the process."""
        self._child.kill()

    async def end(self) -> None:
        """Lets the process finish its step and clean up; kills it after END_TIMEOUT."""
        if not await self._child.end(END_TIMEOUT):
            log.warning("the engine process did not end by itself and was killed")

    def summary(self, code: int) -> ProcessLife:
        """Returns a summary of the process, which has ended with `code`."""
        return ProcessLife(
            ready=self.ready_at is not None,
            served=self.client is not None and self.client.has_served,
            seconds=0.0 if self.ready_at is None else system.now() - self.ready_at,
            illegal=is_illegal_instruction(code),
        )

    async def code(self) -> int:
        """Returns the exit status. Waits for a process that is ending, and kills any other."""
        return await self._child.reap(GRACE)


class WaitingRequests:
    """The requests that a process had not begun when it ended. They wait for the next process."""

    def __init__(self, seconds: float) -> None:
        """`seconds` is the maximum time to wait."""
        self._seconds = seconds
        self._client: EngineClient | None = None  # of the process that ended
        self._timer: asyncio.TimerHandle | None = None

    def take(self, client: EngineClient, error: ErrorInfo, late: ErrorInfo) -> None:
        """Takes the requests of `client` that had not begun. The others fail with `error`. Requests
        that wait too long fail with `late`."""
        client.detach(error)
        self._client = client
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self.give_up, late)

    def go_on(self, client: EngineClient) -> None:
        """Passes the requests to the `client` of the next process."""
        if self._client is not None:
            client.adopt_from(self._client)
            self._forget()

    def give_up(self, error: ErrorInfo) -> None:
        """Fails the requests with `error`: there is no next process, or not soon enough."""
        if self._client is not None:
            self._client.close(error)
            self._forget()

    def _forget(self) -> None:
        self._client = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
