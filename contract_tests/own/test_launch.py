"""Both ways of starting a server, its addresses, and its end."""

import contextlib
import signal
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from contract_tests.kit import contract
from contract_tests.kit.bodies import BODIES, ENDLESS, GENERATING, MESSAGES, PROMPT, body, path
from contract_tests.kit.server import SECONDS, Server, Start, alive, wait_until
from contract_tests.own.launching import family, one_line, outcome, posix, wait_until_ended
from contract_tests.own.servers import (
    MODEL,
    engine_processes,
    free_port,
    run,
    start_connexion,
    start_silent,
)

KEY = "key"
JSON = {"Content-Type": "application/json"}

# ---- equal answers, however it was started ------------------------------------------

NO_KEY = {"Authorization": ""}
PROBES: list[tuple[str, str, dict[str, Any]]] = [
    *(("GET", path(name), {}) for name in contract.operations()
      if name not in (*BODIES, *ENDLESS)),
    *(("POST", path(name), {"json": body(name)}) for name in BODIES),
    *(("POST", path(name), {"json": body(name, stream=True)}) for name in GENERATING),
    ("POST", "/v1/messages", {"json": body("create_message", stream=True)}),
    ("POST", "/v1/messages", {"json": {"messages": 5}}),
    ("POST", "/v1/messages", {"json": body("create_message", container="a")}),
    ("POST", "/v1/messages/count_tokens", {"content": b"a", "headers": {"Content-Type": "a/b"}}),
    ("GET", "/v1/messages", {}),
    ("GET", "/v1/messages/batches", {}),
    ("POST", "/v1/messages", {"headers": NO_KEY}),
    ("GET", "/no/such/path", {}),
    ("GET", "/completion", {}),
    ("DELETE", "/v1/models", {}),
    ("OPTIONS", "/props", {}),
    ("HEAD", "/health", {}),
    ("GET", "/health/", {}),
    ("GET", "/props", {"headers": NO_KEY}),
    ("GET", "/props", {"headers": {"Authorization": "Bearer wrong"}}),
    ("GET", "/props", {"headers": {**NO_KEY, "x-api-key": KEY}}),
    ("GET", "/no/such/path", {"headers": NO_KEY}),
    ("GET", "/slots?fail_on_no_slot=2", {}),
    ("GET", "/slots?fail_on_no_slot=1", {}),
    ("GET", "/docs/nothing.js", {}),
    ("GET", "/health", {"headers": {"Origin": "http://a.example"}}),
    ("OPTIONS", "/tokenize", {"headers": {"Origin": "http://a.example",
                                          "Access-Control-Request-Method": "POST"}}),
    ("POST", "/completion", {"content": b"{", "headers": JSON}),
    ("POST", "/completion", {"content": b"", "headers": JSON}),
    ("POST", "/completion", {"content": b"\xff", "headers": JSON}),
    ("POST", "/completion", {"content": b'{"prompt": NaN}', "headers": JSON}),
    ("POST", "/completion", {"json": {}}),
    ("POST", "/completion", {"json": {"prompt": "a", "n_predict": "many"}}),
    ("POST", "/completion", {"json": {"prompt": [10**6]}}),
    ("POST", "/completion", {"json": {"prompt": "a", "grammar": "root"}}),
    ("POST", "/completion", {"json": {"prompt": "a " * 9000, "stream": True}}),
    ("POST", "/v1/chat/completions", {"json": {"messages": 5}}),
    ("POST", "/v1/chat/completions",
     {"json": {"messages": MESSAGES, "modalities": ["audio"], "stream": True}}),
    ("POST", "/tokenize", {"content": b"<a/>", "headers": {"Content-Type": "text/xml"}}),
    ("POST", "/tokenize", {"content": b'{"content": "a"}',
                           "headers": {"Content-Type": "application/x-www-form-urlencoded"}}),
    ("POST", "/detokenize", {"json": {"tokens": [-1]}}),
]  # fmt: skip

LISTS = ("/models", "/v1/models", "/api/tags")


@pytest.fixture(scope="module")
def program(module_server: Start) -> Server:
    return module_server("--parallel", "4", api_key=KEY)


@pytest.fixture(scope="module")
def connexion(module_server: Start) -> Server:
    options: dict[str, Any] = {"LLAMA_API_KEY": KEY, "LLAMA_ARG_N_PARALLEL": "4"}
    return module_server(how=lambda directory: start_connexion(directory, **options))


@pytest.mark.parametrize(("method", "where", "options"), PROBES)
def test_connexion_run_is_the_same_server(
    method: str, where: str, options: dict[str, Any], program: Server, connexion: Server
) -> None:
    expected, got = (outcome(each, method, where, options) for each in (program, connexion))
    for answer in (expected, got):  # a location may be absolute
        if answer[1]["location"]:
            answer[1]["location"] = httpx.URL(answer[1]["location"]).path
    # The state of the slots depends on all requests before.
    if where.startswith("/slots") and expected[0] == 200:
        assert got[:2] == expected[:2]
        assert [slot.keys() for slot in got[2]] == [slot.keys() for slot in expected[2]]
    elif where in LISTS:
        # The metadata of a model's file is available as soon as it has been read.
        wait_until(
            lambda: (
                outcome(program, method, where, options)
                == outcome(connexion, method, where, options)
            ),
            "both lists of models are equal",
        )
    else:
        assert got == expected


@posix
def test_connexion_run_ends_cleanly(own_server: Start) -> None:
    server = own_server(how=start_connexion)
    engine = server.engine()
    server.stop(signal.SIGTERM)
    wait_until(lambda: not alive(engine), "the engine process has ended")


# ---- how it ends ---------------------------------------------------------------------------


@posix
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it(number: int, own_server: Start) -> None:
    server = own_server()
    server.ask("/completion", body("create_completion"))
    processes = family(server)
    assert len(processes) >= 2
    assert server.stop(number) == 0
    wait_until_ended(processes)
    assert "Traceback" not in server.log.read_text()


@posix
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_running_requests_are_served_to_their_end(number: int, own_server: Start) -> None:
    server = own_server("-np", "2", "--drain-timeout", "600")
    processes = family(server)
    request = body("create_completion", n_predict=400, ignore_eos=True)
    answers: list[httpx.Response] = []

    def ask() -> None:
        answers.append(httpx.post(f"{server.url}/completion", json=request, timeout=SECONDS))

    plain = threading.Thread(target=ask)
    plain.start()
    server.wait_until_busy()
    with server.stream("/completion", request) as (_, events):
        seen = [next(events)]  # now both requests are being served
        server.process.send_signal(number)
        seen += events
    plain.join(SECONDS)
    assert seen[-1].json["stop_type"] == "limit"
    assert seen[-1].json["tokens_predicted"] == 400
    assert contract.check(answers[0])["tokens_predicted"] == 400
    assert server.process.wait(SECONDS) == 0
    wait_until_ended(processes)


@posix
def test_draining_ends(own_server: Start) -> None:
    """A request that takes too long ends with the documented error, plain or streamed."""
    server = own_server("--drain-timeout", "0", "-c", "8192", "-np", "2")
    processes = family(server)
    request = body("create_completion", n_predict=8000, ignore_eos=True)
    answers: list[httpx.Response] = []
    plain = threading.Thread(target=lambda: answers.append(server.post("/completion", request)))
    with server.stream("/completion", request) as (_, events):
        next(events)
        plain.start()
        server.wait_until_busy(2)
        server.process.send_signal(signal.SIGTERM)
        *_, last = events
    plain.join(SECONDS)
    assert last.json["error"]["type"] == "unavailable_error"
    assert contract.check(answers[0], 503)["error"]["type"] == "unavailable_error"
    assert server.process.wait(SECONDS) == 0
    wait_until_ended(processes)
    assert "Traceback" not in server.log.read_text()


@posix
def test_a_killed_server_leaves_no_engine(own_server: Start) -> None:
    server = own_server()
    request = body("create_completion", n_predict=8000, ignore_eos=True)
    processes = family(server)
    with (
        contextlib.suppress(httpx.TransportError, AssertionError),
        server.stream("/completion", request) as (_, events),
    ):
        next(events)
        server.process.kill()
        list(events)
    server.process.wait()
    wait_until_ended(processes[1:])


@posix
def test_it_can_be_stopped_while_it_loads(own_server: Start) -> None:
    server = own_server(wait=False)
    [engine] = wait_until(lambda: engine_processes(server.process.pid), "an engine process")
    assert server.stop() == 0
    wait_until(lambda: not alive(engine), "the engine process has ended")


@posix
def test_an_engine_that_serves_may_be_killed_often(own_server: Start) -> None:
    server = own_server("-np", "1")
    request, seen = body("create_completion"), set()
    for _ in range(6):
        server.ask("/completion", request)
        seen.add(server.engine().pid)
        server.kill_engine()
        server.engine()  # the next engine, which requests wait for
    server.ask("/completion", request)
    assert len(seen) == 6
    assert server.log.read_text("utf-8").count("; a new one is started") == 6


@posix
def test_a_killed_engine_is_replaced(own_server: Start) -> None:
    server = own_server("-np", "4")
    long = body("create_completion", n_predict=1500, ignore_eos=True)
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(server.post("/completion", long)))
    old = server.engine()
    thread.start()
    server.wait_until_busy()
    with server.stream("/completion", long) as (_, events):
        seen = [next(events)]  # now both requests are being served
        old.kill()
        seen += events
    thread.join(SECONDS)
    *_, last = contract.check_stream(contract.operations()["create_completion"], seen)
    assert last["error"]["type"] == "server_error"
    assert contract.check(answers[0], 500)["error"]["type"] == "server_error"
    for name in GENERATING:
        contract.check(server.post(path(name), body(name)))
    assert server.process.poll() is None
    assert server.engine().pid != old.pid
    assert contract.check(server.get("/health")) == {"status": "ok"}


@posix
def test_waiting_requests_survive_a_killed_engine(
    own_server: Start,
) -> None:
    server = own_server("-np", "1", "--metrics")
    long, short = (body("create_completion", n_predict=n, ignore_eos=True) for n in (1500, 3))
    answers: list[httpx.Response] = []
    threads = [
        threading.Thread(target=lambda: answers.append(server.post("/completion", short)))
        for _ in range(5)
    ]
    with server.stream("/completion", long) as (_, events):
        next(events)
        for thread in threads:
            thread.start()
        wait_until(lambda: "requests_deferred 5" in server.get("/metrics").text, "all wait")
        server.engine().kill()
        *_, last = contract.check_stream(contract.operations()["create_completion"], list(events))
    for thread in threads:
        thread.join(SECONDS)
    assert last["error"]["type"] == "server_error"
    assert [contract.check(answer)["tokens_predicted"] for answer in answers] == [3] * 5


@posix
def test_the_health_is_known_while_the_engine_restarts(own_server: Start) -> None:
    server = own_server()
    server.kill_engine()
    wait_until(lambda: server.engines() or server.get("/health").status_code, "a new engine")
    response = server.get("/health")
    contract.check(response, response.status_code)
    assert response.status_code in (200, 503)
    contract.check(server.get("/v1/models"))
    server.wait_until_ready()


@posix
def test_without_a_log_it_is_silent(own_server: Start) -> None:
    """No output from the warnings about options to the end, with a failed request in between."""
    server = own_server(how=lambda directory: start_silent(directory, "--threads-http", "2"))
    server.ask("/completion", body("create_completion"))
    assert server.post("/completion", {"prompt": 5}).status_code == 400
    server.kill_engine()
    server.engine()
    assert server.stop() == 0
    assert server.log.read_text("utf-8") == ""


# ---- where it listens ----------------------------------------------------------------------


@posix
def test_unix_socket(own_server: Start, tmp_path: Path) -> None:
    address = tmp_path / "server.sock"
    server = own_server("--host", f"127.0.0.1,{address}")
    with httpx.Client(
        transport=httpx.HTTPTransport(uds=str(address)), base_url="http://server", timeout=SECONDS
    ) as client:
        contract.check(client.get("/health"))
        contract.check(client.post("/completion", json=BODIES["create_completion"]))
    assert server.stop() == 0
    assert not address.exists()


def test_tls(own_server: Start, tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    for pem in issued.cert_chain_pems:
        pem.write_to_path(certificate, append=True)
    issued.private_key_pem.write_to_path(key)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    files = ["--ssl-cert-file", str(certificate), "--ssl-key-file", str(key)]
    server = own_server(*files, api_key=KEY, verify=trusting)
    assert server.url.startswith("https://")
    contract.check(server.post("/completion", BODIES["create_completion"]))
    assert server.events("/v1/chat/completions", BODIES["create_chat_completion"])
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/health", timeout=SECONDS)
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http{server.url.removeprefix('https')}/health", timeout=SECONDS)
    assert server.stop() == 0


@pytest.mark.usefixtures("launcher")
def test_a_port_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert port in one_line(run("--port", port))
    assert free_port()


# ---- files that are no model --------------------------------------------------------------------


@pytest.mark.usefixtures("launcher")
@pytest.mark.parametrize("kind", ["missing", "directory"])
def test_no_model_file(kind: str, tmp_path: Path) -> None:
    model = tmp_path if kind == "directory" else tmp_path / "missing.gguf"
    done = run("-m", str(model))
    assert str(model) in one_line(done)
    assert len(done.stderr.splitlines()) == 1, done.stderr


KINDS = (
    "empty", "text", "wrong-magic", "wrong-version", "truncated-header", "truncated-metadata",
    "truncated-tensors", "too-many-keys", "too-many-tensors", "too-long-string", "too-long-array",
    "nested-arrays", "key-twice", "unknown-type", "number-for-text", "tensor-outside",
    "tensor-twice", "unaligned-tensor", "negative-size", "overflowing-size",
    "too-many-dimensions", "unknown-tensor-type", "unknown-architecture", "no-tensors",
)  # fmt: skip


@pytest.mark.usefixtures("launcher")
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_no_model(kind: str, hostile: dict[str, Path]) -> None:
    done = run("-m", str(hostile[kind]))
    assert str(hostile[kind]) in one_line(done)


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    from specllama.engine.shipped import model_path
    from tools.models.hostile import write_hostile_files

    files = write_hostile_files(tmp_path_factory.mktemp("hostile"), model_path())
    assert files.keys() == set(KINDS)
    return files


@pytest.mark.usefixtures("launcher")
def test_a_template_that_cant_be_parsed(tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{% for m in messages %}\n{{ m.content }}\n{% endif %}", "utf-8")
    for option, value in (
        ("--chat-template", template.read_text("utf-8")),
        ("--chat-template-file", str(template)),
    ):
        done = run("-m", MODEL, option, value)
        assert "(line 3, column 4)" in one_line(done)
        assert "ready in" not in done.stderr


def test_a_working_model_by_its_path(own_server: Start) -> None:
    from specllama.engine.shipped import model_path

    server = own_server("-m", str(model_path()))
    [model] = server.get("/v1/models").json()["data"]
    assert model["id"] == str(model_path())
    assert server.ask("/completion", {"prompt": PROMPT, "n_predict": 2})["model"] == model["id"]
