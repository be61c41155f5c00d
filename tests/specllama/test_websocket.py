"""WebSocket connections over real sockets, with an application that echoes messages."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from uvicorn import Config, Server
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from contract_tests.kit.server import SECONDS
from specllama import websocket
from specllama.connection import Connection, Limits
from specllama.handlers.http.bodies import FREE, BodyBudget
from specllama.handlers.http.websocket import DRAINING
from specllama.websocket import is_handshake

VALID = [
    (b"host", b"localhost"),
    (b"connection", b"keep-alive, Upgrade"),
    (b"upgrade", b"WebSocket"),
    (b"sec-websocket-version", b"13"),
    (b"sec-websocket-key", b"AAAAAAAAAAAAAAAAAAAAAA=="),
]
MIB = 1 << 20


def test_a_valid_handshake() -> None:
    assert is_handshake(b"GET", "1.1", VALID)
    assert not is_handshake(b"POST", "1.1", VALID)
    assert not is_handshake(b"GET", "1.0", VALID)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"connection", b"keep-alive"),
        (b"upgrade", b"h2c"),
        (b"sec-websocket-version", b"8"),
        (b"sec-websocket-key", b"AAAA"),
        (b"sec-websocket-key", b"\xff"),
        (b"content-length", b"0"),
        (b"transfer-encoding", b"chunked"),
    ],
)
def test_an_invalid_handshake(name: bytes, value: bytes) -> None:
    headers = [field for field in VALID if field[0] != name]
    assert not is_handshake(b"GET", "1.1", [*headers, (name, value)])


# ---- connections


class App:
    """Accepts each connection and sends its messages back; refuses the path /no."""

    def __init__(self) -> None:
        self.scopes: list[Any] = []
        self.n_ended = 0
        self.drained = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        try:
            await self._serve(scope, receive, send)
        finally:
            self.n_ended += 1

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        if scope["path"] == "/no":
            await send({"type": "websocket.http.response.start", "status": 418, "headers": []})
            await send({"type": "websocket.http.response.body", "body": b"tea", "more_body": False})
            return
        await send({"type": "websocket.accept"})
        while True:
            message = await receive()
            match message["type"]:
                case "websocket.receive":
                    await send({"type": "websocket.send", "text": message["text"]})
                case "websocket.disconnect":
                    return
                case other:
                    self.drained |= other == DRAINING
                    await send({"type": "websocket.close", "code": 1012})
                    return


class Listening:
    def __init__(self, app: App, server: Server, made: list[Connection]) -> None:
        self.app, self.server, self.made = app, server, made
        self.port: int = server.servers[0].sockets[0].getsockname()[1]

    def connect(self, path: str = "/", **options: Any) -> Any:
        return connect(f"ws://127.0.0.1:{self.port}{path}", proxy=None, **options)


@contextlib.asynccontextmanager
async def listening(**limits: float) -> AsyncIterator[Listening]:
    app, made = App(), []

    def connection(**arguments: Any) -> Connection:
        made.append(Connection(**arguments, limits=Limits(**limits)))
        return made[-1]

    http: Any = connection
    config = Config(app, http=http, lifespan="off", port=0, log_level="critical",
                    ws_max_size=2 * MIB, ws_per_message_deflate=False)  # fmt: skip
    server = Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0)
    try:
        yield Listening(app, server, made)
    finally:
        server.should_exit = True
        server.force_exit = True
        await serving


pytestmark = pytest.mark.slow


def run(test: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(SECONDS), listening() as it:
            await test(it)

    asyncio.run(main())


def test_the_application_gets_the_whole_request() -> None:
    async def test(it: Listening) -> None:
        fields = {"Padding": "y" * 20_000}
        async with it.connect(f"/a%20b?q={'x' * 20_000}", additional_headers=fields) as socket:
            await socket.send("hello")
            assert await socket.recv() == "hello"
        [scope] = it.app.scopes
        assert scope["path"] == "/a b"
        assert scope["query_string"] == b"q=" + b"x" * 20_000
        assert (b"padding", b"y" * 20_000) in scope["headers"]
        assert scope["scheme"] == "ws"

    run(test)


def test_a_refusal_is_an_answer_of_http(caplog: pytest.LogCaptureFixture) -> None:
    async def test(it: Listening) -> None:
        with pytest.raises(Exception, match="418"):
            async with it.connect("/no"):
                pass

    run(test)
    assert not caplog.records


def test_a_message_may_have_a_size() -> None:
    async def test(it: Listening) -> None:
        async with it.connect(max_size=None) as socket:
            await socket.send("x" * MIB)
            assert len(await socket.recv()) == MIB
            await socket.send("x" * (3 * MIB))
            with pytest.raises(ConnectionClosed) as closed:
                await socket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009

    run(test)


def test_unfinished_messages_share_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = BodyBudget()
    monkeypatch.setattr(websocket, "_unfinished", budget)
    monkeypatch.setattr(websocket, "SHARE", 1)  # of the largest message

    async def held(socket: Any, begun: asyncio.Event) -> None:
        async def parts() -> AsyncIterator[str]:
            yield "x" * (FREE + FREE // 2)
            begun.set()
            await asyncio.Event().wait()

        await socket.send(parts())

    async def test(it: Listening) -> None:
        async with it.connect() as first, it.connect() as second:
            begun = asyncio.Event()
            holding = asyncio.create_task(held(first, begun))
            await begun.wait()
            while not budget._held:
                await asyncio.sleep(0)
            with contextlib.suppress(ConnectionClosed):
                await second.send("y" * (FREE + FREE // 2))
            with pytest.raises(ConnectionClosed) as closed:
                await second.recv()
            holding.cancel()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1013
        while budget._held:
            await asyncio.sleep(0)
        async with it.connect(max_size=None) as third:
            await third.send("y" * (FREE + FREE // 2))
            assert len(await third.recv()) == FREE + FREE // 2

    run(test)


def test_a_shutdown_is_a_message_that_no_client_can_send() -> None:
    async def test(it: Listening) -> None:
        async with it.connect() as socket:
            await socket.send(DRAINING)
            assert await socket.recv() == DRAINING
            assert not it.app.drained
            it.server.should_exit = True
            with pytest.raises(ConnectionClosed) as closed:
                await socket.recv()
            assert it.app.drained
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1012

    run(test)


def test_a_client_that_stops_reading_is_disconnected() -> None:
    async def main() -> None:
        async with asyncio.timeout(SECONDS), listening(unread=0.01) as it:
            async with it.connect(max_queue=1, max_size=None) as socket:
                socket.transport.pause_reading()
                with contextlib.suppress(ConnectionClosed):
                    while not it.app.n_ended:
                        await socket.send("x" * MIB)
            while not it.app.n_ended:
                await asyncio.sleep(0)

    asyncio.run(main())
