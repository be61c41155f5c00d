"""The WebSocket of the Responses API, with a transport whose requests are scripted."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from specllama.handlers.apis.responses import socket
from specllama.handlers.apis.responses.socket import ResponsesSocket
from specllama.handlers.apis.responses.steering import MAX_STEERS
from specllama.handlers.http.websocket import HttpAnswer

OnEvent = Callable[[bytes], Awaitable[None]]


class Transport:
    """Stands in for `WebSocket`. Each request gets an id, `r0` first, and runs until its `finish`
    is called."""

    def __init__(self, idle: float = 60) -> None:
        self.incoming: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.sent: list[Any] = []
        self.bodies: list[Any] = []
        self.gone = asyncio.Event()
        self.closed: tuple[int, str] | None = None
        self.events: dict[str, OnEvent] = {}
        self.answers: dict[str, asyncio.Future[HttpAnswer]] = {}
        http = SimpleNamespace(timeout=idle, max_body_size=1)
        self.state = {"runtime": SimpleNamespace(options=SimpleNamespace(http=http))}

    async def messages(self) -> AsyncIterator[bytes | None]:
        while (message := await self.incoming.get()) != b"":
            yield message
        self.gone.set()

    async def send(self, text: bytes) -> None:
        if not self.gone.is_set():
            self.sent.append(json.loads(text))

    async def close(self, code: int = 1000, reason: str = "") -> None:
        self.closed = code, reason

    async def request(self, body: bytes, _: Mapping[str, Any], on_event: OnEvent) -> HttpAnswer:
        id = f"r{len(self.bodies)}"
        self.bodies.append(json.loads(body))
        self.events[id] = on_event
        self.answers[id] = asyncio.get_running_loop().create_future()
        gone = asyncio.create_task(self.gone.wait())
        gone.add_done_callback(lambda _: self.answers[id].cancel())
        try:
            return await self.answers[id]
        except asyncio.CancelledError:
            return HttpAnswer(200, {}, b"")
        finally:
            gone.cancel()

    # ---- what a test does

    async def give(self, **event: Any) -> None:
        self.incoming.put_nowait(json.dumps(event).encode())
        await turns()

    async def create(self, **fields: Any) -> None:
        await self.give(type="response.create", **{"input": "hello", **fields})

    async def emit(self, id: str, type: str, **fields: Any) -> None:
        event = {"type": type, **fields}
        await self.events[id](json.dumps(event, separators=(",", ":")).encode())

    async def begin(self, id: str) -> None:
        await self.emit(id, "response.created", response={"id": id, "status": "in_progress"})

    async def finish(
        self, id: str, status: str = "completed", output: list[Any] | None = None
    ) -> None:
        response = {"id": id, "status": status, "output": output or []}
        await self.emit(id, f"response.{status}", response=response)
        self.answers[id].set_result(HttpAnswer(200, {}, b""))
        await turns()

    async def refuse(self, id: str, status: int = 400, **error: Any) -> None:
        error = {"code": status, "message": "no", "type": "invalid_request_error", **error}
        body = json.dumps({"error": error}).encode()
        headers = {"retry-after": "7", "date": "today", "x-ratelimit-limit-requests": "5"}
        self.answers[id].set_result(HttpAnswer(status, headers, body))
        await turns()

    def types(self) -> list[str]:
        return [event["type"] for event in self.sent]


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def run(test: Callable[[Transport], Awaitable[None]], **options: Any) -> Transport:
    async def main() -> Transport:
        transport = Transport(**options)
        serving = asyncio.create_task(ResponsesSocket.serve(transport))  # type: ignore[arg-type]
        await turns()
        await test(transport)
        transport.incoming.put_nowait(b"")
        await serving
        return transport

    return asyncio.run(main())


def test_responses_of_a_lane_follow_each_other_and_lanes_run_side_by_side() -> None:
    async def test(it: Transport) -> None:
        await it.create(stream_id="a", input="1")
        await it.create(stream_id="a", input="2")
        await it.create(stream_id="b", input="3")
        await it.create(input="4")
        assert [body["input"] for body in it.bodies] == ["1", "3", "4"]
        await it.begin("r0")
        await it.finish("r0")
        assert [body["input"] for body in it.bodies] == ["1", "3", "4", "2"]
        await it.begin("r2")
        assert [event.get("stream_id") for event in it.sent] == ["a", "a", None]

    run(test)


def test_an_error_follows_no_failed_response() -> None:
    async def test(it: Transport) -> None:
        await it.create()
        await it.begin("r0")
        await it.emit("r0", "response.failed", response={"id": "r0", "status": "failed"})
        await it.emit("r0", "error", message="repeats it")
        it.answers["r0"].set_result(HttpAnswer(200, {}, b""))
        await turns()

    assert run(test).types() == ["response.created", "response.failed"]


def test_a_refused_request_is_an_error_with_its_status_and_headers() -> None:
    async def test(it: Transport) -> None:
        await it.create(stream_id="a")
        await it.refuse("r0", 429, type="rate_limit_error")
        await it.create(previous_response_id="x")
        await it.refuse("r1", reason="previous_response_not_found")

    limited, missing = run(test).sent
    assert limited["status"] == 429
    assert limited["stream_id"] == "a"
    assert limited["error"]["type"] == limited["error"]["code"] == "rate_limit_error"
    assert limited["headers"] == {"retry-after": "7", "x-ratelimit-limit-requests": "5"}
    assert missing["error"]["code"] == "previous_response_not_found"
    assert missing["error"]["param"] == "previous_response_id"


def test_a_failed_request_without_a_body_is_a_server_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(*_: Any) -> HttpAnswer:
        raise ZeroDivisionError

    async def test(it: Transport) -> None:
        monkeypatch.setattr(it, "request", fail)
        await it.create()

    [error] = run(test).sent
    assert (error["status"], error["error"]["code"]) == (500, "server_error")


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (b"{", "truncated"),
        (b"[]", "Expected `object`"),
        (b"\xff", "JSON is malformed"),
        (b'{"type": 5}', "$.type"),
        (b'{"type": "response.create", "stream_id": {}}', "$.stream_id"),
        (b'{"type": "session.update"}', "'session.update' is not an event"),
    ],
)
def test_a_message_that_is_no_event_is_an_error(message: bytes, said: str) -> None:
    async def test(it: Transport) -> None:
        it.incoming.put_nowait(message)
        await turns()
        await it.create()
        assert it.bodies

    [error] = run(test).sent
    assert error["status"] == 400
    assert said in error["error"]["message"]


@pytest.mark.parametrize("id", ["", "x" * 257])
def test_a_stream_id_has_a_length(id: str) -> None:
    async def test(it: Transport) -> None:
        await it.create(stream_id=id)

    [error] = run(test).sent
    assert error["error"]["code"] == "invalid_stream_id"
    assert "stream_id" not in error


def test_lanes_and_waiting_requests_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "MAX_LANES", 2)
    monkeypatch.setattr(socket, "MAX_WAITING", 3)

    async def test(it: Transport) -> None:
        for id in ("a", "b", "c"):
            await it.create(stream_id=id)
        assert [each["error"]["code"] for each in it.sent] == ["too_many_streams"]
        it.sent.clear()
        for _ in range(4):
            await it.create(stream_id="a")
        assert [each["error"]["code"] for each in it.sent] == ["too_many_pending_requests"]
        await it.begin("r0")
        await it.finish("r0")
        await it.create(stream_id="a")
        assert it.types()[-1] == "response.completed"

    run(test)


def test_the_bytes_of_waiting_requests_are_limited() -> None:
    async def test(it: Transport) -> None:
        for _ in range(3):
            await it.create(input="x" * (600 << 10))
        assert [each["error"]["code"] for each in it.sent] == ["too_many_pending_requests"]

    run(test)


def test_an_old_connection_accepts_no_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "MAX_SECONDS", 0.0)

    async def test(it: Transport) -> None:
        await it.create()
        assert not it.bodies

    [error] = run(test).sent
    assert error["error"]["code"] == "websocket_connection_limit_reached"


def test_an_idle_connection_is_closed() -> None:
    async def main() -> Transport:
        transport = Transport(idle=0)
        await ResponsesSocket.serve(transport)  # type: ignore[arg-type]
        return transport

    it = asyncio.run(main())
    assert it.closed is not None
    assert it.closed[0] == 1000


def test_a_server_that_shuts_down_completes_running_responses() -> None:
    async def main() -> Transport:
        it = Transport()
        serving = asyncio.create_task(ResponsesSocket.serve(it))  # type: ignore[arg-type]
        await it.create()
        it.incoming.put_nowait(None)
        await it.create(stream_id="new")
        assert it.sent[-1]["error"]["code"] == "server_shutting_down"
        assert not serving.done()
        await it.begin("r0")
        await it.finish("r0")
        await serving
        return it

    it = asyncio.run(main())
    assert it.closed is not None
    assert it.closed[0] == 1012


def test_a_client_that_leaves_ends_its_requests() -> None:
    async def test(it: Transport) -> None:
        await it.create(stream_id="a")
        await it.create(stream_id="b")

    assert run(test).gone.is_set()


# ---- steering


def test_a_steered_response_is_continued_with_its_own_settings() -> None:
    async def test(it: Transport) -> None:
        await it.create(stream_id="a", temperature=0, instructions="Be brief.", generate=True)
        await it.create(stream_id="a", input="later")
        await it.begin("r0")
        await it.give(type="response.steer", previous_response_id="r0", input="first")
        content = [{"type": "input_text", "text": "second"}]
        message = {"role": "user", "content": content}
        await it.give(type="response.steer", previous_response_id="r0", input=[message])
        await it.finish("r0", "incomplete")
        follower, *others = it.bodies[1:]
        assert not others, "the other request of the lane waits"
        assert follower["previous_response_id"] == "r0"
        assert (follower["temperature"], follower["instructions"]) == (0, "Be brief.")
        assert [item["content"] for item in follower["input"]] == ["first", content]
        await it.begin("r1")
        await it.finish("r1")
        assert it.bodies[2]["input"] == "later"

    it = run(test)
    accepted = [each for each in it.sent if each["type"] == "response.steer.accepted"]
    assert [each["stream_id"] for each in accepted] == ["a", "a"]
    assert len({each["steer"]["id"] for each in accepted}) == 2


def test_steers_wait_for_the_outputs_of_calls() -> None:
    async def test(it: Transport) -> None:
        await it.create()
        await it.begin("r0")
        await it.give(type="response.steer", previous_response_id="r0", input="hurry")
        call = {"type": "function_call", "call_id": "c", "name": "f"}
        custom = {"type": "custom_tool_call", "call_id": "d", "name": "g"}
        await it.finish("r0", output=[{"type": "reasoning"}, call, custom])
        pending = it.sent[-1]
        assert pending["type"] == "response.steer.pending"
        assert pending["required_input"] == [
            {"type": "function_call_output", "call_id": "c", "name": "f"},
            {"type": "custom_tool_call_output", "call_id": "d"},
        ]
        await it.give(type="response.steer", previous_response_id="r0", input="now")
        outputs = [{"type": "function_call_output", "call_id": "c", "output": "1"}]
        await it.create(previous_response_id="r0", input=outputs)
        *steered, output = it.bodies[1]["input"]
        assert [each["content"] for each in steered] == ["hurry", "now"]
        assert output == outputs[0]

    run(test)


@pytest.mark.parametrize(
    ("target", "input", "code"),
    [
        ("r0", "", "invalid_input"),
        ("r0", [], "invalid_input"),
        ("r0", 5, "invalid_input"),
        ("r0", [{"role": "system", "content": "x"}], "invalid_input"),
        ("r0", [{"role": "user", "content": [{"type": "output_text"}]}], "invalid_input"),
        ("r9", "x", "response_not_found"),
        (None, "x", "response_not_found"),
    ],
)
def test_a_steer_that_is_refused_returns_its_input(target: Any, input: Any, code: str) -> None:
    async def test(it: Transport) -> None:
        await it.create()
        await it.begin("r0")
        await it.give(type="response.steer", previous_response_id=target, input=input)

    failed = run(test).sent[-1]
    assert failed["type"] == "response.steer.failed"
    assert failed["error"]["code"] == code
    assert failed["steer"] == {"previous_response_id": target or "", "input": input}


def test_a_steer_for_an_ended_response_is_refused() -> None:
    async def test(it: Transport) -> None:
        await it.create()
        await it.begin("r0")
        await it.finish("r0")
        await it.give(type="response.steer", previous_response_id="r0", input="x")

    assert run(test).sent[-1]["error"]["code"] == "response_already_completed"


def test_steers_are_limited() -> None:
    async def test(it: Transport) -> None:
        await it.create()
        await it.begin("r0")
        for _ in range(MAX_STEERS + 1):
            await it.give(type="response.steer", previous_response_id="r0", input="x")

    assert run(test).sent[-1]["error"]["code"] == "too_many_pending_steers"


def test_a_failure_returns_accepted_input() -> None:
    async def test(it: Transport) -> None:
        await it.create()
        await it.begin("r0")
        await it.give(type="response.steer", previous_response_id="r0", input="x")
        await it.finish("r0", "failed")
        assert it.sent[-1]["error"]["code"] == "response_not_active"
        await it.create()
        await it.begin("r1")
        await it.give(type="response.steer", previous_response_id="r1", input="y")
        await it.finish("r1")
        await it.refuse("r2")
        failed = it.sent[-1]
        assert failed["error"]["code"] == "successor_creation_failed"
        assert failed["steer"]["input"] == "y"
        assert failed["steer"]["id"]

    run(test)


def test_held_input_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "MAX_WAITING", 1)

    async def test(it: Transport) -> None:
        call = {"type": "function_call", "call_id": "c", "name": "f"}
        for id in ("r0", "r1"):
            await it.create()
            await it.begin(id)
            await it.give(type="response.steer", previous_response_id=id, input=id)
            await it.finish(id, output=[call])
        failed = [each for each in it.sent if each["type"] == "response.steer.failed"]
        assert [each["steer"]["input"] for each in failed] == ["r0"]

    run(test)
