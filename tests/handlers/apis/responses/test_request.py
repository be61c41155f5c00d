"""Bodies of the Responses API become requests."""

import asyncio
import json
from typing import Any

import pytest

from specllama.engine.chat.request import ChatRequest
from specllama.engine.errors import EngineError
from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import TokenProbs
from specllama.handlers.apis.responses.items import input_items, sealed_reasoning
from specllama.handlers.apis.responses.request import (
    conversation_id,
    request_items,
    response_chat_request,
    response_params,
    response_tools,
)
from specllama.handlers.apis.tools import Chosen, Place
from specllama.handlers.running import response_store
from specllama.handlers.running.response_store import Responses
from specllama.handlers.running.sealing import Sealing
from specllama.handlers.running.sqlite_responses import SqliteResponses
from tests.support.http_support import request_with
from tests.support.options_support import model_options

USER = {"role": "user", "content": "Hello"}
SEALING = Sealing(lambda: b"k" * 32)


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
        history, new = await request_items(body, store, SEALING)
        assert history == [*old, *output]
        assert new[0] == old[0]
        others: Any = (
            {"input": "a", "previous_response_id": "resp_2"},
            {"input": [{**reference, "id": "msg_0"}]},
        )
        for wrong in others:
            with pytest.raises(EngineError, match="there is no") as caught:
                await request_items(wrong, store, SEALING)
            assert caught.value.info.type == "invalid_request_error"
        await database.close()

    with request_with():
        asyncio.run(run())


def test_the_items_of_a_conversation_precede_new_ones() -> None:
    async def run() -> None:
        database = SqliteResponses()
        store = Responses(database)
        old = kept(USER, said("Hi"))
        await store.conversations.create("conv_1", {}, old)
        for given in ("conv_1", {"id": "conv_1"}):
            body: Any = {"input": [{**USER, "id": old[0]["id"]}], "conversation": given}
            history, items = await request_items(body, store, SEALING)
            assert history == old
            assert len(items) == 1
            new: Any = items[0]
            assert new["id"] not in [item["id"] for item in old]
            assert new["content"] == old[0]["content"]
            assert conversation_id(body) == "conv_1"
        without: Any = {"conversation": "conv_1"}
        assert await request_items(without, store, SEALING) == (old, [])
        refused: Any = [
            ({"input": "a", "conversation": "conv_2"}, "not_found_error", "conv_2"),
            ({"input": "a", "conversation": "conv_1", "previous_response_id": "resp_1"},
             "invalid_request_error", "together"),
            ({}, "invalid_request_error", "input"),
            ({"input": None, "conversation": None}, "invalid_request_error", "input"),
        ]  # fmt: skip
        for wrong, type_, words in refused:
            with pytest.raises(EngineError, match=words) as caught:
                await request_items(wrong, store, SEALING)
            assert caught.value.info.type == type_
        await database.close()

    with request_with():
        asyncio.run(run())


def test_a_full_conversation_is_still_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        database = SqliteResponses()
        store = Responses(database)
        await store.conversations.create("conv_1", {}, kept(USER))
        monkeypatch.setattr(response_store, "MAX_ITEMS", 1)
        body: Any = {"input": "a", "conversation": "conv_1", "store": False}
        history, _ = await request_items(body, store, SEALING)
        assert len(history) == 1
        body["store"] = True
        with pytest.raises(EngineError, match="begin another"):
            await request_items(body, store, SEALING)
        await database.close()

    with request_with():
        asyncio.run(run())


def test_sealed_reasoning_is_opened() -> None:
    async def run() -> None:
        database = SqliteResponses()
        sealed = sealed_reasoning(await SEALING.get(), "Let me see.")
        item: Any = {"type": "reasoning", "summary": [], "encrypted_content": sealed}
        body: Any = {"input": [USER, item, {**item, "content": []}, {**item, "id": "rs_1"}]}
        new: Any
        _, new = await request_items(body, Responses(database), SEALING)
        assert [each["content"][0]["text"] for each in new[1:]] == ["Let me see."] * 3
        assert new[-1]["id"] == "rs_1"
        foreign: Any = {"input": [{**item, "encrypted_content": "gAAAAABpM0Yj-"}, THOUGHT]}
        _, new = await request_items(foreign, Responses(database), SEALING)
        assert new[0]["content"] == []
        assert new[1]["content"] == THOUGHT["content"]
        await database.close()

    with request_with():
        asyncio.run(run())


def test_no_key_is_needed_without_sealed_reasoning() -> None:
    def missing() -> bytes:
        raise AssertionError("no key is needed")

    async def run() -> None:
        database = SqliteResponses()
        body: Any = {"input": [USER, THOUGHT]}
        await request_items(body, Responses(database), Sealing(missing))
        await database.close()

    with request_with():
        asyncio.run(run())
