"""The WebSocket of the Responses API on a live server: access, limits, cancellation, shutdown."""

import contextlib
import os
import socket as sockets
from typing import Any

import pytest
from openai import OpenAI
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect as connect_socket

from contract_tests.kit import contract
from contract_tests.kit.server import API_KEY, SECONDS, OwnServer, Start
from contract_tests.kit.sockets import connect, refused

LONG: dict[str, Any] = {"input": "Count.", "ignore_eos": True, "max_output_tokens": 1000}
SHORT: dict[str, Any] = {"input": "Count.", "store": False, "max_output_tokens": 4}
MIB = 1 << 20
BRIEF = 0.5  # s; the answer never ends


@pytest.fixture(scope="module")
def server(module_server: Start) -> OwnServer:
    return module_server("--parallel", "2", "--max-body-size", "2", "--ctx-size", "2048")


@pytest.fixture(scope="module")
def locked(module_server: Start) -> OwnServer:
    return module_server(api_key=API_KEY)


# ---- the handshake


def test_pages_of_other_origins_are_refused(server: OwnServer) -> None:
    status, document = refused(server, Origin="https://foreign.example")
    assert status == 403
    assert "origin" in document["error"]["message"]
    with connect(server, Origin=server.url) as socket:
        assert socket.respond(**SHORT)["type"] == "response.incomplete"


def test_a_foreign_host_is_refused(server: OwnServer) -> None:
    status, document = refused(server, Host="rebound.example")
    assert (status, document["error"]["type"]) == (403, "permission_error")


def test_a_key_is_needed(locked: OwnServer) -> None:
    status, document = refused(locked, Authorization="Bearer wrong")
    assert (status, document["error"]["message"]) == (401, "Invalid API Key")
    with connect(locked) as socket:
        assert "response" in socket.respond(**SHORT)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/health", "/nowhere", "/openapi.json"])
def test_other_paths_have_no_websocket(path: str, server: OwnServer) -> None:
    """The answer is that to a `GET`; a long one may be cut."""
    expected = server.get(path)
    url = server.url.replace("http", "ws", 1) + path
    with pytest.raises(InvalidStatus) as refusal, connect_socket(url, proxy=None):
        pass
    assert refusal.value.response.status_code == expected.status_code


def test_an_endless_answer_refuses_a_websocket_and_ends(server: OwnServer) -> None:
    url = server.url.replace("http", "ws", 1) + "/models/sse"
    with (
        contextlib.suppress(InvalidStatus, TimeoutError),
        connect_socket(url, proxy=None, open_timeout=BRIEF),
    ):
        raise AssertionError("the server accepts the WebSocket")
    assert server.get("/health").status_code == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"Sec-WebSocket-Version": "8"},
        {"Sec-WebSocket-Key": "short"},
        {"Sec-WebSocket-Key": ""},
        {"Connection": "keep-alive"},
        {"Upgrade": "h2c"},
        {"Content-Length": "0"},
    ],
)
def test_an_invalid_handshake_gets_the_envelope(fields: dict[str, str], server: OwnServer) -> None:
    valid = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    contract.check(server.get("/v1/responses", headers={**valid, **fields}), 426)


def test_long_heads_and_queries_reach_the_handler(server: OwnServer) -> None:
    query = f"/v1/responses?padding={'x' * 20_000}"
    with connect(server, query, Padding="y" * 20_000) as socket:
        assert "response" in socket.respond(**SHORT)


# ---- responses


def test_openai_client(server: OwnServer) -> None:
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=SECONDS)
    with client.responses.connect() as connection:
        connection.response.create(model="any", input="Say hello.", store=False)
        first = None
        for event in connection:
            if event.type == "response.completed":
                first = event.response
                break
        assert first is not None
        assert first.output_text
        connection.response.create(
            model="any", input="Again.", store=False, previous_response_id=first.id
        )
        for event in connection:
            if event.type == "response.completed":
                assert event.response.previous_response_id == first.id
                break


def test_lanes_run_side_by_side_and_each_in_order(server: OwnServer) -> None:
    with connect(server) as socket:
        for lane in "ab":
            socket.create(stream_id=lane, **LONG)
            socket.create(stream_id=lane, **SHORT)
        lanes: dict[str, list[str]] = {"a": [], "b": []}
        order = []
        n_ended = 0
        while n_ended < 4:
            event = socket.receive()
            order.append(event["stream_id"])
            if event["type"] in ("response.created", "response.incomplete"):
                lanes[event["stream_id"]].append(event["response"]["id"])
            n_ended += event["type"] == "response.incomplete"
    for first, ended, second, last in lanes.values():
        assert (first, second) == (ended, last)
    assert order != sorted(order), "the lanes have run one after the other"


def test_stored_responses_are_those_of_http(server: OwnServer) -> None:
    with connect(server) as socket:
        stored = socket.respond(input="Hello", max_output_tokens=8)["response"]
        found = contract.check(server.get(f"/v1/responses/{stored['id']}"))
        assert found["output"] == stored["output"]
        request = {"input": "And?", "previous_response_id": stored["id"], "max_output_tokens": 4}
        over_http = contract.check(server.post("/v1/responses", request))
        request["previous_response_id"] = over_http["id"]
        last = socket.respond(**request, store=False)["response"]
    assert last["previous_response_id"] == over_http["id"]
    gone = server.get(f"/v1/responses/{last['id']}")
    contract.check(gone, 404)


def test_a_steered_response_is_continued(server: OwnServer) -> None:
    with connect(server) as socket:
        socket.create(**{**LONG, "max_output_tokens": 100}, store=False)
        created = socket.receive()
        target = created["response"]["id"]
        socket.send(type="response.steer", previous_response_id=target, input="Stop.")
        events = [*socket.turn(), *socket.turn()]
        assert "response.steer.accepted" in [each["type"] for each in events]
        assert events[-1]["response"]["previous_response_id"] == target


def test_closing_cancels(server: OwnServer) -> None:
    with connect(server) as socket:
        for lane in "ab":
            socket.create(**LONG, stream_id=lane)
        while {each["is_processing"] for each in server.slots()} != {True}:
            socket.receive()
    server.wait_until_idle()


def test_a_dead_client_cancels(server: OwnServer) -> None:
    with contextlib.suppress(ConnectionClosed), connect(server) as socket:
        socket.create(**LONG)
        socket.receive()
        socket.connection.socket.shutdown(sockets.SHUT_RDWR)
    server.wait_until_idle()


def test_errors_leave_the_connection_open(server: OwnServer) -> None:
    with connect(server) as socket:
        for message in ("", "[]", "{}", '{"type": 1}', '{"type":"response.create"}', "\x00"):
            socket.connection.send(message)
            assert socket.receive()["error"]["type"] == "invalid_request_error"
        socket.connection.send(b"\xff\xfe")
        assert socket.receive()["status"] == 400
        deep = '{"type":"response.create","input":' + "[" * 100_000 + "]" * 100_000 + "}"
        socket.connection.send(deep)
        assert socket.receive()["status"] in (400, 413)
        many = '{"type":"response.create","input":[' + "[]," * 200_000 + "[]]}"
        socket.connection.send(many)
        assert socket.receive()["status"] in (400, 413)
        assert "response" in socket.respond(**SHORT)


def test_too_large_a_message_ends_the_connection_alone(server: OwnServer) -> None:
    with connect(server) as other:
        with connect(server) as socket:
            with contextlib.suppress(ConnectionClosed):  # before everything is sent
                socket.create(input="x" * (3 * MIB))
            with pytest.raises(ConnectionClosed) as closed:
                socket.receive()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009
        assert "response" in other.respond(**SHORT)


def test_http_fields_have_no_effect(server: OwnServer) -> None:
    with connect(server) as socket:
        ended = socket.respond(**SHORT, stream=False, background=True, stream_options={})
        assert ended["response"]["background"] is False


def test_a_client_that_does_not_read_holds_no_memory(server: OwnServer) -> None:
    """The messages wait in bounded buffers, and the others are served."""
    key = "AAAAAAAAAAAAAAAAAAAAAA=="
    head = (
        f"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
        f"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
    )
    ping = b"\x89\x80" + os.urandom(4)
    with sockets.create_connection(server.address, timeout=SECONDS) as raw:
        raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
        raw.sendall(head.encode())
        assert b" 101 " in raw.recv(4096)
        raw.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            for _ in range(200_000):
                raw.send(ping * 100)
        with connect(server) as socket:
            assert "response" in socket.respond(**SHORT)
    assert server.process.poll() is None


# ---- shutdown


def test_a_shutdown_completes_running_responses(own_server: Start) -> None:
    server = own_server("--drain-timeout", "600")
    with connect(server) as socket, connect(server) as idle:
        socket.create(**{**LONG, "max_output_tokens": 300})
        socket.receive()
        server.process.terminate()
        events = socket.turn()
        assert events[-1]["type"] == "response.incomplete"
        for each in (socket, idle):
            with pytest.raises(ConnectionClosed) as closed:
                each.receive()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1012
    assert server.process.wait(SECONDS) == 0
