"""Honest clients, which repeat the same requests during the attacks. Their texts must not
change."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from contract_tests.kit.events import read_events
from contract_tests.kit.server import Server

PROMPT = "A knight rode over the hill"
PAUSE = 0.02
"""Seconds between two requests, so that four clients leave a small machine some time."""
GREEDY = {"temperature": 0, "seed": 1}

Ask = Callable[[httpx.Client, int], str]


def completion(http: httpx.Client, _: int) -> str:
    body = {"prompt": PROMPT, "n_predict": 16, **GREEDY}
    return str(_asked(http, "/completion", body)["content"])


def stream(http: httpx.Client, _: int) -> str:
    body = {"prompt": PROMPT, "n_predict": 16, "stream": True, **GREEDY}
    with http.stream("POST", "/completion", json=body) as response:
        if response.status_code != 200:
            raise ValueError(f"status {response.status_code}")
        documents = [each.json for each in read_events(response.iter_raw())]
    return "".join(each["content"] for each in documents)


def chat(http: httpx.Client, _: int) -> str:
    body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 16, **GREEDY}
    answer = _asked(http, "/v1/chat/completions", body)
    return str(answer["choices"][0]["message"]["content"])


def constrained(http: httpx.Client, number: int) -> str:
    """Sends a new schema each time, which the server has to compile."""
    body = {"prompt": PROMPT, "json_schema": {"const": number}, "n_predict": 16, **GREEDY}
    text = str(_asked(http, "/completion", body)["content"])
    return "its number" if text.strip() == str(number) else text


def _asked(http: httpx.Client, path: str, body: Any) -> Any:
    response = http.post(path, json=body)
    if response.status_code != 200:
        raise ValueError(f"status {response.status_code}: {response.text:.200}")
    return response.json()


ALL: tuple[Ask, ...] = (completion, stream, chat, constrained)


@dataclass
class Seen:
    """What one client has received since the last mark."""

    texts: set[str] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)
    answers: int = 0
    last: float = 0.0
    longest: float = 0.0

    def gap(self) -> float:
        """The longest time without an answer, including the time since the last one."""
        return max(self.longest, time.monotonic() - self.last)


class Crowd:
    """One thread for each honest client, until the end of the `with` block."""

    def __init__(self, server: Server, patience: float) -> None:
        self._server = server
        self._patience = patience
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._seen = {ask.__name__: Seen() for ask in ALL}
        self._threads = [threading.Thread(target=self._run, args=(ask,)) for ask in ALL]

    def __enter__(self) -> "Crowd":
        self.mark()
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for each in self._threads:
            each.join()

    def mark(self) -> None:
        """Restarts the counts of all clients."""
        with self._lock:
            for name in self._seen:
                self._seen[name] = Seen(last=time.monotonic())

    def seen(self) -> dict[str, Seen]:
        with self._lock:
            return dict(self._seen)

    def progress(self) -> int:
        """Returns the smallest number of answers that a client has had."""
        return min(each.answers for each in self.seen().values())

    def wait(self, answers: int, alive: Callable[[], bool]) -> bool:
        """Returns True as soon as each client has had `answers` answers, False if the server ends
        or the patience is over."""
        deadline = time.monotonic() + self._patience
        while self.progress() < answers:
            if time.monotonic() > deadline or not alive():
                return False
            time.sleep(0.05)
        return True

    def _run(self, ask: Ask) -> None:
        number = 0
        options: dict[str, Any] = {"headers": self._server.auth, "timeout": self._patience}
        http = httpx.Client(base_url=self._server.url, **options)
        while not self._stop.wait(PAUSE):
            number += 1
            text, error = "", ""
            try:
                text = ask(http, number)
            except (httpx.HTTPError, ValueError, LookupError, AssertionError) as caught:
                error = f"{type(caught).__name__}: {caught}"[:300]
                http.close()
                http = httpx.Client(base_url=self._server.url, **options)
            with self._lock:
                self._note(self._seen[ask.__name__], text, error)
        http.close()

    @staticmethod
    def _note(seen: Seen, text: str, error: str) -> None:
        if error:
            seen.errors.append(error)
            return
        now = time.monotonic()
        seen.longest = max(seen.longest, now - seen.last)
        seen.last = now
        seen.answers += 1
        seen.texts.add(text)
