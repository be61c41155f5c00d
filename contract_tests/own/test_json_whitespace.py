"""The white space in JSON that follows a schema, in every API: by request, and by default."""

import json
from typing import Any

import pytest

from contract_tests.kit.server import Server, Start

SCHEMA = {
    "type": "object",
    "properties": {
        "colours": {
            "type": "array",
            "items": {"enum": ["red", "green"]},
            "minItems": 2,
            "maxItems": 3,
        },
        "inner": {
            "type": "object",
            "properties": {"ripe": {"type": "boolean"}, "count": {"enum": [1, 20]}},
            "required": ["ripe", "count"],
        },
    },
    "required": ["colours", "inner"],
}
SEPARATORS = {"compact": (",", ":"), "spaced": (", ", ": ")}
N = 120
USER: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Describe it."}],
    "max_tokens": N,
    "reasoning_budget_tokens": 0,
    "seed": 5,
}
NATIVE: dict[str, Any] = {"prompt": "Once", "n_predict": N, "seed": 5, "json_schema": SCHEMA}
FORM = {"name": "x", "schema": SCHEMA}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
ANY = {"type": "any"}
OLLAMA = {"num_predict": N, "seed": 5}

REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "native": ("/completion", NATIVE),
    "completion": (
        "/v1/completions",
        {"prompt": "Once", "max_tokens": N, "seed": 5, "json_schema": SCHEMA},
    ),
    "chat": (
        "/v1/chat/completions",
        {**USER, "response_format": {"type": "json_schema", "json_schema": FORM}},
    ),
    "object": (
        "/v1/chat/completions",
        {**USER, "response_format": {"type": "json_object", "schema": SCHEMA}},
    ),
    "tool": (
        "/v1/chat/completions",
        {**USER, "tools": [FUNCTION], "tool_choice": "required", "parallel_tool_calls": False},
    ),
    "responses": (
        "/v1/responses",
        {"input": "Describe it.", "max_output_tokens": N, "seed": 5, "reasoning_budget_tokens": 0}
        | {"text": {"format": {"type": "json_schema", **FORM}}},
    ),
    "messages": (
        "/v1/messages",
        {**USER, "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    ),
    "ollama": ("/api/chat", {**USER, "stream": False, "format": SCHEMA, "options": OLLAMA}),
    "ollama generate": (
        "/api/generate",
        {"prompt": "Describe it.", "think": False, "stream": False, "format": SCHEMA}
        | {"options": OLLAMA},
    ),
}


def text_of(answer: Any) -> str:
    """Returns the JSON text of an answer in any API, unparsed."""
    match answer:
        case {"content": str(text)} | {"response": str(text)}:
            return text
        case {"choices": [{"text": text}]} | {"message": {"content": text}}:
            return str(text)
        case {"choices": [{"message": {"tool_calls": [{"function": {"arguments": text}}]}}]}:
            return str(text)
        case {"choices": [{"message": {"content": text}}]}:
            return str(text)
        case {"content": blocks}:
            return "".join(block.get("text", "") for block in blocks)
        case {"output": items}:
            parts = (part for item in items for part in item.get("content") or [])
            return "".join(part.get("text", "") for part in parts if part["type"] == "output_text")
    raise AssertionError(answer)


def asked(request: dict[str, Any], whitespace: Any) -> dict[str, Any]:
    """Returns `request` with the field in the place where the API has its options."""
    if "options" in request:
        return {**request, "options": {**request["options"], "json_whitespace": whitespace}}
    return {**request, "json_whitespace": whitespace}


def check(text: str, whitespace: str) -> None:
    separators = SEPARATORS[whitespace]
    assert text.strip() == json.dumps(json.loads(text), separators=separators)


@pytest.fixture(scope="module")
def compact(module_server: Start) -> Server:
    return module_server("--json-whitespace", "compact", "--no-jump-forward")


@pytest.mark.parametrize("whitespace", SEPARATORS)
@pytest.mark.parametrize(("path", "request_"), REQUESTS.values(), ids=REQUESTS)
def test_a_request_asks_for_it(
    path: str, request_: dict[str, Any], whitespace: str, server: Server
) -> None:
    check(text_of(server.ask(path, asked(request_, whitespace))), whitespace)


@pytest.mark.parametrize(("path", "request_"), REQUESTS.values(), ids=REQUESTS)
def test_a_server_has_one_as_default(path: str, request_: dict[str, Any], compact: Server) -> None:
    check(text_of(compact.ask(path, request_)), "compact")
    check(text_of(compact.ask(path, asked(request_, "spaced"))), "spaced")


def test_the_model_chooses_by_default(server: Server) -> None:
    """The model's own white space is there, unless the request asks for a form."""
    [line] = server.ask("/tokenize", {"content": "\n"})["tokens"]
    liking = {**NATIVE, "logit_bias": [[line, 100]], "n_predict": 8}
    assert "\n" in server.ask("/completion", liking)["content"]
    for whitespace in SEPARATORS:
        assert "\n" not in server.ask("/completion", asked(liking, whitespace))["content"]


def test_the_settings_show_the_form(server: Server, compact: Server) -> None:
    def shown(settings: dict[str, Any]) -> tuple[Any, Any]:
        return settings["json_whitespace"], settings["jump_forward"]

    for each, default in ((server, ("flexible", True)), (compact, ("compact", False))):
        props = each.get("/props").json()["default_generation_settings"]["params"]
        assert shown(props) == default
        assert shown(each.ask("/completion", NATIVE)["generation_settings"]) == default
        other = {**NATIVE, "json_whitespace": "spaced", "jump_forward": not default[1]}
        answer = each.ask("/completion", other)
        assert shown(answer["generation_settings"]) == ("spaced", not default[1])
        null = {**NATIVE, "json_whitespace": None, "jump_forward": None}
        assert shown(each.ask("/completion", null)["generation_settings"]) == default


def test_a_text_that_has_begun_keeps_its_form(compact: Server) -> None:
    given = '{ "colours" : [ "red",'
    # A lot of room, because a model may write spaces wherever they are allowed.
    request = {**NATIVE, "n_predict": 1000, "generation_prompt": given}
    answer = compact.ask("/completion", request)
    assert set(json.loads(given + answer["content"])) == {"colours", "inner"}
    assert answer["generation_settings"]["json_whitespace"] == "flexible"


@pytest.mark.parametrize("value", ["tight", "", 1, ["compact"], True, "Compact"])
def test_another_form_is_refused(value: Any, server: Server) -> None:
    for path, request in REQUESTS.values():
        response = server.post(path, asked(request, value))
        assert response.status_code == 400, (path, response.text)
        assert ("options" if "options" in request else "json_whitespace") in response.text
