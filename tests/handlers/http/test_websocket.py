"""WebSockets as ASGI: the handshake's request, and requests within a WebSocket."""

import asyncio
import json
from typing import Any

import pytest
from starlette.responses import JSONResponse

from specllama.handlers.http.current import Current
from specllama.handlers.http.streams import COMMENT, event_stream, sse_event
from specllama.handlers.http.websocket import WebSocket, WebSockets, accept, events

SCOPE: dict[str, Any] = {
    "type": "websocket",
    "scheme": "wss",
    "path": "/there",
    "query_string": b"key=1",
    "headers": [
        (b"authorization", b"Bearer k"),
        (b"sec-websocket-key", b"x"),
        (b"x-request-id", b"mine"),
        (b"upgrade", b"websocket"),
    ],
    "state": {"runtime": "the runtime"},
}


class Client:
    """The channels of a connection whose client sends `messages`, and then leaves or waits."""

    def __init__(self, *messages: str, leaves: bool = True) -> None:
        self.leaves = leaves
        self.incoming: list[Any] = [{"type": "websocket.connect"}]
        self.incoming += [{"type": "websocket.receive", "text": each} for each in messages]
        self.sent: list[Any] = []

    async def receive(self) -> Any:
        if self.incoming:
            return self.incoming.pop(0)
        if not self.leaves:
            await asyncio.Event().wait()
        return {"type": "websocket.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)


def served(app: Any, *messages: str, leaves: bool = True) -> list[Any]:
    """Returns the messages that a client of `app` gets."""
    client = Client(*messages, leaves=leaves)
    asyncio.run(WebSockets(Current(app))(SCOPE, client.receive, client.send))
    return client.sent


async def echo(socket: WebSocket) -> None:
    async for message in socket.messages():
        assert message is not None
        await socket.send(message)


def test_an_accepted_handshake_is_served() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope)
        await accept(echo)(scope, receive, send)

    accepted, *echoed = served(app, "a", "b")
    assert accepted == {"type": "websocket.accept"}
    assert [each["text"] for each in echoed] == ["a", "b"]
    [scope] = seen
    assert (scope["type"], scope["method"], scope["scheme"]) == ("http", "GET", "https")
    assert scope["headers"] == SCOPE["headers"]


def test_any_other_answer_refuses_the_handshake() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await JSONResponse({"a": 1}, 403)(scope, receive, send)

    head, body = served(app)
    assert (head["type"], head["status"]) == ("websocket.http.response.start", 403)
    assert (body["type"], json.loads(body["body"])) == ("websocket.http.response.body", {"a": 1})


@pytest.mark.parametrize("leaves", [True, False])
def test_an_endless_answer_to_a_handshake_is_cut(leaves: bool) -> None:
    async def frames() -> Any:
        while True:
            yield b"x" * 4096
            await asyncio.sleep(0)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await event_stream(frames())(scope, receive, send)

    assert sum(len(each.get("body", b"")) for each in served(app, leaves=leaves)) < 1 << 20


def test_a_request_within_a_websocket() -> None:
    seen: list[Any] = []
    got: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "GET":
            await accept(serve)(scope, receive, send)
            return
        seen.append((scope, await receive()))

        async def frames() -> Any:
            yield COMMENT
            yield sse_event({"n": 1}, "first") + sse_event({"n": 2})

        await event_stream(frames())(scope, receive, send)

    async def serve(socket: WebSocket) -> None:
        async def on_event(event: bytes) -> None:
            got.append(json.loads(event))

        got.append(await socket.request(b"{}", {"more": 1}, on_event))

    served(app)
    one, two, answer = got
    assert (one, two) == ({"n": 1}, {"n": 2})
    assert (answer.status, answer.body) == (200, b"")
    [(scope, message)] = seen
    assert scope["method"] == "POST"
    assert (scope["path"], scope["query_string"]) == ("/there", b"key=1")
    assert dict(scope["headers"]) == {
        b"authorization": b"Bearer k",
        b"content-type": b"application/json",
        b"content-length": b"2",
    }
    assert scope["state"] == {"runtime": "the runtime", "more": 1}
    assert message == {"type": "http.request", "body": b"{}", "more_body": False}


def test_an_answer_that_is_no_stream_is_whole() -> None:
    got: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "GET":
            await accept(serve)(scope, receive, send)
        else:
            await JSONResponse({"error": 1}, 400)(scope, receive, send)

    async def serve(socket: WebSocket) -> None:
        async def on_event(event: bytes) -> None:
            raise AssertionError(event)

        got.append(await socket.request(b"{}", {}, on_event))

    served(app)
    [answer] = got
    assert (answer.status, json.loads(answer.body)) == (400, {"error": 1})


def test_sending_to_a_client_that_has_left_is_no_error() -> None:
    async def gone(_: Any) -> None:
        raise OSError("disconnected")

    async def app(*_: Any) -> None:
        raise AssertionError

    async def test() -> None:
        socket = WebSocket(app, SCOPE, Client().receive, gone)
        await socket.send(b"{}")
        assert socket.gone.is_set()
        await socket.close()

    asyncio.run(test())


def test_events_are_separated_from_comments() -> None:
    frames = b": queued 3\n\n" + sse_event({"text": "a\n\ndata: {}"}, "x") + b"data: [DONE]\n\n"
    assert [json.loads(each) for each in events(frames)] == [{"text": "a\n\ndata: {}"}]
