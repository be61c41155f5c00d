"""The program: its output, its addresses, and its end.

The servers here run a stand-in application, so only the front door is tested.
"""

import logging
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import trustme

from contract_tests.kit.server import SECONDS
from specllama import __version__, logs
from specllama.commands import COMMANDS
from specllama.engine.shipped import model_path
from specllama.handlers.options import parse
from specllama.handlers.options.completion import bash_completion
from specllama.listen import ListenError, Listeners
from tools.webui.__main__ import LIBRARIES, LICENSES, VENDOR, licenses

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
posix = pytest.mark.skipif(os.name != "posix", reason="signals and UNIX sockets")

STAND_IN = """
import asyncio, os, sys, types

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()
        if MODE == "broken":
            raise RuntimeError("the application\\nis broken")
        await send({"type": "lifespan.startup.complete"})
        if MODE == "fatal":
            ON_FATAL("the model is damaged")
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    headers = [(b"content-type", b"text/plain")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"begin ", "more_body": True})
    while scope["path"] == "/wait" and not os.path.exists(MODE):
        await asyncio.sleep(0.01)
    await send({"type": "http.response.body", "body": b"end"})

def create_app(options, catalog, on_fatal=None, parts=None):
    global ON_FATAL
    ON_FATAL = on_fatal
    return app

MODE = sys.argv.pop(1)
module = types.ModuleType("specllama.app")
module.create_app = create_app
sys.modules["specllama.app"] = module
from specllama.engine.wire import head_start
head_start.begin = lambda command, frame=b"", logs=False: None  # this application has no engine
from specllama.cli import main
sys.exit(main())
"""


def environment(**variables: str) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("LLAMA_")}
    return {**inherited, "PYTHONPATH": str(ROOT), "COLUMNS": "80", **variables}


def run(*argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "specllama", *argv],
        env=environment(**variables),
        capture_output=True,
        encoding="utf-8",
        timeout=SECONDS,
        check=False,
    )


def run_stand_in(mode: str, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", STAND_IN, mode, *argv],
        env=environment(),
        capture_output=True,
        encoding="utf-8",
        timeout=SECONDS,
        check=False,
    )


class Server:
    """A running program with the stand-in application. `release` lets /wait go on."""

    def __init__(self, directory: Path, *argv: str) -> None:
        self._release = directory / "release"
        self.process = subprocess.Popen(
            [sys.executable, "-c", STAND_IN, str(self._release), *argv],
            env=environment(),
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        self.banner = ""
        while not re.search(r"  docs|  API +unix", self.banner):
            self.banner += self.line()
        self.urls = re.findall(r"  API +(http\S+)", self.banner)

    def line(self) -> str:
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        assert line, f"the server ended: {self.banner}"
        return line

    def release(self) -> None:
        self._release.touch()

    def ended(self) -> tuple[int, str]:
        """Waits for the end: the exit code and the rest of stderr."""
        _, stderr = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, stderr

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(number)
        return self.ended()


Start = Callable[..., Server]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    servers: list[Server] = []

    def starting(*argv: str) -> Server:
        servers.append(Server(tmp_path, *argv))
        return servers[-1]

    yield starting
    for server in servers:
        server.process.kill()
        server.process.communicate()


# ---- output ----------------------------------------------------------------------


@pytest.mark.parametrize("form", ["-h", "--help", "--usage"])
def test_help(form: str) -> None:
    done = run(form)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: specllama")
    assert "--ctx-size" in done.stdout
    assert "\x1b" not in done.stdout


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(rf"specllama {re.escape(__version__)} \(.*\)\n", done.stdout)


def test_list_devices() -> None:
    done = run("--list-devices")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Available devices:\n  ")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--porrt", "1"], "did you mean --port?"),
        (["--port", "eighty"], '--port: "eighty" is not a whole number'),
        (["--tools-runtime", "docker:a"], "the option --tools-runtime is not available: tools run"),
        (["-m", "/does/not/exist.gguf"], '--model: cannot open "/does/not/exist.gguf"'),
        (["-m", str(ROOT)], "is a directory"),
        (["-m", __file__], "is not a GGUF file"),
        (["stray"], 'unexpected argument "stray"; see'),
        (["lst"], 'unexpected argument "lst" (did you mean list?)'),
        (["--alias", "two\nlines", "-c", "\n"], '-c: "\\n" is not a whole number'),
        (["-hf", "nonsense"], '-hf: "nonsense" does not look like USER/REPO'),
        (["-hf", "user/repo", "-m", "specllama-tiny"], "-m: excludes --hf-repo"),
        (["--hf-file", "model.gguf"], "it needs --hf-repo"),
        (["-dr", "Nonsense"], '-dr: "Nonsense" does not look like [HOST/]NAME[:TAG]: '),
        (["-dr", "gemma3", "-hf", "user/repo"], "-hf: excludes --docker-repo"),
        (["-mu", "nonsense"], '-mu: "nonsense" is not an address'),
        (["--rpc", "nonsense"], '--rpc: "nonsense" does not look like HOST:PORT'),
        (["--models-dir", "/does/not/exist"], '--models-dir: cannot use "/does/not/exist"'),
        (["--models-preset", "/does/not/exist.ini"], '--models-preset: cannot open "/does'),
        (["--sleep-idle-seconds", "0"], "--sleep-idle-seconds: "),
    ],
)
def test_a_bad_option_is_one_line(argv: list[str], message: str) -> None:
    done = run(*argv)
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr
    assert done.stderr.startswith("specllama: error: ")
    assert done.stderr.count("\n") == 1


def test_a_bad_key_for_all_presets_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "models.ini"
    file.write_text("[*]\nparallel = 1\n\nctx-size = x\n", encoding="utf-8")
    done = run("--models-preset", str(file))
    assert (done.returncode, done.stdout) == (1, "")
    expected = f"specllama: error: {file}:4: ctx-size: "
    assert done.stderr.startswith(expected), done.stderr
    assert done.stderr.count("\n") == 1


def test_serving_has_a_name_of_its_own() -> None:
    named, plain = run("serve", "--version"), run("--version")
    assert (named.returncode, named.stdout) == (0, plain.stdout)
    assert "unexpected argument" in run("serve", "serve").stderr


def test_the_licenses_are_printed() -> None:
    done = run("--license", "--port", "1")
    assert (done.returncode, done.stderr) == (0, "")
    first, *others = done.stdout.splitlines()
    assert first.startswith("specllama ")
    assert first.endswith(": MIT")
    assert any(re.fullmatch(r"llama[-_]cpp[-_]python \S+: MIT.*", line) for line in others)
    assert others[-len(LIBRARIES) :] == licenses().splitlines()


def test_the_licenses_of_the_page_are_those_of_its_files() -> None:
    assert (VENDOR / LICENSES).read_text("utf-8") == licenses()
    for library in LIBRARIES:
        [name] = [name for name in library.files.values() if name.endswith(".LICENSE.txt")]
        text = (VENDOR / name).read_text("utf-8")
        words = {"MIT": "Permission is hereby granted, free of charge", "BSD": "BSD 3-Clause"}
        assert words.get(library.license[:3], "Apache License") in text


def test_the_banner_names_the_page_where_there_is_one(start: Start, tmp_path: Path) -> None:
    for argv, has_page in (([], True), (["--no-ui"], False), (["--path", str(tmp_path)], False)):
        server = start("--port", "0", *argv)
        assert (f"\n  chat   {server.urls[0]}/\n" in server.banner) == has_page
        assert f"\n  docs   {server.urls[0]}/docs\n" in server.banner
        server.release()
        server.stop()


def test_the_script_for_bash_is_printed() -> None:
    done = run("--completion-bash", "--port", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == bash_completion(
        {"serve": (), **{n: c.actions for n, c in COMMANDS.items()}}
    )
    assert run("--completion-fish").stdout.count("__fish_use_subcommand") == len(COMMANDS) + 1
    assert "_files" in run("--completion-zsh").stdout


@pytest.mark.parametrize("words", [["--license"], ["--version"], ["list"]], ids=lambda w: w[0])
def test_unread_output(words: list[str], tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "specllama", *words],
        stdout=writing,
        stderr=subprocess.PIPE,
        env=environment,
        timeout=SECONDS,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_list_of_an_empty_cache(tmp_path: Path) -> None:
    done = run("--cache-list", HF_HUB_CACHE=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "number of models in cache: 0\n"


def test_a_bad_variable_is_one_line() -> None:
    done = run(LLAMA_ARG_PORT="-1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("specllama: error: LLAMA_ARG_PORT: ")
    assert done.stderr.count("\n") == 1


def test_options_are_read_without_the_server_s_libraries() -> None:
    script = (
        "import sys, specllama.cli; specllama.cli.main(['--version']);"
        "sys.exit(bool({'connexion', 'uvicorn', 'llama_cpp', 'numpy'} & sys.modules.keys()))"
    )
    command = [sys.executable, "-c", script]
    assert subprocess.run(command, env=environment(), check=False).returncode == 0


# ---- how it listens ----------------------------------------------------------------------


def test_a_free_port_is_printed(start: Start) -> None:
    server = start("--port", "0")
    assert "shipped with specllama" in server.banner
    assert "specllama -m model.gguf" in server.banner
    assert f"{server.urls[0]}/docs" in server.banner
    answer = httpx.get(server.urls[0], timeout=SECONDS)
    assert answer.text == "begin end"
    assert "server" not in answer.headers


def test_the_draft_model_is_named(start: Start) -> None:
    path = str(model_path())
    server = start("--port", "0", "-m", path, "-md", path)
    assert f"  draft  {path}\n" in server.banner


def test_the_prefix_is_part_of_the_url(start: Start) -> None:
    server = start("--port", "0", "--api-prefix", "/llm/")
    assert server.urls[0].endswith("/llm")
    assert f"{server.urls[0]}/docs" in server.banner


def test_a_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        done = run_stand_in("-", "--port", str(port))
    assert done.returncode == 1
    expected = f"specllama: error: cannot listen on 127.0.0.1 port {port}: Address already in use"
    assert done.stderr.startswith(expected), done.stderr
    assert done.stderr.count("\n") == 1


@posix
def test_a_unix_socket_beside_a_port(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))  # leaves its file behind
    server = start("--port", "0", "--host", f"{path},127.0.0.1")
    assert f"unix:{path}" in server.banner + server.line()
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), timeout=SECONDS) as client:
        assert client.get("http://host/").text == "begin end"
    assert httpx.get(server.urls[0], timeout=SECONDS).text == "begin end"
    code, stderr = server.stop()
    assert (code, path.exists()) == (0, False), stderr


@posix
def test_a_unix_socket_alone(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    server = start("--host", str(path))
    assert server.urls == []
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), timeout=SECONDS) as client:
        assert client.get("http://host/").text == "begin end"
    second = run_stand_in("-", "--host", str(path))
    assert second.returncode == 1
    expected = f"specllama: error: cannot listen on {path}: another server is listening on it\n"
    assert second.stderr == expected
    assert path.is_socket()
    assert server.stop()[0] == 0
    assert not path.exists()


@posix
def test_only_socket_files_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "precious.sock"
    path.write_text("data", encoding="utf-8")
    with pytest.raises(ListenError, match="is not a socket"):
        Listeners([str(path)], 0)
    assert path.read_text(encoding="utf-8") == "data"
    with pytest.raises(ListenError, match="No such file"):
        Listeners([str(tmp_path / "missing" / "s.sock")], 0)
    with pytest.raises(ListenError, match="too long"):
        Listeners([str(tmp_path / f"{'x' * 200}.sock")], 0)


@posix
def test_a_socket_file_that_another_server_took_over_stays(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with Listeners([str(path)], 0):
        path.unlink()
        path.write_text("other", encoding="utf-8")
    assert path.exists()


def test_all_addresses_get_the_same_free_port() -> None:
    with Listeners(["127.0.0.1", "localhost"], 0) as listeners:
        ports = {sock.getsockname()[1] for sock in listeners.tcp}
        assert len(ports) == 1


@pytest.mark.skipif(not hasattr(socket, "SO_REUSEPORT"), reason="needs SO_REUSEPORT")
def test_servers_may_share_a_port() -> None:
    with Listeners(["127.0.0.1"], 0, reuse_port=True) as first:
        port = first.tcp[0].getsockname()[1]
        with Listeners(["127.0.0.1"], port, reuse_port=True) as second:
            assert second.tcp[0].getsockname()[1] == port
        with pytest.raises(ListenError, match="cannot listen on"):
            Listeners(["127.0.0.1"], port)


@posix
def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with pytest.raises(ListenError, match="cannot listen on x"):
        Listeners([str(path), "127.0.0.1", "x" * 300], 0)
    assert not path.exists()
    with Listeners([str(path), "127.0.0.1"], 0) as listeners:
        port = listeners.tcp[0].getsockname()[1]
        urls = [f"http://127.0.0.1:{port}/p", f"unix:{path}"]
        assert listeners.urls("http", "/p") == urls


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_ipv6_addresses_are_in_brackets() -> None:
    try:
        listeners = Listeners(["::1"], 0)
    except ListenError:
        pytest.skip("this machine has no IPv6 address")
    with listeners:
        assert re.fullmatch(r"http://\[::1\]:\d+", listeners.urls("http", "")[0])


def test_https(start: Start, tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    issued.private_key_pem.write_to_path(key)
    issued.cert_chain_pems[0].write_to_path(certificate)
    files = ["--ssl-key-file", str(key), "--ssl-cert-file", str(certificate)]
    server = start("--port", "0", *files)
    assert server.urls[0].startswith("https://")
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    assert httpx.get(server.urls[0], verify=trusting, timeout=SECONDS).text == "begin end"
    assert run_stand_in("-", "--ssl-key-file", str(key)).returncode == 1


# ---- how it ends -------------------------------------------------------------------------


@posix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_success(start: Start, number: int) -> None:
    server = start("--port", "0")
    code, stderr = server.stop(number)
    assert code == 0
    assert "Traceback" not in stderr


@posix
def test_running_requests_are_finished_first(start: Start) -> None:
    server = start("--port", "0", "--drain-timeout", "600")
    with httpx.stream("GET", server.urls[0] + "/wait", timeout=SECONDS) as answer:
        chunks = answer.iter_text()
        assert next(chunks) == "begin "
        server.process.send_signal(signal.SIGTERM)
        assert server.line() == "INFO specllama: shutting down; running requests have 600 s\n"
        assert server.process.poll() is None
        server.release()
        assert "".join(chunks) == "end"
    code, stderr = server.ended()
    assert (code, stderr) == (0, "")


@posix
def test_draining_has_an_end(start: Start) -> None:
    server = start("--port", "0", "--drain-timeout", "0")
    with httpx.stream("GET", server.urls[0] + "/wait", timeout=SECONDS) as answer:
        assert next(answer.iter_raw()) == b"begin "
        code, stderr = server.stop()
    assert code == 0
    assert "Traceback" not in stderr


@posix
def test_a_second_ctrl_c_ends_it_at_once(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    server = start("--port", "0", "--drain-timeout", "600", "--host", f"127.0.0.1,{path}")
    with httpx.stream("GET", server.urls[0] + "/wait", timeout=SECONDS) as answer:
        assert next(answer.iter_raw()) == b"begin "
        server.process.send_signal(signal.SIGINT)
        while "shutting down" not in server.line():
            pass
        code, stderr = server.stop(signal.SIGINT)
    assert code == 130
    assert "Traceback" not in stderr
    assert not path.exists()


def test_an_application_that_cannot_start_is_one_line() -> None:
    done = run_stand_in("broken", "--port", "0")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "specllama: error: the application is broken\n"
    done = run_stand_in("broken", "--port", "0", "--verbose")
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_a_model_that_cannot_be_loaded_ends_it() -> None:
    done = run_stand_in("fatal", "--port", "0")
    assert done.returncode == 1
    assert done.stderr.endswith("specllama: error: the model is damaged\n")
    assert "Traceback" not in done.stderr


# ---- the log -----------------------------------------------------------------------------


@pytest.fixture
def log_as(capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers = handlers
    root.setLevel(level)
    logging.disable(logging.NOTSET)
    logging.captureWarnings(False)
    logging.getLogger("uvicorn.error").filters.clear()


@pytest.mark.usefixtures("log_as")
@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["-lv", "0"], ["critical"]),
        (["-lv", "1"], ["critical", "error"]),
        (["-lv", "2"], ["critical", "error", "warning"]),
        ([], ["critical", "error", "warning", "info"]),
        (["-lv", "4"], ["critical", "error", "warning", "info", "debug"]),
        (["-v"], ["critical", "error", "warning", "info", "debug"]),
        (["--log-disable"], []),
    ],
)
def test_verbosity(argv: list[str], shown: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(parse([*argv, "--no-log-prefix"], {}).log)
    log = logging.getLogger("test")
    for level in ("critical", "error", "warning", "info", "debug"):
        getattr(log, level)(level)
    assert capsys.readouterr().err.split() == shown


@pytest.mark.usefixtures("log_as")
def test_decorations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "log"
    argv = ["--log-timestamps", "--log-colors", "on", "--log-file", str(file)]
    logs.configure(parse(argv, {}).log)
    logging.getLogger("test").warning("careful")
    time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}"
    assert re.fullmatch(
        rf"\x1b\[33m{time} WARNING test: careful\x1b\[0m\n", capsys.readouterr().err
    )
    text = file.read_text(encoding="utf-8")
    assert re.fullmatch(rf"{time} WARNING test: careful\n", text)


@posix
@pytest.mark.usefixtures("log_as")
def test_a_log_file_that_was_renamed_is_opened_anew(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    file, old = folder / "log", folder / "log.1"
    logs.configure(parse(["--log-file", str(file)], {}).log)
    log = logging.getLogger("test")
    log.info("one")
    file.rename(old)
    log.info("two")
    assert (old.read_text("utf-8"), file.read_text("utf-8")) == (
        "INFO test: one\n",
        "INFO test: two\n",
    )
    file.unlink()
    log.info("three")
    assert file.read_text("utf-8") == "INFO test: three\n"
    folder.rename(tmp_path / "away")
    log.info("nowhere")
    (tmp_path / "away").rename(folder)
    log.info("four")
    assert file.read_text("utf-8").endswith("INFO test: four\n")
