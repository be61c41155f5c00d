"""Conversion of Ollama's requests to the engine's."""

import math
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from contract_tests.kit.bodies import properties
from contract_tests.kit.contract import operations
from contract_tests.kit.lint import DESCRIPTION
from specllama.engine.chat.request import ChatRequest
from specllama.engine.errors import EngineError
from specllama.handlers.apis.generate import Prompts
from specllama.handlers.apis.ollama import request
from specllama.handlers.apis.ollama.request import (
    OPENAI_FIELDS,
    SAMPLING,
    OllamaRequest,
    read_ollama_chat,
    read_ollama_generation,
    seconds_of,
)
from specllama.handlers.apis.openai.messages import chat_messages
from specllama.handlers.http.envelopes.ollama import is_ollama_client, is_openai_client
from tests.support.options_support import model_options

USER = {"role": "user", "content": "a"}
OPTIONS = model_options()


def chat(**fields: Any) -> OllamaRequest:
    body: Any = {"messages": [USER], **fields}
    return read_ollama_chat(body, OPTIONS)


def generation(**body: Any) -> OllamaRequest:
    given: Any = body
    return read_ollama_generation(given, OPTIONS)


def conversation(asked: OllamaRequest) -> ChatRequest:
    assert isinstance(asked.what, ChatRequest)
    return asked.what


def openai_messages(messages: Any) -> Any:
    return request.openai_messages(messages)


def test_options_are_those_of_the_description() -> None:
    schemas = DESCRIPTION.parent / "schemas"
    sampling = yaml.safe_load((schemas / "shared" / "sampling.yaml").read_text("utf-8"))
    assert set(SAMPLING) == sampling["SamplingOptions"]["properties"].keys()


def test_options_become_parameters() -> None:
    options: dict[str, Any] = {
        "num_predict": 5,
        "num_keep": 6,
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.25,
        "min_p": 0.125,
        "typical_p": 0.75,
        "seed": 8,
        "stop": ["x"],
        "repeat_last_n": 9,
        "repeat_penalty": 1.5,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "mirostat": 2,
        "mirostat_tau": 4.0,
        "mirostat_eta": 0.5,
    }
    renamed = {"num_predict": "n_predict", "num_keep": "n_keep"}
    assert chat(options={**options, "num_ctx": 1, "grammar": 5}).params == structs.replace(
        OPTIONS.engine.generation_defaults(),
        stream=True,
        unset=["samplers", "xtc_probability", "xtc_threshold"],
        **{renamed.get(name, name): value for name, value in options.items()},
    )


def test_options_win_and_null_is_as_nothing() -> None:
    options = {"top_k": 2, "top_p": None, "num_predict": -2}
    params = chat(top_k=1, top_p=0.5, max_tokens=3, stream=False, options=options).params
    assert (params.top_k, params.top_p, params.n_predict, params.stream) == (2, 0.5, -1, False)
    assert chat(stream=None).params.stream
    assert chat(max_tokens=3, return_progress=True, options={}).params == structs.replace(
        OPTIONS.engine.generation_defaults(), stream=True, n_predict=3
    )


@pytest.mark.parametrize(
    ("fields", "variables"),
    [
        ({}, {}),
        ({"think": None}, {}),
        ({"think": ""}, {}),
        ({"think": True}, {"enable_thinking": True}),
        ({"think": False}, {"enable_thinking": False}),
        ({"think": "high"}, {"enable_thinking": True, "reasoning_effort": "high"}),
        ({"think": "none"}, {"enable_thinking": False}),
    ],
)
def test_thinking(fields: Any, variables: Any) -> None:
    assert conversation(chat(**fields)).template_variables == variables
    assert conversation(generation(prompt="a", **fields)).template_variables == variables


@pytest.mark.parametrize(
    ("fields", "variables"),
    [
        ({"chat_template_kwargs": {"a": 1}}, {"a": 1}),
        (
            {"think": False, "chat_template_kwargs": {"a": 1, "enable_thinking": True}},
            {"a": 1, "enable_thinking": False},
        ),
        (
            {"think": "high", "reasoning_effort": "low"},
            {"enable_thinking": True, "reasoning_effort": "high"},
        ),
        ({"think": True, "reasoning_effort": "none"}, {"enable_thinking": False}),
        ({"think": False, "enable_thinking": True}, {"enable_thinking": True}),
    ],
)
def test_thinking_beside_the_words_of_chat_completions(fields: Any, variables: Any) -> None:
    assert conversation(chat(**fields)).template_variables == variables


def test_fields_of_chat_completions() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    last = {"role": "assistant", "content": "b"}
    what = conversation(
        chat(
            messages=[USER, last],
            tools=[tool],
            tool_choice="required",
            reasoning_format="none",
            thinking_budget_tokens=3,
            continue_final_message=True,
        )
    )
    assert [each["function"]["name"] for each in what.tools] == ["f"]
    assert (what.tool_choice, what.reasoning_format, what.thinking_budget.tokens) == (
        "required",
        "none",
        3,
    )
    assert (what.continue_final_message, what.repeat_given) == (True, False)


def test_format() -> None:
    def schema(form: Any, **fields: Any) -> Any:
        return chat(format=form, **fields).params.json_schema

    assert schema(None) is None
    assert schema("") is None
    assert schema("json") == '{"type": "object"}'
    assert schema({"type": "boolean"}) == '{"type": "boolean"}'
    assert schema("json", response_format={"type": "text"}, grammar="") == '{"type": "object"}'
    assert generation(prompt="a", format="json").params.json_schema == '{"type": "object"}'
    other: dict[str, Any]
    for other in ({"json_schema": {}}, {"grammar": "x"}, {"response_format": {"type": "json"}}):
        with pytest.raises(EngineError, match="format"):
            schema("json", **other)


def test_only_one_answer() -> None:
    assert chat(n=1, n_cmpl=None).n == 1
    for name in ("n", "n_cmpl"):
        with pytest.raises(EngineError, match="one answer per request"):
            chat(**{name: 2})


@pytest.mark.parametrize("ask", [chat, generation])
def test_rivals_come_if_they_are_asked_for(ask: Any) -> None:
    def n_top(**fields: Any) -> Any:
        found = ask(prompt="a", **fields).probabilities
        return found and found.n_top

    assert n_top(logprobs=True) == 0
    assert n_top(logprobs=True, top_logprobs=4) == 4
    assert n_top(logprobs=False) is None
    assert n_top(top_logprobs=0) is None
    with pytest.raises(EngineError, match="top_logprobs"):
        n_top(top_logprobs=4)


def is_in_ollama_form(body: Any) -> bool:
    return request.is_in_ollama_form(body)


def is_in_openai_form(body: Any) -> bool:
    return request.is_in_openai_form(body)


def test_form_of_a_body() -> None:
    neither: dict[str, Any] = {"messages": [USER], "options": None, "stream": False}
    assert not is_in_ollama_form(neither)
    assert not is_in_openai_form(neither)
    assert is_in_ollama_form({"messages": [USER], "think": False})
    assert is_in_ollama_form({"messages": [USER, {**USER, "tool_name": ""}]})
    assert is_in_openai_form({"messages": [USER], "max_tokens": 0})
    assert is_in_openai_form({"messages": [USER, {**USER, "content": []}]})
    assert not is_in_openai_form({"messages": [USER], "max_tokens": None, "of_nobody": 1})


def test_fields_of_openai_are_those_of_the_description() -> None:
    ollamas = {"messages", "model", "stream", "tools", "logprobs", "top_logprobs"}
    ollamas |= {"format", "keep_alive", "options", "think"}
    schema = operations()["create_ollama_chat"].definition["requestBody"]["content"]
    assert properties(schema["application/json"]["schema"]) - ollamas == OPENAI_FIELDS


def test_clients() -> None:
    def known(**fields: str) -> bool:
        headers = [(k.replace("_", "-").encode(), v.encode()) for k, v in fields.items()]
        return is_ollama_client({"type": "http", "headers": headers})

    assert known(user_agent="Ollama-Python/1")
    assert known(user_agent="curl", accept="Application/X-NDJSON")
    assert not known()
    assert not known(user_agent="an ollama", accept="application/json", x_ollama="ollama")

    def is_openai(**fields: str) -> bool:
        headers = [(k.replace("_", "-").encode(), v.encode()) for k, v in fields.items()]
        return is_openai_client({"type": "http", "headers": headers})

    assert is_openai(user_agent="OpenAI/JS 6.1")
    assert is_openai(user_agent="AsyncOpenAI/Python 2", x_stainless_async="async:asyncio")
    assert is_openai(accept="Text/Event-Stream")
    assert not is_openai(user_agent="not OpenAI", accept="*/*", x_openai="a")


def test_calls_get_ids_and_results_find_them() -> None:
    def call(name: str, arguments: Any, **more: Any) -> dict[str, Any]:
        return {"function": {"name": name, "arguments": arguments}, **more}

    made = openai_messages(
        [
            USER,
            {"role": "assistant", "thinking": "hm", "tool_calls": [call("f", {}), call("g", "{}")]},
            {"role": "tool", "tool_name": "g", "content": "1"},
            {"role": "tool", "tool_name": "f", "content": "2"},
            {"role": "tool", "tool_name": "f", "content": "3"},
            {"role": "assistant", "tool_calls": [call("f", {"ä": 1}, id="mine", type="function")]},
            {"role": "tool", "content": "4"},
            {"role": "tool", "content": "5", "tool_call_id": "theirs", "name": "h"},
        ]
    )
    said = chat_messages(made)
    assert said[0] == USER
    first, second = made[1]["tool_calls"]
    assert (made[1]["content"], made[1]["reasoning_content"]) == (None, "hm")
    assert first == {"id": "call00000", "type": "function",
                     "function": {"name": "f", "arguments": {}}}  # fmt: skip
    assert second["id"] == "call00001"
    results = [(m["tool_call_id"], m.get("name")) for m in made if m["role"] == "tool"]
    assert results == [
        ("call00001", "g"),
        ("call00000", "f"),
        (None, "f"),
        ("mine", None),
        ("theirs", "h"),
    ]
    [last] = made[5]["tool_calls"]
    assert last["function"]["arguments"] == {"ä": 1}
    assert last["id"] == "mine"


def test_images_stand_in_front_of_the_text() -> None:
    made = openai_messages([{**USER, "images": []}, {**USER, "images": ["x", "y"]}])
    assert made[0]["content"] == USER["content"]
    *images, text = made[1]["content"]
    places = ["messages[1].images[0]", "messages[1].images[1]"]
    assert [(each["media"].given, each["media"].where) for each in images] == [
        *zip(["x", "y"], places, strict=True)
    ]
    assert text == {"type": "text", "text": USER["content"]}
    [alone] = openai_messages([{"role": "user", "images": ["x"]}])
    assert [part["media"].kind for part in alone["content"]] == ["image"]
    assert chat_messages(made)[1]["content"] == made[1]["content"]
    content: Any = conversation(generation(prompt="b", images=["x"])).messages[0]["content"]
    assert [part["type"] for part in content] == ["media", "text"]


def test_thoughts_have_three_names() -> None:
    said = {"role": "assistant", "content": "b"}
    fields: dict[str, Any]
    for fields in (
        {"thinking": "c"},
        {"thinking": "c", "reasoning_content": "d"},
        {"thinking": None, "reasoning_content": "c"},
        {"reasoning": "c"},
        {"reasoning_content": "c", "reasoning": 5},
    ):
        made = conversation(chat(messages=[USER, {**said, **fields}])).messages
        assert made[1] == {**said, "reasoning_content": "c"}
    made = conversation(chat(messages=[USER, {**said, "reasoning": 5}])).messages
    assert made[1] == said


def test_the_number_0_is_an_id() -> None:
    call = {"id": 0, "function": {"name": "f", "arguments": {}}}
    made = openai_messages(
        [
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": 0, "content": "1"},
        ]
    )
    assert [each["id"] for each in made[0]["tool_calls"]] == ["0"]
    assert chat_messages(made)[1]["tool_call_id"] == "0"


# ---- generate ----------------------------------------------------------------------------


def test_a_prompt_is_a_conversation() -> None:
    asked = generation(prompt="b", system="a", options={"num_predict": 3}, context=[1, 2.0])
    assert conversation(asked) == ChatRequest(
        messages=[{"role": "system", "content": "a"}, {"role": "user", "content": "b"}],
        repeat_given=False,
    )
    assert (asked.params.n_predict, asked.params.stream) == (3, True)
    assert (asked.before, asked.has_context) == ([1, 2], True)
    assert all(isinstance(token, int) for token in asked.before)
    assert not generation(prompt="b", images=["x"]).has_context


def test_prompts_that_are_no_conversation() -> None:
    gap = generation(prompt="a", suffix="b")
    assert isinstance(gap.what, Prompts)
    assert gap.what.gap is not None
    assert (gap.what.gap.prefix, gap.what.gap.suffix) == (["a"], ["b"])
    raw = generation(prompt="a", raw=True, images=["x"])
    assert isinstance(raw.what, Prompts)
    [[image, text]] = raw.what.texts
    assert (getattr(image, "where", None), text) == ("images[0]", "a")
    assert (gap.has_context, raw.has_context) == (False, False)


def test_fields_that_the_description_does_not_know() -> None:
    """The validator has not checked these fields."""
    fields = {"temperature": "a", "max_tokens": "a", "n": 2, "tools": 5, "response_format": 5}
    asked = generation(prompt="a", chat_template_kwargs=5, reasoning_budget_tokens="a", **fields)
    assert asked == generation(prompt="a")


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"images": ["a"], "suffix": "b"}, "invalid_request_error"),
        ({"template": "{{ .Prompt }}"}, "not_supported_error"),
        ({"raw": True, "system": "a"}, "invalid_request_error"),
        ({"raw": True, "context": [1]}, "invalid_request_error"),
        ({"suffix": "a", "system": "a"}, "invalid_request_error"),
        ({"suffix": "a", "context": [1]}, "invalid_request_error"),
    ],
)
def test_unsupported_fields_of_a_generation(fields: dict[str, Any], kind: str) -> None:
    with pytest.raises(EngineError) as caught:
        generation(prompt="a", **fields)
    assert caught.value.info.type == kind


@pytest.mark.parametrize(
    ("keep_alive", "seconds"),
    [
        *((zero, 0) for zero in (0, 0.0, "0", "0s", "0m", "-0", "0h0m", "0.0s", "0ms", "00")),
        *((other, None) for other in (None, "", "s", "never", "0x")),
        *((1, 1), (0.5, 0.5), ("5m", 300), ("1h30m", 5400), ("0s5ms", 0.005), ("7", 7)),
        *((-1, math.inf), ("-1", math.inf), ("-1m", math.inf)),
    ],
)
def test_the_time_for_which_a_model_stays(keep_alive: Any, seconds: float | None) -> None:
    found = seconds_of(keep_alive)
    assert found is None if seconds is None else found == pytest.approx(seconds)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([None, "a", "b"]))))
def test_a_result_has_the_id_of_the_first_open_call_of_its_tool(
    turns: list[tuple[bool, str | None]],
) -> None:
    messages: list[dict[str, Any]] = []
    expected: list[str | None] = []
    waiting: list[tuple[str, str]] = []
    for n, (calls, name) in enumerate(turns):
        if calls:
            call = {"id": f"id {n}", "function": {"name": name or "c", "arguments": {}}}
            messages.append({"role": "assistant", "tool_calls": [call]})
            waiting.append((name or "c", f"id {n}"))
        else:
            messages.append({"role": "tool", "content": "x", "tool_name": name})
            found = next((each for each in waiting if name in (None, each[0])), None)
            if found is not None:
                waiting.remove(found)
            expected.append(found and found[1])
    answered = [each for each in openai_messages(messages) if each["role"] == "tool"]
    assert [each["tool_call_id"] for each in answered] == expected
