"""The id of every request, and its line in the server's log."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from contract_tests.kit import contract
from contract_tests.kit.bodies import BODIES, ENDLESS, GENERATING, body, path
from contract_tests.kit.server import API_KEY, OwnServer, Start, wait_until
from contract_tests.own.launching import one_line
from contract_tests.own.servers import ROOT, run
from tools.models.zoo import RERANKER, Zoo

SECRET = "cherimoya"
"""A text in prompts and in rejected values, which must not occur in a log."""
MINE = "mine-1/2:%41"
EMBEDS = ("create_embedding", "create_embedding_alias", "create_openai_embeddings")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


def logging_server(module_server: Start, file: Path, *argv: str) -> OwnServer:
    return module_server(
        *("--log-format", "json", "--log-file", str(file), "-c", "4096", "-np", "2", *argv),
        api_key=API_KEY,
    )


@pytest.fixture(scope="module")
def server(module_server: Start, directory: Path) -> OwnServer:
    return logging_server(module_server, directory / "generating.jsonl")


@pytest.fixture(scope="module")
def embedder(module_server: Start, directory: Path) -> OwnServer:
    options = ("--embedding", "--pooling", "mean")
    return logging_server(module_server, directory / "embedding.jsonl", *options)


def records(server: OwnServer) -> list[dict[str, Any]]:
    """Returns all lines, each of which has to be an object."""
    lines = server.log.read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def line_of(server: OwnServer, response: httpx.Response) -> dict[str, Any]:
    """Returns the line about the request of `response`."""
    return line_with(server, response.headers["x-request-id"])


def line_with(server: OwnServer, id: str) -> dict[str, Any]:
    def find() -> dict[str, Any] | None:
        # The last line may be incomplete.
        text = server.log.read_text("utf-8")
        whole = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        return next((line for line in whole if line.get("request_id") == id), None)

    line = wait_until(find, f"there is a line about the request {id}")
    check_line(line)
    return line


def check_line(line: dict[str, Any]) -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
    assert line["level"] in ("debug", "info", "warning", "error", "critical")
    assert line["logger"] == "http"
    assert line["message"].startswith(f"{line['method']} {line['path']} {line['status']} ")
    assert line["ms"] >= 0
    assert SECRET not in json.dumps(line)
    assert API_KEY not in json.dumps(line)


# ---- ids ---------------------------------------------------------------------------------------


def described() -> re.Pattern[str]:
    root = yaml.safe_load((ROOT / "openapi" / "server.yaml").read_text("utf-8"))
    return re.compile(root["x-every-operation"]["headers"]["X-Request-Id"]["schema"]["pattern"])


def is_id(text: str) -> bool:
    return described().fullmatch(text) is not None


@pytest.mark.parametrize("name", sorted(contract.operations().keys() - set(ENDLESS)))
def test_every_operation_has_an_id(name: str, server: OwnServer) -> None:
    operation = contract.operations()[name]
    for headers in ({}, {"X-Request-Id": MINE}):
        response = server.http.request(
            operation.method, path(name), json=BODIES.get(name), headers=headers
        )
        [id] = response.headers.get_list("x-request-id")
        assert is_id(id)
        assert (id == MINE) is bool(headers)


@pytest.mark.parametrize(
    ("method", "where", "options", "status"),
    [
        ("GET", "/no/such/path", {}, 404),
        ("PUT", "/completion", {}, 405),
        ("GET", "/props", {"headers": {"Authorization": ""}}, 401),
        ("POST", "/completion", {"content": b"{"}, 400),
        ("POST", "/completion", {"content": b"{}", "headers": {"Content-Type": "a/b"}}, 415),
        ("POST", "/completion", {"json": {"prompt": "a", "grammar": "root"}}, 400),
        ("POST", "/rerank", {"json": {"query": "a", "documents": ["b"]}}, 501),
        ("OPTIONS", "/completion", {"headers": {
            "Origin": "http://a.example", "Access-Control-Request-Method": "POST"}}, 200),
    ],
)  # fmt: skip
def test_every_error_has_an_id_and_a_reason(
    method: str, where: str, options: dict[str, Any], status: int, server: OwnServer
) -> None:
    response = server.http.request(method, where, **options)
    assert response.status_code == status
    assert is_id(response.headers["x-request-id"])
    if status >= 400:
        line = line_of(server, response)
        assert (line["method"], line["path"], line["status"]) == (method, where, status)
        assert line["error"] == response.json()["error"]["message"]


@pytest.mark.parametrize(
    "bad", [b"", b"two words", b"x" * 129, b"\xc3\xa4", b"tab\there"], ids=ascii
)
def test_invalid_ids_are_replaced(bad: bytes, server: OwnServer) -> None:
    response = server.get("/props", headers=[(b"X-Request-Id", bad)])
    assert response.status_code == 200
    assert is_id(response.headers["x-request-id"])
    assert response.headers["x-request-id"].encode() != bad


def test_new_ids_are_all_different(server: OwnServer) -> None:
    ids = [server.get("/health").headers["x-request-id"] for _ in range(50)]
    assert len(set(ids)) == 50


def test_pages_of_other_origins_may_read_it(server: OwnServer) -> None:
    response = server.get("/props", headers={"Origin": "http://a.example"})
    assert "X-Request-Id" in response.headers["access-control-expose-headers"]


def test_anthropic_s_own_header_has_the_same_id(server: OwnServer) -> None:
    request = body("create_message")
    made = server.post("/v1/messages", request)
    assert made.headers["request-id"] == made.headers["x-request-id"]
    mine = server.post("/v1/messages", request, headers={"X-Request-Id": MINE})
    assert mine.headers["request-id"] == f"req_{MINE}"
    assert mine.headers["x-request-id"] == MINE
    error = server.post("/v1/messages", {}, headers={"X-Request-Id": MINE})
    assert error.json()["request_id"] == f"req_{MINE}"


# ---- one line for each ---------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize(
    "name", [*GENERATING, "create_message", "create_ollama_chat", "create_ollama_generation"]
)
def test_a_line_counts_tokens(name: str, stream: bool, server: OwnServer) -> None:
    request = {**body(name), "stream": stream}
    limit = "max_output_tokens" if "response" in name else "max_tokens"
    response = server.post(path(name), {**request, limit: 7, "n_predict": 7})
    assert response.status_code == 200, response.text
    line = line_of(server, response)
    assert (line["method"], line["path"], line["status"]) == ("POST", path(name), 200)
    assert line["model"] == "specllama-tiny"
    assert line["tokens_in"] >= 1
    assert 0 <= line["tokens_cached"] < line["tokens_in"]
    assert 1 <= line["tokens_out"] <= 7
    assert "client_gone" not in line
    assert "error" not in line


def test_the_counts_are_those_of_the_answer(server: OwnServer) -> None:
    response = server.post(
        "/v1/completions", {"prompt": [SECRET, "b c d"], "n": 2, "max_tokens": 5}
    )
    usage, line = response.json()["usage"], line_of(server, response)
    assert line["tokens_in"] == usage["prompt_tokens"]
    assert line["tokens_out"] == usage["completion_tokens"]
    request = {"prompt": "a b c d e f", "n_predict": 9, "ignore_eos": True}
    for _ in range(2):
        response = server.post("/completion", request)
        timings, line = response.json()["timings"], line_of(server, response)
        assert line["tokens_cached"] == timings["cache_n"]
        assert line["tokens_in"] == timings["cache_n"] + timings["prompt_n"]
        assert line["tokens_out"] == 9
        assert line["tokens_per_second"] == pytest.approx(timings["predicted_per_second"], abs=0.1)


@pytest.mark.parametrize("name", EMBEDS)
def test_a_line_counts_tokens_of_embeddings(name: str, embedder: OwnServer) -> None:
    response = embedder.post(path(name), body(name))
    assert response.status_code == 200, response.text
    line = line_of(embedder, response)
    assert line["tokens_in"] >= 1
    assert "tokens_out" not in line
    if name == "create_openai_embeddings":
        assert line["tokens_in"] == response.json()["usage"]["prompt_tokens"]


def test_a_line_counts_tokens_of_reranking(module_server: Start, directory: Path, zoo: Zoo) -> None:
    model = ("-m", str(zoo.path(RERANKER)), "--reranking")
    reranker = module_server(
        *("--log-format", "json", "-c", "512", "-np", "1", *model), named=True, api_key=API_KEY
    )
    response = reranker.post("/rerank", {"query": "a", "documents": [SECRET, "c d"]})
    assert response.status_code == 200, response.text
    line = line_of(reranker, response)
    assert line["tokens_in"] == response.json()["usage"]["prompt_tokens"]


def test_clients_that_leave_are_marked(server: OwnServer) -> None:
    request = {"prompt": SECRET, "n_predict": -1, "ignore_eos": True}
    with server.stream("/completion", request) as (response, events):
        next(events)
        id = response.headers["x-request-id"]
    line = line_with(server, id)
    assert line["status"] == 200
    assert line["client_gone"] is True
    assert line["tokens_out"] >= 1
    data = json.dumps(request).encode()
    with server.raw(server.head("/completion", len(data), **{"X-Request-Id": "left"}) + data):
        server.wait_until_busy()
    line = line_with(server, "left")
    assert (line["status"], line["client_gone"]) == (499, True)
    server.wait_until_idle()


@pytest.mark.parametrize(
    "request_",
    [
        {"prompt": {"x": SECRET}},
        {"prompt": "a", "n_predict": SECRET},
        {"prompt": "a", "samplers": {SECRET: 1}},
        {"prompt": "a", "stop": [[SECRET]]},
    ],
    ids=str,
)
def test_no_content_in_reasons(request_: dict[str, Any], server: OwnServer) -> None:
    response = server.post("/completion", request_)
    assert response.status_code == 400
    line = line_of(server, response)  # fails without a line
    assert line["error"]


def test_nothing_of_a_request_forges_a_line(server: OwnServer) -> None:
    response = server.get("/a%0Ab%20200%1b[31m?api_key=" + SECRET, headers={"X-Request-Id": "f"})
    line = line_of(server, response)
    assert line["path"] == "/a%0Ab%20200%1b[31m"
    assert "\n" not in line["error"]
    assert "\x1b" not in line["error"]


def test_polling_is_not_logged(server: OwnServer) -> None:
    quiet = server.get("/health").headers["x-request-id"]
    line_of(server, server.get("/props"))  # a later request
    assert all(line.get("request_id") != quiet for line in records(server))


def test_a_query_that_no_operation_knows_is_no_error(server: OwnServer) -> None:
    for where in ("/v1/stream?conv_id=missing&unheard_of=1", "/props?unheard_of=1"):
        line_of(server, server.get(where))
    assert not [line for line in records(server) if line["level"] == "error"]


def test_the_file_has_the_same_lines(server: OwnServer, directory: Path) -> None:
    line_of(server, server.get("/props"))
    file = (directory / "generating.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line) for line in file] == records(server)
    ready = [line for line in records(server) if line["message"].startswith("ready in ")]
    assert [line["model"] for line in ready] == ["specllama-tiny"]


# ---- as text, and of the engine ---------------------------------------------------------------


def test_text_is_the_default(own_server: Start) -> None:
    server = own_server()
    response = server.post("/completion", {"prompt": "a b", "n_predict": 4, "ignore_eos": True})
    id = response.headers["x-request-id"]
    wait_until(lambda: id in server.log.read_text(), "there is a line")
    text = server.log.read_text()
    assert re.search(
        rf"^INFO http: POST /completion 200 model=specllama-tiny in=\d+ cached=0 missed=\w+ "
        r"out=4 ms=[\d.]+ "
        rf"tokens/s=[\d.]+ id={re.escape(id)}$",
        text,
        re.MULTILINE,
    )
    assert re.search(r"^specllama \S+, ready in \d+\.\d s$", text, re.MULTILINE)
    assert "llama_model_loader" not in text


def test_engine_lines_are_lines_of_the_log(own_server: Start) -> None:
    server = own_server("--verbose", "--log-format", "json")
    server.ask("/completion", {"prompt": "a", "n_predict": 2})
    server.kill_engine()
    server.wait_until_ready()
    server.stop()
    found = records(server)
    assert any(
        line["logger"] == "specllama.engine.llama" and line["level"] == "debug" for line in found
    )
    assert any("was ended by SIGKILL; a new one is started" in line["message"] for line in found)


# ---- prompts in files


def test_prompts_are_in_files_and_not_in_the_log(own_server: Start, tmp_path: Path) -> None:
    folder = tmp_path / "a" / "prompts"
    server = own_server("--log-prompts-dir", str(folder))
    text = f"the {SECRET} ../../../swims"
    chat = {"messages": [{"role": "user", "content": text}], "max_tokens": 1}
    server.ask("/v1/chat/completions", chat)
    server.ask("/completion", {"prompt": [text, [1, 2]], "n_predict": 1})
    server.ask("/infill", {"input_prefix": text, "input_suffix": "after", "n_predict": 1})
    refused = server.post("/completion", {"prompt": [10**6], "n_predict": 1})
    assert refused.status_code == 400
    server.ask("/v1/chat/completions/input_tokens", chat)
    assert server.stop() == 0
    contents = [file.read_text("utf-8") for file in sorted(folder.iterdir())]
    assert [SECRET in content for content in contents] == [True, True, False, True, False]
    assert contents[0] != text, "with the markers of the chat template"
    assert text in contents[0]
    assert contents[1] == text
    assert json.loads(contents[2]) == [1, 2]
    assert json.loads(contents[3])["input_prefix"] == [text]
    assert json.loads(contents[4]) == [10**6]
    assert SECRET not in server.log.read_text("utf-8")


def test_a_directory_for_prompts_that_can_not_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run("--log-prompts-dir", str(tmp_path / "file" / "below"))
    assert "--log-prompts-dir: cannot create the directory" in one_line(done)
