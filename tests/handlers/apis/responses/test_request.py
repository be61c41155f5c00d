"""Bodies of the Responses API become requests."""

import asyncio
import json
from typing import Any

import pytest

from specllama.engine.chat.request import ChatRequest
from specllama.engine.errors import EngineError
from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import TokenProbs
from specllama.handlers.apis.responses.items import input_items
from specllama.handlers.apis.responses.request import (
    request_items,
    response_chat_request,
    response_params,
    response_tools,
)
from specllama.handlers.apis.tools import Chosen, Place
from specllama.handlers.running.response_store import Responses
from specllama.handlers.running.sqlite_responses import SqliteResponses
from tests.support.http_support import request_with
from tests.support.options_support import model_options

USER = {"role": "user", "content": "Hello"}


CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'}


RESULT = {"type": "function_call_output", "call_id": "c1", "output": "11 degrees"}


THOUGHT = {
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": "short"}],
    "content": [{"type": "reasoning_text", "text": "Let me see."}],
    "encrypted_content": "gibberish",
}


TOOL = {"type": "function", "name": "f", "description": "It does.", "parameters": None}


def said(text: str, role: str = "assistant") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "output_text", "text": text}]}


def kept(*items: Any) -> Any:
    return input_items([*items])


def params(body: Any, defaults: GenerationParams) -> Any:
    return response_params(body, defaults)


def request(body: Any, **options: Any) -> ChatRequest:
    items: Any = input_items(body.get("input", "Hello"))
    return response_chat_request(body, items, response_tools(body, items), model_options(**options))


def test_options_of_the_server_hold_for_thoughts() -> None:
    options = model_options(reasoning_budget=0, reasoning_format="none")
    asked = response_chat_request({"input": "Hello"}, kept(USER), Chosen([], "auto"), options)
    assert (asked.thinking_budget.tokens, asked.reasoning_format) == (0, "none")


def test_a_tool_that_takes_a_plain_text() -> None:
    patch = {"type": "custom", "name": "patch"}
    asked = request({"tools": [patch], "tool_choice": patch})
    assert (list(asked.free_text), asked.tool_name) == (["patch"], "patch")


def test_tools_of_items_can_be_called_from_then_on() -> None:
    note = {"type": "namespace", "name": "mcp__notes", "tools": [TOOL, {**TOOL, "name": "g"}]}
    found = {"type": "tool_search_output", "execution": "client", "call_id": "c1", "tools": [note]}
    items = kept(
        {"type": "additional_tools", "role": "developer", "tools": [TOOL, note]},
        {"role": "user", "content": "Hello"},
        {"type": "tool_search_call", "execution": "client", "call_id": "c1", "arguments": {}},
        found,
        found,
    )
    body: Any = {"tools": [TOOL, {"type": "web_search"}]}
    choice = response_tools(body, items)
    names = [tool["function"]["name"] for tool in choice.tools]
    assert names == ["f", "mcp__notes__f", "mcp__notes__g"]
    assert choice.places["mcp__notes__g"] == Place("g", "mcp__notes")
    assert "f" not in choice.places


def test_instructions_tools_and_variables() -> None:
    made = request(
        {
            "instructions": "Be short.",
            "tools": [TOOL],
            "reasoning": {"effort": "high"},
            "chat_template_kwargs": {"a": 1},
            "parallel_tool_calls": False,
        },
        chat_template_kwargs={"a": 2, "b": 3},
    )
    assert made.messages == [{"role": "system", "content": "Be short."}, USER]
    [tool] = made.tools
    assert tool["function"]["name"] == "f"
    assert tool["function"]["parameters"] == {"type": "object", "properties": {}}
    assert made.template_variables == {"a": 1, "b": 3, "reasoning_effort": "high"}
    assert (made.tool_choice, made.tool_name, made.parallel_tool_calls) == ("auto", None, False)
    assert request({"reasoning": {"effort": "none"}}).template_variables == {
        "enable_thinking": False
    }


def test_choices_of_tools() -> None:
    tools = [{**TOOL, "name": name} for name in "abc"]

    def chosen(choice: Any) -> tuple[list[str], str, str | None]:
        made = request({"tools": tools, "tool_choice": choice})
        names = [tool["function"]["name"] for tool in made.tools]
        return names, made.tool_choice, made.tool_name

    every = ["a", "b", "c"]
    for choice in ("auto", "none", "required"):
        assert chosen(choice) == (every, choice, None)
    assert chosen({"type": "function", "name": "b"}) == (every, "required", "b")
    allowed = [{"type": "function", "name": name} for name in "ca"]
    for mode in ("auto", "required"):
        assert chosen({"type": "allowed_tools", "mode": mode, "tools": allowed}) == (
            ["a", "c"], mode, None,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("body", "type_"),
    [
        ({"tools": [{**TOOL, "parameters": {"type": "array"}}]}, "invalid_request_error"),
        (
            {"tool_choice": {"type": "function", "name": "g"}, "tools": [TOOL]},
            "invalid_request_error",
        ),
        (
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "auto",
                    "tools": [{"type": "function", "name": "g"}],
                },
                "tools": [TOOL],
            },
            "invalid_request_error",
        ),
        ({"tools": [{"type": "mcp"}], "tool_choice": "required"}, "not_supported_error"),
        ({"tool_choice": {"type": "file_search"}}, "not_supported_error"),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "required",
                             "tools": [{"type": "mcp"}]}},
            "not_supported_error",
        ),
    ],
)  # fmt: skip
def test_tools_that_don_t_fit(body: dict[str, Any], type_: str) -> None:
    with pytest.raises(EngineError, match="tool") as caught:
        request(body)
    assert caught.value.info.type == type_


def test_parameters() -> None:
    defaults = GenerationParams(temperature=0.5)
    made, probabilities = params({"max_output_tokens": 5, "top_p": 0.2}, defaults)
    assert (made.n_predict, made.temperature, made.top_p) == (5, 0.5, 0.2)
    assert probabilities is None
    assert params({"max_output_tokens": 5, "n_predict": 3}, defaults)[0].n_predict == 3
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    for form, expected in (
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "json_schema", "name": "x", "schema": schema}, schema),
    ):
        made, _ = params({"text": {"format": form}}, defaults)
        assert (made.json_schema and json.loads(made.json_schema)) == expected
    for wrong in (
        {"n": 2},
        {"n_cmpl": 3},
        {"text": {"format": {"type": "json_object"}}, "grammar": 'root ::= "a"'},
        {"text": {"format": {"type": "json_object"}}, "response_format": {"type": "json_object"}},
    ):
        with pytest.raises(EngineError):
            params(wrong, defaults)


def test_probabilities_are_asked_for_in_three_ways() -> None:
    asked = (
        ({"include": ["message.output_text.logprobs"]}, 1, 0),
        ({"top_logprobs": 3}, 3, 3),
        ({"top_logprobs": 0, "n_probs": 2}, 2, 2),
    )
    probs = TokenProbs(5, b"a", -1.0, [(5, b"a", -1.0), (6, b"b", -2.0), (7, b"c", -3.0)])
    for body, n_probs, n_top in asked:
        made, probabilities = params(body, GenerationParams())
        assert made.n_probs == n_probs
        assert probabilities is not None
        [token] = probabilities.content([probs])
        assert len(token["top_logprobs"]) == n_top
    encrypted = {"include": ["reasoning.encrypted_content"], "top_logprobs": 0}
    assert params(encrypted, GenerationParams())[1] is None


def test_stored_items_precede_new_ones() -> None:
    async def run() -> None:
        database = SqliteResponses()
        store = Responses(database)
        old, output = kept(USER), kept(said("Hi"))
        response: Any = {
            "id": "resp_1",
            "previous_response_id": None,
            "output": output,
            "status": "completed",
        }
        await store.save(response, old)
        reference = {"type": "item_reference", "id": old[0]["id"]}
        body: Any = {"input": [reference, USER], "previous_response_id": "resp_1"}
        history, new = await request_items(body, store)
        assert history == [*old, *output]
        assert new[0] == old[0]
        others: Any = (
            {"input": "a", "previous_response_id": "resp_2"},
            {"input": [{**reference, "id": "msg_0"}]},
        )
        for wrong in others:
            with pytest.raises(EngineError, match="there is no") as caught:
                await request_items(wrong, store)
            assert caught.value.info.type == "invalid_request_error"
        await database.close()

    with request_with():
        asyncio.run(run())
