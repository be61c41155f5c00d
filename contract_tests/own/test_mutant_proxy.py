"""The proxy of the mutants changes nothing by itself, and notes the changes of a mutation. Also the
verdicts on mutants, with checks that pass, fail and skip."""

import dataclasses
import itertools
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from contract_tests.kit.mutants import mutations
from contract_tests.kit.mutants.exchange import Answer, Event, Mutation, PassOn, Request
from contract_tests.kit.mutants.judging import Outcome, Verdict, healthy, judge
from contract_tests.kit.mutants.mutant import Check, Make, Mutant
from contract_tests.kit.mutants.mutations import at
from contract_tests.kit.mutants.proxy import Proxy
from contract_tests.kit.mutants.session import Session
from contract_tests.kit.server import SECONDS, Server

EVENTS = (b': ping\r\n\r\ndata: {"n": 1,\ndata: "stop":false}\n\n', b"id: 7\nevent: x\ndata: 2\n\n")
LINES = (b'{"done": false}\n{"done"', b': true, "n": 1.50}\n')


class Whole:
    """A server that shows the request, streams, or breaks off."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.left = threading.Event()
        self.connections: set[Any] = set()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    whole = Whole()

    def log_message(self, *_: Any) -> None:
        """Prints nothing."""

    def do_GET(self) -> None:
        self.whole.connections.add(self.client_address)
        length = int(self.headers.get("Content-Length", 0))
        asked = {
            "method": self.command,
            "target": self.path,
            "headers": self.headers.items(),
            "body": self.rfile.read(length).decode(),
        }
        match self.path.partition("?")[0].removeprefix("/prefix"):
            case "/events":
                self.stream("text/event-stream", EVENTS)
            case "/lines":
                self.stream("application/x-ndjson", LINES)
            case "/waits":
                self.stream("text/plain", self.pieces_on_demand())
            case "/breaks":
                self.begin("text/plain", ("Content-Length", "100"))
                self.wfile.write(b"half")
                self.close_connection = True
            case _:
                said = json.dumps(asked).encode()
                self.begin("application/json", ("Content-Length", str(len(said))))
                if self.command != "HEAD":
                    self.wfile.write(said)

    do_POST = do_HEAD = do_GET  # noqa: N815

    def begin(self, kind: str, *headers: tuple[str, str]) -> None:
        self.send_response(200)
        cookies = (("Set-Cookie", "a=1"), ("Set-Cookie", "b=2"))
        for name, value in (("Content-Type", kind), *cookies, *headers):
            self.send_header(name, value)
        self.end_headers()

    def stream(self, kind: str, pieces: Any) -> None:
        self.begin(kind, ("Transfer-Encoding", "chunked"))
        try:
            for piece in itertools.chain(pieces, [b""]):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        except OSError:
            self.whole.left.set()
            self.close_connection = True

    def pieces_on_demand(self) -> Iterator[bytes]:
        yield b"first"
        while not self.whole.go_on.is_set():
            yield b"." * 1000
        yield b"last"


@pytest.fixture(autouse=True)
def whole(monkeypatch: pytest.MonkeyPatch) -> Iterator[Whole]:
    whole = Whole()
    monkeypatch.setattr(Handler, "whole", whole)
    yield whole
    whole.go_on.set()


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        listening.daemon_threads = True
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{listening.server_address[1]}"
        listening.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def proxy(server: str) -> Iterator[Proxy]:
    with Proxy(server, "the-key") as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=proxy.url, timeout=SECONDS) as client:
        yield client


# ---- without a mutation --------------------------------------------------------------------


def test_everything_is_passed_on_unchanged(client: httpx.Client, server: str) -> None:
    asked: Any = {"headers": {"X-Odd": "a, b"}, "content": b'{"a": 1}'}
    shown = client.post("/a%2Fb//c?x=1&y=%20z&x=2", **asked)
    direct = httpx.post(f"{server}/a%2Fb//c?x=1&y=%20z&x=2", timeout=SECONDS, **asked)
    passed, expected = shown.json(), direct.json()
    assert passed["target"] == expected["target"]
    assert passed["body"] == expected["body"] == '{"a": 1}'
    # The connection header is the proxy's own.
    assert {n.lower(): v for n, v in passed["headers"]} == {
        n.lower(): v for n, v in expected["headers"]
    }
    names = {name: value for name, value in shown.headers.multi_items() if name != "date"}
    assert names == {n: v for n, v in direct.headers.multi_items() if n != "date"}
    assert shown.headers.get_list("set-cookie") == ["a=1", "b=2"]


@pytest.mark.parametrize("path", ["/events", "/lines"])
def test_streams_are_passed_on_to_the_byte(client: httpx.Client, path: str) -> None:
    answer = client.get(path)
    assert answer.content == b"".join(EVENTS if path == "/events" else LINES)
    assert answer.headers["transfer-encoding"] == "chunked"
    assert "content-length" not in answer.headers


def test_streams_come_piece_by_piece(client: httpx.Client, whole: Whole) -> None:
    with client.stream("GET", "/waits") as answer:
        pieces = answer.iter_raw()
        assert next(pieces).startswith(b"first")
        whole.go_on.set()
        assert b"".join(pieces).endswith(b"last")


def test_the_server_notices_that_a_client_leaves(client: httpx.Client, whole: Whole) -> None:
    with client.stream("GET", "/waits") as answer:
        next(answer.iter_raw())
    whole.left.wait()


def test_connections_are_kept(client: httpx.Client, whole: Whole) -> None:
    for _ in range(3):
        client.get("/")
    assert len(whole.connections) == 1


def test_an_answer_that_breaks_off_breaks_off(client: httpx.Client) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        client.get("/breaks")
    assert client.get("/").status_code == 200


def test_the_answer_to_head_has_no_body(client: httpx.Client) -> None:
    answer = client.head("/")
    assert int(answer.headers["content-length"]) > 0
    assert client.get("/").json()["method"] == "GET", "the connection is in order"


def test_a_prefix_is_the_servers(server: str) -> None:
    with Proxy(f"{server}/prefix/") as proxy:
        assert proxy.url.endswith("/prefix")
        answer = httpx.get(f"{proxy.url}/tokenize", timeout=SECONDS)
        assert answer.json()["target"] == "/prefix/tokenize"


def test_a_server_that_is_gone_is_a_bad_gateway() -> None:
    with Proxy("http://127.0.0.1:1") as proxy:
        assert httpx.get(proxy.url, timeout=SECONDS).status_code == 502


# ---- with one ------------------------------------------------------------------------------


def mutated(
    proxy: Proxy, client: httpx.Client, mutation: Mutation, path: str
) -> tuple[bytes, bool]:
    """Returns an answer, and whether the mutation has changed something."""
    with proxy.mutated(mutation) as active:
        answer = client.post(path, json={"a": [1, 2]})
    assert active.error is None
    return answer.content, active.exercised


SAME: dict[str, Callable[[], Mutation]] = {
    "requests": lambda: mutations.requests(lambda request: request.with_query(none=None)),
    "bodies": lambda: mutations.bodies(lambda body: {**body, "a": [1, 2]}),
    "answers": lambda: mutations.answers(lambda request, answer: answer.with_status(200)),
    "errors": lambda: mutations.errors(lambda status, document: {}),
    "contents": lambda: mutations.contents(lambda content: content),
    "others": lambda: mutations.contents(lambda content: b"", "tokenize"),
    "documents": lambda: mutations.documents(lambda document: document),
    "events": lambda: mutations.events(lambda event: [event]),
    "together": lambda: mutations.together(
        mutations.plain(at("nothing.here.*", str)), mutations.observed(lambda document: None)
    ),
}


@pytest.mark.parametrize("path", ["/", "/events", "/lines"])
@pytest.mark.parametrize("name", SAME)
def test_mutations_without_a_change_are_not_exercised(
    name: str, path: str, proxy: Proxy, client: httpx.Client
) -> None:
    expected = client.post(path, json={"a": [1, 2]}, headers={"Accept-Encoding": ""}).content
    content, exercised = mutated(proxy, client, SAME[name](), path)
    if path != "/":
        assert content == expected
    assert not exercised


async def answers_itself(request: Request, pass_on: PassOn) -> Answer:
    return Answer.of(200, {"key": request.has_right_key})


def drops_the_last(event: Event) -> list[Event]:
    return [] if event.name == "x" else [event]


def doubles(document: Any) -> Any:
    return {**document, "n": 2} if isinstance(document, dict) and "n" in document else document


CHANGED: list[tuple[Mutation, str, bytes]] = [
    (mutations.bodies(at("a.*", lambda n: 2 * n)), "/", b'"body": "{\\"a\\":[2,4]}"'),
    (mutations.requests(lambda request: request.with_query(q="ü")), "/", b'"/?q=%C3%BC"'),
    (mutations.requests(lambda request: request.with_right_key()), "/", b'"Bearer the-key"'),
    (mutations.plain(at("method", str.lower)), "/", b'"method":"post"'),
    (answers_itself, "/", b'{"key":false}'),
    (mutations.events(drops_the_last), "/events", EVENTS[0]),
    (
        mutations.documents(doubles),
        "/events",
        b': ping\r\n\r\ndata: {"n":2,"stop":false}\n\n' + EVENTS[1],
    ),
    (mutations.documents(doubles), "/lines", b'{"done": false}\n{"done":true,"n":2}\n'),
    (mutations.lines(lambda line: [line] if line["done"] else []), "/lines", LINES[1][1:]),
    (mutations.events(lambda event: [Event("\udce9")]), "/events", b"data: \xe9\n\n"),
]


@pytest.mark.parametrize(("mutation", "path", "expected"), CHANGED)
def test_mutations_with_a_change_are_exercised(
    mutation: Mutation, path: str, expected: bytes, proxy: Proxy, client: httpx.Client
) -> None:
    content, exercised = mutated(proxy, client, mutation, path)
    assert expected in content
    assert exercised
    if path == "/events":
        assert content.startswith(b": ping\r\n\r\n"), "comments stay"


def test_a_mutation_is_on_for_a_while(proxy: Proxy, client: httpx.Client) -> None:
    with proxy.mutated(answers_itself):
        assert client.get("/").json() == {"key": False}
        right = {"Authorization": "Bearer the-key"}
        assert client.get("/", headers=right).json() == {"key": True}
        assert client.get("/", headers={"x-api-key": "the-key"}).json() == {"key": True}
    assert client.get("/").json()["method"] == "GET"


def test_an_answer_to_head_can_have_a_body(proxy: Proxy) -> None:
    as_get = mutations.requests(lambda request: dataclasses.replace(request, method="GET"))
    head = b"HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    with proxy.mutated(as_get), Server(proxy.url).raw(head) as connection:
        said = b"".join(iter(lambda: connection.recv(65536), b""))
    assert b'"method": "GET"' in said


def test_a_mutation_can_close_the_connection(proxy: Proxy, client: httpx.Client) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"half"
        raise ConnectionError

    async def breaks(request: Request, pass_on: PassOn) -> Answer:
        return (await pass_on(request)).with_stream(broken())

    with proxy.mutated(breaks) as active, pytest.raises(httpx.RemoteProtocolError):
        client.get("/")
    assert active.exercised
    assert active.error is None


def test_the_exception_of_a_mutation_is_kept(proxy: Proxy, client: httpx.Client) -> None:
    fails = mutations.plain(lambda document: document["missing"])
    with proxy.mutated(fails) as active:
        assert client.get("/").status_code == 500
    assert isinstance(active.error, KeyError)


def test_a_mutation_gets_the_whole_request(proxy: Proxy, client: httpx.Client) -> None:
    seen = []

    async def noting(request: Request, pass_on: PassOn) -> Answer:
        seen.append((request.operation, request.path, request.json))
        return await pass_on(request)

    with proxy.mutated(noting):
        client.post("/tokenize", json={"content": "a"})
        client.post("/completions", json={})
        client.get("/v1/models/a%20b")
        client.post("/nowhere", content=b"{NaN")
    assert seen == [
        ("tokenize", "/tokenize", {"content": "a"}),
        ("create_completion", "/completions", {}),
        ("get_model", "/v1/models/a b", None),
        ("", "/nowhere", None),
    ]


# ---- verdicts ------------------------------------------------------------------------------


def asks(path: str) -> Check:
    """Returns a check that expects answers whose `method` is GET."""

    def check(server: Server) -> None:
        assert server.get(path).json()["method"] == "GET", "another method"

    return check


def ends(error: BaseException) -> Check:
    def check(server: Server) -> None:
        server.get("/any")
        raise error

    return check


def passes(server: Server) -> None:
    server.get("/any")


def lower_case() -> Mutation:
    """The server answers that an unknown operation was requested by another method."""
    return mutations.plain(at("method", str.lower), "")


def mutant(check: Check, failure: str = "another method", make: Make = lower_case) -> Mutant:
    return Mutant("a_mutant", "Some API", "It is.", "one model", make, check, failure, True)


VERDICTS: list[tuple[Mutant, list[Check], Outcome, str]] = [
    (mutant(asks("/any")), [], "caught", ""),
    (mutant(asks("/any")), [ends(KeyError("a"))], "not caught", "not as described: KeyError"),
    (mutant(asks("/any"), "nothing"), [], "not caught", "another reason: another method"),
    (mutant(lambda server: server.close()), [], "not applicable", "sends no request"),
    (mutant(asks("/health")), [], "not applicable", "sends no request"),
    (mutant(passes), [], "not caught", "passes passes"),
    (mutant(ends(KeyError("a"))), [], "not caught", "another reason: KeyError"),
    (mutant(ends(pytest.skip.Exception("no"))), [], "not applicable", "no"),
    (
        mutant(asks("/any"), make=lambda: mutations.plain(lambda document: document["missing"])),
        [],
        "not applicable",
        "can't be changed: KeyError",
    ),
]


@pytest.mark.parametrize(("mutant", "of_form", "outcome", "why"), VERDICTS)
def test_verdicts(
    mutant: Mutant, of_form: list[Check], outcome: Outcome, why: str, proxy: Proxy
) -> None:
    server = Server(proxy.url)
    found = judge(mutant, proxy, server, of_form)
    assert (found.outcome, why in found.why) == (outcome, True), found.why
    assert server.get("/any").json()["method"] == "GET", "the mutant is gone"
    server.close()


def test_a_server_may_have_no_mutants_of_a_check(proxy: Proxy) -> None:
    server = Server(proxy.url)
    assert healthy(asks("/any"), server) is None
    for check in (ends(pytest.skip.Exception("no")), ends(KeyError("a"))):
        found = healthy(check, server)
        assert found is not None
        assert found.outcome == "not applicable"
    server.close()


@pytest.mark.parametrize(
    ("outcomes", "status"),
    [
        (["caught", "not applicable"], 0),
        (["caught", "not caught"], 1),
        ([], 0),
    ],
)
def test_the_exit_status_says_if_all_are_caught(
    outcomes: list[Outcome], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    session = Session("http://127.0.0.1:1", None, None)
    for outcome in outcomes:
        session.report("a_mutant", Verdict(outcome, "for  a reason"))
    assert session.end(pytest.ExitCode.OK) == status
    assert capsys.readouterr().out.count("a_mutant: for a reason") == len(outcomes)
    assert session.end(pytest.ExitCode.INTERRUPTED) == 2
