"""One connection: uvicorn's HTTP protocol, with limits for the size and the time of a client's
data.

httptools limits neither the head of a request nor the bytes between the parts of a body. uvicorn
waits without limit for a head, for an idle client, and for a client that doesn't read.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import httptools
from starlette.types import Scope
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from specllama.handlers.http.errors import RequestError
from specllama.handlers.http.request_log import refusal
from specllama.transport import LATE, Gathering, Stall, is_late

log = logging.getLogger("http")

MAX_HEAD = 64 << 10
"""The limit for the bytes of a head, and for the bytes between two parts of a body."""
MAX_FIELDS = 100
LINGERING = 2.0  # s until a refused connection is closed, so that the client can read the reason
AT_ONCE = 4
"""The number of requests with bodies that begin in one turn of the event loop. Beginning one takes
one to three milliseconds."""
_LIGHT = ("GET", "HEAD", "OPTIONS")


class StartQueue:
    """Begins requests, at most `AT_ONCE` in each turn of the event loop, in turns of their owners.

    In a burst of thousands of requests, the answers of running ones, light requests, such as
    `GET /health`, and the requests of other owners needn't wait until all have begun. `owner_of`
    returns the owner of a request; if it is empty, the client's address is the owner.
    """

    def __init__(self, owner_of: Callable[[Scope], str] = lambda _: "") -> None:
        self._owner_of = owner_of
        self._waiting: dict[str, deque[Callable[[], None]]] = {}  # by owner; the next one is first
        self._n_begun = 0  # in this turn

    def put(self, scope: Scope, begin: Callable[[], None]) -> None:
        """Calls `begin` for the request of `scope`, now or in a later turn."""
        if self._n_begun < AT_ONCE and not self._waiting:
            self._begin(begin)
        else:
            client, _ = scope["client"] or ("", 0)
            owner = self._owner_of(scope) or client
            self._waiting.setdefault(owner, deque()).append(begin)

    def _begin(self, begin: Callable[[], None]) -> None:
        if not self._n_begun:
            asyncio.get_running_loop().call_soon(self._next_turn)
        self._n_begun += 1
        begin()

    def _next_turn(self) -> None:
        self._n_begun = 0
        while self._waiting and self._n_begun < AT_ONCE:
            owner = next(iter(self._waiting))
            waiting = self._waiting.pop(owner)
            begin = waiting.popleft()
            if waiting:
                self._waiting[owner] = waiting
            self._begin(begin)


@dataclass(frozen=True)
class Limits:
    """Time limits in seconds: for sending the head of a request, and for reading an answer. uvicorn
    has the limit for idle connections (`timeout_keep_alive`)."""

    head: float = 60
    unread: float = 600


class Connection(HttpToolsProtocol):
    """The protocol of one connection. Invalid data are answered with the error envelope, after the
    answers to earlier requests, and then the connection is closed."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: Limits = Limits(),
        queue: StartQueue | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._queue = queue or StartQueue()
        self._limits = limits
        self._in_head = False
        self._in_body = False
        self._head_timed = False
        self._n_fed = 0  # bytes since the last progress (the end of a head, or bytes of a body)
        self._progressed = False  # the bytes that were fed last brought progress
        self._running: RequestResponseCycle | None = None  # answered now; `cycle` was read last
        self._refused = False  # further data are ignored
        self._last_words: bytes | None = None  # the refusal to send after the running answers
        self._lingering: asyncio.TimerHandle | None = None

    # ---- the connection ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._stall = Stall(transport, self._limits.unread)
        super().connection_made(Gathering(transport, self._stall))
        self._arm(self.timeout_keep_alive)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._stall.end()
        if self._lingering is not None:
            self._lingering.cancel()
        self.pipeline.clear()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall.begin()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._stall.end()

    def _arm(self, seconds: float) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(
            seconds, self.timeout_keep_alive_handler
        )

    def timeout_keep_alive_handler(self) -> None:
        if is_late(self.timeout_keep_alive_task):
            self._arm(LATE)
        elif self._in_head:
            seconds = self._limits.head
            self._refuse(408, f"the head of the request did not come within {seconds:g} seconds")
        else:
            super().timeout_keep_alive_handler()

    # ---- incoming data -----------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if len(data) <= MAX_HEAD - self._n_fed or self._in_body:
            self._feed(data)
            return
        rest = memoryview(data)
        while rest and not self._refused:
            n = MAX_HEAD - self._n_fed
            self._feed(rest[:n])
            rest = rest[n:]

    def _feed(self, data: bytes | memoryview) -> None:
        if self._refused:
            return
        self._progressed = False
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = bytes(data[upgrade.args[0] :])
            if self._is_handshake():
                self._become_websocket(rest)
            else:
                self._read_without_upgrade(rest)
            return
        except httptools.HttpParserError as error:
            self._refuse_unreadable(error)
            return
        self._n_fed = 0 if self._progressed else self._n_fed + len(data)
        if self._n_fed >= MAX_HEAD:
            if self._in_body:
                self._refuse(400, f"the body has {MAX_HEAD} bytes of framing without content")
            else:
                self._refuse(431, f"the head of the request has more than {MAX_HEAD} bytes")
        elif self._in_head and not self._head_timed:
            self._head_timed = True
            self._arm(self._limits.head)

    def _is_handshake(self) -> bool:
        """Whether the request is the handshake of a WebSocket, and no earlier one is answered."""
        from specllama.websocket import is_handshake  # imports a library that few servers need

        method, version = self.parser.get_method(), self.parser.get_http_version()
        idle = self._running is None or self._running.response_complete
        return idle and is_handshake(method, version, self.headers)

    def _become_websocket(self, rest: bytes) -> None:
        """Gives the connection to the protocol of WebSockets. `rest` follows the handshake."""
        from specllama.websocket import WebSocketConnection

        protocol = WebSocketConnection(
            self.config, self.server_state, self.app_state, stall=self._stall
        )
        try:
            protocol.begin(self.transport, self.url, self.headers)
        except httptools.HttpParserInvalidURLError as error:
            self._refuse_unreadable(error)
            return
        self._unset_keepalive_if_required()
        self.connections.discard(self)
        self.transport.set_protocol(protocol)
        if rest:
            protocol.data_received(rest)

    def _read_without_upgrade(self, rest: bytes) -> None:
        """Reads the request again without its `Upgrade`. Otherwise the parser would treat the bytes
        after the head as those of the other protocol, not as a body."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(400, "CONNECT is for proxies, and this server is not a proxy")
            return
        version = self.parser.get_http_version().encode()
        fields = [b"%b:%b\r\n" % field for field in self.headers if field[0] != b"upgrade"]
        head = b"%b %b HTTP/%b\r\n%b\r\n" % (method, self.url, version, b"".join(fields))
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self._n_fed = 0
        self._feed(head)
        self._feed(rest)

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer after the body, which must not become a header
        if len(self.headers) == MAX_FIELDS:
            raise RequestError(431, f"the head of the request has more than {MAX_FIELDS} fields")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = self._head_timed = False
        self._progressed = True
        if self.parser.should_upgrade():
            return
        self._unset_keepalive_if_required()
        super().on_headers_complete()
        self._in_body = True

    def on_body(self, body: bytes) -> None:
        self._progressed = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._in_body = False
        self._progressed = True
        super().on_message_complete()

    # ---- answers -----------------------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        begin = partial(super()._start_asgi_task, cycle, app)
        if cycle.scope["method"] in _LIGHT:
            begin()
        else:
            scope = cast(Scope, cycle.scope)
            self._queue.put(scope, lambda: None if cycle.disconnected else begin())

    def on_response_complete(self) -> None:
        last = not self.pipeline
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if last and self._last_words is not None:
            self._end_with(self._last_words)
        elif self._in_head:  # a head that began while earlier requests were answered
            self._arm(self._limits.head)

    def _refuse_unreadable(self, error: httptools.HttpParserError) -> None:
        cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else error
        if isinstance(cause, RequestError):
            self._refuse(cause.failure.status, cause.failure.info.message)
            return
        if not isinstance(cause, httptools.HttpParserError):
            log.error("reading the head of a request failed", exc_info=cause)
        self._refuse(400, f"the request can't be read: {cause}")

    def _refuse(self, status: int, message: str) -> None:
        self._refused, self._in_head = True, False
        answered = self._running is None or self._running.response_complete
        if self._in_body and self._running is self.cycle:
            if self._running.response_started:  # a second answer would seem to be the next one
                self.transport.close()
                return
            self._running.disconnected = answered = True
            self._running.message_event.set()
        elif self._in_body:
            self.pipeline.popleft()  # a waiting request, whose body is incomplete
        words = refusal(RequestError(status, message))
        if answered:
            self._end_with(words)
        else:
            self._last_words = words

    def _end_with(self, words: bytes) -> None:
        """Sends `words` and closes the connection. Closing it at once could reset it while the
        client is sending, so that the client would not get the answer."""
        self._unset_keepalive_if_required()
        self.transport.write(words)
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._lingering = self.loop.call_later(LINGERING, self.transport.abort)
        else:
            self.transport.close()
