"""A server for the tests of client programs.

As a context manager:

    from specllama.testing import llm_server

    with llm_server() as server:
        client = OpenAI(base_url=f"{server.base_url}/v1", api_key="none")

For pytest there is the fixture `llm_server`, one server for the session: see `pytest_plugin`.
"""

import collections
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from specllama.engine.shipped import MODEL_NAME

_ADDRESS = re.compile(r"listening on (https?://[^\s\",]+)")
_POLL = 0.05  # s
_LAST_LINES = 20
_GRACE = 10.0
"""Seconds until a server that doesn't end after SIGTERM is killed."""


class ServerError(RuntimeError):
    """The server ended, or wasn't ready in time. The message has the last lines of its log."""


@dataclass(frozen=True, kw_only=True)
class LLMServer:
    """A running server. `base_url` has no path; `model` is the model's name in requests."""

    base_url: str
    model: str
    log: Path
    process: subprocess.Popen[bytes]


@contextlib.contextmanager
def llm_server(
    *options: str, model: str = MODEL_NAME, timeout: float = 120.0
) -> Iterator[LLMServer]:
    """A context with a server on a free port of this machine, ready for requests. The server ends
    with the context.

    `options` are those of the command line, `model` is its `--model`. Options in environment
    variables (`LLAMA_...`) are ignored. Raises ServerError if the server isn't ready within
    `timeout` seconds.
    """
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("LLAMA_")}
    command = [
        sys.executable,
        "-m",
        "specllama.tethered",
        "--port",
        "0",
        "--model",
        model,
        *options,
    ]
    with tempfile.TemporaryDirectory(prefix="specllama-") as directory:
        log = Path(directory) / "server.log"
        # The server ends when its standard input is closed, so also when this process is killed.
        with (
            log.open("wb") as sink,
            subprocess.Popen(
                command, env=inherited, stdin=subprocess.PIPE, stdout=sink, stderr=sink
            ) as process,
        ):
            try:
                base_url = _wait_until_ready(process, log, timeout)
                yield LLMServer(base_url=base_url, model=Path(model).stem, log=log, process=process)
            finally:
                _end(process)


def _wait_until_ready(process: subprocess.Popen[bytes], log: Path, timeout: float) -> str:
    deadline = time.monotonic() + timeout
    base_url = None
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServerError(f"the server ended with code {process.returncode}:\n{_tail(log)}")
        if base_url is None and (found := _ADDRESS.search(log.read_text("utf-8", "replace"))):
            base_url = found[1]
        if base_url is not None and _is_ready(base_url):
            return base_url
        time.sleep(_POLL)
    raise ServerError(f"the server isn't ready after {timeout:g} seconds:\n{_tail(log)}")


def _is_ready(base_url: str) -> bool:
    # Ignores the proxies in the environment, since the server is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{base_url}/health", timeout=_GRACE) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _tail(log: Path) -> str:
    with log.open(encoding="utf-8", errors="replace") as lines:
        return "".join(collections.deque(lines, _LAST_LINES))


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
