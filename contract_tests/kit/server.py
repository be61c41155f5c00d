"""A live server to test: one that the tests start as a process, or one that already runs.

`Server` has only an address and an API key. `OwnServer` also has the process, for tests that kill
things; a `Launcher` starts them.
"""

import contextlib
import os
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

import httpx
import psutil
import pytest

from contract_tests.kit.events import Event, read_events

SECONDS = float(os.environ.get("SPECLLAMA_CONTRACT_TIMEOUT", "1800"))
"""The only time limit of the tests: pytest ends a test that takes longer.

Requests and waits have the same limit, so that no thread still waits after pytest ended its test. A
shorter limit would only distinguish slow machines from fast ones."""
API_KEY = "contract-tests-key"

T = TypeVar("T")


def wait_until(condition: Callable[[], T | None], what: str, seconds: float = SECONDS) -> T:
    """Waits for the first true value of `condition` and returns it. Fails with `what` after
    `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        if value := condition():
            return value
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s without success until {what}"
        time.sleep(0.02)


def _ignore(answer: Any) -> None:
    """`Server.hear` while no test watches the server."""


def _everything(operation_id: str) -> bool:
    """`Server.offers` before anything was discovered about the server."""
    return True


def needs_key(server: "Server") -> str:
    """Returns the server's key. Skips the test if there is only another server without a key."""
    if not server.api_key:
        assert not isinstance(server, OwnServer), "it was started without one"
        pytest.skip("the server at --base-url was given without --api-key")
    return server.api_key


class Server:
    """A server at `url` (with its API prefix, if it has one)."""

    def __init__(self, url: str, api_key: str | None = None, **client: Any) -> None:
        self.url = url.rstrip("/")
        self.api_key = api_key
        self.hear: Callable[[Any], None] = _ignore
        """A callback for each answer that a library other than httpx received."""
        self.offers: Callable[[str], bool] = _everything
        """True for the `operationId` of an operation that the server offers."""
        self._client_options = client

    @property
    def auth(self) -> dict[str, str]:
        """The headers with the API key."""
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    @cached_property
    def http(self) -> httpx.Client:
        return httpx.Client(
            base_url=self.url, headers=self.auth, timeout=SECONDS, **self._client_options
        )

    @property
    def address(self) -> tuple[str, int]:
        url = httpx.URL(self.url)
        return url.host, url.port or 80

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.http.get(path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        if body is not None:
            options["json"] = body
        return self.http.post(path, **options)

    def ask(self, path: str, body: Any) -> Any:
        """Posts `body`, asserts the status 200, and returns the answer's JSON."""
        response = self.post(path, body)
        assert response.status_code == 200, f"POST {path} {body!r:.300}: {response.text:.500}"
        return response.json()

    @contextlib.contextmanager
    def stream(self, path: str, body: Any) -> Iterator[tuple[httpx.Response, Iterator[Event]]]:
        """Posts `body` and yields the response, with its events as they arrive."""
        with self.http.stream("POST", path, json={**body, "stream": True}) as response:
            yield response, read_events(response.iter_raw())

    def events(self, path: str, body: Any) -> list[Event]:
        """Posts `body`, asserts the status 200, and returns all events of the stream."""
        with self.stream(path, body) as (response, events):
            if response.status_code != 200:
                raise AssertionError(f"POST {path} {body!r:.300}: {response.read()[:500]!r}")
            return list(events)

    def slots(self) -> list[dict[str, Any]]:
        response = self.get("/slots")
        assert response.status_code == 200, response.text
        slots: list[dict[str, Any]] = response.json()
        return slots

    def wait_until_gone(self) -> None:
        """Waits until no slot works, or the model is unloaded (`keep_alive` may be 0)."""
        wait_until(
            lambda: (
                (slots := self.get("/slots")).status_code == 503
                or not any(slot["is_processing"] for slot in slots.json())
            ),
            "the model has nothing to do",
        )

    def wait_until_idle(self) -> list[dict[str, Any]]:
        """Waits until no slot works, and returns the slots."""
        wait_until(
            lambda: not any(slot["is_processing"] for slot in self.slots()), "all slots are free"
        )
        return self.slots()

    def wait_until_busy(self, n: int = 1) -> None:
        wait_until(
            lambda: sum(slot["is_processing"] for slot in self.slots()) >= n, f"{n} slots work"
        )

    def raw(self, data: bytes) -> socket.socket:
        """Opens a connection, sends `data` on it, and returns it."""
        connection = socket.create_connection(self.address, timeout=SECONDS)
        connection.sendall(data)
        return connection

    def head(self, path: str, length: int, **headers: str) -> bytes:
        """Returns the head of a POST request that a test sends itself."""
        prefix = httpx.URL(self.url).path.rstrip("/")
        fields = {
            "Host": httpx.URL(self.url).netloc.decode(),
            "Content-Type": "application/json",
            "Content-Length": str(length),
            **self.auth,
            **headers,
        }
        lines = [f"POST {prefix}{path} HTTP/1.1", *(f"{k}: {v}" for k, v in fields.items())]
        return "\r\n".join([*lines, "", ""]).encode()

    def close(self) -> None:
        if "http" in self.__dict__:
            self.http.close()


class OwnServer(Server, ABC):
    """A server that the tests started and may kill. `log` contains its stderr output."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, url: str, **rest: Any) -> None:
        super().__init__(url, **rest)
        self.process = process
        self.log = log

    @abstractmethod
    def engines(self) -> list[psutil.Process]:
        """Returns the processes below the server that run one model each."""

    def engine(self) -> psutil.Process:
        [engine] = wait_until(self.engines, "there is an engine process")
        return engine

    def kill_engine(self) -> None:
        engine = self.engine()
        engine.kill()
        wait_until(lambda: not alive(engine), "the killed engine process is gone")

    def wait_until_ready(self) -> None:
        wait_until(lambda: self.get("/health").status_code == 200, "the server is ready")

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Sends the signal, waits for the end, and returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout=SECONDS)

    def close(self) -> None:
        super().close()
        if self.process.poll() is None:
            family = psutil.Process(self.process.pid).children(recursive=True)
            self.process.kill()
            self.process.wait()
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()


def alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


Start = Callable[..., OwnServer]


class Launcher(Protocol):
    """Starts a repository's own servers, so that the tests can test them.

    The options are llama-server's. The hook `pytest_contract_launcher` returns a launcher.
    """

    MODEL: str
    """The path of the model that servers use by default."""

    def start(self, directory: Path, *argv: str, **options: Any) -> OwnServer:
        """Starts a server with the command line `argv`, and writes its log into `directory`.

        `options`: `api_key`; `wait` (true: wait until it is ready); `named` (false: `argv` has no
        model); `router` (false: no model at all); `variables` of its environment; any other option
        is passed to the HTTP client.
        """

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Runs the program with options that make it end by itself."""

    def model_file(self, name: str) -> str:
        """Returns the path of a model with a certain property, or skips the test.

        `tiny-spm` has a SentencePiece vocabulary and isn't trained to fill gaps, `tiny-mamba` is
        recurrent, `tiny-window` has a sliding window; `tiny-embed` (a decoder) and `tiny-bert` (an
        encoder) are for embeddings, and `tiny-rerank` for reranking.
        """
