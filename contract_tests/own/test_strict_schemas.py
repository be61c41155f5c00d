"""Keywords of schemas that can't be enforced are reported, or with an option rejected."""

from typing import Any

import pytest

from contract_tests.kit.server import Server, Start

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"const": 1}, "uniqueItems": True}},
    "not": {"required": ["b"]},
}
RELAXED = ["#/not", "#/properties/a/uniqueItems"]
USER = {"messages": [{"role": "user", "content": "Call it."}], "max_tokens": 40}
NATIVE: dict[str, Any] = {"prompt": "Once", "n_predict": 40}
FUNCTION = {"name": "f", "parameters": SCHEMA, "strict": True}
FORM = {"name": "x", "schema": SCHEMA, "strict": True}
ANTHROPIC = {"name": "f", "input_schema": SCHEMA}

REQUESTS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "native": ("/completion", {**NATIVE, "json_schema": SCHEMA}, False),
    "chat": (
        "/v1/chat/completions",
        {**USER, "response_format": {"type": "json_schema", "json_schema": FORM}},
        False,
    ),
    "tools": ("/v1/chat/completions", {**USER, "tools": [{"function": FUNCTION}]}, True),
    "required": (
        "/v1/chat/completions",
        {**USER, "tools": [{"function": FUNCTION}], "tool_choice": "required"},
        True,
    ),
    "responses": (
        "/v1/responses",
        {"input": "Call it.", "max_output_tokens": 40}
        | {"text": {"format": {"type": "json_schema", **FORM}}},
        False,
    ),
    "messages": ("/v1/messages", {**USER, "tools": [ANTHROPIC]}, True),
    "ollama": (
        "/api/chat",
        {**USER, "format": SCHEMA, "options": {"num_predict": 40}},
        False,
    ),
    "ollama generate": (
        "/api/generate",
        {"prompt": "Answer.", "format": SCHEMA, "options": {"num_predict": 40}},
        False,
    ),
}
CASES = [
    pytest.param(path, {**request, "stream": stream}, tool, id=f"{name}-{stream}")
    for name, (path, request, tool) in REQUESTS.items()
    for stream in (False, True)
]


def typed(request: dict[str, Any]) -> dict[str, Any]:
    tools = [
        {"type": "function", **each} if "function" in each else each
        for each in request.get("tools", [])
    ]
    return {**request, "tools": tools} if tools else request


@pytest.fixture(scope="module")
def strict(module_server: Start) -> Server:
    return module_server("--strict-schemas")


@pytest.mark.parametrize(("path", "request_", "tool"), CASES)
def test_they_are_reported(path: str, request_: dict[str, Any], tool: bool, server: Server) -> None:
    response = server.post(path, typed(request_))
    assert response.status_code == 200, response.text
    relaxed = response.headers["x-specllama-relaxed"].split(", ")
    assert sorted(relaxed) == [f"f{each}" if tool else each for each in RELAXED]


@pytest.mark.parametrize(("path", "request_", "tool"), CASES)
def test_an_option_makes_them_errors(
    path: str, request_: dict[str, Any], tool: bool, strict: Server
) -> None:
    response = strict.post(path, typed(request_))
    assert response.status_code == 400, response.text
    for each in RELAXED:
        assert each in response.text
    whole = {"json_schema": {"const": 1}, **NATIVE}
    assert strict.post("/completion", whole).status_code == 200
