"""The measured servers: started from this environment, or already running."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from benchmarks.client import ClientError, Connection
from benchmarks.processes import Times, listener, times

START_TIMEOUT = 180.0  # seconds
STOP_TIMEOUT = 10.0
QUIET_SECONDS = 3.0
"""Time without requests after a start, in which specllama measures its steps."""
PEER = "llama_cpp.server"


TOKENIZERS = (("/tokenize", "content"), ("/extras/tokenize", "input"))
"""Paths at which servers tokenize, each with the field for the text."""


@dataclass
class Server:
    """The address of a server, and the results of `probe`: the name of its first model, whether it
    has GET /health, and its entry of TOKENIZERS. Requests exclude the tokens in `biased`, for a
    server without `ignore_eos`."""

    name: str
    url: str
    pid: int | None = None
    model: str = ""
    has_health: bool = False
    tokenizer: tuple[str, str] | None = None
    biased: tuple[int, ...] = ()

    async def probe(self) -> None:
        """Sets the results. Raises ClientError while the server isn't ready."""
        async with Connection(self.url) as connection:
            self.has_health = await _exists(connection, "GET", "/health")
            models = json.loads(await connection.request("GET", "/v1/models"))
            self.model = str(models["data"][0]["id"])
            for path, text_field in TOKENIZERS:
                if await _exists(connection, "POST", path, {text_field: "?"}):
                    self.tokenizer = (path, text_field)

    def cpu_times(self) -> Times:
        """Returns the processor time of its processes so far; empty for a server elsewhere."""
        return {} if self.pid is None else times(self.pid)


def specllama_command(model: Path, port: int, threads: int) -> list[str]:
    """Returns the command, with 8 slots (the largest number of measured streams) of 2,048 tokens
    each."""
    command = [sys.executable, "-m", "specllama", "-m", str(model), "--port", str(port)]
    command += ["--parallel", "8", "--ctx-size", "16384"]
    return [*command, "--threads", str(threads)]


def peer_command(model: Path, port: int, threads: int) -> list[str]:
    """Returns the command of llama-cpp-python's server, with two defaults changed in its favour:
    otherwise a new request would interrupt the running one, and the server would compute and
    discard the logits of every prompt token."""
    command = [sys.executable, "-m", PEER, "--model", str(model), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--verbose", "false"]
    command += ["--interrupt_requests", "false", "--logits_all", "false"]
    return [*command, "--n_threads", str(threads)]


Command = Callable[[Path, int, int], list[str]]


@contextlib.contextmanager
def started(name: str, command: Command, model: Path, threads: int) -> Iterator[Server]:
    """Runs a server on a free port until the block ends. Raises ClientError with the server's
    output if it doesn't start."""
    port = free_port()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command(model, port, threads),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        server = Server(name, f"http://127.0.0.1:{port}", process.pid)
        try:
            _wait_until_ready(server, process, log)
            yield server
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def running(name: str, url: str) -> Server:
    """Returns a server that already runs. Raises ClientError if it doesn't answer."""
    server = Server(name, url, listener(url))
    asyncio.run(server.probe())
    return server


async def _exists(connection: Connection, method: str, path: str, body: object = None) -> bool:
    try:
        await connection.request(method, path, body)
    except ClientError as error:
        if error.status == 404:
            return False
        raise
    return True


async def become_quiet(server: Server) -> None:
    """Waits until a loaded server has measured its steps. Raises ClientError if it isn't loaded."""
    async with Connection(server.url) as connection:
        await _exists(connection, "GET", "/health")
    await asyncio.sleep(QUIET_SECONDS)


def _wait_until_ready(server: Server, process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while process.poll() is None and time.monotonic() < deadline:
        try:
            asyncio.run(become_quiet(server))
            asyncio.run(server.probe())
            return
        except ClientError:
            time.sleep(0.1)
    log.seek(max(0, log.seek(0, os.SEEK_END) - 3000))
    raise ClientError(f"{server.name} did not start:\n{log.read().decode(errors='replace')}")


def free_port() -> int:
    """Returns a port of this machine on which no server listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
