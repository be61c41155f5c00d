"""The replica's side of `engine.fleet.channel`: passes the requests of ingresses to the engine
process, and its messages to the ingress that they answer."""

import asyncio
import hmac
import itertools
import logging
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TypeAlias

from specllama.engine import system
from specllama.engine.errors import EngineError
from specllama.engine.fleet.channel import (
    ID_BITS,
    MAX_HELLO,
    Address,
    Channel,
    Hello,
    Refused,
    Report,
    ToReplica,
    Welcome,
    numbers,
    packed,
    to_replica_decoder,
)
from specllama.engine.models.engine_process import EngineProcess
from specllama.engine.models.lifecycle import SERVING, State
from specllama.engine.models.supervisor import Supervisor
from specllama.engine.options import EngineOptions
from specllama.engine.wire.engine_log import EngineLog
from specllama.engine.wire.framing import MAX_FRAME
from specllama.engine.wire.replies import (
    Digest,
    Ended,
    Event,
    Failed,
    Finished,
    Heartbeat,
    LoadFailed,
    Lost,
    Measured,
    NoReplicas,
    Progress,
    Ready,
    Resized,
    StatsReply,
    Step,
    ToServer,
    Vectors,
)
from specllama.engine.wire.requests import (
    Cancel,
    Embed,
    EndThoughts,
    GetStats,
    Load,
    MeasureMemory,
    Pause,
    Rerank,
    Resume,
    Submit,
    ids,
)

log = logging.getLogger("specllama.engine.fleet")

HELLO_SECONDS = 10.0  # from the connection to `Hello`
MAX_STRANGERS = 100  # connections at once that have not said `Hello`
OPENING_SECONDS = 10.0
"""How long `ended` waits for a request that hasn't arrived, and remembers one that has ended: the
request's message takes another way than the call of `ended`."""

REPORT_SECONDS = 1.0  # between two reports of the cache and the load
MAX_BLOCKS = 8192  # of a report: 64 KiB

_WORK = (Submit, Embed, Rerank)
_CONTROLS = (Cancel, Pause, Resume, EndThoughts)
_LAST = (Finished, Failed, Ended, Vectors)
_WITHOUT_ID = (Progress, Ready, LoadFailed, Measured, Heartbeat, Lost, NoReplicas, Resized)

Visit: TypeAlias = Channel[ToReplica]


class _Visitor:
    """One connected ingress, and its open requests."""

    def __init__(self, channel: Visit, first_id: int) -> None:
        self.channel = channel
        self.owns = first_id >> ID_BITS
        self.open: dict[int, bool] = {}  # requests, and whether a cancelled one has an `Ended`
        self.reported: set[int] = set()  # blocks that the ingress knows to be cached

    def report(self, digest: Digest) -> None:
        """Sends the changes of the cache since the last report."""
        blocks = numbers(digest.blocks)
        known, self.reported = self.reported, set(blocks)
        added = [each for each in blocks if each not in known]
        removed = [each for each in known if each not in self.reported]
        self.channel.send(Report(digest.load, packed(added), packed(removed)))


class _Ends:
    """The ends of requests, for tasks that wait for them. A task may begin to wait before the
    request arrives, or shortly after its end."""

    def __init__(self, is_open: Callable[[int], bool]) -> None:
        self._is_open = is_open
        self._recent: dict[int, float] = {}  # the last ended ones, the oldest first, with the time
        self._waiting: dict[int, set[asyncio.Future[None]]] = {}

    def add(self, id: int) -> None:
        """Records that a request has ended."""
        now = system.now()
        self._recent.pop(id, None)
        self._recent[id] = now
        for old, time in list(itertools.islice(self._recent.items(), 2)):
            if now - time > OPENING_SECONDS:
                del self._recent[old]
        _complete(self._waiting.pop(id, ()))

    async def of(self, wanted: Iterable[int]) -> None:
        """Waits until all requests `wanted` have ended. A request that doesn't arrive within
        OPENING_SECONDS counts as ended."""
        loop = asyncio.get_running_loop()
        ends: dict[int, asyncio.Future[None]] = {
            id: loop.create_future() for id in wanted if self._is_open(id) or id not in self._recent
        }
        for id, end in ends.items():
            self._waiting.setdefault(id, set()).add(end)
        late = loop.call_later(OPENING_SECONDS, self._give_up, ends)
        try:
            await asyncio.gather(*ends.values())
        finally:
            late.cancel()
            for id, end in ends.items():
                if waiting := self._waiting.get(id):
                    waiting.discard(end)
                    if not waiting:
                        del self._waiting[id]

    def _give_up(self, ends: dict[int, asyncio.Future[None]]) -> None:
        """Ends the wait for requests that haven't arrived."""
        _complete(end for id, end in ends.items() if not self._is_open(id))


def _complete(futures: Iterable[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


class Gate:
    """Accepts the connections of ingresses for one engine process after the other.

    `start_process` starts these processes for the replica's `Supervisor`, which has to be passed to
    `guard`.
    """

    def __init__(self, version: str) -> None:
        """`version` is specllama's."""
        self._version = version
        self._secret = secrets.token_urlsafe()
        self._server: asyncio.Server | None = None
        self._supervisor: Supervisor | None = None
        self._process: EngineProcess | None = None
        self._visitors: dict[int, _Visitor] = {}
        self._strangers: set[Visit] = set()
        self._reporting: asyncio.Task[None] | None = None
        self._ends = _Ends(self._is_open)
        self._cancelling: dict[int, int] = {}
        """Questions whose answers show that the requests of an ingress that is gone are cancelled:
        an id, and the ids that the ingress owns."""
        self._question_ids = itertools.count(-1, -1)

    async def start_process(
        self, options: EngineOptions, engine_log: EngineLog, log_level: int
    ) -> EngineProcess:
        """Starts an engine process, as `EngineProcess.start`."""
        self._process = await EngineProcess.start(options, engine_log, log_level)
        self._process.relay = self._relay
        return self._process

    def guard(self, supervisor: Supervisor) -> None:
        """Ends the connections whenever the process of `supervisor` ends."""
        self._supervisor = supervisor
        supervisor.on_transition = self._on_transition

    async def open(self, host: str, port: int = 0) -> Address:
        """Begins to accept connections on an address of this machine; port 0 is any free one.
        Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._stranger, host, port)
        self._reporting = asyncio.create_task(self._report(), name="reports to ingresses")
        port = self._server.sockets[0].getsockname()[1]
        return Address(host, port, self._secret)

    async def drain(self) -> None:
        """Waits until no ingress has an open request."""
        while ids := [id for each in self._visitors.values() for id in each.open]:
            await self._ends.of(ids)

    async def close(self) -> None:
        """Ends all connections. Their open requests are cancelled."""
        if self._reporting is not None:
            self._reporting.cancel()
        if self._server is not None:
            self._server.close()
        for channel in list(self._strangers):
            channel.close()
        self._strangers.clear()
        self._dismiss()
        if self._server is not None:
            await self._server.wait_closed()

    @property
    def n_open(self) -> int:
        """The number of open requests of all ingresses."""
        return sum(len(each.open) for each in self._visitors.values())

    async def ended(self, wanted: Iterable[int]) -> None:
        """Waits until the requests with the ids `wanted` have ended. A request that doesn't arrive
        within OPENING_SECONDS counts as ended."""
        await self._ends.of(wanted)

    async def _report(self) -> None:
        """Reports the cache and the load to all ingresses, again and again."""
        while True:
            engine = self._supervisor.awake_engine() if self._supervisor else None
            if engine is not None and self._visitors:
                with suppress(EngineError):  # the process has ended
                    digest = await engine.digest(MAX_BLOCKS)
                    for visitor in list(self._visitors.values()):
                        visitor.report(digest)
            await asyncio.sleep(REPORT_SECONDS)

    def _is_open(self, id: int) -> bool:
        visitor = self._visitors.get(id >> ID_BITS)
        return visitor is not None and id in visitor.open

    # ---- connections -----------------------------------------------------------------------

    def _stranger(self) -> Visit:
        channel: Visit = Channel(to_replica_decoder, limit=MAX_HELLO)
        loop = asyncio.get_running_loop()
        late = loop.call_later(HELLO_SECONDS, self._refuse, channel, "no hello", False)

        def on_message(message: ToReplica) -> None:
            late.cancel()
            self._strangers.discard(channel)
            self._welcome(channel, message)

        def on_end(_: str) -> None:
            late.cancel()
            self._strangers.discard(channel)

        channel.on_message, channel.on_end = on_message, on_end
        if len(self._strangers) >= MAX_STRANGERS:
            channel.on_open = partial(self._refuse, channel, "too many connections", True)
        else:
            self._strangers.add(channel)
        return channel

    def _refuse(self, channel: Visit, reason: str, may_retry: bool) -> None:
        self._strangers.discard(channel)
        channel.send(Refused(reason, may_retry))
        channel.close()

    def _welcome(self, channel: Visit, message: ToReplica) -> None:
        if not isinstance(message, Hello) or not hmac.compare_digest(
            message.secret.encode(), self._secret.encode()
        ):
            log.warning("a connection from %s without the right secret is refused", channel.peer)
            self._refuse(channel, "the secret is wrong", may_retry=False)
            return
        info = self._supervisor.info if self._supervisor else None
        if message.version != self._version:
            text = f"the versions differ: {message.version} here, {self._version} in the replica"
            self._refuse(channel, text, may_retry=False)
        elif info is None or not self._is_serving:
            self._refuse(channel, "the engine process is being replaced", may_retry=True)
        elif message.first_id >> ID_BITS in self._visitors or message.first_id >> ID_BITS <= 0:
            self._refuse(channel, "another ingress has the same ids", may_retry=True)
        elif message.first_id >> ID_BITS in self._cancelling.values():
            self._refuse(channel, "its last requests are being cancelled", may_retry=True)
        else:
            self._let_in(_Visitor(channel, message.first_id))
            channel.send(Welcome(info))

    def _let_in(self, visitor: _Visitor) -> None:
        def on_end(reason: str) -> None:
            log.info("the ingress %s is gone: %s", visitor.channel.peer, reason)
            self._leave(visitor)

        channel = visitor.channel
        channel.on_message = lambda message: self._on_request(visitor, message)
        channel.on_end = on_end
        channel.allow(MAX_FRAME)
        self._visitors[visitor.owns] = visitor

    def _leave(self, visitor: _Visitor) -> None:
        """Cancels the open requests of an ingress, which is gone. It may come back with the same
        ids as soon as there are no further events of these requests."""
        if self._visitors.pop(visitor.owns, None) is None:
            return
        if self._process is not None and self._is_serving and visitor.open:
            for id in visitor.open:
                self._process.send(Cancel(id))
            question = GetStats(next(self._question_ids))
            self._cancelling[question.id] = visitor.owns
            self._process.send(question)
        for id in visitor.open:
            self._ends.add(id)

    def _dismiss(self) -> None:
        """Closes the connections of all ingresses."""
        for visitor in list(self._visitors.values()):
            visitor.channel.close()  # calls `_leave`

    @property
    def _is_serving(self) -> bool:
        return self._supervisor is not None and self._supervisor.state in SERVING

    def _on_transition(self, before: State) -> None:
        if before in SERVING and not self._is_serving:
            self._dismiss()
            self._cancelling.clear()  # no further events of the ended process

    # ---- messages --------------------------------------------------------------------------

    def _on_request(self, visitor: _Visitor, message: ToReplica) -> None:
        if isinstance(message, Hello | Heartbeat | Load | MeasureMemory):
            self._break(visitor, f"an unexpected {type(message).__name__}")
            return
        own = ids(message) if isinstance(message, Submit) else [message.id]
        if any(id >> ID_BITS != visitor.owns for id in own if id):
            self._break(visitor, "a request has an id of another ingress")
            return
        assert self._process is not None, "there are visitors only while a process serves"
        if isinstance(message, Cancel):
            if not visitor.open.get(message.id):
                self._end(visitor, message.id)
        elif message.id and not isinstance(message, _CONTROLS):
            metered = isinstance(message, _WORK) and message.terms.is_metered
            visitor.open |= dict.fromkeys(own, metered)
        self._process.send(message)

    def _break(self, visitor: _Visitor, reason: str) -> None:
        log.error("the ingress %s violates the protocol: %s", visitor.channel.peer, reason)
        visitor.channel.close()  # calls `_leave`

    def _relay(self, message: ToServer) -> None:
        """Passes a message of the engine process to the ingress that it is for."""
        if isinstance(message, Step):
            self._relay_step(message)
        elif not isinstance(message, _WITHOUT_ID):
            visitor = self._visitors.get(message.id >> ID_BITS)
            if visitor is not None and message.id in visitor.open:
                self._end(visitor, message.id)
                visitor.channel.send(message)
            elif isinstance(message, StatsReply):
                self._cancelling.pop(message.id, None)

    def _relay_step(self, step: Step) -> None:
        parts: dict[_Visitor, list[Event | Vectors]] = {}
        for event in step.events:
            visitor = self._visitors.get(event.id >> ID_BITS)
            if visitor is not None and event.id in visitor.open:
                parts.setdefault(visitor, []).append(event)
                if isinstance(event, _LAST):
                    self._end(visitor, event.id)
        for visitor, events in parts.items():
            visitor.channel.send(Step(events))

    def _end(self, visitor: _Visitor, id: int) -> None:
        if visitor.open.pop(id, None) is not None:
            self._ends.add(id)
