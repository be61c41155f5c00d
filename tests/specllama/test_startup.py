"""Work that a server leaves until after its first answer, or to others."""

import asyncio
import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any, get_args, get_type_hints

import psutil
import pytest

from specllama.__main__ import PRINTING, serves
from specllama.engine.formats import schema_check as schemas
from specllama.engine.wire import head_start
from specllama.engine.wire.commands import Command
from specllama.engine.worker.constraints.compiler import IdleTime
from specllama.handlers.binding import validation
from specllama.handlers.binding.validation import JsonBody, validator_map
from specllama.handlers.options.tables.general import GeneralOptions

pytestmark = pytest.mark.slow

posix = pytest.mark.skipif(os.name != "posix", reason="it is done on POSIX systems only")

# ---- imports ----------------------------------------------------------------------------------

HEAVY = {
    *("click", "gguf", "httpx", "httpx2", "huggingface_hub", "jinja2", "llama_cpp", "llguidance"),
    *(
        "numpy",
        "prometheus_client",
        "requests",
        "rich",
        "starlette.testclient",
    ),
    *("urllib3", "uvicorn.main", "watchfiles", "werkzeug.serving", "werkzeug.test"),
}
"""Modules that no request needs which a server is likely to get first."""
SERVER = """
import atexit, runpy, sys
atexit.register(lambda: print(*sys.modules, sep=","))
runpy.run_module("specllama", run_name="__main__")
"""
CHAT = b'{"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}'


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ask(port: int) -> int:
    """The status of the first answer to a chat."""
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        try:
            connection.request(
                "POST", "/chat/completions", CHAT, {"Content-Type": "application/json"}
            )
            return connection.getresponse().status
        except ConnectionError:
            time.sleep(0.01)
        finally:
            connection.close()


def test_the_first_answers_need_no_heavy_module() -> None:
    port = free_port()
    command = [sys.executable, "-c", SERVER, "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert ask(port) == 200
    finally:
        process.terminate()
        said = process.communicate()[0].decode()
    imported = set(said.strip().split(","))
    assert "connexion" in imported
    assert not imported & HEAVY


def test_deferred_imports_work() -> None:
    program = """
import sys
from specllama.handlers.binding.deferred_imports import DEFERRED, deferred_imports
with deferred_imports():
    import connexion.apps.abstract as apps, connexion.security as security
    assert not any(hasattr(sys.modules[name], "__file__") for name in DEFERRED)
assert not set(DEFERRED) & set(sys.modules)
assert isinstance(security.httpx.Timeout(1), security.httpx.Timeout)
client = apps.TestClient(lambda scope: None)
from starlette.testclient import TestClient
assert type(client) is TestClient
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True)


# ---- validators -------------------------------------------------------------------------------

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}


def test_a_validator_is_compiled_once_and_beside_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[threading.Thread] = []

    def watched(schema: dict[str, Any]) -> Any:
        threads.append(threading.current_thread())
        return schemas.compile_schema(schema)

    monkeypatch.setattr(validation, "compile_schema", watched)
    make = validator_map()["body"]["application/json"]
    bodies: list[JsonBody] = [make(schema=SCHEMA, required=True) for _ in range(20)]
    assert not threads

    async def read(body: JsonBody, content: bytes) -> Any:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": content}

        scope: dict[str, Any] = {"state": {}}
        await body.wrap_receive(receive, scope=scope)
        return scope["extensions"]["connexion_context"]["body"]

    async def all_at_once() -> list[Any]:
        texts = [b'{"a": %d}' % n if n % 2 else b'{"a": ""}' for n in range(20)]
        work = (read(body, text) for body, text in zip(bodies, texts, strict=True))
        return await asyncio.gather(*work, return_exceptions=True)

    answers = asyncio.run(all_at_once())
    assert answers[1::2] == [{"a": n} for n in range(1, 20, 2)]
    assert all("a: " in str(answer) for answer in answers[::2])
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


# ---- processes with a head start --------------------------------------------------------------


class Output(asyncio.SubprocessProtocol):
    def __init__(self) -> None:
        self.output = b""
        self.exited = asyncio.Event()
        self.ended = asyncio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        assert fd == head_start.STDOUT
        self.output += data

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == head_start.STDOUT:
            self.ended.set()

    def process_exited(self) -> None:
        self.exited.set()


def python(program: str) -> Command:
    return (sys.executable, "-c", program)


ECHO = python("import sys; print('begun', flush=True); print(input(), flush=True)")


async def meet(command: Command, frame: bytes) -> tuple[bytes, int] | None:
    protocol = Output()
    adopted = await head_start.adopt(command, protocol, frame)
    if adopted is None:
        return None
    await protocol.ended.wait()
    await protocol.exited.wait()
    code = adopted.get_returncode()
    assert code is not None
    adopted.close()
    return protocol.output, code


@posix
@pytest.mark.parametrize("first", [b"", b"hello\n"])
def test_no_output_is_lost(first: bytes) -> None:
    head_start.begin(ECHO, first)
    process = head_start._early[ECHO].process
    if first:
        process.wait()  # its output is complete before anything reads it
    assert asyncio.run(meet(ECHO, b"hello\n")) == (b"begun\nhello\n", 0)
    assert asyncio.run(meet(ECHO, b"hello\n")) is None


@posix
def test_a_process_with_another_first_message_is_not_used() -> None:
    head_start.begin(ECHO, b"hello\n")
    pid = head_start._early[ECHO].process.pid
    assert asyncio.run(meet(ECHO, b"good bye\n")) is None
    assert not psutil.pid_exists(pid)


@posix
def test_a_message_that_is_too_long_for_a_pipe_is_sent_later() -> None:
    text = b"x" * head_start.PIPE_ROOM + b"\n"
    head_start.begin(ECHO, text)
    assert asyncio.run(meet(ECHO, text)) == (b"begun\n" + text, 0)


@posix
def test_an_ended_process_has_its_exit_code() -> None:
    command = python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    head_start.begin(command)
    assert asyncio.run(meet(command, b"")) == (b"", -signal.SIGKILL)


@posix
def test_a_command_that_does_not_exist_is_somebody_elses_trouble() -> None:
    command = ("/nowhere/python",)
    head_start.begin(command)
    assert asyncio.run(meet(command, b"")) is None


@posix
def test_a_server_that_cannot_start_leaves_no_process() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "specllama", "--port", port]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert port in ended.stderr
    assert "Traceback" not in ended.stderr


@posix
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_processes_end_with_a_server_that_is_ended_early(number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "specllama", "--port", str(free_port())],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    watched = psutil.Process(process.pid)
    while not (children := watched.children()):
        time.sleep(0.002)
    said = b""
    while process.poll() is None:
        process.send_signal(number)  # an interrupt in the middle of an import may get lost
        with suppress(subprocess.TimeoutExpired):
            said = process.communicate(timeout=1)[1]  # the end of it: they have the same stderr
    psutil.wait_procs(children)
    assert not any(child.is_running() for child in children)
    assert b"Traceback" not in said


INTERRUPTED = """
import os, signal, subprocess, sys
from specllama.__main__ import main
def interrupt(*_, **__):
    os.kill(os.getpid(), signal.SIGINT)
    raise OSError
subprocess.Popen = interrupt
sys.argv = ["specllama", "--port", "0"]
sys.exit(main())
"""
"""An interrupt while the first process is started."""


@posix
def test_an_interrupt_before_the_options_are_parsed_ends_the_program_quietly() -> None:
    command = [sys.executable, "-c", INTERRUPTED]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


LOST = """
import os, signal, weakref
from specllama import early_signals
early_signals.handle()
class Thing: pass
def gone(_):
    os.kill(os.getpid(), signal.SIGTERM)
    while not early_signals.received(): pass
thing = Thing()
watched = weakref.ref(thing, gone)
del thing
"""
"""A signal during a callback that can't be interrupted, such as an import."""


@posix
@pytest.mark.parametrize(
    "then",
    [
        "print('goes on')",
        "from specllama.cli import main; print('goes on'); raise SystemExit(main(['--port', '0']))",
        "from specllama.serve import ApiServer; from uvicorn.config import Config\n"
        "server = ApiServer(Config(None), None, 0, None, None)\n"
        "with server.capture_signals(): print('goes on' if server.should_exit else 'stays')",
    ],
)
def test_a_signal_that_is_lost_ends_the_server_before_it_listens(then: str) -> None:
    command = [sys.executable, "-c", LOST + then]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "goes on\n", "")


@posix
def test_a_process_may_start_before_its_first_message_is_known() -> None:
    head_start.begin(ECHO)
    pid = head_start._early[ECHO].process.pid
    head_start.begin(ECHO, b"hello\n")
    assert head_start._early[ECHO].process.pid == pid
    assert asyncio.run(meet(ECHO, b"hello\n")) == (b"begun\nhello\n", 0)


def test_an_engine_process_starts_early_unless_the_program_only_prints() -> None:
    options = get_type_hints(GeneralOptions, include_extras=True).values()
    printing = [name for each in options for name in get_args(each)[1].names.split()]
    assert sorted(printing) == sorted(PRINTING)
    assert not any(serves(["-m", "model.gguf", name]) for name in printing)
    assert not serves(["doctor"])
    assert serves([])
    assert serves(["serve", "-m", "model.gguf"])


@posix
def test_unused_processes_are_ended() -> None:
    head_start.begin(ECHO)
    pid = head_start._early[ECHO].process.pid
    head_start.withdraw()
    assert not psutil.pid_exists(pid)
    assert asyncio.run(meet(ECHO, b"")) is None


# ---- idle time --------------------------------------------------------------------------------


def test_work_waits_for_a_quiet_moment() -> None:
    checks = iter([True, False, True, *[False] * 100])
    seen: list[bool] = []

    def is_busy() -> bool:
        seen.append(next(checks))
        return seen[-1]

    idle = IdleTime(is_busy)
    idle.wait()
    assert seen[:3] == [True, False, True]
    assert not any(seen[3:])
    n = len(seen)
    idle.wait()
    assert len(seen) == n + 1  # it is still quiet: the work goes on at once


def test_work_that_somebody_waits_for_does_not_wait() -> None:
    idle = IdleTime(lambda: True)
    threading.Timer(0.01, idle.hurry).start()
    idle.wait()
    idle.wait()
