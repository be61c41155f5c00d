"""Requests to servers and gateways. This file runs in a gateway's environment, which has nothing
of the server."""

import json
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS = 120.0
"""The limit for a start, an answer, or a change at the gateway."""
POLL = 0.1
MODEL = "specllama-tiny"
CHAT = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Hello"}],
    "max_tokens": 4,
    "temperature": 0,
}
LONG = {"prompt": "Once upon a time", "n_predict": 1000, "ignore_eos": True}


@dataclass(frozen=True)
class Place:
    """A server or a gateway."""

    url: str
    key: str

    def open(self, path: str, body: Any = None) -> Any:
        """Returns the answer to a request, as an open response."""
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers)
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        return direct.open(request, timeout=SECONDS)

    def text(self, path: str, body: Any = None) -> str:
        with self.open(path, body) as answer:
            return str(answer.read().decode())

    def ask(self, path: str, body: Any = None) -> Any:
        return json.loads(self.text(path, body))

    def answers(self, path: str) -> bool:
        try:
            self.text(path)
        except (urllib.error.URLError, OSError):
            return False
        return True

    def n_chats(self) -> int:
        """The number of chats that a server has answered."""
        name = 'specllama_request_duration_seconds_count{operation="create_chat_completion"'
        lines = self.text("/metrics").splitlines()
        return sum(int(float(each.split()[-1])) for each in lines if each.startswith(name))

    def n_running(self) -> int:
        return int(self.ask("/v1/loads")["loads"][0]["num_running_reqs"])


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(POLL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def gateway(command: list[str], port: int, log: Path, key: str, ready: str) -> Iterator[Place]:
    """Yields a running gateway, whose path `ready` answers when it can be used."""
    place = Place(f"http://127.0.0.1:{port}", key)
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=sink)
    try:

        def is_ready() -> bool:
            assert process.poll() is None, log.read_text("utf-8", "replace")[-5000:]
            return place.answers(ready)

        until(is_ready, "the gateway is ready")
        yield place
    finally:
        process.terminate()
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()


@contextmanager
def busy(server: Place) -> Iterator[None]:
    """Sends requests to `server` all the time, one after the other."""
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            server.text("/completion", LONG)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        until(lambda: server.n_running() == 1, "the server is busy")
        yield
    finally:
        ended.set()
        worker.join()
    until(lambda: server.n_running() == 0, "the slots are free")
