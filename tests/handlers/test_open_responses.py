"""The responses of a server with a paper engine have what Open Responses requires, and it takes the
requests that Open Responses allows (the specification of 2026-04-24, `ResponseResource` and
`CreateResponseBody` in `public/openapi/openapi.json` of openresponses/openresponses)."""

import json
from typing import Any

import pytest

from contract_tests.kit import contract
from tests.support.paper_server import Server

pytestmark = pytest.mark.slow

REQUIRED = {
    *("background", "completed_at", "created_at", "error", "frequency_penalty", "id"),
    *("incomplete_details", "instructions", "max_output_tokens", "max_tool_calls", "metadata"),
    *("model", "object", "output", "parallel_tool_calls", "presence_penalty"),
    *("previous_response_id", "prompt_cache_key", "reasoning", "safety_identifier"),
    *("service_tier", "status", "store", "temperature", "text", "tool_choice", "tools"),
    *("top_logprobs", "top_p", "truncation", "usage"),
}
"""The required fields of a response."""
NOT_NULL = REQUIRED - {
    *("completed_at", "error", "incomplete_details", "instructions", "max_output_tokens"),
    *("max_tool_calls", "previous_response_id", "prompt_cache_key", "reasoning"),
    *("safety_identifier", "usage"),
}
USAGE = {
    *("input_tokens", "output_tokens", "total_tokens"),
    *("input_tokens_details", "output_tokens_details"),
}
FIELDS: dict[str, list[Any]] = {
    "background": [False, True],
    "frequency_penalty": [0.5, None],
    "include": [
        ["reasoning.encrypted_content"],
        ["message.output_text.logprobs"],
        ["web_search_call.results", "anything"],
    ],
    "instructions": ["Be short.", None],
    "max_output_tokens": [16, None],
    "max_tool_calls": [1, 5, None, 0, -1],
    "metadata": [{"a": "b"}, None],
    "model": [None],
    "parallel_tool_calls": [True, None],
    "presence_penalty": [0.5, None],
    "previous_response_id": [None],
    "prompt_cache_key": ["key", None],
    "prompt_cache_retention": ["24h", None],
    "reasoning": [{"effort": "low", "summary": "auto"}, {"effort": None, "summary": None}, None],
    "safety_identifier": ["someone", None],
    "service_tier": ["auto", "default", "flex", "priority"],
    "store": [False],
    "stream_options": [{"include_obfuscation": True}, None],
    "temperature": [0, 2, None],
    "text": [{"format": {"type": "text"}, "verbosity": "low"}, {"format": None}, None],
    "tool_choice": ["auto", "none", None],
    "tools": [[], None],
    "top_logprobs": [0, 20, None],
    "top_p": [0.5, None],
    "truncation": ["auto", "disabled"],
}
"""The fields of a request, each with values that the specification allows, and more."""
ECHOED = (
    *("instructions", "max_output_tokens", "max_tool_calls", "metadata", "prompt_cache_key"),
    *("safety_identifier", "truncation", "top_logprobs", "temperature", "top_p"),
    *("presence_penalty", "frequency_penalty", "background", "store"),
)
"""The fields that a response repeats if they aren't null."""


def response(server: Server, **fields: Any) -> Any:
    answer = server.post("/v1/responses", **{"input": "Hello", **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("field", FIELDS)
def test_the_fields_of_a_request_are_taken(field: str, server: Server) -> None:
    for value in FIELDS[field]:
        made = response(server, **{field: value})
        assert made.keys() >= REQUIRED
        assert not [name for name in NOT_NULL if made[name] is None]
        if field in ECHOED and value is not None:
            assert made[field] == value
        if made["status"] == "completed":
            assert made["completed_at"] >= made["created_at"]
            assert made["usage"].keys() >= USAGE
        if field == "text" and value:
            assert made["text"]["verbosity"] == value.get("verbosity", "medium")


def test_a_description_requires_the_same_fields() -> None:
    answers = contract.answers(contract.operations()["get_response"], 200)
    described = answers[contract.JSON]["schema"]
    assert set(described["required"]) >= REQUIRED


def test_a_phase_is_given_back(server: Server) -> None:
    said = {"role": "assistant", "content": "I look.", "phase": "commentary"}
    asked = [{"role": "user", "content": "Hello"}, said, {"role": "user", "content": "And?"}]
    made = response(server, input=asked)
    page = server.http.get(f"/v1/responses/{made['id']}/input_items?order=asc").json()
    assert [each.get("phase") for each in page["data"]] == [None, "commentary", None]
    response(server, input=page["data"])


def test_events_have_whole_responses(server: Server) -> None:
    answer = server.post("/v1/responses", input="Hello", stream=True)
    found = [
        json.loads(line.removeprefix("data: "))
        for line in answer.text.splitlines()
        if line.startswith("data: ")
    ]
    responses = [each["response"] for each in found if "response" in each]
    assert len(responses) == 3
    for each in responses:
        assert each.keys() >= REQUIRED
