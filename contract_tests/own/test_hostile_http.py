"""Input from outside the API: bytes that are no request, foreign pages, other host names, clients
that don't read. Each gets its documented answer, and other clients are served meanwhile."""

import contextlib
import json
import os
import re
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from contract_tests.kit import contract
from contract_tests.kit.bodies import body
from contract_tests.kit.server import OwnServer, Start, wait_until

MIB = 1 << 20
KEYS = ("key-one", "key-two")


@pytest.fixture(scope="module")
def server(module_server: Start) -> OwnServer:
    return module_server("--parallel", "2", "--max-body-size", "1")


@pytest.fixture(scope="module")
def hasty(module_server: Start) -> OwnServer:
    """A server with short time limits, for clients that stop in the middle of a request. Clients
    that are only slow use the other server."""
    return module_server("--parallel", "2", "--head-timeout", "1", "--timeout", "2")


@pytest.fixture(scope="module")
def locked(module_server: Start) -> OwnServer:
    return module_server("--props", "--api-key", KEYS[1], api_key=KEYS[0])


@pytest.fixture(autouse=True)
def others_are_served(request: pytest.FixtureRequest) -> Iterator[None]:
    """Checks that the server of the test answers other clients."""
    name = "hasty" if "hasty" in request.fixturenames else "server"
    server: OwnServer = request.getfixturevalue(name)
    engine = server.engine().pid
    yield
    assert server.get("/health").json() == {"status": "ok"}
    assert server.engine().pid == engine


def read_all(connection: socket.socket) -> bytes:
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while more := connection.recv(65536):
            data += more
    return data


def only_answer(data: bytes) -> httpx.Response:
    """Returns the only answer on a connection, after checking the headers that every answer has."""
    head, _, content = data.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = [(name, value) for name, _, value in (line.partition(": ") for line in lines[1:])]
    response = httpx.Response(int(lines[0].split()[1]), headers=headers, content=content)
    assert response.headers["X-Request-Id"]
    assert int(response.headers["Content-Length"]) == len(content), data[:500]
    return response


def send(server: OwnServer, raw: bytes) -> httpx.Response:
    with server.raw(b"") as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(raw)
        return only_answer(read_all(connection))


POST = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET /health HTTP/1.1\r\nX: " + b"x" * 4 * MIB, 431),
        (b"GET /" + b"x" * 4 * MIB, 431),
        (b"GET /health HTTP/1.1\r\n" + b"X: y\r\n" * 200_000 + b"\r\n", 431),
        (b"GET /health HTTP/1.1\r\n" + b"X: y\r\n" * 101 + b"\r\n", 431),
        (b"nonsense\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nA: b\r\n c\r\n\r\n", 400),
        (POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}", 400),
        (POST + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n{}", 400),
        (POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400),
        (POST + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n{}", 400),
        (CHUNKED + b"zz\r\n", 400),
        (CHUNKED + b"f" * 20 + b"\r\n", 400),
        (CHUNKED + b"2;" + b"x" * MIB, 400),
        (CHUNKED + b"2\r\n{}\r\n0\r\nX: " + b"x" * MIB, 400),
    ],
    ids=lambda value: ascii(value[-30:]) if isinstance(value, bytes) else str(value),
)  # fmt: skip
def test_bytes_that_are_no_request(raw: bytes, status: int, server: OwnServer) -> None:
    contract.check_envelope(send(server, raw), status, "invalid_request_error")


def test_a_length_of_many_zeros(server: OwnServer) -> None:
    head = server.head("/tokenize", 2, Connection="close")
    raw = head.replace(b"Content-Length: 2", b"Content-Length: " + b"0" * 5000 + b"2") + b"{}"
    contract.check_envelope(send(server, raw), 400, "invalid_request_error")
    assert "Traceback" not in server.log.read_text()


def test_heads_do_not_grow_memory(server: OwnServer) -> None:
    process = psutil.Process(server.process.pid)
    before = process.memory_info().rss
    for _ in range(4):
        send(server, b"GET /health HTTP/1.1\r\nX: " + b"x" * 16 * MIB)
    assert process.memory_info().rss - before < 16 * MIB


def test_half_a_head_ends(hasty: OwnServer) -> None:
    response = send(hasty, b"GET /health HTTP/1.1\r\nHost: local")
    contract.check_envelope(response, 408, "invalid_request_error")


def test_silence_ends(hasty: OwnServer) -> None:
    for said in (b"", b"\r\n", hasty.head("/tokenize", 2) + b"{}"):
        with hasty.raw(said) as connection:
            read_all(connection)  # until the server closes it


@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
def test_an_upgrade_is_ignored(protocol: str, server: OwnServer) -> None:
    raw = json.dumps({"content": "hello"}).encode()
    asked = {"Connection": "Upgrade, HTTP2-Settings, close", "Upgrade": protocol,
             "HTTP2-Settings": "AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA"}  # fmt: skip
    response = send(server, server.head("/tokenize", len(raw), **asked) + raw)
    assert response.status_code == 200
    assert response.json()["tokens"]
    assert "WebSocket" not in server.log.read_text()


# ---- browsers ------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "localhost.evil.example"])
def test_rebound_names_are_refused(host: str, server: OwnServer) -> None:
    for where in ("/slots", "/health", "/no/such/path"):
        response = server.get(where, headers={"Host": host})
        error = contract.check_envelope(response, 403, "permission_error")
        assert "--allowed-hosts" in error["message"]


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "a.localhost", "[::1]:80", "10.0.0.1"]
)
def test_own_names_are_right(host: str, server: OwnServer) -> None:
    assert server.get("/health", headers={"Host": host}).status_code == 200


def test_allowed_hosts(own_server: Start) -> None:
    server = own_server("--allowed-hosts", "llm.example")
    assert server.get("/health", headers={"Host": "LLM.example:443"}).status_code == 200
    assert server.get("/health", headers={"Host": "other.example"}).status_code == 403


def test_only_own_pages_may_change_things(own_server: Start) -> None:
    server = own_server("--props", "--cors-origins", "*,https://named.example")
    here = httpx.URL(server.url).netloc.decode()
    for origin, status in (
        (f"http://{here}", 200),
        ("http://localhost:3000", 200),
        ("https://named.example", 200),
        ("https://other.example", 403),
        ("null", 403),
    ):
        response = server.post("/props", {}, headers={"Origin": origin})
        contract.check(response, status)
        assert server.get("/health", headers={"Origin": origin}).status_code == 200


def test_the_page_is_guarded(server: OwnServer) -> None:
    response = server.get("/docs")
    contract.check(response)
    policy = response.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert response.headers["X-Frame-Options"] == "DENY"
    assert "'unsafe-inline'" not in policy.partition("script-src")[2].partition(";")[0]


# ---- keys ----------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["/models", "/v1/models", "/api/tags"])
def test_models_without_a_key_are_names(where: str, locked: OwnServer) -> None:
    for headers in ({"Authorization": ""}, {"Authorization": "Bearer wrong"}):
        response = locked.get(where, headers=headers)
        answer = contract.check(response)
        for model in answer["data"]:
            assert model.keys() == {"id", "aliases", "object", "created", "owned_by"}
        assert ".gguf" not in response.text
    model = contract.check(locked.get(where))["data"][0]
    assert model["path"].endswith(".gguf")
    assert model["status"]["args"]


@pytest.mark.parametrize("where", ["/health//", "/slots/0/", "/v1//", "/no/such/path/"])
def test_no_redirect_and_no_hint_without_a_key(where: str, locked: OwnServer) -> None:
    for method in ("GET", "POST"):
        response = locked.http.request(method, where, headers={"Authorization": ""})
        contract.check_envelope(response, 401, "authentication_error")
        contract.check_envelope(locked.http.request(method, where), 404, "not_found_error")


def test_a_slash_after_a_path_reveals_nothing(locked: OwnServer) -> None:
    for where in ("/v1/models", "/health", "/props", "/api/version"):
        assert locked.get(f"{where}/").json().keys() == contract.check(locked.get(where)).keys()
    request = {"content": "a"}
    assert locked.post("/tokenize/", request).json() == locked.ask("/tokenize", request)
    keyless = locked.http.get("/props/", headers={"Authorization": ""})
    contract.check_envelope(keyless, 401, "authentication_error")


@pytest.mark.parametrize("is_shared", [True, False])
def test_whether_keys_share_cached_prefixes(is_shared: bool, own_server: Start) -> None:
    options = [] if is_shared else ["--cache-per-key"]
    server = own_server("--parallel", "2", "--api-key", KEYS[1], *options, api_key=KEYS[0])
    text = "The knight rode over the hill and through the wood until he saw the castle."

    reasons: list[str | None] = []

    def cached(key: str, **fields: Any) -> int:
        asked = {"prompt": text, "n_predict": 1, **fields}
        response = server.post("/completion", asked, headers={"Authorization": f"Bearer {key}"})
        timings = contract.check(response)["timings"]
        reasons.append(timings["cache_miss_reason"])
        return int(timings["cache_n"])

    assert cached(KEYS[0]) == 0
    own = cached(KEYS[0])
    assert own > 0
    # A client can't pretend to have another key.
    others = [cached(KEYS[1], owner=0, lora=[{"id": -1, "scale": 1.0}]), cached(KEYS[1])]
    assert others == ([own, own] if is_shared else [0, own])
    assert reasons == ["new", None, None if is_shared else "new", None], "no hint at the other key"
    assert {slot.get("cache_miss_reason") for slot in server.slots()} <= {None, "new"}


def test_responses_belong_to_their_key(locked: OwnServer) -> None:
    other = {"Authorization": f"Bearer {KEYS[1]}"}
    made = locked.ask("/v1/responses", body("create_response"))
    where = f"/v1/responses/{made['id']}"
    for path in (where, f"{where}/input_items"):
        contract.check(locked.get(path, headers=other), 404)
        contract.check(locked.get(path))
    contract.check(locked.http.delete(where, headers=other), 404)
    follow = body("create_response", previous_response_id=made["id"])
    contract.check(locked.post("/v1/responses", follow, headers=other), 400)
    contract.check(locked.post("/v1/responses", follow))


def test_keys_in_a_query_are_not_logged(locked: OwnServer) -> None:
    for where in ("/health", "/props", "/no/such/path", "/props/"):
        locked.get(f"{where}?api_key=sesame-1&key=sesame-2", headers={"Authorization": ""})
    wait_until(lambda: "GET /props/ " in locked.log.read_text(), "the requests are logged")
    assert not re.search("sesame", locked.log.read_text())


# ---- clients that don't read ---------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="sizes of buffers")
def test_a_client_that_does_not_read_delays_no_other(hasty: OwnServer) -> None:
    request = json.dumps(body("create_completion", n_predict=-1, ignore_eos=True, stream=True,
                              n_probs=100, prompt="a")).encode()  # fmt: skip
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(hasty.address)
        connection.sendall(hasty.head("/completion", len(request)) + request)
        hasty.wait_until_busy()
        hasty.wait_until_idle()
        assert hasty.ask("/completion", body("create_completion"))["stop"]
