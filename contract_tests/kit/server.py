"""A live server to be tested: one that we start as a process, or any that runs already.

Nothing here knows more of a server than its address and its API key, except `OwnServer`, which
also knows the process: what can be tested only by killing things needs one of those.
"""

import contextlib
import itertools
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil

from contract_tests.kit.events import Event, read_events

ROOT = Path(__file__).parents[2]
SECONDS = 90.0  # until something that doesn't happen is given up; never a measure of speed
API_KEY = "contract-tests-key"
FRUGAL = ("--threads", "1", "--port", "0")
"""Options of every server we start: tiny models are fastest with one thread."""
MODEL = "specllama-tiny"
"""The model of servers that are started without another one; without any, they are routers."""

T = TypeVar("T")


def wait_until(condition: Callable[[], T | None], what: str, seconds: float = SECONDS) -> T:
    """The first true value of `condition`. Fails with `what` if there is none in time."""
    deadline = time.monotonic() + seconds
    while True:
        if value := condition():
            return value
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain until {what}"
        time.sleep(0.02)


class Server:
    """A server at `url` (with its API prefix, if it has one)."""

    def __init__(self, url: str, api_key: str | None = None, **client: Any) -> None:
        self.url = url.rstrip("/")
        self.api_key = api_key
        self._client_options = client

    @property
    def auth(self) -> dict[str, str]:
        """The headers that make us welcome."""
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
        """The JSON of an answer that has to be 200."""
        response = self.post(path, body)
        assert response.status_code == 200, f"POST {path} {body!r:.300}: {response.text:.500}"
        return response.json()

    @contextlib.contextmanager
    def stream(self, path: str, body: Any) -> Iterator[tuple[httpx.Response, Iterator[Event]]]:
        """A response whose events are read as they come."""
        with self.http.stream("POST", path, json={**body, "stream": True}) as response:
            yield response, read_events(response.iter_raw())

    def events(self, path: str, body: Any) -> list[Event]:
        """All events of a stream that has to be 200."""
        with self.stream(path, body) as (response, events):
            if response.status_code != 200:
                raise AssertionError(f"POST {path} {body!r:.300}: {response.read()[:500]!r}")
            return list(events)

    def slots(self) -> list[dict[str, Any]]:
        response = self.get("/slots")
        assert response.status_code == 200, response.text
        slots: list[dict[str, Any]] = response.json()
        return slots

    def wait_until_idle(self) -> list[dict[str, Any]]:
        """The slots, as soon as none of them works."""
        wait_until(
            lambda: not any(slot["is_processing"] for slot in self.slots()), "all slots are free"
        )
        return self.slots()

    def wait_until_busy(self, n: int = 1) -> None:
        wait_until(
            lambda: sum(slot["is_processing"] for slot in self.slots()) >= n, f"{n} slots work"
        )

    def raw(self, data: bytes) -> socket.socket:
        """A connection on which `data` has been sent, and nothing else."""
        connection = socket.create_connection(self.address, timeout=SECONDS)
        connection.sendall(data)
        return connection

    def head(self, path: str, length: int, **headers: str) -> bytes:
        """The head of a POST request, to be sent by hand."""
        prefix = httpx.URL(self.url).path.rstrip("/")
        fields = {
            "Host": "server",
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


class OwnServer(Server):
    """A server process of ours. What it writes to stderr is kept in `log`."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, url: str, **rest: Any) -> None:
        super().__init__(url, **rest)
        self.process = process
        self.log = log

    def engines(self) -> list[psutil.Process]:
        """The engine processes below the server."""
        return engine_processes(self.process.pid)

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
        """Sends the signal and waits for the end: the exit code."""
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


def engine_processes(pid: int) -> list[psutil.Process]:
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if "engine.worker" in process.cmdline():
                    found.append(process)
    return found


def alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def free_port() -> int:
    """A port that nobody has, below those that systems give to whoever doesn't choose: one of
    these could be somebody else's before the server has it."""
    while True:
        port = random.randrange(20_000, 32_768)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def environment(**variables: str) -> dict[str, str]:
    """Ours without what would change the server's options, and with `variables`."""
    ours = ("LLAMA_", "HF_")  # the hub's, too: its address, its cache, its token
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**inherited, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **variables}


_count = itertools.count()


def start(
    directory: Path,
    *argv: str,
    api_key: str | None = None,
    named: bool = False,
    launcher: Sequence[str] = ("-m", "specllama"),
    wait: bool = True,
    router: bool = False,
    variables: Mapping[str, str] | None = None,
    **client: Any,
) -> OwnServer:
    """Starts `python *launcher *argv` and, with `wait`, waits until it is ready.

    It serves `MODEL` alone, unless it is to be a `router`, or `argv` has `named` another model.
    `variables` are added to its environment. `client` are options for the HTTP client, such as
    `verify`.
    """
    keys = ("--api-key", api_key) if api_key else ()
    model = () if router or named else ("--model", MODEL)
    log = directory / f"server-{next(_count)}.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, *launcher, *FRUGAL, *model, *keys, *argv],
            env=environment(**(variables or {})),
            cwd=ROOT,
            stdout=sink,
            stderr=sink,
        )

    def address() -> str | None:
        text = log.read_text("utf-8", "replace")
        assert process.poll() is None, f"the server ended with code {process.returncode}:\n{text}"
        found = re.search(r"(?:^  API +|listening on )(https?://[^\s\",]+)", text, re.MULTILINE)
        return found[1] if found else None

    try:
        url = wait_until(address, "the server tells its address")
        server = OwnServer(process, log, url, api_key=api_key, **client)
        if wait:
            server.wait_until_ready()
    except BaseException:
        process.kill()
        process.wait()
        raise
    return server


def start_connexion(directory: Path, **variables: str) -> OwnServer:
    """`connexion run` of the description, with options in environment variables."""
    port = free_port()
    log = directory / f"server-{next(_count)}.log"
    command = ["-c", "from connexion.cli import main; main()", "run", "openapi/server.yaml"]
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, *command, "--host", "127.0.0.1", "--port", str(port)],
            env=environment(**{"LLAMA_ARG_THREADS": "1", "LLAMA_ARG_MODEL": MODEL, **variables}),
            cwd=ROOT,
            stdout=sink,
            stderr=sink,
        )
    key = variables.get("LLAMA_API_KEY")
    server = OwnServer(process, log, f"http://127.0.0.1:{port}", api_key=key)

    def ready() -> bool:
        text = log.read_text("utf-8", "replace")
        assert process.poll() is None, f"connexion ended with code {process.returncode}:\n{text}"
        with contextlib.suppress(httpx.TransportError):
            return server.get("/health").status_code == 200
        return False

    try:
        wait_until(ready, "the server that connexion runs is ready")
    except BaseException:
        server.close()
        raise
    return server


def run(
    *argv: str, model: str | None = MODEL, **variables: str
) -> subprocess.CompletedProcess[str]:
    """The program, which has to end by itself; `variables` are added to its environment. Without
    a `model`, or another one in `argv`, it would be a router, which bad models don't end."""
    named = () if model is None else ("--model", model)
    return subprocess.run(
        [sys.executable, "-m", "specllama", *FRUGAL, *named, *argv],
        env=environment(**variables),
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        timeout=SECONDS,
        check=False,
    )


Start = Callable[..., OwnServer]
