"""Provokes every documented status of every operation by `provocations.py`."""

import json
import re
from typing import Any

import httpx
import pytest

from contract_tests.kit import contract, lint
from contract_tests.kit.bodies import ANTHROPIC, BODIES, RESPONSES, STREAMING, path, with_text
from contract_tests.kit.provocations import (
    BY_STATUS,
    BY_STATUS_OWN,
    PROVOKED,
    Provoke,
    ProvokeOwn,
    provoked,
    too_long,
)
from contract_tests.kit.server import Launcher, Server, Start
from contract_tests.kit.situations import N_CTX, Situations


@pytest.fixture(scope="module")
def situations(
    module_server: Start, launcher: Launcher, tmp_path_factory: pytest.TempPathFactory
) -> Situations:
    return Situations(module_server, launcher, tmp_path_factory.mktemp("slots"))


DOCUMENTED = [
    (name, int(status))
    for name, operation in contract.operations().items()
    for status in operation.definition["responses"]
]
SHARED = [(name, status, how) for name, status in DOCUMENTED for how in provoked(name, status)[0]]
OWN = [(name, status, how) for name, status in DOCUMENTED for how in provoked(name, status)[1]]


@pytest.mark.parametrize(("name", "status"), DOCUMENTED)
def test_every_documented_status_is_provoked(name: str, status: int) -> None:
    assert any(provoked(name, status)), f"nothing here makes {name} answer {status}"


def test_nothing_undocumented_is_expected() -> None:
    assert PROVOKED.keys() <= set(DOCUMENTED)
    expected = BY_STATUS.keys() | BY_STATUS_OWN.keys() | {status for _, status in PROVOKED}
    assert expected == {status for _, status in DOCUMENTED}


def check_all(responses: list[httpx.Response], status: int) -> None:
    assert responses
    for response in responses:
        contract.check(response, status)


@pytest.mark.parametrize(("name", "status", "how"), SHARED)
def test_status(name: str, status: int, how: Provoke, server: Server) -> None:
    check_all(how(server, name), status)


@pytest.mark.parametrize(("name", "status", "how"), OWN)
def test_status_of_own_server(
    name: str, status: int, how: ProvokeOwn, situations: Situations
) -> None:
    check_all(how(situations, name), status)


def test_the_error_for_too_long_a_prompt_has_its_counts(situations: Situations) -> None:
    server = situations.small
    for name in STREAMING:
        text = "word " * N_CTX
        for response in too_long(situations, name):
            error = response.json()["error"]
            if name in ANTHROPIC:  # their clients read the counts from the message
                assert f"> {N_CTX} maximum" in error["message"]
                continue
            assert error["type"] == "exceed_context_size_error"
            assert error["n_ctx"] == N_CTX
            if "prompt" in BODIES[name]:
                tokens = server.ask("/tokenize", {"content": text})["tokens"]
                assert error["n_prompt_tokens"] == len(tokens)


@pytest.mark.parametrize("text", ["word " * 20 * N_CTX, "🦙\n \t" * N_CTX, "<|im_end|>a" * N_CTX])
def test_too_long_a_prompt_is_counted(text: str, situations: Situations) -> None:
    """The count is exact even far beyond the context, and follows each API's way of counting,
    because agents shorten their conversations by it."""
    server = situations.small
    for name in STREAMING:
        if name == "create_infill":  # it cuts long texts
            continue
        error = server.post(path(name), request := with_text(name, text)).json()["error"]
        if "prompt" in BODIES[name]:
            n = len(server.ask("/tokenize", {"content": text})["tokens"])
        elif name in ANTHROPIC:
            n = server.ask("/v1/messages/count_tokens", request)["input_tokens"]
        elif name in RESPONSES:
            n = server.ask("/v1/responses/input_tokens", request)["input_tokens"]
        else:
            n = server.ask("/v1/chat/completions/input_tokens", request)["input_tokens"]
        assert error["n_prompt_tokens"] == n, name
        assert str(n) in error["message"]
        assert "n_prompt_tokens_is_lower_bound" not in error


# ---- outside the description ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "where", "status", "type_"),
    [
        ("GET", "/v1/nothing", 404, "not_found_error"),
        ("POST", "/completion/x", 404, "not_found_error"),
        ("GET", "/completion", 405, "invalid_request_error"),
        ("DELETE", "/v1/models", 405, "invalid_request_error"),
        ("PUT", "/v1/chat/completions", 405, "invalid_request_error"),
        ("PATCH", "/health", 405, "invalid_request_error"),
        ("OPTIONS", "/tokenize", 405, "invalid_request_error"),
    ],
)
def test_unknown_paths_and_methods(
    method: str, where: str, status: int, type_: str, server: Server
) -> None:
    response = server.http.request(method, where)
    contract.check_envelope(response, status, type_)
    if status == 405:
        allowed = {each.strip() for each in response.headers["allow"].split(",")}
        assert method not in allowed
        described = contract.document()["paths"][where]
        assert {"GET", "POST"} & allowed == {m.upper() for m in described if m in ("get", "post")}


def test_a_wrong_method_of_a_path_with_any_name_in_it(server: Server) -> None:
    for name in ("name", "org/name", "two%0Alines"):
        response = server.http.request("PUT", f"/v1/models/{name}")
        contract.check_envelope(response, 405, "invalid_request_error")
        assert response.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize("kind", [None, "application/x-www-form-urlencoded"])
def test_the_content_type_of_curl_means_json(kind: str | None, server: Server) -> None:
    raw = json.dumps(BODIES["tokenize"]).encode()
    headers = {"Content-Type": kind} if kind else {}
    contract.check(server.post("/tokenize", content=raw, headers=headers))


# ---- examples ------------------------------------------------------------------------------


def form(error: Any) -> str:
    """Returns an error without what differs between requests: numbers, names, fields, folders."""
    text = json.dumps(error, sort_keys=True)
    text = re.sub(r"(?<=: )(/[^/:]+)*/(?=[\w.]+:\d)", "", text)
    text = re.sub(r"\breq_[\w-]+", "req", text)
    text = re.sub(r"\\\"(\\\\.|[^\\\"])*?\\\"|'[^']*'", "'...'", text)
    text = re.sub(r'(?<=": ")[\w.\[\]]+(?=: )', "field", text)
    return re.sub(r"\d+", "0", text)


def examples_of_errors() -> dict[str, tuple[Any, list[tuple[str, int]]]]:
    """Returns each example of an error, by its text, with its operations and statuses."""
    found: dict[str, tuple[Any, list[tuple[str, int]]]] = {}
    for name, status in DOCUMENTED:
        if status >= 400:
            media = contract.answers(contract.operations()[name], status)[contract.JSON]
            for _, example in lint.examples(media):
                _, places = found.setdefault(json.dumps(example), (example, []))
                places.append((name, status))
    return found


EXAMPLES = examples_of_errors()


def error_of(response: httpx.Response, alone: bool) -> Any:
    return {"error": contract.message(response)} if alone else response.json()


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_of_errors_occur(example: str, server: Server, situations: Situations) -> None:
    """A server answers with the example's error when that status is provoked. Answers in Ollama's
    format, which test_ollama.py tests, have only the message."""
    error, places = EXAMPLES[example]
    alone = isinstance(error["error"], str)
    said: set[str] = set()
    for name, status in places:
        shared, own = provoked(name, status)
        for how in shared:
            said |= {form(error_of(response, alone)) for response in how(server, name)}
        if form(error) in said:
            return
        for how_own in own:
            said |= {form(error_of(response, alone)) for response in how_own(situations, name)}
        if form(error) in said:
            return
    raise AssertionError("\n".join([f"no server answers {form(error)}, but:", *sorted(said)]))
