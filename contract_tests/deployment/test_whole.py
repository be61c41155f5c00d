"""What holds for a deployment as a whole, with two ingresses on one port and two replicas."""

import contextlib
import http.client
import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from contract_tests.deployment.launching import TINY, Local, described, local
from contract_tests.kit import contract
from contract_tests.kit.server import SECONDS, Start, wait_until

KEYS = """
[keys.carol]
key = "sk-carol"
concurrency = 2

[keys.admin]
key = "sk-admin"
operations = ["read", "generate", "admin"]
"""
OPTIONS = {**TINY, "ctx-size": 16384}
LONG: dict[str, Any] = {
    "prompt": "Once upon a time",
    "n_predict": 8000,
    "ignore_eos": True,
    "stream": True,
}
N_ATTEMPTS = 12
"""With as many new connections, each of the two ingresses gets some, except once in 2,000 runs."""
HASTY = {"head-timeout": 1, "max-body-size": 1}


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[Local]:
    (keys := directory / "keys.toml").write_text(KEYS, "ascii")
    keys.chmod(0o600)
    own = {"keys-file": str(keys), **HASTY}
    deployment = described(replicas=2, options=OPTIONS, server=own, ingress={"replicas": 2})
    with local(directory, deployment) as running:
        yield running


def auth(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer sk-{name}"}


def asked(server: Local, name: str) -> tuple[contextlib.ExitStack, httpx.Response]:
    """Sends a long request on a connection of its own; the stack ends it."""
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(httpx.Client(base_url=server.url, timeout=SECONDS))
        stream = client.stream("POST", "/completion", json=LONG, headers=auth(name))
        response = stack.enter_context(stream)
        if response.is_success:
            lines = cast(Generator[str, None, None], response.iter_lines())
            next(stack.enter_context(contextlib.closing(lines)))
        else:
            response.read()
        return stack.pop_all(), response


def test_running_requests_of_a_key_count_at_all_ingresses(server: Local) -> None:
    with contextlib.ExitStack() as running:
        for _ in range(2):
            stack, response = asked(server, "carol")
            running.enter_context(stack)
            assert response.status_code == 200
        for _ in range(N_ATTEMPTS):
            stack, response = asked(server, "carol")
            with stack:
                contract.check_envelope(response, 429, "rate_limit_error")
                assert "2 running requests" in response.text
        stack, response = asked(server, "admin")
        with stack:
            assert response.status_code == 200

    def again() -> bool:
        stack, response = asked(server, "carol")
        with stack:
            return response.is_success

    wait_until(again, "the places are free again")


def test_each_replica_has_its_metrics(server: Local) -> None:
    def found() -> list[str]:
        text = server.get("/metrics", headers=auth("admin")).text
        line = re.compile(
            r'^specllama_replica_report_age_seconds\{model="([^"]+)",replica="([^"]+)"\} (\S+)$',
            re.MULTILINE,
        )
        assert {model for model, _, _ in line.findall(text)} <= {"specllama-tiny"}
        return [replica for _, replica, age in line.findall(text) if float(age) < SECONDS]

    wait_until(lambda: len({*found()}) == 2, "both replicas are in the metrics")


MIB = 1 << 20
POST = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET /health HTTP/1.1\r\nX: " + b"x" * 4 * MIB, 431),
        (b"GET /health HTTP/1.1\r\n" + b"X: y\r\n" * 101 + b"\r\n", 431),
        (b"GET /health HTTP/1.1\r\nHost: local", 408),
        (POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}", 400),
        (POST + b"Authorization: Bearer sk-carol\r\nContent-Length: 1048577\r\n\r\n{", 413),
    ],
    ids=["a large head", "many headers", "half a head", "two lengths", "a large body"],
)
def test_the_limits_of_http(raw: bytes, status: int, server: Local) -> None:
    """Clients reach the ingress itself, so there is no proxy whose limits would be others."""
    with server.raw(b"") as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(raw)
        connection.settimeout(SECONDS)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        headers, content = answer.getheaders(), answer.read()
    response = httpx.Response(answer.status, headers=headers, content=content)
    contract.check_envelope(response, status, "invalid_request_error")


def test_the_same_greedy_texts_as_one_server(server: Local, module_server: Start) -> None:
    plain = module_server(*(f"--{name}={value}" for name, value in OPTIONS.items()))
    for prompt in ("Hello", "Once upon a time", "def main():", "1 + 1 = "):
        body = {"prompt": prompt, "n_predict": 40, "temperature": 0}
        expected = plain.ask("/completion", body)["content"]
        for _ in range(3):
            found = server.http.post("/completion", json=body, headers=auth("admin")).json()
            assert found["content"] == expected
