"""Answers in Ollama's format, whole and line by line."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.chat.output import (
    CallArguments,
    CallStart,
    ChatDelta,
    ChatMessage,
    Content,
    Reasoning,
    ToolCall,
)
from specllama.engine.wire.replies import StopType, TokenProbs
from specllama.handlers.apis.ollama.format import OllamaFormat, Watch
from specllama.handlers.apis.probabilities import Probabilities
from specllama.handlers.running.chat_batch import ChatAnswer, ChatEvent
from tests.support.factories import delta, finished


def streamed(*batches: list[ChatDelta], stop_type: StopType = "eos") -> list[dict[str, Any]]:
    """Returns the lines of a stream for these deltas of the engine; the last delta ends it."""
    form = OllamaFormat("m", Watch(0.0, 0.0))
    message = ChatMessage()
    lines: list[dict[str, Any]] = []
    for i, deltas in enumerate(batches):
        for each in deltas:
            message.add(each)
        is_last = i == len(batches) - 1
        source = finished(stop_type=stop_type) if is_last else delta()
        data = form.event(ChatEvent(0, deltas, source, message)).decode()
        assert data == "" or data.endswith("\n")
        lines += map(json.loads, data.splitlines())
    return lines


def test_a_whole_answer() -> None:
    calls = [ToolCall("c1", "f", '{"a":[1]}'), ToolCall("c2", "g", "{}")]
    message = ChatMessage("text", "thoughts", calls)
    answer: Any = OllamaFormat("m", Watch(0.0, 0.0)).answer(ChatAnswer(message, finished()))
    assert answer.pop("created_at").endswith("Z")
    assert answer.pop("total_duration") >= 0
    assert answer == {
        "model": "m",
        "message": {
            "role": "assistant",
            "content": "text",
            "thinking": "thoughts",
            "tool_calls": [
                {"id": "c1", "function": {"name": "f", "arguments": {"a": [1]}}},
                {"id": "c2", "function": {"name": "g", "arguments": {}}},
            ],
        },
        "done": True,
        "done_reason": "stop",
        "load_duration": 0,
        "prompt_eval_count": 7,
        "prompt_eval_duration": 6_500_000,
        "eval_count": 2,
        "eval_duration": 5_250_000,
    }


def test_missing_fields_are_left_out() -> None:
    answer = OllamaFormat("m", Watch(0.0, 0.0)).answer(
        ChatAnswer(ChatMessage("a"), finished(stop_type="limit"))
    )
    assert answer["message"] == {"role": "assistant", "content": "a"}
    assert answer["done_reason"] == "length"
    assert "logprobs" not in answer


def test_any_character_is_on_one_line() -> None:
    text = "".join(map(chr, range(0x3000)))
    lines = streamed([Content(text)], [])
    assert [line["message"]["content"] for line in lines] == [text, ""]


def test_a_call_that_was_cut_off_is_left_out() -> None:
    calls = [ToolCall("c1", "f", "{}"), ToolCall("c2", "f", '{"a":')]
    cut = ChatAnswer(ChatMessage("", "", calls), finished(stop_type="limit"))
    answer = OllamaFormat("m", Watch(0.0, 0.0)).answer(cut)
    assert [call["id"] for call in answer["message"]["tool_calls"]] == ["c1"]
    assert answer["done_reason"] == "length"
    lines = streamed([CallStart(0, "c1", "f"), CallArguments(0, '{"a":')], [], stop_type="limit")
    assert len(lines) == 1
    assert lines[0]["done_reason"] == "length"


def test_calls_are_sent_whole() -> None:
    lines = streamed(
        [Reasoning("hm"), Content("I call"), CallStart(0, "c1", "f")],
        [CallArguments(0, '{"a"')],
        [CallArguments(0, ":1}"), CallStart(1, "c2", "g")],
        [CallArguments(1, "{}"), Content("done")],
        [],
    )
    assert [line["message"] for line in lines] == [
        {"role": "assistant", "content": "", "thinking": "hm"},
        {"role": "assistant", "content": "I call"},
        {"role": "assistant", "content": "",
         "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": {"a": 1}}}]},
        {"role": "assistant", "content": "",
         "tool_calls": [{"id": "c2", "function": {"name": "g", "arguments": {}}}]},
        {"role": "assistant", "content": "done"},
        {"role": "assistant", "content": ""},
    ]  # fmt: skip
    assert [line["done"] for line in lines] == [False] * 5 + [True]


texts = st.text(st.characters(codec="utf-8"), min_size=1)
objects = st.dictionaries(texts, st.integers(-9, 9) | texts, max_size=3)
parts = st.lists(
    st.tuples(st.just("content"), texts)
    | st.tuples(st.just("thinking"), texts)
    | st.tuples(st.just("call"), objects),
    max_size=8,
)


@given(parts, st.data())
def test_lines_add_up_to_the_whole_answer(
    parts: list[tuple[str, Any]], data: st.DataObject
) -> None:
    """The stream may be split anywhere. Each call is sent once and whole."""
    deltas: list[ChatDelta] = []
    n_calls = 0
    for kind, value in parts:
        if kind == "call":
            text = json.dumps(value)
            cut = data.draw(st.integers(0, len(text)))
            deltas += [CallStart(n_calls, f"c{n_calls}", "f"), CallArguments(n_calls, text[:cut])]
            deltas.append(CallArguments(n_calls, text[cut:]))
            n_calls += 1
        else:
            deltas.append(Content(value) if kind == "content" else Reasoning(value))
    message = ChatMessage()
    for each in deltas:
        message.add(each)
    ends = sorted(data.draw(st.lists(st.integers(0, len(deltas)), max_size=4)))
    batches = [
        deltas[begin:end] for begin, end in zip([0, *ends], [*ends, len(deltas)], strict=True)
    ]
    lines = streamed(*batches)
    whole = OllamaFormat("m", Watch(0.0, 0.0)).answer(ChatAnswer(message, finished()))["message"]
    messages = [line["message"] for line in lines]
    assert "".join(each["content"] for each in messages) == whole["content"]
    assert "".join(each.get("thinking", "") for each in messages) == whole.get("thinking", "")
    calls = [call for each in messages for call in each.get("tool_calls", [])]
    assert calls == whole.get("tool_calls", [])


def test_probabilities_go_with_the_text_they_belong_to() -> None:
    def probs(id: int) -> list[TokenProbs]:
        return [TokenProbs(id, b"a", -0.5, [(9, b"b", -1.0)])]

    form = OllamaFormat("m", Watch(0.0, 0.0), Probabilities(1, post_sampling=False))
    message = ChatMessage("ab")
    held = form.event(ChatEvent(0, [], delta(probs=probs(1)), message))
    assert held == b""
    events = [
        ChatEvent(0, [Content("ab")], delta("b", probs(2)), message),
        ChatEvent(0, [], finished(probs=probs(3)), message),
    ]
    text, end = [json.loads(form.event(event)) for event in events]
    assert [token["id"] for token in text["logprobs"]] == [1, 2]
    assert [token["id"] for token in end["logprobs"]] == [3]
    assert text["logprobs"][0]["top_logprobs"] == [
        {"id": 9, "token": "b", "bytes": [98], "logprob": -1.0}
    ]
