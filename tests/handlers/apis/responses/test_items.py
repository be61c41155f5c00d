"""Items of the Responses API become messages of a conversation."""

import json
from typing import Any

import pytest

from specllama.engine.errors import EngineError
from specllama.handlers.apis.responses import items
from specllama.handlers.apis.responses.items import input_items, sealed_reasoning, unlike
from specllama.handlers.apis.responses.messages import messages
from specllama.handlers.running.media import MediaInput
from specllama.handlers.running.sealing import MAX_BYTES, Seal

USER = {"role": "user", "content": "Hello"}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "11 degrees"}
THOUGHT = {
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": "short"}],
    "content": [{"type": "reasoning_text", "text": "Let me see."}],
    "encrypted_content": "gibberish",
}


def said(text: str, role: str = "assistant") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "output_text", "text": text}]}


def kept(*items: Any) -> Any:
    return input_items([*items])


def translated(*items: Any) -> Any:
    return messages(kept(*items))


def test_a_text_is_the_user_s() -> None:
    said: Any = input_items("Hello")
    assert messages(said) == [USER]


def test_parts() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "refusal", "refusal": "b"}]
    [message] = translated({"role": "developer", "content": parts})
    assert message == {
        "role": "developer",
        "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
    }
    assert translated({"role": "user", "content": parts[:1]}) == [{"role": "user", "content": "a"}]
    assert translated({"role": "user", "content": []}) == [{"role": "user", "content": ""}]


def test_consecutive_items_of_the_model_are_one_message() -> None:
    function = {"name": "f", "arguments": '{"a": 1}'}
    call = {"id": "c1", "type": "function", "function": function}
    assert translated(USER, THOUGHT, said("I look."), CALL, RESULT, said("It is 11.")) == [
        USER,
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Let me see.",
            "tool_calls": [call],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "11 degrees"},
        {"role": "assistant", "content": "It is 11."},
    ]
    second = {**CALL, "call_id": "c2"}
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    _, both, _, last = translated(USER, CALL, second, RESULT, {**RESULT, "output": parts})
    assert [each["id"] for each in both["tool_calls"]] == ["c1", "c2"]
    assert both["content"] == ""
    assert [part["text"] for part in last["content"]] == ["a", "b"]
    [thoughtless] = translated({"type": "reasoning", "summary": THOUGHT["summary"]}, said("So."))
    assert "reasoning_content" not in thoughtless


@pytest.mark.parametrize(
    ("items", "type_", "message"),
    [
        ([USER, CALL], "invalid_request_error", "'c1' of a function has no output"),
        (
            [USER, {"role": "user", "content": [{"type": "input_image"}]}],
            "invalid_request_error",
            r"input\[1\].content\[0\].*input_image",
        ),
        (
            [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}],
            "not_supported_error",
            r"input\[0\].content\[0\].*file_id.*input_file",
        ),
        (
            [{"role": "user", "content": [{"type": "input_file", "file_data": "/w=="}]}],
            "not_supported_error",
            r"input\[0\].content\[0\].*UTF-8",
        ),
    ],
)
def test_items_that_don_t_fit(items: list[Any], type_: str, message: str) -> None:
    with pytest.raises(EngineError, match=message) as caught:
        translated(*items)
    assert caught.value.info.type == type_


def test_calls_in_namespaces_and_searches() -> None:
    search = {
        "type": "tool_search_call",
        "call_id": "c2",
        "execution": "client",
        "arguments": {"query": "ä"},
    }
    tools = [{"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]}]
    found = {"type": "tool_search_output", "call_id": "c2", "execution": "client", "tools": tools}
    custom = {"type": "custom_tool_call", "call_id": "c3", "name": "g", "input": "x"}
    items: list[dict[str, Any]] = [
        {**CALL, "namespace": "mcp__n"},
        RESULT,
        search,
        found,
        {**custom, "namespace": "n__"},
        {**RESULT, "call_id": "c3"},
        {**search, "call_id": "c4", "arguments": "cut"},
        {**found, "call_id": "c4", "tools": []},
    ]
    made = translated(*items)
    calls = [each["tool_calls"][0]["function"] for each in made if "tool_calls" in each]
    assert [call["name"] for call in calls] == ["mcp__n__f", "tool_search", "n__g", "tool_search"]
    assert [call["arguments"] for call in calls[1:]] == ['{"query": "ä"}', '{"input": "x"}', "cut"]
    results = [each["content"] for each in made if each["role"] == "tool"]
    assert results == ["11 degrees", "n__f", "11 degrees", "There is no such tool."]
    read = kept(*items)
    assert read[0]["namespace"] == "mcp__n"
    assert read[3]["tools"] == tools
    assert "namespace" not in kept(CALL)[0]


@pytest.mark.parametrize("item", [
    {"type": "tool_search_call", "execution": "server", "call_id": None, "arguments": {}},
    {"type": "tool_search_output", "tools": []},
])  # fmt: skip
def test_searches_of_openai_s_are_left_out(item: dict[str, Any]) -> None:
    assert kept(item) == []


def test_media_are_kept_as_they_came() -> None:
    parts = [
        {"type": "input_image", "image_url": "data:,", "detail": "low", "file_id": None},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "input_file", "file_data": "data:text/plain;base64,SGk=", "filename": "a.txt"},
    ]
    [item] = kept({"role": "user", "content": parts})
    assert item["content"][1:] == parts[1:]
    assert item["content"][0] == {"type": "input_image", "image_url": "data:,", "detail": "low"}
    made: Any = messages([item])
    image, sound, file = made[0]["content"]
    assert image["media"] == MediaInput("data:,", "input[0].content[0]", "image")
    assert sound["media"] == MediaInput("AAAA", "input[0].content[1]", "audio")
    assert file == {"type": "text", "text": "a.txt\nHi"}
    result = {**RESULT, "output": parts[:1]}
    assert translated(CALL, result)[-1]["content"][0]["media"].where == "input[1].output[0]"


def test_items_of_other_services_are_left_out() -> None:
    others = [{"type": "web_search_call"}, {"type": "new", "role": "x"}, {"type": ""}]
    assert translated(*others, USER) == translated(USER)
    assert translated(*others) == []
    unknown = {"role": "assistant", "content": [{"type": "x"}, {"type": "y", "text": "So."}]}
    assert translated(USER, unknown)[1]["content"] == "So."


def test_an_output_whose_call_was_cut_off_stays() -> None:
    assert translated(USER, RESULT)[1]["tool_call_id"] == "c1"


def test_tools_that_take_a_plain_text() -> None:
    call = {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": 'a "b"'}
    output = {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"}
    _, asking, result = translated(USER, call, output)
    [made] = asking["tool_calls"]
    assert json.loads(made["function"]["arguments"]) == {"input": 'a "b"'}
    assert result == {"role": "tool", "tool_call_id": "c1", "content": "ok"}
    assert [item["id"].split("_")[0] for item in kept(call, output)] == ["ctc", "ctco"]


def test_a_thousand_items_keep_their_order() -> None:
    many = [{"role": "user", "content": str(i)} if i % 2 else said(str(i)) for i in range(1000)]
    made = translated(*many)
    assert [message["content"] for message in made] == [str(i) for i in range(1000)]
    assert len({item["id"] for item in kept(*many)}) == 1000


def test_a_phase_is_kept() -> None:
    [message, other] = kept({**said("a"), "phase": "commentary"}, {**said("b"), "phase": None})
    assert message["phase"] == "commentary"
    assert "phase" not in other


def test_ids_are_given_once() -> None:
    before = kept({**USER, "id": "a"})
    given = kept({**USER, "id": "a"}, {**USER, "id": "b"}, {**CALL, "id": "b"})
    made = unlike(before, given)
    assert made[1] == given[1]
    assert made[0] == {**given[0], "id": made[0]["id"]}
    assert [each["id"].partition("_")[0] for each in made] == ["msg", "b", "fc"]
    assert [each["id"] for each in given] == ["a", "b", "b"]
    assert len({each["id"] for each in made}) == 3


def test_sealed_reasoning_has_a_limit_for_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    seal = Seal(b"k" * 32)
    item: Any = {"type": "reasoning", "encrypted_content": sealed_reasoning(seal, "x" * 10)}
    monkeypatch.setattr(items, "MAX_OPENED", 25)
    found: Any = input_items([item] * 3, seal)
    assert [len(each["content"]) for each in found] == [1, 1, 0]
    without: Any = input_items([item])
    assert without[0]["content"] == []
    assert sealed_reasoning(seal, "x" * (MAX_BYTES + 1)) is None
    odd: Any = {"type": "reasoning", "encrypted_content": sealed_reasoning(seal, "\ud800")}
    [read] = input_items([odd], seal)
    assert read["content"] == [{"type": "reasoning_text", "text": "\ud800"}]  # type: ignore[typeddict-item]
