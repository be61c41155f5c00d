"""Clients that send one request after the other while a test does something to the server."""

import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from contract_tests.kit.events import read_events
from contract_tests.kit.server import SECONDS, Server, wait_until

OK = "ok"
LOST = "no connection"


class Crowd:
    """The outcomes of all requests so far: OK, LOST, or the error's status and type."""

    def __init__(self, server: Server, n_predict: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self._server = server
        self._n_predict = n_predict
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._is_over = threading.Event()

    def wait_for(self, n: int, outcome: str = OK) -> None:
        """Waits for `n` further requests with this outcome."""
        before = self.outcomes[outcome]
        wait_until(lambda: self.outcomes[outcome] >= before + n, f"{n} more: {outcome}")

    @property
    def failures(self) -> dict[str, int]:
        return {outcome: n for outcome, n in self.outcomes.items() if outcome != OK}

    def work(self) -> None:
        while not self._is_over.is_set():
            outcome = self._ask(next(self._numbers))
            with self._lock:
                self.outcomes[outcome] += 1

    def end(self) -> None:
        self._is_over.set()

    def _ask(self, number: int) -> str:
        """Sends a request over a connection of its own; each other one asks for a stream."""
        body = {
            "prompt": f"Client {number % 7} says {number}:",
            "n_predict": self._n_predict,
            "ignore_eos": True,
            "stream": number % 2 == 0,
        }
        url = f"{self._server.url}/completion"
        try:
            with httpx.stream("POST", url, json=body, timeout=SECONDS) as response:
                if response.status_code != 200:
                    response.read()
                    return _kind(response.json())
                if not body["stream"]:
                    response.read()
                    return _complete(response.json(), self._n_predict)
                events = [each.json for each in read_events(response.iter_raw())]
                return _complete(events[-1], self._n_predict)
        except httpx.TransportError:
            return LOST


def _kind(answer: Any) -> str:
    error = answer["error"]
    return f"{error['code']} {error['type']}"


def _complete(answer: Any, n_predict: int) -> str:
    if "error" in answer:
        return _kind(answer)
    assert answer["stop"] is True, answer
    assert answer["tokens_predicted"] == n_predict, answer
    return OK


@contextmanager
def crowd(server: Server, n_clients: int = 6, n_predict: int = 200) -> Iterator[Crowd]:
    """Lets clients work during the context. All requests have an outcome after it."""
    found = Crowd(server, n_predict)
    threads = [threading.Thread(target=found.work, daemon=True) for _ in range(n_clients)]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        found.end()
        for thread in threads:
            thread.join(SECONDS)
    assert not any(thread.is_alive() for thread in threads)
