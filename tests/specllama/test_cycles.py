"""Requests leave no cycles of references: their objects are freed at once, and the garbage
collector, which stops all streams while it runs, has nothing to do."""

import gc
import json
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from contract_tests.kit.server import SECONDS
from specllama.connection import Connection
from tests.support.http_support import served_app, serving

pytestmark = pytest.mark.slow

CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}
REQUESTS: list[tuple[int, str, str, Mapping[str, Any] | None]] = [
    (200, "GET", "/health", None),
    (200, "GET", "/slots", None),
    (200, "POST", "/tokenize", {"content": "some text"}),
    (200, "POST", "/completion", {"prompt": ["a", "b"], "n_predict": 3}),
    (200, "POST", "/completion", {"prompt": "a", "n_predict": 3, "stream": True, "n_cmpl": 2}),
    (400, "POST", "/completion", {"prompt": {}}),
    (200, "POST", "/v1/chat/completions", CHAT),
    (200, "POST", "/v1/chat/completions", {**CHAT, "stream": True}),
    (200, "POST", "/v1/messages", {**CHAT, "stream": True}),
    (200, "POST", "/v1/responses", {"input": "Hello", "max_output_tokens": 3, "store": False}),
    (200, "POST", "/api/chat", {**CHAT, "model": "specllama-tiny"}),
    (404, "POST", "/nothing", {}),
]
N = 5


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    with serving(served_app(), http=Connection) as address:
        while not ask(address, "GET", "/health", None).startswith(b"HTTP/1.1 200 "):
            time.sleep(0.05)
        for _, method, path, body in REQUESTS:  # the first ones fill caches
            ask(address, method, path, body)
        yield address


def ask(address: tuple[str, int], method: str, path: str, body: Mapping[str, Any] | None) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close"]
    lines += ["Content-Type: application/json", f"Content-Length: {len(content)}", "", ""]
    answer = b""
    with socket.create_connection(address, SECONDS) as client:
        client.sendall("\r\n".join(lines).encode() + content)
        while part := client.recv(1 << 16):
            answer += part
    return answer


def garbage() -> Counter[str]:
    """The kinds of unreachable objects of the server, which are freed then."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
    finally:
        gc.set_debug(0)
    kinds = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.garbage)
    gc.garbage.clear()
    gc.collect()
    ours = ("specllama.", "uvicorn.", "uvloop.", "starlette.", "connexion.")
    return Counter({name: n for name, n in kinds.items() if name.startswith(ours)})


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="references aren't counted")
@pytest.mark.parametrize(("status", "method", "path", "body"), REQUESTS)
def test_no_cycles(
    address: tuple[str, int], status: int, method: str, path: str, body: Mapping[str, Any] | None
) -> None:
    garbage()
    collects = gc.isenabled()
    gc.disable()
    try:
        for _ in range(N):
            answer = ask(address, method, path, body)
            assert answer.startswith(b"HTTP/1.1 %d " % status), answer
        found = garbage()
    finally:
        if collects:
            gc.enable()
    assert not [name for name, n in found.items() if n >= N], found
