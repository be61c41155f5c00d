"""OpenAI's answers and chunks: the same content whether encoded whole or from constant parts."""

import asyncio
import json
from typing import Any

import msgspec
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
from specllama.engine.wire.replies import PromptProgress
from specllama.handlers.apis.openai.format import ChatFormat, Head, usage
from specllama.handlers.apis.openai.request import answer_id
from specllama.handlers.apis.openai.text_format import TextFormat, text_finish_reason
from specllama.handlers.running.chat_batch import ChatAnswer, ChatEvent, finish_reason
from tests.support.factories import delta, finished

names = st.text(min_size=1)
HEAD = Head.new("chatcmpl-0", "m")
AUTHOR = {"role": "assistant", "content": None}


def events(data: bytes) -> list[Any]:
    """Returns the JSON documents of whole events, each with one line of data."""
    found = data.decode().split("\n\n")
    assert found.pop() == ""
    assert all(event.startswith("data: ") and "\n" not in event for event in found)
    return [json.loads(event.removeprefix("data: ")) for event in found]


def test_finish_reasons() -> None:
    assert [text_finish_reason(s) for s in ("eos", "word", "limit", "none")] == [
        "stop",
        "stop",
        "length",
        "length",
    ]
    called = ChatMessage(calls=[ToolCall("c", "f", "{}")])
    assert finish_reason(ChatMessage("a"), finished()) == "stop"
    assert finish_reason(called, finished()) == "tool_calls"
    assert finish_reason(called, finished(stop_type="limit")) == "length"


def test_ids_differ_between_requests() -> None:
    ids = {answer_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(id.startswith("chatcmpl-") for id in ids)


def test_usage_adds_up() -> None:
    assert usage([finished(), finished()]) == {
        "prompt_tokens": 14,
        "completion_tokens": 4,
        "total_tokens": 18,
        "prompt_tokens_details": {
            "cached_tokens": 8,
            "cached_ram_tokens": 0,
            "cached_disk_tokens": 0,
        },
    }


def top(object_: str, model: str) -> dict[str, Any]:
    """Returns the first fields of each answer."""
    made: dict[str, Any] = json.loads(b"{" + HEAD._replace(model=model).fields(object_) + b"}")
    return made


def whole(message: ChatMessage, *args: Any, **options: Any) -> Any:
    made = ChatFormat(HEAD, **options).whole([ChatAnswer(message, finished(*args))])
    return asyncio.run(made)


@given(names, st.lists(st.text(), min_size=1))
def test_whole_answers(model: str, texts: list[str]) -> None:
    results = [finished(text) for text in texts]
    form = TextFormat(HEAD._replace(model=model), n=len(texts))
    answer: Any = asyncio.run(form.whole(results))
    assert answer.items() >= top("text_completion", model).items()
    assert answer["usage"] == usage(results, results[:1])
    assert [choice["text"] for choice in answer["choices"]] == texts
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(texts)))

    answer = whole(ChatMessage(texts[0]), texts[0], "limit")
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": texts[0], "refusal": None},
            "logprobs": None,
            "finish_reason": "length",
        }
    ]
    assert answer["timings"]["cache_n"] == 4


@given(names, st.integers(0, 4095), st.text(), st.booleans())
def test_text_chunks(model: str, index: int, text: str, timings: bool) -> None:
    chunks = TextFormat(HEAD._replace(model=model), timings_per_token=timings)
    [chunk] = events(chunks.delta(index, delta(text)))
    choice = {"text": text, "index": index, "logprobs": None, "finish_reason": None}
    assert ("timings" in chunk) == timings
    chunk.pop("timings", None)
    assert chunk == {**top("text_completion", model), "choices": [choice]}

    [last] = events(chunks.finish(index, finished(text, "word")))
    assert last["choices"] == [choice | {"finish_reason": "stop"}]
    assert last["usage"]["total_tokens"] == 9
    [other] = events(chunks.finish(index + 1, finished()))
    assert other["usage"]["total_tokens"] == 18


@given(names, st.lists(st.text(min_size=1)), st.text(), st.booleans(), st.booleans())
def test_chat_chunks(
    model: str, texts: list[str], rest: str, timings: bool, include_usage: bool
) -> None:
    chunks = ChatFormat(
        HEAD._replace(model=model), timings_per_token=timings, include_usage=include_usage
    )
    message = ChatMessage()
    made = [ChatEvent(0, [Content(text)], delta(text), message) for text in texts]
    left: list[ChatDelta] = [Content(rest)] if rest else []
    made.append(ChatEvent(0, left, finished(rest, "limit"), message))
    found = events(b"".join(map(chunks.event, made)))
    fields = top("chat.completion.chunk", model).items()
    assert all(chunk.items() >= fields for chunk in found)

    *found, last = found
    assert last["timings"]["predicted_n"] == 2
    if include_usage:
        assert last["choices"] == []
        assert last["usage"] == usage([finished()])
        *found, last = found
        assert "timings" not in last
    else:
        assert "usage" not in last
    assert last["choices"] == [{"index": 0, "delta": {}, "finish_reason": "length"}]

    choices = [choice for chunk in found for choice in chunk["choices"]]
    assert {choice["finish_reason"] for choice in choices} == {None}
    deltas = [choice["delta"] for choice in choices]
    assert deltas[0] == AUTHOR
    assert [d["content"] for d in deltas[1:]] == [*texts, *([rest] if rest else [])]
    assert all(("timings" in chunk) == timings for chunk in found[1:])


def test_reports_on_the_prompt_open_the_turn_and_the_answer_does_so_again() -> None:
    chunks = ChatFormat(HEAD)
    report = msgspec.structs.replace(delta(""), progress=PromptProgress(3, 0, 3, 0.1))
    made = [
        chunks.event(ChatEvent(0, [], report, ChatMessage())),
        chunks.event(ChatEvent(0, [Content("a")], delta("a"), ChatMessage())),
    ]
    found = events(b"".join(made))
    assert [each["choices"][0]["delta"] for each in found] == [AUTHOR, AUTHOR, {"content": "a"}]
    assert ["prompt_progress" in each for each in found] == [True, False, False]


def test_thoughts_and_calls_in_an_answer() -> None:
    message = ChatMessage("", "Hm.", [ToolCall("c1", "f", '{"a":1}')])
    answer = whole(message)
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "reasoning_content": "Hm.",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
        ],
    }


def test_thoughts_and_calls_in_a_stream() -> None:
    chunks = ChatFormat(HEAD)
    deltas: list[ChatDelta] = [Reasoning("Hm."), CallStart(0, "c1", "f"), CallArguments(0, "{}")]
    message = ChatMessage()
    for made in deltas:
        message.add(made)
    found = events(chunks.event(ChatEvent(0, deltas, finished(), message)))
    function = {"name": "f", "arguments": ""}
    start = {"index": 0, "id": "c1", "type": "function", "function": function}
    assert [chunk["choices"][0]["delta"] for chunk in found] == [
        AUTHOR,
        {"reasoning_content": "Hm."},
        {"tool_calls": [start]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]},
        {},
    ]
    assert found[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert chunks.event(ChatEvent(0, [], delta(""), message)) == b""


def streamed(*deltas: ChatDelta, **options: Any) -> list[Any]:
    chunks = ChatFormat(HEAD, **options)
    message = ChatMessage()
    for made in deltas:
        message.add(made)
    found = events(chunks.event(ChatEvent(0, list(deltas), finished(), message)))
    return [chunk["choices"][0] for chunk in found]


def test_calls_of_tools_that_take_a_plain_text() -> None:
    message = ChatMessage("", "", [ToolCall("c1", "patch", "*** Begin", free_text=True)])
    answer = whole(message)
    custom = {"name": "patch", "input": "*** Begin"}
    assert answer["choices"][0]["message"]["tool_calls"] == [
        {"id": "c1", "type": "custom", "custom": custom}
    ]
    start = CallStart(0, "c1", "patch", free_text=True)
    found = streamed(start, CallArguments(0, "*** "), CallArguments(0, "Begin"))
    assert [choice["delta"] for choice in found] == [
        AUTHOR,
        {"tool_calls": [{"index": 0, "id": "c1", "type": "custom",
                         "custom": {"name": "patch", "input": ""}}]},
        {"tool_calls": [{"index": 0, "custom": {"input": "*** "}}]},
        {"tool_calls": [{"index": 0, "custom": {"input": "Begin"}}]},
        {},
    ]  # fmt: skip


def test_the_old_form_of_calls() -> None:
    message = ChatMessage("", "", [ToolCall("c1", "f", "{}")])
    [choice] = whole(message, old_calls=True)["choices"]
    assert choice["finish_reason"] == "function_call"
    assert choice["message"]["function_call"] == {"name": "f", "arguments": "{}"}
    assert "tool_calls" not in choice["message"]
    found = streamed(
        Content("So:"), CallStart(0, "c1", "f"), CallArguments(0, "{}"), old_calls=True
    )
    assert [choice["delta"] for choice in found] == [
        AUTHOR,
        {"content": "So:"},
        {"function_call": {"name": "f", "arguments": ""}},
        {"function_call": {"arguments": "{}"}},
        {},
    ]
    assert found[-1]["finish_reason"] == "function_call"
    assert streamed(Content("So."), old_calls=True)[-1]["finish_reason"] == "stop"
