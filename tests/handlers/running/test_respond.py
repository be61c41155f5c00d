"""The beginning and the end of an answer, for a format and generations that a test plays."""

import asyncio
import json
import queue
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import httpx
import pytest
from starlette.responses import Response

from contract_tests.kit.server import SECONDS
from specllama.engine.errors import unavailable
from specllama.engine.wire.replies import Begun, Queued
from specllama.handlers.http.errors import HttpFailure
from specllama.handlers.running import respond as respond_module
from specllama.handlers.running.respond import respond
from tests.support.http_support import handlers_module, serving, small_app

pytestmark = pytest.mark.slow


@dataclass
class Word:
    index: int
    text: str


@dataclass
class Played:
    """Generations whose events the request lists: words as [index, text]; "fail" and "hang".
    Before these, they have the `places` in the queue, one after the other; "fail" is a refusal."""

    script: list[Any]
    log: "queue.Queue[str]"
    ready: bool = False
    places: list[Any] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        self.log.put("entered")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.log.put("released")

    @property
    def queue(self) -> Queued | None:
        place = self.places.pop(0) if self.places else None
        return None if place is None else Queued(1, place, 1e3 * place)

    async def accepted(self) -> None:
        if self.places[0] == "fail":
            raise unavailable("full")

    async def begun(self) -> Begun:
        while self.places:
            await asyncio.sleep(respond_module.QUEUE_SECONDS)
        if self.script[0] == "fail":
            raise unavailable("gone")
        return Begun(1)

    async def events(self) -> AsyncIterator[Word]:
        for each in self.script:
            if each == "fail":
                raise unavailable("gone")
            if each == "hang":
                await asyncio.Event().wait()
            yield Word(*each)

    async def results(self) -> list[str]:
        return [word.text async for word in self.events()]


@dataclass
class Lines:
    """A format of lines that records its events."""

    log: "queue.Queue[str]"
    seen: list[str] = field(default_factory=list)

    def begin(self, event: Word) -> bytes:
        return b"begin %d\n" % event.index

    def event(self, event: Word) -> bytes:
        self.seen.append(event.text)
        return f"{event.index} {event.text}\n".encode() if event.text else b""

    async def end(self) -> bytes:
        self.log.put("end")
        return f"end {len(self.seen)}\n".encode()

    def failed(self, failure: HttpFailure) -> bytes:
        return f"failed {failure.status}\n".encode()

    async def whole(self, results: list[str]) -> Any:
        self.log.put("end")
        return {"texts": results}


log: "queue.Queue[str]" = queue.Queue()


async def stream(body: dict[str, Any]) -> Response:
    places = body.get("places")
    return await respond(
        lambda: Played(body["script"], log, places=places or []),
        Lines(log),
        stream=body["stream"],
        media_type="text/lines",
        headers={"x-a": "b"},
        shows_queue=places is not None,
    )


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    app = small_app(tmp_path_factory.mktemp("api"), handlers_module(stream=stream))
    with (
        serving(app) as (host, port),
        httpx.Client(base_url=f"http://{host}:{port}", timeout=SECONDS) as client,
    ):
        yield client


def ask(client: httpx.Client, *script: Any, stream: bool) -> httpx.Response:
    return client.post("/stream", json={"script": script, "stream": stream})


def logged(n: int) -> list[str]:
    return [log.get(timeout=SECONDS) for _ in range(n)]


def test_each_text_begins_with_its_first_event(client: httpx.Client) -> None:
    answer = ask(client, [0, "a"], [1, ""], [0, "b"], [1, "c"], stream=True)
    assert answer.text == "begin 0\n0 a\nbegin 1\n0 b\n1 c\nend 4\n"
    assert answer.headers["content-type"].startswith("text/lines")
    assert answer.headers["x-a"] == "b"
    assert logged(3) == ["entered", "end", "released"]


def test_whole(client: httpx.Client) -> None:
    answer = ask(client, [0, "a"], [1, "b"], stream=False)
    assert answer.json() == {"texts": ["a", "b"]}
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-a"] == "b"
    assert logged(3) == ["entered", "end", "released"]


@pytest.mark.parametrize("stream", [False, True])
def test_an_early_failure_is_an_answer_of_its_own(client: httpx.Client, stream: bool) -> None:
    answer = ask(client, "fail", stream=stream)
    assert answer.status_code == 503
    assert answer.json()["error"]["message"] == "gone"
    assert logged(2) == ["entered", "released"]


def test_a_late_failure_ends_the_stream_in_its_format(client: httpx.Client) -> None:
    answer = ask(client, [0, "a"], "fail", stream=True)
    assert answer.status_code == 200
    assert answer.text == "begin 0\n0 a\nfailed 503\n"
    assert logged(2) == ["entered", "released"]


def test_the_head_of_a_stream_comes_when_its_prompt_begins(client: httpx.Client) -> None:
    body = {"script": ["hang"], "stream": True}
    with client.stream("POST", "/stream", json=body) as answer:
        assert answer.status_code == 200
        assert logged(1) == ["entered"]
    assert logged(1) == ["released"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_releases_the_engine(client: httpx.Client, stream: bool) -> None:
    content = json.dumps({"script": [[0, "a"], "hang"], "stream": stream}).encode()
    head = (
        b"POST /stream HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(content)
    )
    address = client.base_url.host, client.base_url.port
    with socket.create_connection(address, timeout=SECONDS) as connection:
        connection.sendall(head + content)
        assert logged(1) == ["entered"]
    assert logged(1) == ["released"]


# ---- streams that show the queue ---------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(respond_module, "QUEUE_SECONDS", 0.01)


@pytest.mark.usefixtures("quick")
def test_a_stream_reports_each_new_place_in_the_queue(client: httpx.Client) -> None:
    places = [7, None, 7, 3, 3, None, 1]
    body = {"script": [[0, "a"]], "stream": True, "places": places}
    answer = client.post("/stream", json=body)
    assert answer.text == (
        ": queued 7, about 7.0 s\n\n: queued 3, about 3.0 s\n\n: queued 1, about 1.0 s\n\n"
        "begin 0\n0 a\nend 1\n"
    )
    assert logged(3) == ["entered", "end", "released"]


@pytest.mark.usefixtures("quick")
def test_a_refusal_has_a_status_and_a_later_failure_has_an_event(client: httpx.Client) -> None:
    answer = client.post("/stream", json={"script": [], "stream": True, "places": ["fail"]})
    assert (answer.status_code, answer.json()["error"]["message"]) == (503, "full")
    assert logged(2) == ["entered", "released"]
    answer = client.post("/stream", json={"script": ["fail"], "stream": True, "places": [1]})
    assert answer.status_code == 200
    assert answer.text == ": queued 1, about 1.0 s\n\nfailed 503\n"
    assert logged(2) == ["entered", "released"]


def test_a_client_that_leaves_the_queue_releases_the_engine(client: httpx.Client) -> None:
    body = {"script": [[0, "a"]], "stream": True, "places": [None] * 1_000_000}
    with client.stream("POST", "/stream", json=body) as answer:
        assert answer.status_code == 200, "before there is a slot"
        assert logged(1) == ["entered"]
    assert logged(1) == ["released"]
