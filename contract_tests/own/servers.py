"""Starts servers of this repository, and finds their processes.

This module is the `Launcher` that contract_tests/conftest.py passes to the kit.
"""

import contextlib
import itertools
import os
import random
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil

from contract_tests.kit.server import SECONDS, OwnServer, wait_until
from tools.models import build

ROOT = Path(__file__).parents[2]
FRUGAL = ("--threads", "1", "--port", "0")
"""Options of every server. Tiny models are fastest with one thread."""
MODEL = "specllama-tiny"
"""The default model. A server without a model would be a router."""


class Specllama(OwnServer):
    def engines(self) -> list[psutil.Process]:
        return engine_processes(self.process.pid)


def engine_processes(pid: int) -> list[psutil.Process]:
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if "specllama.engine.worker" in process.cmdline():
                    found.append(process)
    return found


def model_file(name: str) -> str:
    return str(build.ensure(name))


def free_port() -> int:
    """Returns a free port below the range of automatic ports, from which another program could take
    it before the server does."""
    while True:
        port = random.randrange(20_000, 32_768)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def environment(**variables: str) -> dict[str, str]:
    """Returns this process's variables without the ones that change the server's options, and with
    `variables`."""
    ours = ("LLAMA_", "AIP_", "HF_")  # the hub's variables, too: its address, its cache, its token
    libraries = "LLAMA_CPP_LIB_PATH"  # llama.cpp's own, which changes no option
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(ours) or name == libraries
    }
    # This repository comes before the import path of the tests.
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**inherited, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **variables}


_count = itertools.count()


def start(
    directory: Path,
    *argv: str,
    api_key: str | None = None,
    named: bool = False,
    wait: bool = True,
    router: bool = False,
    variables: Mapping[str, str] | None = None,
    **client: Any,
) -> Specllama:
    """Starts `specllama *argv`, and with `wait` waits until it is ready.

    It serves only `MODEL`, unless it is a `router` or `argv` has another model (`named`).
    `variables` are added to its environment. `client` are options for the HTTP client, such as
    `verify`.
    """
    keys = ("--api-key", api_key) if api_key else ()
    model = () if router or named else ("--model", MODEL)
    log = directory / f"server-{next(_count)}.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "specllama", *FRUGAL, *model, *keys, *argv],
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
        url = wait_until(address, "the server prints its address")
        server = Specllama(process, log, url, api_key=api_key, **client)
        if wait:
            server.wait_until_ready()
    except BaseException:
        process.kill()
        process.wait()
        raise
    return server


def start_silent(directory: Path, *argv: str) -> Specllama:
    """Starts the program with --log-disable. It can't print its port, so it gets a fixed one."""
    port = free_port()
    log = directory / f"server-{next(_count)}.log"
    own = ("--log-disable", *FRUGAL, "--port", str(port), "--model", MODEL, *argv)
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "specllama", *own],
            env=environment(),
            cwd=ROOT,
            stdout=sink,
            stderr=sink,
        )
    server = Specllama(process, log, f"http://127.0.0.1:{port}")
    until_healthy(server, "the silent server")
    return server


def start_connexion(directory: Path, **variables: str) -> Specllama:
    """Starts `connexion run` with the description, and options in environment variables."""
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
    server = Specllama(process, log, f"http://127.0.0.1:{port}", api_key=key)
    until_healthy(server, "the server that connexion runs")
    return server


def until_healthy(server: OwnServer, what: str) -> None:
    """Waits until a new server is ready; closes the server if that fails."""

    def ready() -> bool:
        text = server.log.read_text("utf-8", "replace")
        code = server.process.poll()
        assert code is None, f"{what} ended with code {code}:\n{text[-10_000:]}"
        with contextlib.suppress(httpx.TransportError):
            return server.get("/health").status_code == 200
        return False

    try:
        wait_until(ready, f"{what} is ready")
    except BaseException:
        server.close()
        raise


def run(
    *argv: str, model: str | None = MODEL, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs the program, which has to end by itself; `variables` are added to its environment. If
    `argv` names no model, pass one as `model`: without both, the program would be a router, which
    a bad model doesn't end."""
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
