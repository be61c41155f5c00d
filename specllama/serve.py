"""Runs the application under uvicorn until a signal or a failure ends it."""

import asyncio
import contextlib
import functools
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Generator
from types import FrameType
from typing import Any, Self, cast

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.server import Server

from specllama import early_signals
from specllama.acceptor import Acceptor
from specllama.app import create_app
from specllama.connection import Connection, Limits, StartQueue
from specllama.engine.catalog.catalog import Catalog
from specllama.engine.wire import startup
from specllama.handlers.http.api_keys import owner_of
from specllama.handlers.options import ServerOptions
from specllama.handlers.running.runtime import OWN_PARTS, Runtime, ServerParts
from specllama.listen import BACKLOG, Listeners

log = logging.getLogger("specllama")

_SIGNALS = [signal.SIGINT, signal.SIGTERM]
if sys.platform == "win32":
    _SIGNALS.append(signal.SIGBREAK)
_FAREWELL = 2  # s for sending an error to requests that are cancelled
_BURST = 100  # requests at once, after whose end the server releases memory
_INTERRUPTED = 130  # the exit code in shells of a program ended by Ctrl-C


class ServeError(Exception):
    """The server could not start, or its model can't be loaded. The message is one line for the
    user."""


def serve(
    options: ServerOptions,
    catalog: Catalog,
    listeners: Listeners,
    on_listening: Callable[[], None],
    on_ready: Callable[[], None],
) -> None:
    """Serves on `listeners` until SIGINT or SIGTERM. `on_listening` is called when the server
    accepts requests, `on_ready` when all models that are loaded at startup are ready or have
    failed, unless all of them have failed.

    After a signal, running requests may continue for `--drain-timeout` seconds. A second Ctrl-C
    ends the process at once. Raises `ServeError`.
    """
    server = ApiServer.of(options, catalog, listeners, on_listening, on_ready)
    try:
        server.run(sockets=listeners.tcp)
    except SystemExit as ended:
        if not ended.code:
            raise  # caused by a signal, before the server handled signals
        if not server.failures:  # otherwise uvicorn only repeats a known failure
            server.failures.append("the server could not start")
    if server.failures:
        raise ServeError(server.failures[0])


class ApiServer(Server):
    """uvicorn's server, which also listens on UNIX sockets, and ends with success after a signal.
    uvicorn itself would raise the signal again after the shutdown."""

    failures: list[str]
    """Reasons why it can't start, or had to end; one line each."""
    handles_signals = True
    """False if it doesn't run in the main thread."""

    @classmethod
    def of(
        cls,
        options: ServerOptions,
        catalog: Catalog,
        listeners: Listeners,
        on_listening: Callable[[], None] = lambda: None,
        on_ready: Callable[[], None] = lambda: None,
        parts: ServerParts = OWN_PARTS,
    ) -> Self:
        """Returns the server of the models in `catalog`, see `serve`."""
        failures: list[str] = []
        server: Self

        def on_fatal(message: str) -> None:
            failures.append(message)
            server.should_exit = True

        app = _with_short_failures(create_app(options, catalog, on_fatal, parts), failures)
        limits = Limits(head=options.http.head_timeout, unread=options.http.timeout)
        connection: Any = functools.partial(Connection, limits=limits, queue=StartQueue(owner_of))
        config = Config(
            app,
            http=connection,
            lifespan="on",
            ws="none",  # `Connection` makes the protocol of a WebSocket itself
            ws_max_size=options.http.max_body_size << 20,
            ws_per_message_deflate=False,
            ws_ping_timeout=options.http.timeout,
            log_config=None,
            server_header=False,
            access_log=False,  # handlers.http.request_log logs more, but not the query
            backlog=BACKLOG,
            timeout_keep_alive=options.http.timeout,
            timeout_graceful_shutdown=options.http.drain_timeout + _FAREWELL,
            ssl_keyfile=options.http.ssl_key_file or None,
            ssl_certfile=options.http.ssl_cert_file or None,
        )
        server = cls(config, listeners, options.http.drain_timeout, on_listening, on_ready)
        server.failures = failures
        return server

    def __init__(
        self,
        config: Config,
        listeners: Listeners,
        drain_timeout: float,
        on_listening: Callable[[], None],
        on_ready: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._drain_timeout = drain_timeout
        self._listeners = listeners
        self._on_listening = on_listening
        self._on_ready = on_ready
        self._announcing: asyncio.Task[None] | None = None
        self._most_requests = 0  # at once, since memory was released

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        is_uvloop = type(loop).__module__.partition(".")[0] == "uvloop"
        await super().startup([])
        await self.before_listening()
        protocol_class: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        protocol = functools.partial(
            protocol_class,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        if is_uvloop:
            listening = [*(sockets or []), *self._listeners.unix]
            acceptors = [Acceptor(each, protocol, self.config.ssl) for each in listening]
            self.servers += cast(list[Any], acceptors)
        else:
            tls = self.config.ssl
            for sock in sockets or []:
                self.servers.append(
                    await loop.create_server(protocol, sock=sock, ssl=tls, backlog=BACKLOG)
                )
            for sock in self._listeners.unix:
                self.servers.append(await loop.create_unix_server(protocol, sock=sock, ssl=tls))
        # The objects made so far stay to the end, so the garbage collector can skip them.
        startup.resume_gc()
        if not self.should_exit:
            self._on_listening()
            self._announcing = asyncio.create_task(self._announce())

    async def before_listening(self) -> None:
        """Is awaited when the application has started, before the first connection is accepted."""

    async def on_tick(self, counter: int) -> bool:
        n_requests = len(self.server_state.tasks)
        self._most_requests = max(self._most_requests, n_requests)
        if not n_requests and self._most_requests >= _BURST:
            self._most_requests = 0
            startup.release_memory()
        return await super().on_tick(counter)

    async def _announce(self) -> None:
        runtime: Runtime | None = self.lifespan.state.get("runtime")
        if (runtime is None or await runtime.pool.started()) and not self.should_exit:
            self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        if not self.handles_signals:
            yield
            return
        previous = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        self.should_exit |= early_signals.received()
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit and sig == signal.SIGINT:
            self._listeners.close()
            os._exit(_INTERRUPTED)  # the engine process ends by itself when its pipe closes
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._announcing is not None:
            self._announcing.cancel()
        runtime: Runtime | None = self.lifespan.state.get("runtime")
        if runtime is not None:
            runtime.pool.end_events()  # endless event streams would delay the shutdown
        if self.server_state.tasks:
            log.info("shutting down; running requests have %s s", self._drain_timeout)
        for connection in list(self.server_state.connections):
            connection.shutdown()
            if connection.transport.is_closing():  # it was idle
                # Otherwise TLS would wait for the client to close the connection, too.
                connection.transport.abort()
        ending = asyncio.create_task(self._end_requests(runtime))
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()

    async def _end_requests(self, runtime: Runtime | None) -> None:
        """Ends running requests after the drain timeout with the documented error. uvicorn would
        just cancel them."""
        await asyncio.sleep(self._drain_timeout)
        if runtime is not None:
            await runtime.pool.stop()


def _with_short_failures(app: ASGIApp, failures: list[str]) -> ASGIApp:
    """Returns `app`, but adds a failure of its start to `failures` as one line, instead of logging
    a traceback (which `--verbose` still does)."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await app(scope, receive, send)
            return
        outcome = ""

        async def watched_send(message: Message) -> None:
            nonlocal outcome
            outcome = outcome or message["type"]
            if message["type"] == "lifespan.startup.failed":
                message = {"type": message["type"]}
            await send(message)

        try:
            await app(scope, receive, watched_send)
        except Exception as error:
            if outcome == "lifespan.startup.complete":
                raise
            log.debug("the application could not start", exc_info=True)
            failures.append(_one_line(error))
            if not outcome:
                await send({"type": "lifespan.startup.failed"})

    return wrapped


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text or type(error).__name__
