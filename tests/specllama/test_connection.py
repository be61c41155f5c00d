"""The allowed requests of clients, and their time limits."""

import asyncio
import json
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.types import Scope
from uvicorn import Config, Server

from contract_tests.kit.server import SECONDS
from specllama import serve
from specllama.connection import AT_ONCE, MAX_FIELDS, MAX_HEAD, Connection, Limits, StartQueue
from specllama.handlers.http.api_keys import KeyRing
from specllama.handlers.options import parse
from specllama.transport import LATE

pytestmark = pytest.mark.slow

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Address = tuple[str, int]


class App:
    """Answers with the body. After the path /wait it answers with a little once it gets a signal,
    after /endless with bytes until the client stops reading."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.waiting = asyncio.Event()
        self.gone = asyncio.Event()
        self.heads: list[dict[bytes, bytes]] = []
        self.n_sent = 0

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        self.heads.append(dict(scope["headers"]))
        if scope["path"] == "/early":
            await self._start(send)
            await send({"type": "http.response.body", "body": b"early"})
            return
        body, more = b"", True
        if scope["path"] == "/wait":
            self.waiting.set()
            await self.go_on.wait()
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.gone.set()
                return
            body += message["body"]
            more = message["more_body"]
        await self._start(send)
        if scope["path"] == "/endless":
            watching = asyncio.create_task(self._watch(receive))
            while not self.gone.is_set():
                await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
                self.n_sent += 65536
                await asyncio.sleep(0)  # sending to a client that has left never waits
            await watching
            return
        await send({"type": "http.response.body", "body": scope["path"].encode() + b":" + body})

    async def _start(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.gone.set()


@asynccontextmanager
async def _serving(app: App, queue: StartQueue | None = None, **limits: float) -> Any:
    idle = int(limits.pop("idle", 600))
    made: list[Connection] = []

    def connection(**arguments: Any) -> Connection:
        made.append(Connection(**arguments, limits=Limits(**limits), queue=queue))
        return made[-1]

    http: Any = connection
    config = Config(app, http=http, lifespan="off", port=0, log_level="critical",
                    timeout_keep_alive=idle)  # fmt: skip
    server = Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[:2], made
    finally:
        for each in made:
            if each.transport is not None:
                each.transport.abort()
        server.should_exit = True
        await serving


Serving = Callable[..., AbstractAsyncContextManager[tuple[Address, list[Connection]]]]
serving: Serving = _serving


async def _say(address: Address, *parts: bytes) -> bytes:
    """All that the server answers until it ends the connection."""
    reader, writer = await asyncio.open_connection(*address)
    for part in parts:
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(0)
    async with asyncio.timeout(SECONDS):
        answer = await reader.read()
    writer.close()
    return answer


def say(*parts: bytes, **limits: float) -> bytes:
    async def run() -> bytes:
        async with serving(App(), **limits) as (address, _):
            return await _say(address, *parts)

    return asyncio.run(run())


def answers(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The status and body of each answer."""
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        body = b""
        if b"transfer-encoding: chunked" in lines:
            while True:
                size, _, data = data.partition(b"\r\n")
                n = int(size, 16)
                body, data = body + data[:n], data[n + 2 :]
                if not n:
                    break
        else:
            [length] = [int(line.split()[1]) for line in lines if b"content-length" in line]
            body, data = data[:length], data[length:]
        yield int(lines[0].split()[1]), body


def check_refusal(answer: tuple[int, bytes], status: int) -> str:
    assert answer[0] == status, answer
    error = json.loads(answer[1])["error"]
    assert error["code"] == status
    assert error["type"] == "invalid_request_error"
    message: str = error["message"]
    return message


HOST = b"Host: a\r\n"
BYE = b"Connection: close\r\n\r\n"
CHUNKED = b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"


def head_of(n_bytes: int) -> bytes:
    begin, end = b"GET /a HTTP/1.1\r\nX: ", b"\r\n" + BYE
    return begin + b"x" * (n_bytes - len(begin) - len(end)) + end


def test_the_largest_head() -> None:
    assert list(answers(say(head_of(MAX_HEAD - 1)))) == [(200, b"/a:")]
    fields = b"".join(b"X%d: y\r\n" % n for n in range(MAX_FIELDS - 1))
    assert list(answers(say(b"GET /a HTTP/1.1\r\n" + fields + BYE))) == [(200, b"/a:")]


@pytest.mark.parametrize(
    "raw",
    [
        head_of(MAX_HEAD + 1),
        b"GET /a HTTP/1.1\r\nX: " + b"x" * (1 << 20),
        b"GET /" + b"a" * (1 << 20),
        b"GET /a HTTP/1.1\r\n" + b"x" * (1 << 20),
        b"\r\n" * (1 << 17),
        b"GET /a HTTP/1.1\r\n" + b"X: y\r\n" * (MAX_FIELDS + 1) + b"\r\n",
        b"GET /a HTTP/1.1\r\n" + b"X: y\r\n" * 100_000,
    ],
    ids=lambda raw: ascii(raw[:30]),
)
def test_too_large_a_head(raw: bytes) -> None:
    [answer] = answers(say(raw))
    assert "head of the request" in check_refusal(answer, 431)


def test_an_endless_head_is_not_kept() -> None:
    """However much comes: the parser sees no more than the limit."""

    async def run() -> None:
        async with serving(App()) as (address, made):
            _, writer = await asyncio.open_connection(*address)
            writer.write(b"GET /a HTTP/1.1\r\nX: ")
            while not (made and made[0]._refused):
                writer.write(b"x" * 1000)
                await writer.drain()
            assert made[0]._n_fed <= MAX_HEAD
            parser, fed = made[0].parser, made[0]._n_fed
            writer.write(b"x" * 100_000)
            await writer.drain()
            assert (made[0].parser, made[0]._n_fed) == (parser, fed)
            writer.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    "raw",
    [
        b"nonsense\r\n\r\n",
        b"GET /a HTTP/9.9\r\n\r\n",
        b"GET /a HTTP/1.1\r\nA: b\r\n c\r\n\r\n",
        b"GET /a HTTP/1.1\r\nA : b\r\n\r\n",
        b"GET /a HTTP/1.1\r\nA: b\x00\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST /a HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /a HTTP/1.1\r\nContent-Length: +5\r\n\r\nhello",
        b"POST /a HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"POST /a HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"POST /a HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        b"POST /a HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        CHUNKED + b"zz\r\n",
        CHUNKED + b"-1\r\n",
        CHUNKED + b"f" * 17 + b"\r\n",
        CHUNKED + b"5\nhello\r\n0\r\n\r\n",
        CHUNKED + b"5\r\nhello!\r\n0\r\n\r\n",
        CHUNKED + b"5;" + b"x" * 200_000,
        CHUNKED + b"5\r\nhello\r\n0\r\nX: " + b"x" * 200_000,
    ],
    ids=lambda raw: ascii(raw[-40:]),
)
def test_unreadable_requests(raw: bytes) -> None:
    """Returns the only answer, with the envelope, however the bytes arrive."""
    for parts in ((raw,), (raw[:30], raw[30:])):
        [answer] = answers(say(*parts))
        check_refusal(answer, 400)


def test_a_trailer_is_no_header() -> None:
    async def run() -> None:
        app = App()
        async with serving(app) as (address, _):
            chunks = CHUNKED + b"5;a=b\r\nhello\r\n0\r\nAuthorization: x\r\n\r\nGET /b HTTP/1.1\r\n"
            data = await _say(address, chunks + BYE)
            assert list(answers(data)) == [(200, b"/a:hello"), (200, b"/b:")]
            assert b"authorization" not in app.heads[0]

    asyncio.run(run())


def test_a_refusal_waits_for_the_answers_before_it() -> None:
    first = b"GET /a HTTP/1.1\r\n\r\nPOST /b HTTP/1.1\r\nContent-Length: 1\r\n\r\nx"
    for wrong in (b"nonsense\r\n\r\n", CHUNKED + b"zz\r\n"):
        one, two, three = answers(say(first + wrong))
        assert (one, two) == ((200, b"/a:"), (200, b"/b:x"))
        check_refusal(three, 400)


def test_no_second_answer_to_a_broken_body() -> None:
    """A client would take it for the answer to its next request."""

    async def run() -> None:
        async with serving(App()) as (address, _):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(CHUNKED.replace(b"/a", b"/early") + b"1\r\nx\r\n")
            await reader.readuntil(b"0\r\n\r\n")
            writer.write(b"zz\r\n")
            async with asyncio.timeout(SECONDS):
                assert await reader.read() == b""
            writer.close()

    asyncio.run(run())


@pytest.mark.parametrize("upgrade", [b"h2c", b"websocket", b"TLS/1.0, h2c"])
def test_an_upgrade_is_ignored_and_the_body_read(
    upgrade: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    head = (
        b"POST /a HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAEAAEAAAA\r\n"
        b"X: y\r\nUpgrade: " + upgrade + b"\r\n"
    )
    whole = head + b"Content-Length: 5\r\n\r\nhello" + b"GET /b HTTP/1.1\r\n" + BYE
    chunked = (
        head + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\nGET /b HTTP/1.1\r\n" + BYE
    )
    for raw in (whole, chunked):
        for at in range(1, len(raw), 35):
            said = say(raw[:at], raw[at:])
            assert list(answers(said)) == [(200, b"/a:hello"), (200, b"/b:")]
    assert not [each for each in caplog.records if "install" in each.getMessage()]


def test_silence_ends_the_connection() -> None:
    assert say(idle=1) == b""  # nothing was asked, so nothing is answered
    assert say(b"\r\n", idle=1) == b""
    [answer] = answers(say(b"GET /a HTTP/1.1\r\n" + HOST + b"\r\n", idle=1))
    assert answer == (200, b"/a:")


def test_half_a_head_ends_the_connection() -> None:
    [answer] = answers(say(b"GET /a HTTP/1.1\r\nX: ", head=0.1))
    check_refusal(answer, 408)
    one, two = answers(say(b"GET /a HTTP/1.1\r\n\r\n" + b"GET /b", head=0.1))
    assert one == (200, b"/a:")
    check_refusal(two, 408)


def test_a_head_that_drips_ends_the_connection() -> None:
    """The time is that of the whole head, whatever comes meanwhile."""

    async def run() -> None:
        async with serving(App(), head=0.3) as (address, made):
            reader, writer = await asyncio.open_connection(*address)
            reading = asyncio.create_task(reader.read())
            n = 0
            async with asyncio.timeout(SECONDS):
                while not (made and made[0]._refused):
                    writer.write(b"G" if not n else b"E" if n == 1 else b"T" if n == 2 else b" ")
                    n += 1
                    await asyncio.sleep(0.02)
                [answer] = answers(await reading)
            check_refusal(answer, 408)
            writer.close()

    asyncio.run(run())


def test_a_head_has_its_time_only_once_it_has_begun() -> None:
    """A silent connection times out, and a working application doesn't."""

    async def run() -> None:
        app = App()
        async with serving(app, head=0.05) as (address, _):
            reader, writer = await asyncio.open_connection(*address)
            await asyncio.sleep(0.2)
            writer.write(b"POST /wait HTTP/1.1\r\nContent-Length: 1\r\n" + BYE)
            async with asyncio.timeout(SECONDS):
                await app.waiting.wait()
                await asyncio.sleep(0.2)
                writer.write(b"x")
                app.go_on.set()
                assert list(answers(await reader.read())) == [(200, b"/wait:x")]
            writer.close()

    asyncio.run(run())


@pytest.mark.parametrize("said", [b"", b"GET /a HTTP/1.1\r\n"], ids=["idle", "in a head"])
def test_a_server_that_stood_still_reads_first(said: bytes) -> None:
    """A client isn't late whose bytes came meanwhile, although uvloop has the timers first."""
    uvloop = pytest.importorskip("uvloop")

    async def run() -> bytes:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        async with serving(App(), idle=2, head=2) as (address, made):
            with ours, theirs, socket.create_connection(address) as client:
                client.setblocking(False)

                def stand_still() -> None:
                    loop.remove_reader(ours)
                    client.sendall((HOST if said else b"GET /a HTTP/1.1\r\n") + BYE)
                    time.sleep(2 + 2 * LATE)

                loop.add_reader(ours, stand_still)
                client.sendall(said)
                while not made or made[0]._in_head != bool(said):
                    await asyncio.sleep(0.01)
                theirs.sendall(b"now")
                answer = b""
                async with asyncio.timeout(SECONDS):
                    while more := await loop.sock_recv(client, 65536):
                        answer += more
        return answer

    assert list(answers(uvloop.run(run()))) == [(200, b"/a:")]


def test_who_does_not_read_is_sent_no_more_and_ended() -> None:
    async def run() -> None:
        app = App()
        async with serving(app, unread=0.2) as (address, made):
            _, writer = await asyncio.open_connection(*address, limit=1)
            writer.write(b"GET /endless HTTP/1.1\r\n\r\n")
            async with asyncio.timeout(SECONDS):
                await app.gone.wait()
            # The sent part fills the system's buffers, on both sides.
            assert app.n_sent < 64 << 20
            assert made[0].transport.is_closing()
            writer.close()

    asyncio.run(run())


def test_the_rest_of_an_answer_has_a_time_limit_too() -> None:
    """A connection that is to be closed waits for a reader no longer than another."""

    async def run() -> None:
        app = App()
        async with serving(app, unread=0.2) as (address, made):
            _, writer = await asyncio.open_connection(*address, limit=1)
            body = b"x" * (32 << 20)
            head = b"POST /wait HTTP/1.1\r\nContent-Length: %d\r\n" % len(body) + BYE
            writer.write(head)
            async with asyncio.timeout(SECONDS):
                await app.waiting.wait()
                app.go_on.set()
                writer.write(body)
                await writer.drain()
                while made[0] in made[0].connections:
                    await asyncio.sleep(0.01)
            writer.close()

    asyncio.run(run())


def test_a_client_that_leaves_ends_all_of_its_requests() -> None:
    """Also the first of several that it sent together."""

    async def run() -> None:
        app = App()
        async with serving(app) as (address, _):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"GET /endless HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\n\r\n")
            async with asyncio.timeout(SECONDS):
                await reader.readexactly(100)
                writer.transport.abort()
                await app.gone.wait()
            assert len(app.heads) == 1

    asyncio.run(run())


def test_a_partial_makes_connections() -> None:
    """As `specllama.serve` passes it to uvicorn."""

    async def run() -> bytes:
        http: Any = partial(Connection, limits=Limits(head=5))
        server = Server(Config(App(), http=http, lifespan="off", port=0, log_level="critical"))
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        address = server.servers[0].sockets[0].getsockname()[:2]
        answer = await _say(address, b"GET /a HTTP/1.1\r\n" + BYE)
        server.should_exit = True
        await serving
        return answer

    assert list(answers(asyncio.run(run()))) == [(200, b"/a:")]


class Held(StartQueue):
    """Only keeps the requests."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[Callable[[], None]] = []

    def put(self, scope: Scope, begin: Callable[[], None]) -> None:
        self.held.append(begin)


def test_few_requests_begin_in_one_turn() -> None:
    """Others wait, so that answers and light requests needn't wait for them."""

    async def check() -> None:
        begun: list[int] = []
        queue = StartQueue()
        n = 3 * AT_ONCE + 1
        for number in range(n):
            queue.put({"client": ("192.0.2.1", number)}, partial(begun.append, number))
        sizes = [len(begun)]
        while len(begun) < n:
            await asyncio.sleep(0)
            sizes.append(len(begun))
        assert sizes == [AT_ONCE, 2 * AT_ONCE, 3 * AT_ONCE, n]
        assert begun == list(range(n))

    asyncio.run(check())


def test_owners_take_turns() -> None:
    """Requests of others wait neither for all requests of an owner nor for all of a client."""

    async def check() -> None:
        begun: list[str] = []
        queue = StartQueue(lambda scope: str(scope["owner"]))

        def put(owner: str, client: tuple[str, int] | None, name: str) -> None:
            queue.put({"owner": owner, "client": client}, partial(begun.append, name))

        for number in range(AT_ONCE):
            put("", None, f"first {number}")
        for number in range(3):
            put("alice", ("192.0.2.1", number), f"alice {number}")
        for number in range(2):
            put("", ("192.0.2.2", number), f"client {number}")
        put("", None, "local")
        while len(begun) < AT_ONCE + 6:
            await asyncio.sleep(0)
        assert begun[AT_ONCE:] == [
            *("alice 0", "client 0", "local", "alice 1", "client 1", "alice 2")
        ]

    asyncio.run(check())


def test_keys_take_turns_though_their_clients_have_the_same_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As clients behind a proxy have it. The queue is the one that the program gives uvicorn."""
    made: list[Config] = []

    class Unstarted(serve.ApiServer):
        def run(self, sockets: Any = None) -> None:
            made.append(self.config)

    monkeypatch.setattr(serve, "ApiServer", Unstarted)
    monkeypatch.setattr(serve, "create_app", lambda *_: App())
    listeners: Any = SimpleNamespace(tcp=[])
    catalog: Any = None
    serve.serve(parse([], {}), catalog, listeners, lambda: None, lambda: None)
    http: Any = made[0].http
    queue: StartQueue = http.keywords["queue"]
    runtime = SimpleNamespace(api_keys=KeyRing.of_secrets(["one", "two"]))

    async def check() -> None:
        begun: list[str] = []

        def put(secret: str, name: str) -> None:
            headers = [(b"authorization", f"Bearer {secret}".encode())]
            scope = {"client": ("192.0.2.1", 1), "headers": headers, "query_string": b""}
            state = {"runtime": runtime}
            queue.put({**scope, "state": state}, partial(begun.append, name))

        for number in range(AT_ONCE + 3):
            put("one", f"one {number}")
        put("two", "two")
        while len(begun) < AT_ONCE + 4:
            await asyncio.sleep(0)
        assert begun.index("two") == AT_ONCE + 1

    asyncio.run(check())


def test_a_client_that_leaves_early() -> None:
    """Its request doesn't begin."""

    async def check() -> None:
        app, queue = App(), Held()
        async with serving(app, queue=queue) as (address, made):
            _, writer = await asyncio.open_connection(*address)
            writer.write(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
            while not queue.held:
                await asyncio.sleep(0)
            writer.close()
            while not made[0].cycle.disconnected:
                await asyncio.sleep(0)
            queue.held[0]()
            said = await _say(address, b"GET /b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert [body for _, body in answers(said)] == [b"/b:"]
            assert len(app.heads) == 1

    asyncio.run(check())


def test_light_requests_do_not_wait() -> None:
    async def check() -> None:
        app, queue = App(), Held()
        async with serving(app, queue=queue) as (address, _):
            head = b"POST /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 1\r\n\r\n"
            posting = asyncio.create_task(_say(address, head + b"b"))
            while not queue.held:
                await asyncio.sleep(0)
            said = await _say(address, b"GET /b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert [body for _, body in answers(said)] == [b"/b:"]
            queue.held[0]()
            assert [body for _, body in answers(await posting)] == [b"/a:b"]

    asyncio.run(check())
