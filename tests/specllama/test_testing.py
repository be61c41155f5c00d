"""The server for other programs' tests."""

import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

from specllama.testing import ServerError, llm_server

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def test_it_answers_and_ends() -> None:
    with llm_server("--threads", "1") as server:
        body = {"model": server.model, "prompt": "a", "max_tokens": 3}
        request = urllib.request.Request(
            f"{server.base_url}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] <= 3
        assert server.process.poll() is None
    assert server.process.poll() == 0
    assert not server.log.exists()


def test_options_of_the_environment_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_API_KEY", "secret")
    with (
        llm_server("--threads", "1") as server,
        urllib.request.urlopen(f"{server.base_url}/v1/models") as answer,
    ):
        assert answer.status == 200


def test_a_server_that_ends_is_an_error_with_its_log() -> None:
    with (
        pytest.raises(ServerError, match=r"ended with code 1:\n[^\n]*--no-such-option"),
        llm_server("--no-such-option"),
    ):
        pass


def test_an_error_of_the_block_ends_the_server() -> None:
    with pytest.raises(ZeroDivisionError), llm_server("--threads", "1") as server:
        _ = 1 / 0
    assert server.process.poll() == 0


def test_a_server_ends_with_the_process_that_started_it() -> None:
    """Even if that one is killed."""
    script = (
        "import time\n"
        "from specllama.testing import llm_server\n"
        "with llm_server('--threads', '1') as server:\n"
        "    print(server.process.pid, flush=True)\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        server = int(owner.stdout.readline())
        owner.kill()
    while is_running(server):
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
