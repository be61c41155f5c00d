"""Time limits of requests, in every API. The texts have no other end, so no test depends on the
speed of the machine."""

import json
from typing import Any

import httpx
import pytest

from contract_tests.kit import contract
from contract_tests.kit.bodies import BODIES, EMBEDDING, OLLAMA_EMBEDDING, RERANKING, body, path
from contract_tests.kit.server import OwnServer, Server, Start, wait_until
from tools.models.zoo import CHAT, RERANKER, Zoo

SOON = 300  # ms
ENDLESS: dict[str, Any] = {"n_predict": -1, "ignore_eos": True}
IN_OPTIONS = ("create_ollama_generation",)
IN_CONFIG = ("generate_gemini_content", "stream_gemini_content")
NAMES = (
    "create_completion",
    "create_openai_completion",
    "create_chat_completion",
    "create_infill",
    "create_message",
    "create_response",
    "create_ollama_chat",
    *IN_OPTIONS,
    *IN_CONFIG,
)
HEADER = "X-Request-Timeout-Ms"


@pytest.fixture(scope="module")
def server(module_server: Start) -> OwnServer:
    return module_server("--parallel", "2", "--context-shift", "--max-predict", "-1")


def endless(name: str, **fields: Any) -> dict[str, Any]:
    """Returns a request for a text that only `fields` can end."""
    if name in IN_OPTIONS:
        options = {"ignore_eos": True, "num_predict": -1, **fields}
        return {**BODIES[name], "options": options}
    if name in IN_CONFIG:
        spelled = {"timeout_ms": "timeoutMs"}
        config = {"maxOutputTokens": -1, "responseMimeType": "application/json"}
        config |= {"responseSchema": _LONG}
        config |= {spelled.get(field, field): value for field, value in fields.items()}
        return {**BODIES[name], "generationConfig": config}
    request = body(name, **ENDLESS, **fields)
    return {**request, "max_tokens": -1} if name == "create_message" else request


_ITEM = {"type": "STRING", "pattern": "^(ab){500,}$"}
_LONG = {"type": "ARRAY", "minItems": 1000, "items": _ITEM}
"""Gemini's requests can't forbid the end of the text; this schema does."""


def ended(server: Server, name: str, *, by_header: bool = False, **changes: Any) -> httpx.Response:
    """Returns the answer to an endless request with a time limit, in a field or in a header. If the
    preparation alone takes longer, the next limit is twice as long."""
    for limit in (SOON << doubled for doubled in range(20)):
        request = endless(name) if by_header else endless(name, timeout_ms=limit)
        headers = {HEADER: str(limit)} if by_header else {}
        answer = server.post(path(name), {**request, **changes}, headers=headers)
        if answer.status_code != 503:
            return answer
    raise AssertionError("the request is never prepared")


def deadline_of(answer: Any) -> Any:
    """Returns the time limit that ended an answer, in any API's form. Checks that the reason for
    the end is that of a length."""
    if "candidates" in answer:
        [candidate] = answer["candidates"]
        assert candidate["finishReason"] == "MAX_TOKENS"
        return candidate["finishMessage"].removeprefix("deadline: ")
    if "choices" in answer:
        [choice] = answer["choices"]
        assert choice["finish_reason"] == "length"
        return choice["deadline"]
    if answer.get("object") == "response":
        assert answer["status"] == "incomplete"
        assert answer["incomplete_details"]["reason"] == "max_output_tokens"
        return answer["incomplete_details"]["deadline"]
    reason = answer.get("stop_type") or answer.get("stop_reason") or answer.get("done_reason")
    assert reason in ("limit", "max_tokens", "length")
    return answer["deadline"]


@pytest.mark.parametrize("name", [each for each in NAMES if "stream" not in each])
def test_a_text_ends_when_its_time_is_over(name: str, server: Server) -> None:
    for by_header in (False, True):
        answer = contract.check(ended(server, name, by_header=by_header))
        assert deadline_of(answer) == "timeout_ms"


def _ends(event: Any) -> Any:
    """Returns the part of an event that has the reason for the end; None if there is none."""
    if event.get("type") == "message_delta":
        return event["delta"]
    if event.get("type") == "response.incomplete":
        return event["response"]
    parts = [*(event.get("choices") or ()), *(event.get("candidates") or ())]
    reasons = [each.get("finish_reason") or each.get("finishReason") for each in parts]
    return event if event.get("stop") or event.get("done") or any(reasons) else None


@pytest.mark.parametrize("name", [each for each in NAMES if not each.startswith("generate_gemini")])
def test_a_stream_ends_when_its_time_is_over(name: str, server: Server) -> None:
    answer = ended(server, name, **({} if name in IN_CONFIG else {"stream": True}))
    contract.check(answer)
    if "event-stream" in answer.headers["content-type"]:
        lines = [line.removeprefix("data: ") for line in answer.text.split("\n")]
        events = [json.loads(line) for line in lines if line.startswith("{")]
    else:
        text = answer.text
        events = json.loads(text) if text[0] == "[" else [*map(json.loads, text.splitlines())]
    [end] = filter(None, map(_ends, events))
    assert deadline_of(end) == "timeout_ms"


def test_a_limit_that_is_off_ends_nothing(server: Server) -> None:
    finite = body("create_completion", n_predict=5, ignore_eos=True)
    for off in (0, -1, None):
        limits = {"timeout_ms": off, "t_max_prompt_ms": off}
        answer = server.ask("/completion", {**finite, **limits})
        assert answer["tokens_predicted"] == 5
        assert "deadline" not in answer
    ended = server.post("/completion", {**finite, "timeout_ms": 0}, headers={HEADER: "1"})
    assert contract.check(ended)["tokens_predicted"] == 5, "the field takes precedence"


@pytest.mark.parametrize("name", NAMES)
def test_a_millisecond_is_too_short(name: str, server: Server) -> None:
    """Timing decides whether the request reaches the engine within it."""
    answer = server.post(path(name), endless(name, timeout_ms=1))
    if answer.status_code == 503:
        contract.check(answer, 503)
    else:
        contract.check(answer)


@pytest.mark.parametrize("name", ["timeout_ms", "t_max_prompt_ms"])
def test_a_prompt_ends_when_its_time_is_over(name: str, server: Server) -> None:
    text = " ".join(f"number {n}" for n in range(600))
    request = body("create_completion", prompt=text, n_predict=1, cache_prompt=False)
    answer = server.post("/completion", {**request, name: 1})
    if answer.status_code == 503:  # the millisecond is over before the engine has the request
        contract.check(answer, 503)
        return
    ended = contract.check(answer)
    assert (ended["content"], ended["stop_type"], ended["deadline"]) == ("", "limit", name)
    assert ended["tokens_predicted"] == 0


def test_a_request_for_its_prompt_alone_has_no_limit_for_it(server: Server) -> None:
    """Editors send such requests, to warm up the cache."""
    request = body("create_completion", n_predict=0, t_max_prompt_ms=1, cache_prompt=False)
    answer = server.ask("/completion", request)
    assert "deadline" not in answer
    assert answer["timings"]["prompt_n"] == answer["tokens_evaluated"]


@pytest.mark.parametrize("value", [1e300, -1e300, 3.9, 128, -129])
def test_any_number_is_a_priority(value: float, server: Server) -> None:
    finite = body("create_completion", n_predict=1)
    contract.check(server.post("/completion", {**finite, "priority": value}))
    headers = {"X-Request-Priority": str(value)}
    contract.check(server.post("/completion", finite, headers=headers))


@pytest.mark.parametrize("value", ["soon", "", "nan", "1e999"])
def test_a_header_that_is_no_number_is_refused(value: str, server: Server) -> None:
    finite = body("create_completion", n_predict=1)
    answer = server.post("/completion", finite, headers={HEADER: value})
    assert HEADER in contract.message(answer)
    contract.check(answer, 400)


def test_a_model_that_loads_longer_than_that_gives_503(module_server: Start, zoo: Zoo) -> None:
    router = module_server("--models-dir", str(zoo.directory), router=True)
    request = body("create_completion", model=CHAT, n_predict=1)
    contract.check(router.post("/completion", {**request, "timeout_ms": 1}), 503)
    contract.check(router.post("/completion", {**request, "timeout_ms": 3_600_000}))


# ---- the queue ---------------------------------------------------------------------------


def test_the_queue_is_listed_and_shown(server: Server) -> None:
    empty = contract.check(server.get("/queue"))
    assert (empty["n_waiting"], empty["waiting"]) == (0, [])
    request = endless("create_completion", stream=True)
    waiting = endless("create_completion", timeout_ms=60_000, priority=7, return_queue=True)
    with server.stream("/completion", request) as (_, one), server.stream("/completion", request):
        next(one)
        server.wait_until_busy(2)
        with server.http.stream("POST", "/completion", json={**waiting, "stream": True}) as answer:
            assert answer.status_code == 200, "before the request has a slot"
            slots = contract.check(server.get("/slots"))
            assert all(slot["key_name"] == "" for slot in slots)
            assert all(slot["priority"] == 0 for slot in slots)
    wait_until(lambda: not contract.check(server.get("/queue"))["n_waiting"], "the queue is empty")


# ---- embeddings --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def embedder(module_server: Start) -> OwnServer:
    return module_server("--embeddings", "--pooling", "mean", "-ub", "2048", "-b", "2048")


@pytest.fixture(scope="module")
def reranker(module_server: Start, zoo: Zoo) -> OwnServer:
    return module_server("-m", str(zoo.path(RERANKER)), "--reranking", named=True)


LATE = "x " * 100


def late(name: str) -> dict[str, Any]:
    """Returns a request whose work takes longer than a millisecond on any machine."""
    if name in RERANKING:
        return {"query": "a", "documents": [LATE] * 200, "timeout_ms": 1}
    if name == "embed_ollama_prompt":
        return {"prompt": LATE * 9, "options": {"timeout_ms": 1}}
    if name in OLLAMA_EMBEDDING:
        return {"input": [LATE] * 200, "options": {"timeout_ms": 1}}
    return {"input": [LATE] * 200, "timeout_ms": 1}


@pytest.mark.parametrize("name", [*EMBEDDING, *OLLAMA_EMBEDDING, *RERANKING])
def test_half_a_list_is_no_answer(name: str, request: pytest.FixtureRequest) -> None:
    server: Server = request.getfixturevalue("reranker" if name in RERANKING else "embedder")
    refused = server.post(path(name), late(name))
    contract.check(refused, 503)
    assert "1 ms" in contract.message(refused)
    patient = {**BODIES[name], "timeout_ms": 3_600_000}
    contract.check(server.post(path(name), patient))
