"""One engine process, from the server's side: its pipes, its heartbeat, and its end."""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from specllama.engine import system
from specllama.engine.errors import EngineError, ErrorInfo
from specllama.engine.models.client import EngineClient
from specllama.engine.models.lifecycle import ProcessLife
from specllama.engine.options import EngineOptions
from specllama.engine.wire.commands import STACKS_SIGNAL, engine_command, is_illegal_instruction
from specllama.engine.wire.engine_log import EngineLog
from specllama.engine.wire.framing import frame
from specllama.engine.wire.process import GRACE, Child
from specllama.engine.wire.replies import ModelInfo, SlotState, Step, ToServer, to_server_decoder
from specllama.engine.wire.requests import Load, ToEngine
from specllama.engine.wire.stats import Stats

log = logging.getLogger("specllama.engine.process")

HEARTBEAT_TIMEOUT = 30.0  # s without any output: the process is stuck
END_TIMEOUT = 6.0  # s for the last step, then the process is killed


class ProcessSnapshot(msgspec.Struct, frozen=True):
    """What a process said of itself when nobody needed it."""

    stats: Stats
    slots: list[SlotState]


class EngineProcess:
    """A process of `engine.worker` that has been started, with all that is known of it alone. Who
    starts one waits for its end (`code`)."""

    def __init__(self, child: Child[ToServer]) -> None:
        self.client: EngineClient | None = None  # once it is ready
        self.ready_at: float | None = None  # of system.now()
        self.refusal = ""  # why it can't load the model, in its own words
        self._child = child

    @classmethod
    async def start(
        cls, options: EngineOptions, engine_log: EngineLog, log_level: int
    ) -> "EngineProcess":
        """Start one that loads the model of `options`, or take the one that was given a head start.
        Its stderr goes to `engine_log`, from `log_level` on. Raises OSError if the system has no
        room for another process."""
        load = frame(Load(options, log_level))
        return cls(
            await Child.start(engine_command(), to_server_decoder, first=load, log=engine_log)
        )

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def n_running(self) -> int:
        """Requests that wait or run in it."""
        return self.client.n_running if self.client else 0

    def send(self, message: ToEngine) -> None:
        """Send a message that needs no answer."""
        self._child.say(frame(message))

    def open(self, info: ModelInfo) -> EngineClient:
        """The client of a process that is ready."""
        self.ready_at = system.now()
        self.client = EngineClient(self._child.stdin, info)
        return self.client

    async def look(self) -> ProcessSnapshot | None:
        """What it counts, and its slots; None if it isn't ready, or ends."""
        if self.client is None:
            return None
        try:
            return ProcessSnapshot(await self.client.stats(), await self.client.slots())
        except EngineError:
            return None

    async def listen(self, take: Callable[[ToServer], None]) -> None:
        """Dispatch its messages until it ends, is stuck or breaks the protocol: those of a step to
        the client, the others to `take`."""

        def on_message(message: ToServer) -> None:
            if isinstance(message, Step) and self.client is not None:
                self.client.dispatch(message)  # nearly always
            else:
                take(message)

        child = self._child
        child.listen(on_message)
        try:
            await child.output_end(HEARTBEAT_TIMEOUT)
        except TimeoutError:
            log.error("the engine process gives no sign of life and is replaced")
            if STACKS_SIGNAL is not None:
                child.send_signal(STACKS_SIGNAL)  # `code` kills one that doesn't end of it
        child.listen(None)
        if child.failure is not None:
            log.error("the engine process sends nonsense and is replaced: %s", child.failure)

    def kill(self) -> None:
        """End it at once."""
        self._child.kill()

    async def end(self) -> None:
        """Let it finish its step and clean up; kill it if it takes more than END_TIMEOUT."""
        if not await self._child.end(END_TIMEOUT):
            log.warning("the engine process did not end by itself and was killed")

    def life(self, code: int) -> ProcessLife:
        """A summary of the process, which has ended with `code`."""
        return ProcessLife(
            ready=self.ready_at is not None,
            served=self.client is not None and self.client.has_served,
            seconds=0.0 if self.ready_at is None else system.now() - self.ready_at,
            illegal=is_illegal_instruction(code),
        )

    async def code(self) -> int:
        """The exit status. Waits for the end of a process that is ending, and kills another one."""
        return await self._child.reap(GRACE)


class WaitingRequests:
    """The requests that a process had not begun when it ended: they wait for the next one."""

    def __init__(self, seconds: float) -> None:
        """They wait for at most so many seconds."""
        self._seconds = seconds
        self._client: EngineClient | None = None  # of the process that ended
        self._timer: asyncio.TimerHandle | None = None

    def take(self, client: EngineClient, error: ErrorInfo, late: ErrorInfo) -> None:
        """Takes the requests of `client` that had not begun. All others end with `error`; those
        that wait too long end with `late`."""
        client.leave(error)
        self._client = client
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self.give_up, late)

    def go_on(self, client: EngineClient) -> None:
        """Hands the requests to the `client` of the next process."""
        if self._client is not None:
            client.succeed(self._client)
            self._forget()

    def give_up(self, error: ErrorInfo) -> None:
        """Ends the requests: there is no next process, or not soon."""
        if self._client is not None:
            self._client.close(error)
            self._forget()

    def _forget(self) -> None:
        self._client = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
