"""WebSockets whose messages are answered as HTTP requests are.

A handler accepts a WebSocket with `accept`, so the handshake passes through the checks of every
`GET`: host, origin, API key, access. Each request in a message then runs as an HTTP request of the
same client through all middlewares. So limits, validation, quotas, log and metrics apply to it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specllama.handlers.http.current import current_scope
from specllama.handlers.http.errors import RequestError
from specllama.handlers.http.subrequests import json_headers

DRAINING = "specllama.draining"
"""The type of the ASGI message for a connection whose server shuts down: it should end when the
running answers are complete."""

_EXTENSION = "specllama.websocket"  # in the scope of a handshake
_MAX_REFUSAL = 1 << 16  # bytes of the answer to a handshake that isn't accepted
Serve = Callable[["WebSocket"], Awaitable[None]]
"""Serves an accepted WebSocket until it returns; then the connection is closed."""


def accept(serve: Serve) -> Response:
    """Returns the answer to the current request, a handshake, which `serve` is called for.

    Raises RequestError (426) if the request isn't a handshake.
    """
    handshake: dict[str, Serve] | None = current_scope()["extensions"].get(_EXTENSION)
    if handshake is None:
        raise RequestError(
            426,
            "this operation needs a WebSocket: the fields Connection, Upgrade, "
            "Sec-WebSocket-Version and Sec-WebSocket-Key of RFC 6455",
            {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"},
        )
    handshake["serve"] = serve
    return Response(status_code=101)


class WebSockets:
    """The outermost middleware: accepts WebSockets, and gives them to their handler's function."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await self.app(scope, receive, send)
            return
        handshake: dict[str, Serve] = {}
        await receive()  # websocket.connect
        refusal = _Refusal(receive, send)
        asked = _request(scope, "GET", scope["headers"], {_EXTENSION: handshake})
        await self.app(asked, refusal.receive, refusal.send)
        if refusal.status == 101:
            socket = WebSocket(self.app, scope, receive, send)
            await send({"type": "websocket.accept"})
            try:
                await handshake["serve"](socket)
            finally:
                await socket.close()


class _Refusal:
    """Passes on the answer to a handshake, unless it accepts the WebSocket."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._asked = False
        self._n_bytes = 0
        self._full = asyncio.Event()
        self.status = 0

    async def receive(self) -> Message:
        """Returns the request, which has no body, and then its end: when the client disconnects, or
        when the answer is too long."""
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        ends = {asyncio.ensure_future(self._full.wait()), asyncio.ensure_future(self._receive())}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in ends:
                each.cancel()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif self.status != 101:
            self._n_bytes += len(message.get("body", b""))
            if self._n_bytes > _MAX_REFUSAL:
                self._full.set()
        if self.status != 101:
            await self._send({**message, "type": f"websocket.{message['type']}"})


class HttpAnswer(NamedTuple):
    """The status of a request within a WebSocket, and its header; `body` is empty for a stream."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class WebSocket:
    """An accepted WebSocket. `gone` is set when the client has disconnected."""

    def __init__(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        self._app = app
        self._scope = scope
        self._receive = receive
        self._send = send
        self._closed = False
        self.gone = asyncio.Event()

    @property
    def state(self) -> dict[str, Any]:
        """The state of the server (`runtime`)."""
        state: dict[str, Any] = self._scope["state"]
        return state

    async def messages(self) -> AsyncIterator[bytes | None]:
        """Yields the messages until the client disconnects; None when the server begins to shut
        down."""
        while (message := await self._receive())["type"] != "websocket.disconnect":
            if message["type"] == DRAINING:
                yield None
            else:
                text: str | None = message.get("text")
                yield message.get("bytes") or b"" if text is None else text.encode()
        self.gone.set()

    async def send(self, text: bytes) -> None:
        """Sends a message, a JSON text. Waits while the client doesn't read. A client that has
        disconnected gets nothing."""
        if not self.gone.is_set() and not self._closed:
            with self._disconnecting():
                await self._send({"type": "websocket.send", "text": text.decode()})

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Closes the connection; `code` is one of RFC 6455, 7.4.1, `reason` at most 123 bytes."""
        if not self.gone.is_set() and not self._closed:
            self._closed = True
            with self._disconnecting():
                await self._send({"type": "websocket.close", "code": code, "reason": reason})

    @contextmanager
    def _disconnecting(self) -> Iterator[None]:
        """A context for sending, which raises OSError if the client has disconnected (ASGI)."""
        try:
            yield
        except OSError:
            self.gone.set()

    async def request(
        self,
        body: bytes,
        state: Mapping[str, Any],
        on_event: Callable[[bytes], Awaitable[None]],
    ) -> HttpAnswer:
        """Runs `POST` with a JSON `body` at the path of the WebSocket, and returns its answer.

        The data of each event of a stream are given to `on_event`. `state` is added to the
        request's state. If the client disconnects, the request is cancelled, as over HTTP.
        """
        scope = _request(self._scope, "POST", json_headers(self._scope, body), {}, state)
        exchange = _Exchange(body, self.gone, on_event)
        await self._app(scope, exchange.receive, exchange.send)
        return HttpAnswer(exchange.status, exchange.headers, b"".join(exchange.parts))


def _request(
    socket: Scope,
    method: str,
    headers: list[tuple[bytes, bytes]],
    extensions: dict[str, Any],
    state: Mapping[str, Any] = {},
) -> Scope:
    """Returns the scope of an HTTP request at the path of a WebSocket."""
    same = ("app", "asgi", "http_version", "server", "client", "root_path", "path", "raw_path")
    return {
        "type": "http",
        "method": method,
        "scheme": "https" if socket["scheme"] == "wss" else "http",
        "query_string": socket["query_string"],
        "headers": headers,
        "state": {**socket["state"], **state},
        "extensions": extensions,
        **{name: socket[name] for name in same if name in socket},
    }


class _Exchange:
    """The ASGI channels of a request within a WebSocket."""

    def __init__(
        self, body: bytes, gone: asyncio.Event, on_event: Callable[[bytes], Awaitable[None]]
    ) -> None:
        self._body: bytes | None = body
        self._gone = gone
        self._on_event = on_event
        self._is_stream = False
        self.status = 0
        self.headers: dict[str, str] = {}
        self.parts: list[bytes] = []

    async def receive(self) -> Message:
        if self._body is None:
            await self._gone.wait()
            return {"type": "http.disconnect"}
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {k.decode(): v.decode("latin-1") for k, v in message["headers"]}
            self._is_stream = self.headers.get("content-type", "").startswith("text/event-stream")
        elif not self._is_stream:
            self.parts.append(message.get("body", b""))
        else:
            for event in events(message.get("body", b"")):
                await self._on_event(event)


def events(frames: bytes) -> list[bytes]:
    """Returns the data of each event in `frames`: whole server-sent events, whose data are one line
    of JSON each (`handlers.http.streams.sse_event`), and comments."""
    lines = frames.split(b"\n")
    return [line[len(b"data: ") :] for line in lines if line.startswith(b"data: {")]
