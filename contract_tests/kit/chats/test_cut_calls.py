"""A call that the limit of tokens cuts off is marked as cut in every API. Stop texts cut no
call."""

import json
from typing import Any

import pytest

from contract_tests.kit.chat import N_TOKENS, Answer, answers, asking, tool
from contract_tests.kit.contract import check
from contract_tests.kit.server import Server

LONG = "abc " * 200
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"enum": [LONG]}},
    "required": ["text"],
    "additionalProperties": False,
}
TOOLS = [tool("write", PARAMETERS)]
USER = {"role": "user", "content": "Write."}
CUT = 60
"""Tokens: more than a call has before its arguments, and fewer than its arguments have."""
FORCED: dict[str, Any] = {
    "parallel_tool_calls": False,
    "reasoning_budget_tokens": 0,
    "cache_prompt": False,
}


def asked(server: Server, path: str, request: dict[str, Any], *, stream: bool) -> list[Any]:
    """Returns the document of an answer, or those of a stream, as a list."""
    response = server.post(path, {**request, "stream": stream})
    assert response.status_code == 200, response.text[:500]
    document = check(response, 200)
    return document if isinstance(document, list) else [document]


def is_cut(arguments: str) -> bool:
    return bool(arguments) and "write" not in arguments and LONG not in arguments


def test_chat(server: Server) -> None:
    found: list[Answer] = answers(server, asking(tools=TOOLS, max_tokens=CUT))
    for answer in found:
        assert answer.reason == "length"
        [(name, arguments)] = answer.calls
        assert name == "write"
        assert is_cut(arguments)


@pytest.mark.parametrize("stream", [False, True])
def test_messages(server: Server, stream: bool) -> None:
    offered = {"name": "write", "description": "Writes.", "input_schema": PARAMETERS}
    choice = {"type": "any", "disable_parallel_tool_use": True}
    request: dict[str, Any] = {
        "messages": [USER],
        "tools": [offered],
        "tool_choice": choice,
        "max_tokens": CUT,
    }
    documents = asked(server, "/v1/messages", {**request, **FORCED}, stream=stream)
    if stream:
        deltas = [each["delta"] for each in documents if "delta" in each]
        arguments = "".join(each.get("partial_json", "") for each in deltas)
        reason = deltas[-1]["stop_reason"]
    else:
        [message] = documents
        [block] = message["content"]
        assert list(block["input"]) == ["INVALID_JSON"]
        arguments, reason = block["input"]["INVALID_JSON"], message["stop_reason"]
    assert is_cut(arguments)
    assert reason == "max_tokens"


@pytest.mark.parametrize("stream", [False, True])
def test_responses(server: Server, stream: bool) -> None:
    offered = {"type": "function", "name": "write", "parameters": PARAMETERS}
    request: dict[str, Any] = {"input": "Write.", "tools": [offered], "tool_choice": "required"}
    request |= {"max_output_tokens": CUT, "store": False, **FORCED}
    documents = asked(server, "/v1/responses", request, stream=stream)
    response = documents[-1]["response"] if stream else documents[0]
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    [item] = response["output"]
    assert (item["type"], item["status"]) == ("function_call", "incomplete")
    assert is_cut(item["arguments"])


@pytest.mark.parametrize("stream", [False, True])
def test_ollama(server: Server, stream: bool) -> None:
    """Ollama's format has no place for a part of a call."""
    request: dict[str, Any] = {
        "model": "m",
        "messages": [USER],
        "tools": TOOLS,
        "tool_choice": "required",
    }
    request |= {"options": {"num_predict": CUT}, **FORCED}
    documents = asked(server, "/api/chat", request, stream=stream)
    assert documents[-1]["done_reason"] == "length"
    assert all("tool_calls" not in each["message"] for each in documents)
    assert all("write" not in each["message"]["content"] for each in documents)


# ---- stop texts ------------------------------------------------------------------------------

SHORT: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"enum": ["one stop\n\ntwo"]}},
    "required": ["text"],
    "additionalProperties": False,
}
STOPS = ["stop", "\n\n", "\n", "{", '"', "text", "two", "<"]


def test_stop_texts_cut_no_call_of_a_chat(server: Server) -> None:
    for answer in answers(server, asking(tools=[tool("write", SHORT)], stop=STOPS)):
        assert answer.reason == "tool_calls"
        [(name, arguments)] = answer.calls
        assert (name, json.loads(arguments)) == ("write", {"text": "one stop\n\ntwo"})


def test_stop_texts_cut_no_call_of_other_apis(server: Server) -> None:
    choice = {"type": "any", "disable_parallel_tool_use": True}
    offered = {"name": "write", "description": "Writes.", "input_schema": SHORT}
    request: dict[str, Any] = {"messages": [USER], "tools": [offered], "tool_choice": choice}
    request |= {"max_tokens": N_TOKENS, "stop_sequences": STOPS, **FORCED}
    [message] = asked(server, "/v1/messages", request, stream=False)
    assert (message["stop_reason"], message["stop_sequence"]) == ("tool_use", None)
    assert message["content"][0]["input"] == {"text": "one stop\n\ntwo"}
    function = {"type": "function", "name": "write", "parameters": SHORT}
    request = {"input": "Write.", "tools": [function], "tool_choice": "required", "stop": STOPS}
    request |= {"max_output_tokens": N_TOKENS, "store": False, **FORCED}
    [response] = asked(server, "/v1/responses", request, stream=False)
    assert (response["status"], response["output"][0]["status"]) == ("completed", "completed")
    request = {"model": "m", "messages": [USER], "tools": [tool("write", SHORT)], **FORCED}
    request |= {"tool_choice": "required", "options": {"num_predict": N_TOKENS, "stop": STOPS}}
    [answer] = asked(server, "/api/chat", request, stream=False)
    assert answer["done_reason"] == "stop"
    assert len(answer["message"]["tool_calls"]) == 1
