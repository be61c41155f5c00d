"""The benchmarks count the processor time of the right processes."""

import os
import socket
import subprocess
import sys

import pytest

from benchmarks.processes import listener, spent, times

pytestmark = pytest.mark.slow


def test_processor_time_is_counted_by_role_and_in_total() -> None:
    before = {("server", 1): 1.0, ("engine", 2): 10.0, ("others", 3): 5.0}
    after = {("server", 1): 1.5, ("engine", 2): 12.0, ("engine", 4): 0.25}
    assert spent(before, after) == {"server": 0.5, "engine": 2.25, "all": 2.75}


def test_a_single_process_is_all() -> None:
    assert spent({("server", 1): 1.0}, {("server", 1): 3.0}) == {"all": 2.0}


def test_missing_processes_are_left_out() -> None:
    assert spent({}, {}) == {}


def test_children_count_and_engines_are_known_by_their_module() -> None:
    waiting = "import sys; sys.stdin.read()"
    command = [sys.executable, "-c", waiting, "-m", "specllama.engine.worker"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as engine:
        found = times(os.getpid())
        engine.communicate()
    assert ("server", os.getpid()) in found
    assert ("engine", engine.pid) in found


def test_the_process_that_listens_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        own = None if sys.platform == "darwin" else os.getpid()  # macOS shows it only to root
        assert listener(f"http://127.0.0.1:{port}") == own
        assert listener(f"http://example.invalid:{port}") is None
    assert listener(f"http://127.0.0.1:{port}") != os.getpid()
