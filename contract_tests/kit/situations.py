"""Servers in the states that certain documented answers need.

A situation that takes a server of its own (loading, killed engine) is made once, for all
operations.
"""

import contextlib
import os
import signal
import socket
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import pytest

from contract_tests.kit import contract
from contract_tests.kit.bodies import (
    BODIES,
    CONVERSATIONS,
    EMBEDDING,
    ENDLESS,
    FORMS,
    OLLAMA_EMBEDDING,
    RERANKING,
    STORED,
    body,
    path,
    with_query,
)
from contract_tests.kit.lint import GROUPS as GROUPS_OF_OPERATIONS
from contract_tests.kit.server import (
    SECONDS,
    Launcher,
    OwnServer,
    Server,
    Start,
    wait_until,
)

N_CTX = 256
PRESETS = "[{0}]\n[z-one]\nmodel = {0}\n[z-two]\nmodel = {0}\n"
ROOT = Path(__file__).parents[2]
RATE_LIMITED = '[keys.alice]\nkey = "alice"\nrequests_per_minute = 1\n'
GROUPS = sorted(GROUPS_OF_OPERATIONS - {"public"})
"""The groups of operations that need an API key."""
STOPPING = """
import os, signal, sys

if "specllama.engine.worker" in sys.orig_argv:
    os.kill(os.getpid(), signal.SIGSTOP)
"""
"""Python code that stops an engine process at its start. A signal from outside might come too
late."""


def send(server: Server, name: str, **changes: Any) -> httpx.Response:
    """Sends the operation's small valid request, with changes to its body."""
    if name in BODIES:
        return server.post(path(name), body(name, **changes))
    return server.http.request(contract.operations()[name].method, path(name))


def send_and_tell(server: Server, name: str, on_its_way: threading.Event) -> httpx.Response:
    """Sends the request, and sets `on_its_way` when all of it has been written to the server."""

    def trace(event: str, _: Any) -> None:
        if event == "http11.send_request_body.complete":
            on_its_way.set()

    options: dict[str, Any] = {"extensions": {"trace": trace}}
    if name in BODIES:
        options["json"] = body(name)
    return server.http.request(contract.operations()[name].method, path(name), **options)


def send_with_query(server: Server, name: str, **query: str) -> httpx.Response:
    """Sends the request with more parameters in its query."""
    method = contract.operations()[name].method
    return server.http.request(method, with_query(name, **query), json=BODIES.get(name))


def read_response(connection: socket.socket, name: str, server: Server) -> httpx.Response:
    """Reads the answer on a connection that the test opened itself."""
    with connection:
        data = b""
        while True:
            head, _, rest = data.partition(b"\r\n\r\n")
            lines = head.decode("latin-1").split("\r\n")
            fields = [line.split(": ", 1) for line in lines[1:]]
            headers = httpx.Headers([(field[0], field[1]) for field in fields if len(field) == 2])
            if b"\r\n\r\n" in data and len(rest) >= int(headers.get("content-length", 1 << 30)):
                break
            more = connection.recv(65536)
            assert more, f"the server closed the connection after {data!r:.300}"
            data += more
    request = httpx.Request("POST", server.url + path(name))
    return httpx.Response(int(lines[0].split()[1]), headers=headers, content=rest, request=request)


COMPLETING = [
    "create_completion",
    "create_completion_alias",
    "create_openai_completion",
    "create_infill",
]
"""The operations that ask the engine nothing before they generate."""
GENERAL = [
    name
    for name in contract.operations()
    if name not in (*EMBEDDING, *OLLAMA_EMBEDDING, *RERANKING)
]


class Situations:
    """Answers of servers in certain states, by operation. Each state is created on first use."""

    def __init__(self, start: Start, launcher: Launcher, directory: Path) -> None:
        self.model = launcher.MODEL
        self._start = start
        self._launcher = launcher
        self._directory = directory
        predicting = ("--aip-mode", "PREDICTION", "--aip-http-port", "0")
        tools = ("--tools", "read_file,get_info", "--tools-dir", str(directory))
        slots = ("--slot-save-path", str(directory))
        self._switched_on = ("--metrics", "--props", *slots, *predicting, *tools)

    @cached_property
    def open(self) -> OwnServer:
        """A server with everything switched on."""
        return self._start(*self._switched_on, api_key="key")

    @cached_property
    def limited(self) -> OwnServer:
        """A server whose keys each lack one group of operations, and that name it: `no-read`. The
        key `alice` may send one request per minute."""
        keys = self._directory / "keys.toml"
        keys.write_text("\n".join([*map(_key_without, GROUPS), RATE_LIMITED]), "ascii")
        keys.chmod(0o600)
        options = (*self._switched_on, "--keys-file", str(keys))
        return self._start(*options, api_key="key")

    @cached_property
    def narrow(self) -> OwnServer:
        """A server with low limits."""
        limits = ["-c", str(N_CTX), "-np", "1", "--max-body-size", "1"]
        return self._start(*limits, "--no-slots", api_key="key")

    @cached_property
    def hasty(self) -> OwnServer:
        """A server with short time limits, for clients that stop in the middle of a request."""
        return self._start("-c", str(N_CTX), "-np", "1", "--timeout", "2", api_key="key")

    @cached_property
    def small(self) -> OwnServer:
        return self._start("-c", str(N_CTX), "-np", "1", api_key="key")

    @cached_property
    def embedder(self) -> OwnServer:
        return self._start("-c", str(N_CTX), "--embeddings", "--pooling", "mean", api_key="key")

    @cached_property
    def reranker(self) -> OwnServer:
        return self._start(*self._reranking(), "-c", str(N_CTX), api_key="key")

    @cached_property
    def router(self) -> OwnServer:
        """A server of many models: its default one, two of `presets`, and the files in `cache`. It
        uses no hub."""
        self.presets.write_text(PRESETS.format(self.model), "utf-8")
        hub = {"HF_HUB_CACHE": str(self.cache), "HF_HUB_OFFLINE": "1"}
        options = ("-c", str(N_CTX), "-np", "1", "--models-preset", str(self.presets))
        return self._start(*options, *self._switched_on, router=True, variables=hub, api_key="key")

    @property
    def presets(self) -> Path:
        return self._directory / "models.ini"

    @property
    def cache(self) -> Path:
        return self._directory / "hub"

    def put_into_cache(self) -> Path:
        """Adds the model of `download_model` as the hub's library does, and returns its folder."""
        folder = self.cache / "models--contract--tests-GGUF"
        commit = "0" * 40
        for name, text in (("refs/main", commit), (f"snapshots/{commit}/tiny-Q8_0.gguf", "GGUF")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, "ascii")
        return folder

    @contextlib.contextmanager
    def broken_presets(self) -> Iterator[OwnServer]:
        """Yields the router while its models can't be read."""
        server = self.router
        self.presets.write_text("what is this?", "utf-8")
        try:
            yield server
        finally:
            self.presets.write_text(PRESETS.format(self.model), "utf-8")

    @cached_property
    def offline(self) -> OwnServer:
        """A router that must not use the network."""
        hub = {"HF_HUB_CACHE": "no-such-cache"}
        return self._start("--offline", router=True, variables=hub, api_key="key")

    @cached_property
    def hearing(self) -> OwnServer:
        """A server whose model has audio input."""
        model, ears = map(self._launcher.model_file, ("tiny-nochat", "tiny-mmproj-audio"))
        return self._start("-m", model, "--mmproj", ears, "-np", "1", named=True, api_key="key")

    def _reranking(self) -> tuple[str, ...]:
        return ("-m", self._launcher.model_file("tiny-rerank"), "--reranking")

    def for_mode_of(self, name: str) -> OwnServer:
        return self.reranker if name in RERANKING else self.embedder

    @cached_property
    def loading(self) -> Mapping[str, httpx.Response]:
        """The answers of a server whose engine process is stopped at its start."""
        options: dict[str, Any] = {"wait": False, "variables": self._stopping()}
        server = self._start(*self._switched_on, api_key="key", **options)
        try:
            wait_until(lambda: server.get("/health").status_code == 503, "it is loading")
            names = contract.operations().keys() - ENDLESS - set(FORMS)
            answers = {name: send(server, name) for name in names}
            form = {"file": b"a"}
            return answers | {n: server.http.post(path(n), files=form) for n in FORMS}
        finally:
            server.engine().resume()

    def _stopping(self) -> dict[str, str]:
        """Returns variables for a server whose engine processes are stopped at their start."""
        folder = self._directory / "stopping"
        folder.mkdir(exist_ok=True)
        (folder / "sitecustomize.py").write_text(STOPPING, "ascii")
        return {"PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))}

    @contextlib.contextmanager
    def loading_router(self) -> Iterator[OwnServer]:
        """Yields a router that goes on loading its model until the end of the block."""
        options: dict[str, Any] = {"wait": False, "variables": self._stopping()}
        server = self._start("-c", str(N_CTX), router=True, api_key="key", **options)
        try:
            yield server
        finally:
            for engine in server.engines():
                engine.resume()

    @cached_property
    def killed(self) -> Mapping[str, httpx.Response]:
        """The answers to requests that the engine was working on when it was killed."""
        options = {
            (): [name for name in GENERAL if needs_engine(name) and name not in COMPLETING],
            ("--embeddings", "--pooling", "mean"): [*EMBEDDING, *OLLAMA_EMBEDDING],
            self._reranking(): RERANKING,
        }
        return {
            name: response
            for argv, names in options.items()
            for name, response in self._killed(argv, names).items()
        } | self._killed_while_generating()

    def _killed_while_generating(self) -> dict[str, httpx.Response]:
        """The answers of operations that would wait for the next engine before their first
        token."""
        server = self._start("-np", str(len(COMPLETING)), *self._switched_on, api_key="key")
        with ThreadPoolExecutor(len(COMPLETING)) as pool:
            sent = {
                name: pool.submit(send, server, name, n_predict=-1, ignore_eos=True)
                for name in COMPLETING
            }
            server.wait_until_busy(len(COMPLETING))
            server.kill_engine()
            return {name: request.result(SECONDS) for name, request in sent.items()}

    def _killed(self, argv: Sequence[str], names: Sequence[str]) -> Mapping[str, httpx.Response]:
        chat = ("--no-jinja", "--chat-template", "chatml")
        server = self._start(*argv, "-np", "16", *chat, *self._switched_on, api_key="key")
        with ThreadPoolExecutor(len(names)) as pool, engine_stopped(server):
            sent = {}
            for name in names:
                on_its_way = threading.Event()
                sent[name] = pool.submit(send_and_tell, server, name, on_its_way)
                assert on_its_way.wait(SECONDS), name
            for _ in range(20):  # answered last, so the other requests have reached the engine
                server.get("/health")
                server.get("/openapi.json")
            assert not any(request.done() for request in sent.values())
            server.engine().send_signal(signal.SIGKILL)
            return {name: request.result(SECONDS) for name, request in sent.items()}

    @cached_property
    def without_tables(self) -> Mapping[str, httpx.Response]:
        """The answers to requests for responses, conversations and usage after their tables were
        dropped."""
        paths = [self._directory / f"{each}.db" for each in ("responses", "usage")]
        files = ("--responses-db", str(paths[0]), "--usage-db", str(paths[1]))
        server = self._start(*files, api_key="key")
        for path_, tables in zip(paths, (("items", "responses"), ("usage",)), strict=True):
            with contextlib.closing(sqlite3.connect(path_)) as connection:
                connection.executescript("".join(f"DROP TABLE {each};" for each in tables))
        kept = (*STORED, "create_conversation", *CONVERSATIONS, "get_usage")
        return {name: send(server, name) for name in kept}

    @cached_property
    def without_store(self) -> Mapping[str, httpx.Response]:
        """The answers to requests for responses and conversations in a Redis server that doesn't
        exist."""
        pytest.importorskip("redis", reason="the library of the extra `redis` isn't installed")
        url = f"unix://{self._directory / 'no-redis.sock'}"
        server = self._start("--responses-db", url, api_key="key")
        kept = (*STORED, "create_conversation", *CONVERSATIONS)
        return {name: send(server, name) for name in kept}

    @cached_property
    def stalled(self) -> Mapping[str, httpx.Response]:
        """The answers to clients that send half of a body and stop."""
        server = self.hasty
        connections = {
            name: server.raw(server.head(path(name), 100) + b'{"prompt": ') for name in BODIES
        }
        return {
            name: read_response(connection, name, server)
            for name, connection in connections.items()
        }


def _key_without(group: str) -> str:
    rest = [each for each in GROUPS if each != group]
    return f'[keys.no-{group}]\nkey = "no-{group}"\noperations = {rest}\n'


@contextlib.contextmanager
def engine_stopped(server: OwnServer) -> Iterator[None]:
    """Stops the engine process of a server from its first moment on."""
    engine = server.engine()
    engine.suspend()
    try:
        yield
    finally:
        if engine.is_running():
            engine.resume()


def needs_engine(name: str) -> bool:
    definition = contract.operations()[name].definition
    return (
        "500" in definition["responses"]
        and name not in (*STORED, *FORMS, "get_usage")
        and not {"conversations", "models", "ollama_models"} & {*definition["tags"]}
    )
