"""Conversion of Anthropic's requests to the engine's."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract_tests.kit.contract import find
from contract_tests.kit.lint import errors
from specllama.engine.errors import EngineError
from specllama.engine.options import Options
from specllama.engine.params import GenerationParams
from specllama.handlers.apis.anthropic.request import (
    message_params,
    read_message,
    read_message_input,
)
from specllama.handlers.running.media import MediaInput
from tests.support.options_support import model_options

USER = {"role": "user", "content": "Hello"}
TOOL = {"name": "f", "description": "d", "input_schema": {"type": "object"}}
USE = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": [1, "ä"]}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1"}


def request(**body: Any) -> Any:
    return read({"messages": [USER], **body}, model_options())


def read(body: Any, options: Options) -> Any:
    return read_message(body, options).what


def turns(*messages: tuple[str, Any], **body: Any) -> list[dict[str, Any]]:
    given_ = [{"role": role, "content": content} for role, content in messages]
    found: list[dict[str, Any]] = request(messages=given_, **body).messages
    return found


def params(**body: Any) -> GenerationParams:
    asked: Any = {"messages": [USER], **body}
    return message_params(asked, GenerationParams())


def text(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": each} for each in texts]


def refused(type_: str, **body: Any) -> str:
    with pytest.raises(EngineError) as caught:
        request(**body)
    assert caught.value.info.type == type_
    return caught.value.info.message


# ---- messages ----------------------------------------------------------------------------------


def test_texts_and_blocks() -> None:
    assert turns(("user", "Hello")) == [USER]
    assert turns(("user", text("Hello"))) == [USER]
    assert turns(("user", text("a", "b"))) == [{"role": "user", "content": text("a", "b")}]
    assert turns(("user", [])) == turns(("user", "")) == [{"role": "user", "content": ""}]


def test_system() -> None:
    said = {"role": "system", "content": "Be short."}
    assert request(system="Be short.").messages == [said, USER]
    marked = [{**text("Be short.")[0], "cache_control": {"type": "ephemeral"}}]
    assert request(system=marked).messages == [said, USER]
    assert request(system=text("a", "b")).messages[0]["content"] == text("a", "b")
    for nothing in (None, "", [], text("")):
        assert request(system=nothing).messages == [USER]
    later = turns(("user", "Hello"), ("system", "Be short."), ("user", "Hello"))
    assert later == [USER, said, USER]
    assert turns(("system", "")) == turns(("system", [])) == [{"role": "system", "content": ""}]


def test_the_stamp_of_an_agent_does_not_change_the_prompt() -> None:
    stamp = "x-anthropic-billing-header: cc_version=2; cch={};\nYou help."
    [first, second] = [
        request(system=text(stamp.format(cch), "cch=1;")).messages[0] for cch in ("0af3d", "71bc2")
    ]
    assert first == second
    assert first["content"][1]["text"] == "cch=1;"
    other = "As x-anthropic-billing-header: cch=12345; says"
    assert request(system=other).messages[0]["content"] == other


def test_messages_of_one_role_are_one_turn() -> None:
    assert turns(("user", "a"), ("user", "b")) == [{"role": "user", "content": text("a", "b")}]
    answers = turns(("user", "Hello"), ("assistant", "a"), ("assistant", text("b", "c")))
    assert answers == [USER, {"role": "assistant", "content": "abc"}]


def test_calls_and_results() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "x"}
    hidden = {"type": "redacted_thinking", "data": "x"}
    asked = [thought, hidden, *text("I look."), USE, {**USE, "id": "b"}]
    results = [*text("Well?"), {**RESULT, "content": "17"}, {**RESULT, "tool_use_id": "b"}]
    function = {"name": "f", "arguments": json.dumps(USE["input"], ensure_ascii=False)}
    calls = [{"id": id, "type": "function", "function": function} for id in ("1", "b")]
    assert turns(("user", "Hello"), ("assistant", asked), ("user", results)) == [
        USER,
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "hm",
            "tool_calls": calls,
        },
        {"role": "tool", "tool_call_id": "1", "name": "f", "content": "17"},
        {"role": "tool", "tool_call_id": "b", "name": "f", "content": ""},
        {"role": "user", "content": "Well?"},
    ]


@pytest.mark.parametrize(
    ("block", "content"),
    [
        ({"content": "a"}, "a"),
        ({"content": text("a", "b")}, "a\nb"),
        ({"content": None}, ""),
        ({"content": "no file", "is_error": True}, "Error: no file"),
        ({"content": "Error: no file", "is_error": True}, "Error: no file"),
        ({"is_error": True}, "Error"),
        ({"content": "no file", "is_error": False}, "no file"),
    ],
)
def test_results(block: Any, content: str) -> None:
    said = turns(("user", "Hello"), ("assistant", [USE]), ("user", [{**RESULT, **block}]))
    assert said[-1]["content"] == content


def test_results_may_come_in_several_messages() -> None:
    said = turns(("assistant", [USE]), ("user", "So?"), ("user", [RESULT]), ("user", "Now."))
    assert [message["role"] for message in said] == ["assistant", "tool", "user"]
    assert said[-1]["content"] == text("So?", "Now.")


@pytest.mark.parametrize(
    "source",
    [
        {"type": "text", "media_type": "text/plain", "data": "words"},
        {"type": "content", "content": "words"},
        {"type": "content", "content": text("words")},
    ],
)
def test_documents_of_text(source: Any) -> None:
    paper = {"type": "document", "source": source}
    assert turns(("user", [paper]))[0]["content"] == "words"
    paper |= {"title": "T", "context": "C"}
    assert turns(("user", [paper]))[0]["content"] == "T\nC\nwords"


def test_images() -> None:
    picture = {"type": "image", "source": {"type": "base64", "data": "AAAA"}}
    remote = {"type": "image", "source": {"type": "url", "url": "https://a.example/a.png"}}
    result = {**RESULT, "content": [{"type": "text", "text": "See"}, picture]}
    [asked, _, answered, said] = turns(
        ("user", [picture]), ("assistant", [USE]), ("user", [remote, result, {"text": "So?"}])
    )
    [first] = asked["content"]
    assert first["media"] == MediaInput("AAAA", "messages[0].content[0]", "image")
    text, second = answered["content"]
    assert text == {"type": "text", "text": "See"}
    assert second["media"] == MediaInput("AAAA", "messages[2].content[1].content[1]", "image")
    third, last = said["content"]
    assert third["media"].given == "https://a.example/a.png"
    assert last == {"type": "text", "text": "So?"}
    [_, _, failed] = turns(
        ("user", "a"), ("assistant", [USE]), ("user", [{**result, "is_error": True}])
    )
    assert [part["type"] for part in failed["content"]] == ["text", "text", "media"]


def test_an_image_has_no_title() -> None:
    """The description has no such field, so the validator has not checked it."""
    picture = {"type": "image", "title": 5, "source": {"type": "file", "file_id": "f"}}
    [result] = turns(("user", [{**RESULT, "content": [picture]}]))
    assert result["content"] == "[image]"


def test_an_image_without_a_source_is_refused() -> None:
    for source in ({"type": "base64"}, {"type": "url"}):
        block = {"type": "image", "source": source}
        messages = [{"role": "user", "content": [block]}]
        assert refused("invalid_request_error", messages=messages).startswith("messages[0]")


def test_values_that_are_no_text_are_rejected() -> None:
    picture = {"type": "image", "source": {"type": "file", "file_id": "f"}}
    for block in (
        picture,
        {"type": "document", "source": {"type": "file", "file_id": "f"}},
    ):
        messages = [{"role": "assistant", "content": [USE]}, {"role": "user", "content": [block]}]
        where = refused("not_supported_error", messages=messages)
        assert where.startswith("messages[1].content[0]")


def test_blocks_of_other_services_are_read_or_left_out() -> None:
    found = {"type": "search_result", "title": "T", "source": "http://a.example",
             "content": [{"type": "text", "text": "words"}]}  # fmt: skip
    odd = [{"type": "search_result", "content": 5}, {"type": "new"}, {"text": "Hello"}]
    assert turns(("user", [found, *odd]))[0]["content"] == [
        {"type": "text", "text": text} for text in ("T\nhttp://a.example\nwords", "", "Hello")
    ]
    use = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    assert turns(("user", "Hi"), ("assistant", [use, {"type": "text", "text": "So."}]))[1] == {
        "role": "assistant",
        "content": "So.",
    }


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image"},
        {"type": "document"},
        {"type": "thinking"},
        {"type": "tool_use"},
        {"type": "tool_result", "content": 5},
        {"type": "tool_addition", "tool": 5},
    ],
)
def test_the_description_rejects_fields_of_other_block_types(block: Any) -> None:
    content = find("POST", "/v1/messages").definition["requestBody"]["content"]
    schema = content["application/json"]["schema"]
    assert list(errors(schema, {"messages": [{"role": "user", "content": [block]}]}))
    other = {"type": "new", "text": 5}
    assert not list(errors(schema, {"messages": [{"role": "user", "content": [other]}]}))


def test_a_result_whose_call_was_cut_off_stays() -> None:
    [result] = turns(("user", [RESULT]))
    assert (result["role"], result["tool_call_id"]) == ("tool", "1")
    assert "name" not in result


def test_calls_that_were_cut_off() -> None:
    uses = [{**USE, "input": '{"ci'}, {key: USE[key] for key in ("type", "id", "name")}]
    first, second = turns(("assistant", uses))[0]["tool_calls"]
    assert first["function"]["arguments"] == '{"ci'
    assert second["function"]["arguments"] == "{}"


@pytest.mark.parametrize("content", [None, [], ""])
def test_empty_messages(content: Any) -> None:
    made = turns(("user", content), ("assistant", content), ("developer", content))
    assert [(m["role"], m["content"]) for m in made] == [
        ("user", ""),
        ("assistant", ""),
        ("developer", ""),
    ]


def test_deep_input_is_refused() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"a": deep}
    messages = [{"role": "assistant", "content": [{**USE, "input": deep}]}]
    assert "deep" in refused("invalid_request_error", messages=messages)
    while deep:  # releasing all of it at once would exhaust the stack, too
        deep = deep["a"]


# ---- tools, thinking ---------------------------------------------------------------------------


def test_tools() -> None:
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    asked = request(tools=[{**TOOL, "type": "custom", "cache_control": None}])
    assert asked.tools == [{"type": "function", "function": function}]
    assert (asked.tool_choice, asked.tool_name, asked.parallel_tool_calls) == ("auto", None, None)
    search = {"type": "web_search_20250305", "name": "search"}
    asked = request(tools=[TOOL, search, {**TOOL, "type": "new"}, TOOL])
    assert asked.tools == [{"type": "function", "function": function}]
    assert request(tools=[search]).tools == []
    bare = request(tools=[{"name": "g"}]).tools[0]["function"]
    assert bare["parameters"] == {"type": "object", "properties": {}}
    refused("invalid_request_error", tools=[{"input_schema": {}}])
    for choice in ({"type": "any"}, {"type": "tool", "name": "search"}):
        message = refused("not_supported_error", tools=[search], tool_choice=choice)
        assert message.startswith("tool_choice: this server has no ")
    asked = request(tools=[TOOL, search], tool_choice={"type": "any"})
    assert asked.tool_choice == "required"


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ("auto", None, None)),
        ({"type": "auto"}, ("auto", None, None)),
        ({"type": "any"}, ("required", None, None)),
        ({"type": "none"}, ("none", None, None)),
        ({"type": "tool", "name": "f"}, ("required", "f", None)),
        ({"type": "any", "disable_parallel_tool_use": True}, ("required", None, False)),
        ({"type": "auto", "disable_parallel_tool_use": False}, ("auto", None, None)),
    ],
)
def test_tool_choice(choice: Any, expected: Any) -> None:
    asked = request(tools=[TOOL], tool_choice=choice)
    assert (asked.tool_choice, asked.tool_name, asked.parallel_tool_calls) == expected


def test_choices_without_sense() -> None:
    assert request(tool_choice={"type": "any"}).tool_choice == "auto"
    refused("invalid_request_error", tools=[TOOL], tool_choice={"type": "tool"})
    refused("invalid_request_error", tools=[TOOL], tool_choice={"type": "tool", "name": "g"})


@pytest.mark.parametrize(
    ("body", "budget", "variables"),
    [
        ({}, -1, {}),
        ({"thinking": {"type": "adaptive"}}, -1, {}),
        ({"thinking": {"type": "enabled"}}, -1, {"enable_thinking": True}),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 2048}},
            2048,
            {"enable_thinking": True},
        ),
        (
            {"thinking": {"type": "disabled", "budget_tokens": 9}},
            0,
            {"enable_thinking": False},
        ),
        ({"output_config": {"effort": "low"}}, -1, {"reasoning_effort": "low"}),
        ({"output_config": {"effort": "max"}}, -1, {"reasoning_effort": "high"}),
        (
            {
                "thinking": {"type": "disabled"},
                "chat_template_kwargs": {"enable_thinking": True, "a": 1},
            },
            0,
            {"enable_thinking": True, "a": 1},
        ),
    ],
)
def test_thinking(body: Any, budget: int, variables: Any) -> None:
    asked = request(**body)
    assert (asked.thinking_budget.tokens, asked.template_variables) == (budget, variables)


def test_options_of_the_server_stand_in() -> None:
    options = model_options(reasoning_budget=0, reasoning_format="none", prefill_assistant=False)
    asked = read({"messages": [USER]}, options)
    assert (asked.thinking_budget.tokens, asked.reasoning_format, asked.prefill) == (
        0,
        "none",
        False,
    )
    thinking = {"type": "enabled", "budget_tokens": 2048}
    asked = read({"messages": [USER], "thinking": thinking}, options)
    assert asked.thinking_budget.tokens == 2048


@pytest.mark.parametrize("read", [read_message, read_message_input])
def test_budgets_that_the_description_does_not_know(read: Any) -> None:
    """The validator has not checked these fields."""
    asked = read({"messages": [USER], "thinking_budget_tokens": "a"}, model_options())
    assert asked.what.thinking_budget.tokens == -1
    counted: Any = {"messages": [USER], "reasoning_budget_tokens": "a"}
    what: Any = read_message_input(counted, model_options()).what
    assert what.thinking_budget.tokens == -1


# ---- how to generate ---------------------------------------------------------------------------


def test_limits_and_stops() -> None:
    assert params().n_predict == params(max_tokens=None).n_predict == 4096
    assert params(max_tokens=5).n_predict == 5
    assert params(max_tokens=5, n_predict=7).n_predict == 7
    assert params(stop_sequences=["a", ""]).stop == ["a"]
    assert params(stop_sequences=["a"], stop="b").stop == ["a", "b"]
    assert params(temperature=0.5, top_k=3, min_p=0.1).top_k == 3
    assert params(stream=True).return_progress


SCHEMA = {"type": "object"}
FORM = {"type": "json_schema", "schema": SCHEMA}


def test_structured_output() -> None:
    body: dict[str, Any]
    for body in (
        {"output_format": FORM},
        {"output_config": {"format": FORM}},
        {"response_format": FORM},
        {"json_schema": SCHEMA},
    ):
        assert params(**body).json_schema == json.dumps(SCHEMA)
    assert params(output_config={"effort": "low"}).json_schema is None
    for body in (
        {"output_format": FORM, "output_config": {"format": FORM}},
        {"output_format": FORM, "response_format": {"type": "text"}},
        {"output_format": FORM, "grammar": 'root ::= "a"'},
        {"n": 2},
        {"n_cmpl": 2},
    ):
        with pytest.raises(EngineError):
            params(**body)


@pytest.mark.parametrize("other", [5, {"schema": {"type": "array"}}])
def test_a_format_s_only_schema_is_the_described_one(other: Any) -> None:
    """The validator has not checked `json_schema`, a field of OpenAI's formats."""
    form = {**FORM, "json_schema": other}
    for body in ({"output_format": form}, {"output_config": {"format": form}}):
        assert params(**body).json_schema == json.dumps(SCHEMA)


# ---- any conversation --------------------------------------------------------------------------

ids = st.sampled_from(["toolu_1", "1", "toolu_2", "call_3"])
words = st.text(max_size=5)
texts = words.map(lambda each: {"type": "text", "text": each})
uses = st.builds(lambda id: {**USE, "id": id}, ids)
results = st.builds(
    lambda id, content, failed: {
        "type": "tool_result",
        "tool_use_id": id,
        "content": content,
        "is_error": failed,
    },
    ids,
    words | st.lists(texts, max_size=2),
    st.booleans(),
)
thoughts = words.map(lambda each: {"type": "thinking", "thinking": each})
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.just("user"), "content": words | st.lists(texts | results, max_size=3)}
    )
    | st.fixed_dictionaries(
        {
            "role": st.just("assistant"),
            "content": words | st.lists(texts | uses | thoughts, max_size=3),
        }
    ),
    min_size=1,
    max_size=8,
)


def results_have_their_calls(conversation: Any) -> bool:
    calls: set[str] = set()
    last = ""
    for message in conversation:
        if message["role"] == "assistant" != last:
            calls = set()
        last = message["role"]
        blocks = [] if isinstance(message["content"], str) else message["content"]
        for block in blocks:
            match block:
                case {"type": "tool_use", "id": id}:
                    calls.add(id.removeprefix("toolu_"))
                case {"type": "tool_result", "tool_use_id": id}:
                    if id.removeprefix("toolu_") not in calls:
                        return False
    return True


@given(messages)
def test_a_conversation_becomes_alternating_turns(conversation: Any) -> None:
    complete = results_have_their_calls(conversation)
    open_calls: set[str] = set()
    last = ""
    for message in request(messages=conversation).messages:
        role = message["role"]
        assert role == "tool" or role != last
        if role == "assistant":
            open_calls = {call["id"] for call in message.get("tool_calls", [])}
        elif role == "tool":
            assert message["tool_call_id"] in open_calls or not complete
            assert last in ("assistant", "tool") or not complete
        last = role
