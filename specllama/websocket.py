"""One WebSocket connection: uvicorn's protocol, with limits for the data of clients.

uvicorn bounds the size of a message, but not the bytes of unfinished messages of all connections,
and not the time for which a client doesn't read.
"""

import asyncio
import base64
import binascii
import logging
import urllib.parse
from typing import Any

import httptools
from uvicorn._types import ASGISendEvent
from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from specllama.handlers.http.bodies import FREE, SHARE, BodyBudget
from specllama.handlers.http.errors import RequestError
from specllama.handlers.http.websocket import DRAINING
from specllama.transport import Stall

log = logging.getLogger("websocket")
log.setLevel(logging.WARNING)  # uvicorn's other lines contain the query, which may have a key

VERSION = b"13"
"""The only version of the protocol (RFC 6455)."""
_KEY_BYTES = 16
_TRY_AGAIN_LATER = 1013  # the code of a connection that is closed for lack of room
_HANDSHAKE = (b"host", b"connection", b"upgrade")

_unfinished = BodyBudget()  # bytes of unfinished messages, of all connections


def is_handshake(method: bytes, version: str, headers: list[tuple[bytes, bytes]]) -> bool:
    """Returns whether a request with these `headers` is a valid handshake (RFC 6455, 4.2.1)."""
    fields = dict(headers)
    options = [each.strip().lower() for each in fields.get(b"connection", b"").split(b",")]
    return (
        method == b"GET"
        and version == "1.1"
        and b"upgrade" in options
        and fields.get(b"upgrade", b"").strip().lower() == b"websocket"
        and fields.get(b"sec-websocket-version") == VERSION
        and _is_key(fields.get(b"sec-websocket-key", b""))
        and not fields.keys() & {b"content-length", b"transfer-encoding"}
    )


def _is_key(text: bytes) -> bool:
    try:
        return len(base64.b64decode(text, validate=True)) == _KEY_BYTES
    except binascii.Error:
        return False


class WebSocketConnection(WebSocketsSansIOProtocol):
    """The protocol of a connection after its handshake. `stall` ends the connection if the client
    stops reading."""

    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any], stall: Stall
    ) -> None:
        super().__init__(config, server_state, app_state)
        self.logger = log
        self._stall = stall
        self._n_unfinished = 0  # bytes since the end of the last message
        self._taken = 0  # of them, in the budget

    def begin(
        self, transport: asyncio.Transport, url: bytes, headers: list[tuple[bytes, bytes]]
    ) -> None:
        """Begins with the request of a handshake, for which `is_handshake` is true. Raises
        `httptools.HttpParserInvalidURLError`."""
        parsed = httptools.parse_url(url)
        self.connection_made(transport)
        # websockets parses the request again, with other limits, so it gets only what it needs.
        needed = [f for f in headers if f[0] in _HANDSHAKE or f[0].startswith(b"sec-websocket-")]
        head = b"GET / HTTP/1.1\r\n" + b"".join(b"%b: %b\r\n" % field for field in needed) + b"\r\n"
        super().data_received(head)
        path = parsed.path.decode("ascii")
        self.scope["headers"] = headers
        self.scope["path"] = self.root_path + urllib.parse.unquote(path)
        self.scope["raw_path"] = self.root_path.encode("ascii") + parsed.path
        self.scope["query_string"] = parsed.query or b""

    def data_received(self, data: bytes) -> None:
        self._n_unfinished += len(data)
        if self._n_unfinished > FREE:
            new = self._n_unfinished - self._taken
            try:
                _unfinished.take(new, SHARE * self.config.ws_max_size)
            except RequestError:
                self.conn.fail(_TRY_AGAIN_LATER, "too many bytes of unfinished messages")
                self.handle_parser_exception()
                return
            self._taken += new
        super().data_received(data)

    def send_receive_event_to_app(self) -> None:
        self._give_back()
        super().send_receive_event_to_app()

    def _give_back(self) -> None:
        _unfinished.give(self._taken)
        self._taken = self._n_unfinished = 0

    def handle_ping(self) -> None:
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()  # no pongs for a client that doesn't read them

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True  # by a refusal; otherwise uvicorn logs an error

    def connection_lost(self, exc: Exception | None) -> None:
        self._stall.end()
        self._give_back()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall.begin()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._stall.end()

    def shutdown(self) -> None:
        """Lets the application end the connection after its running answers."""
        if self.handshake_complete and not self.close_sent:
            draining: Any = {"type": DRAINING}  # no message of ASGI's own
            self.queue.put_nowait(draining)
        else:
            super().shutdown()
