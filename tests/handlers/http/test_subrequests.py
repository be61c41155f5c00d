"""Requests on behalf of a client."""

import asyncio
from typing import Any

import pytest

from specllama.handlers.http import current
from specllama.handlers.http.log_fields import begin_log_fields
from specllama.handlers.http.subrequests import Subanswer, Subrequests, subrequests

HEADERS = [
    (b"authorization", b"Bearer key"),
    (b"content-length", b"999"),
    (b"content-type", b"text/plain"),
    (b"content-encoding", b"gzip"),
    (b"x-conversation-id", b"c"),
    (b"x-request-id", b"theirs"),
]


def answer_of(app: Any, n_room: int = 100) -> Subanswer:
    """Returns the answer of `app` to a request with the body `{}`."""
    state: dict[str, Any] = {"runtime": "R"}
    scope: dict[str, Any] = {
        **{"type": "http", "method": "PUT", "path": "/outer", "query_string": b"a=b"},
        **{"headers": HEADERS, "state": state},
    }

    def take(n_bytes: int) -> bool:
        return n_bytes <= n_room

    async def run() -> Subanswer:
        Subrequests(app, scope, "/base", {}).attach(scope)
        begin_log_fields(scope)
        await current.Current(nothing)(scope, nothing, nothing)
        found = subrequests()
        assert found is not None
        return await asyncio.create_task(found.post("/inner", b"{}", take))

    return asyncio.run(run())


async def nothing(*_: Any) -> Any:
    return None


def test_the_request_is_that_of_the_client() -> None:
    seen: dict[str, Any] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.update(scope)
        seen["body"] = await receive()
        headers = [(b"Content-Type", b"application/json; charset=utf-8")]
        await send({"type": "http.response.start", "status": 201, "headers": headers})
        for part in (b"[1", b",2]", b""):
            await send({"type": "http.response.body", "body": part, "more_body": bool(part)})

    assert answer_of(app) == Subanswer(201, "application/json", b"[1,2]")
    assert (seen["method"], seen["path"], seen["raw_path"]) == (
        "POST",
        "/base/inner",
        b"/base/inner",
    )
    assert seen["query_string"] == b"a=b"
    assert seen["headers"] == [
        (b"authorization", b"Bearer key"),
        (b"content-type", b"application/json"),
        (b"content-length", b"2"),
        (b"x-request-id", b"theirs"),
    ]
    assert seen["body"] == {"type": "http.request", "body": b"{}", "more_body": False}
    assert seen["state"] == {"runtime": "R"}, "it has a state of its own, and makes no requests"


def test_the_client_stays_until_the_task_is_cancelled() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        waiting = asyncio.create_task(receive())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait({waiting})
        assert waiting.cancelled()
        await send({"type": "http.response.start", "status": 204, "headers": []})

    assert answer_of(app) == Subanswer(204, "", b"")


def test_an_answer_without_room_is_cut() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for part in (b"1234", b"123456", b"12"):
            await send({"type": "http.response.body", "body": part, "more_body": True})

    assert answer_of(app, 5) == Subanswer(200, "", b"", is_cut=True)


def test_an_exception_after_an_answer_is_in_the_log_already() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 500, "headers": []})
        raise ValueError

    assert answer_of(app).status == 500

    async def silent(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("no answer")

    with pytest.raises(ValueError, match="no answer"):
        answer_of(silent)
