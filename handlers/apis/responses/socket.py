"""OpenAI's Responses API over a WebSocket.

Each `response.create` runs as a `POST /v1/responses` whose events become messages. Responses with
the same `stream_id` follow each other, others run side by side. Facts: OpenAI's guide to its
WebSocket mode, and the specification of Open Responses of 2026-04-24.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from specllama.engine import system
from specllama.handlers.apis.responses.steering import (
    MAX_STEERS,
    ErrorCode,
    OutputCall,
    Steer,
    steer,
    successor,
    with_steers,
)
from specllama.handlers.http import schemas
from specllama.handlers.http.websocket import HttpAnswer, WebSocket
from specllama.handlers.running.response_store import CONNECTION_STORE, LocalResponses

log = logging.getLogger(__name__)

MAX_LANES = 64
"""Responses that run side by side on one connection."""
MAX_WAITING = 64
"""Events `response.create` that wait for their lane on one connection."""
MAX_STREAM_ID = 256  # characters
MAX_SECONDS = 3600.0
"""The time after which a connection accepts no further responses."""

_RESTART = 1012  # RFC 6455's code for a server that shuts down; clients connect again
_HEADERS = ("retry-after", "x-request-id", "x-should-retry")
_CREATED = b'{"type":"response.created"'
_TERMINAL = tuple(
    b'{"type":"response.%b"' % each for each in (b"completed", b"incomplete", b"failed")
)


class _ClientEvent(msgspec.Struct):
    """The fields of a client's event that don't belong to `POST /v1/responses`."""

    type: str
    stream_id: str | None = None
    previous_response_id: str | None = None
    input: msgspec.Raw = msgspec.Raw(b"null")


class _Response(msgspec.Struct):
    id: str
    status: str = ""
    output: list[OutputCall] = []


class _ResponseEvent(msgspec.Struct):
    """The fields of an event with a whole response that a lane needs."""

    response: _Response


class _Create(msgspec.Struct):
    """A request for a response; `steers` are the queued inputs that it contains."""

    body: bytes
    previous_response_id: str | None
    steers: list[Steer] = []


class _Running:
    """The response that a lane generates. `response` is the newest known state."""

    def __init__(self, create: _Create) -> None:
        self.create = create
        self.steers: list[Steer] = []
        self.response: _Response | None = None
        self.has_ended = False


class ResponsesSocket:
    """One connection: its lanes by `stream_id`, and the responses that only it can continue."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._lanes: dict[str | None, _Lane] = {}
        self._local = LocalResponses()
        self._held: dict[str, list[Steer]] = {}  # steers that wait for outputs, by response
        self._ended: deque[str] = deque(maxlen=MAX_WAITING)  # ids of the last responses
        self._deadline = system.now() + MAX_SECONDS
        self._drains = False
        self._n_events = 0  # events that belong to no response
        self._idle = asyncio.timeout(None)

    @classmethod
    async def serve(cls, socket: WebSocket) -> None:
        """Serves a connection until its client disconnects, is idle for `--timeout` seconds, or the
        server shuts down."""
        await cls(socket)._serve()

    async def _serve(self) -> None:
        try:
            async with self._idle:
                self._rest()
                async for message in self._socket.messages():
                    self._drains |= message is None
                    if message is not None:
                        await self._take(message)
                    self._rest()
        except TimeoutError:
            if self._drains:
                await self._socket.close(_RESTART, "the server shuts down")
            else:
                await self._socket.close(1000, "no response is requested")
        finally:
            self._socket.gone.set()
            running = [lane.task for lane in self._lanes.values()]
            await asyncio.gather(*running, return_exceptions=True)

    def _rest(self) -> None:
        """Sets the time until which a connection without running responses stays open."""
        if self._socket.gone.is_set():
            return
        if self._lanes:
            self._idle.reschedule(None)
            return
        timeout: float = self._socket.state["runtime"].options.http.timeout
        self._idle.reschedule(asyncio.get_running_loop().time() + (0 if self._drains else timeout))

    # ---- events of the client

    async def _take(self, message: bytes) -> None:
        try:
            event = msgspec.json.decode(message, type=_ClientEvent)
        except (msgspec.MsgspecError, RecursionError) as error:
            await self.fail(None, 400, "invalid_request_error", f"the message is no event: {error}")
            return
        match event.type:
            case "response.create":
                await self._create(event, message)
            case "response.steer":
                await self._steer(event)
            case other:
                text = f"type: {other[:100]!r} is not an event of this API"
                await self.fail(event.stream_id, 400, "invalid_request_error", text)

    async def _create(self, event: _ClientEvent, message: bytes) -> None:
        id = event.stream_id
        if refusal := self._refusal(event, message):
            await self.fail(id if refusal[1] != "invalid_stream_id" else None, *refusal)
            return
        steers = self._held.pop(event.previous_response_id or "", [])
        body = with_steers(message, steers) if steers else message
        create = _Create(body, event.previous_response_id, steers)
        if id in self._lanes:
            self._lanes[id].waiting.append(create)
        else:
            self._lanes[id] = _Lane(self, id, create)

    def _refusal(self, event: _ClientEvent, message: bytes) -> tuple[int, str, str] | None:
        """Returns the status, code and message of the error for a `response.create` that can't
        run."""
        if self._drains:
            return 503, "server_shutting_down", "the server shuts down"
        if system.now() >= self._deadline:
            minutes = MAX_SECONDS / 60
            text = f"a connection accepts responses for {minutes:g} minutes; connect again"
            return 400, "websocket_connection_limit_reached", text
        if event.stream_id is not None and not 0 < len(event.stream_id) <= MAX_STREAM_ID:
            text = f"stream_id: must have 1 to {MAX_STREAM_ID} characters"
            return 400, "invalid_stream_id", text
        if event.stream_id not in self._lanes and len(self._lanes) >= MAX_LANES:
            text = f"{MAX_LANES} responses run on this connection; wait until one has ended"
            return 429, "too_many_streams", text
        waiting = [create for lane in self._lanes.values() for create in lane.waiting]
        limit = self._socket.state["runtime"].options.http.max_body_size << 20
        n_bytes = sum(len(create.body) for create in waiting)
        if len(waiting) >= MAX_WAITING or (waiting and n_bytes + len(message) > limit):
            return 429, "too_many_pending_requests", "too many events wait for earlier responses"
        return None

    async def _steer(self, event: _ClientEvent) -> None:
        """Accepts input for a continuation of a response, or sends `response.steer.failed`."""
        target = event.previous_response_id or ""
        try:
            accepted = steer(target, event.input)
        except msgspec.MsgspecError as error:
            await self._steer_failed(None, target, event.input, "invalid_input", f"input: {error}")
            return
        lane = next((each for each in self._lanes.values() if each.runs(target)), None)
        queue = self._held.get(target) if lane is None else lane.steers
        if queue is None:
            code: ErrorCode = "response_not_found"
            if target in self._ended:
                code = "response_already_completed"
            text = f"no response {target[:200]!r} is running on this connection"
            await self._steer_failed(None, target, event.input, code, text)
        elif len(queue) >= MAX_STEERS:
            text = f"{MAX_STEERS} inputs wait for this response"
            code = "too_many_pending_steers"
            await self._steer_failed(None, target, event.input, code, text)
        else:
            queue.append(accepted)
            event_: schemas.ResponseSteerAcceptedEvent = {
                "type": "response.steer.accepted",
                "steer": {"id": accepted.id, "previous_response_id": target},
                "sequence_number": self._number(),
            }
            await self.send(None if lane is None else lane.stream_id, msgspec.json.encode(event_))

    # ---- events for the client

    async def send(self, stream_id: str | None, event: bytes) -> None:
        """Sends an event, a JSON object, with the `stream_id` of its lane if that has one."""
        if stream_id is not None:
            event = b'{"stream_id":%b,%b' % (msgspec.json.encode(stream_id), event[1:])
        await self._socket.send(event)

    async def fail(
        self,
        stream_id: str | None,
        status: int,
        code: str,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        """Sends the event `error` for a `response.create` that got no response."""
        error: schemas.ResponseSocketError = {
            "type": "error",
            "status": status,
            "error": {"type": kind, "code": code, "message": message, "param": param},
            "headers": headers or {},
        }
        await self.send(stream_id, msgspec.json.encode(error))

    def _number(self) -> int:
        self._n_events += 1
        return self._n_events - 1

    async def _steer_failed(
        self,
        id: str | None,
        target: str,
        input: Any,
        code: ErrorCode,
        message: str,
        stream_id: str | None = None,
    ) -> None:
        failed = {
            "type": "response.steer.failed",
            "steer": {"previous_response_id": target, "input": input} | ({"id": id} if id else {}),
            "error": {"type": "invalid_request_error", "code": code, "message": message},
            "sequence_number": self._number(),
        }
        await self.send(stream_id, msgspec.json.encode(failed))

    # ---- for lanes

    @property
    def is_gone(self) -> bool:
        """True if the client has disconnected."""
        return self._socket.gone.is_set()

    async def request(self, create: _Create, lane: "_Lane") -> HttpAnswer:
        """Runs the request of a lane, whose events go to the lane."""
        state = {CONNECTION_STORE: self._local}
        return await self._socket.request(create.body, state, lane.on_event)

    def lane_ended(self, lane: "_Lane") -> None:
        """Forgets a lane without requests."""
        del self._lanes[lane.stream_id]
        self._rest()

    def response_ended(self, running: _Running, *, failed: bool) -> None:
        """Notes the end of a response. If it failed, the connection can't continue the one before
        it any longer, as Open Responses requires."""
        if running.response is not None:
            self._ended.append(running.response.id)
        if failed and running.create.previous_response_id:
            self._local.discard(running.create.previous_response_id)

    async def steers_failed(
        self, steers: Sequence[Steer], code: ErrorCode, message: str, stream_id: str | None
    ) -> None:
        """Returns accepted inputs to the client, because no response got them."""
        for each in steers:
            await self._steer_failed(
                each.id, each.previous_response_id, each.input, code, message, stream_id
            )

    async def hold(
        self, running: _Running, calls: Sequence[OutputCall], stream_id: str | None
    ) -> None:
        """Keeps the inputs for a response that ended with `calls`, until a request has the calls'
        outputs."""
        assert running.response is not None
        id = running.response.id
        if len(self._held) >= MAX_WAITING:
            oldest = next(iter(self._held))
            text = "too many inputs wait on this connection"
            await self.steers_failed(
                self._held.pop(oldest), "too_many_pending_steers", text, stream_id
            )
        self._held[id] = running.steers
        for each in running.steers:
            pending: schemas.ResponseSteerPendingEvent = {
                "type": "response.steer.pending",
                "steer": {"id": each.id, "previous_response_id": id},
                "reason": "waiting_for_required_input",
                "required_input": [call.required() for call in calls],
                "sequence_number": self._number(),
            }
            await self.send(stream_id, msgspec.json.encode(pending))


class _Lane:
    """The responses of one `stream_id`, or of all events without one, in their order."""

    def __init__(self, socket: ResponsesSocket, stream_id: str | None, first: _Create) -> None:
        self._socket = socket
        self.stream_id = stream_id
        self.waiting = deque([first])
        self._running = _Running(first)
        self.task = asyncio.create_task(self._run())

    def runs(self, response_id: str) -> bool:
        """True while the lane generates this response."""
        response = self._running.response
        return response is not None and response.id == response_id and not self._running.has_ended

    @property
    def steers(self) -> list[Steer]:
        """The inputs for a continuation of the running response."""
        return self._running.steers

    async def _run(self) -> None:
        try:
            while self.waiting and not self._socket.is_gone:
                self._running = _Running(self.waiting.popleft())
                await self._respond(self._running)
        finally:
            self._socket.lane_ended(self)

    async def _respond(self, running: _Running) -> None:
        create = running.create
        try:
            answer = await self._socket.request(create, self)
        except Exception:
            log.exception("a request of a WebSocket failed unexpectedly")
            answer = HttpAnswer(500, {}, b"")
        response, running.has_ended = running.response, True
        failed = response is None or response.status == "failed"
        self._socket.response_ended(running, failed=failed)
        if response is None:
            message = await self._fail(answer)
            code: ErrorCode = "successor_creation_failed"
            await self._socket.steers_failed(create.steers, code, message, self.stream_id)
        elif running.steers and failed:
            message = "the response has failed"
            code = "response_not_active"
            await self._socket.steers_failed(running.steers, code, message, self.stream_id)
        elif running.steers:
            calls = [item for item in response.output if item.needs_output]
            if calls:
                await self._socket.hold(running, calls, self.stream_id)
            else:
                body = successor(create.body, response.id, running.steers)
                self.waiting.appendleft(_Create(body, response.id, running.steers))

    async def _fail(self, answer: HttpAnswer) -> str:
        """Sends the error of a request without a response, and returns its message."""
        try:
            error = msgspec.json.decode(answer.body, type=_Envelope).error
        except msgspec.MsgspecError:
            error = _Error("server_error", "the server failed to answer; its log says why")
        named = {k: v for k, v in answer.headers.items() if k in _HEADERS or "ratelimit" in k}
        await self._socket.fail(
            self.stream_id,
            answer.status or 500,
            error.reason or error.type,
            error.message,
            kind=error.type,
            param="previous_response_id" if error.reason else None,
            headers=named,
        )
        return error.message

    async def on_event(self, event: bytes) -> None:
        """Passes an event of the running response on. The event `error`, which follows
        `response.failed` over HTTP, is left out: here it would seem to belong to the next
        response."""
        running = self._running
        if running.has_ended:
            return
        if event.startswith((_CREATED, *_TERMINAL)):
            running.response = msgspec.json.decode(event, type=_ResponseEvent).response
            running.has_ended = event.startswith(_TERMINAL)
        await self._socket.send(self.stream_id, event)


class _Error(msgspec.Struct):
    type: str
    message: str
    reason: str = ""


class _Envelope(msgspec.Struct):
    error: _Error
