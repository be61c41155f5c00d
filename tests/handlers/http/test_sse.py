"""Clients that stop in the middle of something."""

import asyncio
import json
import queue
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from starlette.responses import Response

from contract_tests.kit.server import SECONDS
from specllama.engine.errors import unavailable
from specllama.handlers.http.current import until_disconnect
from specllama.handlers.http.errors import HttpFailure
from specllama.handlers.http.streams import DONE, Ping, event_stream, sse_event
from tests.support.http_support import handlers_module, serving, small_app

pytestmark = pytest.mark.slow

begun: "queue.Queue[str]" = queue.Queue()
ended: "queue.Queue[str]" = queue.Queue()
go_on = threading.Semaphore(0)


async def slow(body: dict[str, Any]) -> dict[str, bool]:
    begun.put("slow")
    try:
        await until_disconnect(asyncio.sleep(body["seconds"]))
    except BaseException as error:
        ended.put(type(error).__name__)
        raise
    return {"done": True}


async def events(body: dict[str, Any]) -> AsyncIterator[bytes]:
    begun.put("events")
    try:
        if body.get("fail") == "early":
            raise unavailable("Loading model")
        for index in range(body["count"]):
            await asyncio.sleep(body.get("seconds", 0))
            while body.get("waits") and not go_on.acquire(blocking=False):
                await asyncio.sleep(0.001)
            yield sse_event({"index": index, "text": body.get("text", "ä\n")})
        if body.get("fail") == "late":
            raise unavailable("gone")
        if body.get("fail") == "bug":
            raise ValueError("a secret")
        yield DONE
    except BaseException as error:
        ended.put(type(error).__name__)
        raise


async def stream(body: dict[str, Any]) -> Response:
    if body.get("ping"):
        return event_stream(
            events(body), failed=failed, ping=Ping(0.01, b"ping\n\n"), headers={"x-a": "b"}
        )
    return event_stream(events(body))


def failed(failure: HttpFailure) -> bytes:
    return sse_event(failure.status, "error")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    handlers = handlers_module(slow=slow, stream=stream)
    with serving(small_app(tmp_path_factory.mktemp("api"), handlers)) as address:
        yield address


@pytest.fixture
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """A server with a short time limit, for clients that stop reading."""
    app = small_app(tmp_path_factory.mktemp("api"), handlers_module(), timeout=1)
    with serving(app) as address:
        yield address


@pytest.fixture
def client(address: tuple[str, int]) -> Iterator[httpx.Client]:
    for each_queue in (begun, ended):
        while not each_queue.empty():
            each_queue.get()
    with httpx.Client(base_url="http://{}:{}".format(*address), timeout=SECONDS) as client:
        yield client


def test_a_whole_stream(client: httpx.Client) -> None:
    response = client.post("/stream", json={"count": 2})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.text == (
        'data: {"index":0,"text":"ä\\n"}\n\ndata: {"index":1,"text":"ä\\n"}\n\ndata: [DONE]\n\n'
    )


def test_a_long_stream_comes_in_order(client: httpx.Client) -> None:
    response = client.post("/stream", json={"count": 2000})
    lines = [line for line in response.text.split("\n\n") if line]
    assert lines[:-1] == [f'data: {{"index":{index},"text":"ä\\n"}}' for index in range(2000)]


def test_no_separator_ends_a_line_in_the_middle(client: httpx.Client) -> None:
    """Python's `splitlines` and httpx' `iter_lines` know more ends of lines than the standard."""
    text = "a\u2028b\u2029c\x85d"
    answer = client.post("/stream", json={"count": 2, "text": text})
    lines = [line for line in answer.text.splitlines() if line]
    assert len(lines) == 3
    assert json.loads(lines[1].removeprefix("data: ")) == {"index": 1, "text": text}


def test_an_early_error_is_an_ordinary_answer(client: httpx.Client) -> None:
    for body in ({"count": 1, "fail": "early"}, {"count": 0, "fail": "late"}):
        response = client.post("/stream", json=body)
        assert response.status_code == 503
        assert response.json()["error"]["type"] == "unavailable_error"


def test_a_late_error_is_the_last_event(client: httpx.Client) -> None:
    response = client.post("/stream", json={"count": 1, "fail": "late"})
    assert response.status_code == 200
    assert response.text.split("\n\n")[1:] == [
        'data: {"error":{"code":503,"message":"gone","type":"unavailable_error"}}',
        "",
    ]


def test_an_api_may_have_its_own_format_of_errors(client: httpx.Client) -> None:
    response = client.post("/stream", json={"count": 1, "fail": "late", "ping": True})
    assert response.text.split("\n\n")[1:] == ["event: error\ndata: 503", ""]
    assert response.headers["x-a"] == "b"


def test_a_silent_stream_pings(client: httpx.Client) -> None:
    threading.Timer(0.1, go_on.release).start()
    body = {"count": 3, "waits": True, "ping": True}
    with client.stream("POST", "/stream", json=body) as response:
        chunks, text = response.iter_text(), ""
        for n_pings in (1, 2):
            while text.count("ping") < n_pings:
                text += next(chunks)
            go_on.release()
        text += "".join(chunks)
    first, *others, done, end = text.split("\n\n")
    assert first.startswith("data: ")  # nothing comes before the stream has begun
    assert "ping" in others
    assert [each for each in others if each != "ping"] == [
        f'data: {{"index":{index},"text":"ä\\n"}}' for index in (1, 2)
    ]
    assert (done, end) == ("data: [DONE]", "")
    silent = client.post("/stream", json={"count": 2, "seconds": 0.1})
    assert "ping" not in silent.text


def test_a_bug_in_a_stream_keeps_its_secret(client: httpx.Client) -> None:
    response = client.post("/stream", json={"count": 1, "fail": "bug"})
    assert '"type":"server_error"' in response.text
    assert "secret" not in response.text


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("seconds", [0.01, 3600])
def test_leaving_a_stream(address: tuple[str, int], seconds: float) -> None:
    with part_of_a_request(address, "/stream", {"count": 10**9, "seconds": seconds}) as connection:
        assert begun.get(timeout=SECONDS) == "events"
        if seconds < 1:
            assert connection.recv(1)
    assert ended.get(timeout=SECONDS) == "CancelledError"


def test_leaving_a_plain_request(client: httpx.Client, address: tuple[str, int]) -> None:
    assert client.post("/slow", json={"seconds": 0}).json() == {"done": True}
    assert begun.get(timeout=SECONDS) == "slow"
    with part_of_a_request(address, "/slow", {"seconds": 3600}):
        assert begun.get(timeout=SECONDS) == "slow"
    assert ended.get(timeout=SECONDS) == "ClientDisconnect"


def part_of_a_request(
    address: tuple[str, int], path: str, body: Any, n_missing: int = 0
) -> socket.socket:
    """A connection on which all of a request except its last bytes has been sent."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    connection = socket.create_connection(address, timeout=SECONDS)
    connection.sendall(
        head.encode() + b"Content-Length: %d\r\n\r\n" % (len(content) + n_missing) + content
    )
    return connection


def half_a_request(address: tuple[str, int]) -> socket.socket:
    return part_of_a_request(address, "/slow", {"seconds": 0}, n_missing=100)


def test_half_a_body_and_silence(hasty: tuple[str, int]) -> None:
    with half_a_request(hasty) as connection:
        answer = b""
        while chunk := connection.recv(65536):  # until the server closes
            answer += chunk
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"code":408' in answer
    url = "http://{}:{}/open".format(*hasty)
    assert httpx.get(url, timeout=SECONDS).status_code == 200


def test_half_a_body_and_gone(client: httpx.Client, address: tuple[str, int]) -> None:
    half_a_request(address).close()
    assert client.post("/slow", json={"seconds": 0}).json() == {"done": True}


def test_a_cancelled_server_is_no_disconnect() -> None:
    """A cancellation from elsewhere is passed on unchanged."""
    from specllama.handlers.http.current import CancelOnDisconnect

    async def never() -> dict[str, str]:
        await asyncio.Event().wait()
        raise AssertionError

    async def work() -> None:
        async with CancelOnDisconnect(never):
            await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
