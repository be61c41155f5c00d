"""Anthropic's answers: the same content whether whole or as the events of a stream."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract_tests.kit.contract import find
from contract_tests.kit.events import Event, check_events, read_events
from contract_tests.kit.lint import EVENT_STREAM, errors
from specllama.engine.chat.output import (
    CallArguments,
    CallStart,
    ChatDelta,
    ChatMessage,
    Content,
    Reasoning,
    ToolCall,
)
from specllama.engine.errors import ErrorInfo
from specllama.engine.wire.replies import Delta, Finished, PromptProgress
from specllama.handlers.apis.anthropic.format import AnthropicFormat, MessageFormat
from specllama.handlers.http.envelopes.anthropic import PING, anthropic_error, error_headers
from specllama.handlers.running.chat_batch import ChatAnswer, ChatEvent
from tests.support.factories import TIMINGS, delta, finished

FORM = MessageFormat("m", stop_sequences=["END"])
USAGE = {
    "input_tokens": 3,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 4,
    "output_tokens": 2,
    "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
    "inference_geo": None,
    "output_tokens_details": None,
    "server_tool_use": None,
    "service_tier": "standard",
}


def stopped(word: str) -> Finished:
    return finished(stop_type="word", stopping_word=word)


def streamed(
    deltas: list[list[ChatDelta]], form: MessageFormat = FORM, end: Finished | None = None
) -> list[Event]:
    """Returns the events of an answer that arrives in `deltas`."""
    message = ChatMessage(calls=[])
    progress = Delta(1, "", [], 0, TIMINGS, progress=PromptProgress(7, 4, 4, 0.0))
    source = AnthropicFormat(form, "req_1")
    first = ChatEvent(0, [], progress, message)
    data = source.begin(first) + source.event(first)
    for each in deltas:
        for one in each:
            message.add(one)
        data += source.event(ChatEvent(0, each, delta(), message))
    data += source.event(ChatEvent(0, [], end or finished(), message))
    return list(read_events([data]))


def documents(events: list[Event]) -> list[Any]:
    """Returns the documents of all events, validated against the description."""
    responses = find("POST", "/v1/messages").definition["responses"]
    found: list[Any] = check_events(responses["200"]["content"][EVENT_STREAM], events)
    assert [event.event for event in events] == [each["type"] for each in found]
    return found


def assembled(events: list[Event]) -> dict[str, Any]:
    """Returns the message that a client assembles from the events."""
    message: dict[str, Any] = {}
    blocks: list[dict[str, Any]] = []
    arguments = ""
    for document in documents(events):
        match document["type"]:
            case "message_start":
                message = document["message"]
            case "content_block_start":
                assert document["index"] == len(blocks)
                blocks.append(document["content_block"])
                arguments = ""
            case "content_block_delta":
                delta = document["delta"]
                match delta.pop("type"):
                    case "input_json_delta":
                        arguments += delta["partial_json"]
                    case _:
                        for name, more in delta.items():
                            blocks[-1][name] += more
            case "content_block_stop":
                if blocks[-1]["type"] == "tool_use":
                    blocks[-1]["input"] = json.loads(arguments or "{}")
            case "message_delta":
                message |= {**document["delta"], "usage": document["usage"], "content": blocks}
    return message


def whole(message: ChatMessage, end: Finished | None = None) -> Any:
    answer = FORM.message(ChatAnswer(message, end or finished()))
    responses = find("POST", "/v1/messages").definition["responses"]
    schema = responses["200"]["content"]["application/json"]["schema"]
    assert not list(errors(schema, json.loads(json.dumps(answer))))
    return answer


def without_id(message: dict[str, Any]) -> dict[str, Any]:
    assert message.pop("id").startswith("msg_")
    return message


# ---- whole messages ----------------------------------------------------------------------------


def test_a_message() -> None:
    message = ChatMessage(
        "Hello", "hm", [ToolCall("a", "f", '{"b": [1]}'), ToolCall("c", "g", "{}")]
    )
    tool_use = {"type": "tool_use", "caller": {"type": "direct"}}
    assert without_id(whole(message)) == {
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "text", "text": "Hello", "citations": []},
            {"id": "toolu_a", "name": "f", "input": {"b": [1]}, **tool_use},
            {"id": "toolu_c", "name": "g", "input": {}, **tool_use},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "stop_details": None,
        "container": None,
        "usage": USAGE,
    }
    assert whole(ChatMessage())["content"] == []


@pytest.mark.parametrize("arguments", ['{"b": [', "{", '{"b": 1}}', "1", "[]", '"b"', "null"])
def test_arguments_that_are_no_object_stand_in_one(arguments: str) -> None:
    calls = [ToolCall("a", "f", arguments)]
    message = whole(ChatMessage(calls=calls), finished(stop_type="limit"))
    assert message["content"][0]["input"] == {"INVALID_JSON": arguments}
    assert message["stop_reason"] == "max_tokens"


def test_a_stop_sequence_in_a_call() -> None:
    cut = ChatMessage(calls=[ToolCall("a", "f", '{"b":')], ends_in_call=True)
    for ending in (whole(cut, stopped("END")), FORM.ending(cut, stopped("END"))):
        assert (ending["stop_reason"], ending["stop_sequence"]) == ("stop_sequence", "END")


@pytest.mark.parametrize(
    ("end", "calls", "reason", "word"),
    [
        (finished(), 0, "end_turn", None),
        (finished(), 1, "tool_use", None),
        (finished(stop_type="limit"), 0, "max_tokens", None),
        (finished(stop_type="limit"), 1, "max_tokens", None),
        (finished(stop_type="none"), 0, "max_tokens", None),
        (stopped("END"), 0, "stop_sequence", "END"),
        (
            stopped("<|im_end|>"),
            0,
            "end_turn",
            None,
        ),  # no tool of the client
    ],
)
def test_stop_reasons(end: Finished, calls: int, reason: str, word: str | None) -> None:
    message = ChatMessage("a", calls=[ToolCall("a", "f", "{}")] * calls)
    answer = whole(message, end)
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, word)


def test_hidden_thoughts() -> None:
    form = MessageFormat("m", show_thinking=False)
    answer = form.message(ChatAnswer(ChatMessage("a", "secret"), finished()))
    hidden = {"type": "thinking", "thinking": "", "signature": ""}
    assert answer["content"] == [hidden, {"type": "text", "text": "a", "citations": []}]
    events = streamed([[Reasoning("sec")], [Reasoning("ret"), Content("a")]], form)
    assert assembled(events)["content"] == answer["content"]
    assert not any("sec" in event.data or "ret" in event.data for event in events)


# ---- streams -----------------------------------------------------------------------------------


def test_the_sequence_of_events() -> None:
    deltas: list[list[ChatDelta]] = [
        [Reasoning("h")],
        [],
        [Reasoning("m"), Content("Hel")],
        [Content("lo"), CallStart(0, "a", "f"), CallArguments(0, '{"b"')],
        [CallArguments(0, ": 1}"), CallStart(1, "c", "g"), CallArguments(1, "{}")],
    ]
    events = streamed(deltas)
    start, delta, stop = "content_block_start", "content_block_delta", "content_block_stop"
    assert [event.event for event in events] == [
        *("message_start", "ping"),
        *(start, delta, delta, delta, stop),  # the last delta is the signature
        *(start, delta, delta, stop),
        *(start, delta, delta, stop),
        *(start, delta, stop),
        *("message_delta", "message_stop"),
    ]
    first = documents(events)[0]["message"]
    assert first["usage"] == {**USAGE, "output_tokens": 0}
    assert (first["content"], first["stop_reason"]) == ([], None)


@st.composite
def answers(draw: st.DrawFn) -> tuple[ChatMessage, list[list[ChatDelta]]]:
    """Generates a message, and its deltas in random pieces."""
    deltas: list[ChatDelta] = []
    pieces = st.lists(st.text(min_size=1), max_size=3)
    deltas += [Reasoning(piece) for piece in draw(pieces)]
    deltas += [Content(piece) for piece in draw(pieces)]
    arguments = st.dictionaries(st.text(), st.integers() | st.text() | st.none())
    for index, value in enumerate(draw(st.lists(arguments, max_size=3))):
        text = json.dumps(value)
        cut = draw(st.integers(0, len(text)))
        deltas.append(CallStart(index, f"id{index}", draw(st.text(min_size=1))))
        deltas += [CallArguments(index, part) for part in (text[:cut], text[cut:])]
    message = ChatMessage(calls=[])
    for each in deltas:
        message.add(each)
    groups: list[list[ChatDelta]] = []
    while deltas:
        n = draw(st.integers(1, len(deltas)))
        groups += [deltas[:n], []]  # an event of the engine may have no new text
        deltas = deltas[n:]
    return message, groups


@given(
    answers(),
    st.sampled_from([finished(), finished(stop_type="limit"), stopped("END")]),
)
def test_a_stream_adds_up_to_the_whole_message(
    answer: tuple[ChatMessage, list[list[ChatDelta]]], end: Finished
) -> None:
    message, deltas = answer
    events = streamed(deltas, end=end)
    assert without_id(assembled(events)) == without_id(whole(message, end))


def test_a_ping_is_an_event_of_its_own() -> None:
    [event] = read_events([PING])
    assert (event.event, event.json) == ("ping", {"type": "ping"})


def test_ids_differ_between_requests() -> None:
    assert len({whole(ChatMessage())["id"] for _ in range(100)}) == 100


# ---- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "type_"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (408, "timeout_error"),
        (413, "request_too_large"),
        (415, "invalid_request_error"),
        (500, "api_error"),
        (501, "invalid_request_error"),
        (503, "overloaded_error"),
    ],
)
def test_errors(status: int, type_: str) -> None:
    assert anthropic_error(status, ErrorInfo("server_error", "no"), "req_1") == {
        "type": "error",
        "error": {"type": type_, "message": "no", "code": status},
        "request_id": "req_1",
    }
    assert error_headers("req_1") == {"request-id": "req_1"}


def test_the_error_of_too_long_a_prompt_has_the_words_that_agents_expect() -> None:
    info = ErrorInfo("exceed_context_size_error", "x", n_prompt_tokens=9, n_ctx=8)
    error: Any = anthropic_error(400, info, "req_1")["error"]
    assert error["message"] == "prompt is too long: 9 tokens > 8 maximum; x"
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (9, 8)
