"""Google's answers: the same content whether whole or in the pieces of a stream."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract_tests.kit.contract import answers, find
from contract_tests.kit.events import check_events, read_events
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
from specllama.engine.wire.replies import Finished, TokenProbs
from specllama.handlers.apis.gemini.format import ArrayFrames, EventFrames, GeminiFormat
from specllama.handlers.apis.probabilities import Probabilities
from specllama.handlers.http.envelopes.gemini import gemini_error
from specllama.handlers.http.errors import HttpFailure
from specllama.handlers.http.json_answer import encode
from specllama.handlers.running.chat_batch import ChatAnswer, ChatEvent
from tests.support.factories import delta, finished

GENERATE = find("POST", "/v1beta/models/m:generateContent")
STREAM = find("POST", "/v1beta/models/m:streamGenerateContent")
CALLED = ToolCall("a", "f", "{}")
PROBS = [TokenProbs(5, b"a", -0.5, [(5, b"a", -0.5), (6, b"\xc3", -2.0)])]
USAGE = {
    "promptTokenCount": 7,
    "cachedContentTokenCount": 4,
    "candidatesTokenCount": 2,
    "totalTokenCount": 9,
}


async def n_words(text: str) -> int:
    return len(text.split())


def form(frames: EventFrames | None = None, **options: Any) -> GeminiFormat:
    fields = {"shows_thoughts": True, "is_enum": False, "probabilities": None, **options}
    return GeminiFormat("m", frames or EventFrames(), n_written=n_words, **fields)


def whole(*answered: ChatAnswer | ChatMessage, **options: Any) -> Any:
    results = [
        ChatAnswer(each, finished()) if isinstance(each, ChatMessage) else each for each in answered
    ]
    answer = json.loads(encode(asyncio.run(form(**options).whole(results))))
    schema = answers(GENERATE, 200)["application/json"]["schema"]
    assert not list(errors(schema, answer))
    assert answer["modelVersion"] == "m"
    return answer


def sent(
    source: GeminiFormat, deltas: list[list[ChatDelta]], end: Finished | None = None, index: int = 0
) -> bytes:
    """Returns the sent pieces of answer number `index`, which arrives in `deltas`, without the last
    one."""
    message = ChatMessage(calls=[])
    data = source.begin(ChatEvent(index, [], delta(), message))
    for each in deltas:
        for one in each:
            message.add(one)
        data += source.event(ChatEvent(index, each, delta(), message))
    return data + source.event(ChatEvent(index, [], end or finished(), message))


def streamed(deltas: list[list[ChatDelta]], end: Finished | None = None, **options: Any) -> Any:
    """Returns the pieces of a stream, after checking that events and array are equal."""
    found: list[list[Any]] = []
    media = answers(STREAM, 200)
    for frames in (EventFrames(), ArrayFrames()):
        source = form(frames, **options)
        data = sent(source, deltas, end) + asyncio.run(source.end())
        if isinstance(frames, ArrayFrames):
            pieces = json.loads(data)
            assert not list(errors(media["application/json"]["schema"], pieces))
        else:
            pieces = check_events(media[EVENT_STREAM], list(read_events([data])))
        assert len({piece.pop("responseId") for piece in pieces}) == 1
        found.append(pieces)
    assert found[0] == found[1]
    return found[0]


def parts_of(pieces: list[Any]) -> list[Any]:
    """Returns all parts in their order, with successive texts joined."""
    joined: list[Any] = []
    for piece in pieces:
        for part in piece["candidates"][0]["content"]["parts"]:
            if joined and "text" in part and part.keys() == joined[-1].keys():
                joined[-1] = {**part, "text": joined[-1]["text"] + part["text"]}
            elif part != {"text": ""}:
                joined.append(part)
    return joined


# ---- whole answers -----------------------------------------------------------------------------


def test_an_answer() -> None:
    message = ChatMessage("Hello", "hm so", [ToolCall("a", "f", '{"b": [1]}')])
    answer = whole(message)
    assert answer["candidates"] == [
        {
            "content": {
                "parts": [
                    {"text": "hm so", "thought": True},
                    {"text": "Hello"},
                    {"functionCall": {"id": "a", "name": "f", "args": {"b": [1]}}},
                ],
                "role": "model",
            },
            "finishReason": "STOP",
            "index": 0,
        }
    ]
    counts = {"candidatesTokenCount": 0, "thoughtsTokenCount": 2}
    assert answer["usageMetadata"] == {**USAGE, **counts}


def test_thoughts_that_are_not_shown_are_counted() -> None:
    answer = whole(ChatMessage("Hello", "hm"), shows_thoughts=False)
    assert answer["candidates"][0]["content"]["parts"] == [{"text": "Hello"}]
    assert answer["usageMetadata"]["thoughtsTokenCount"] == 1
    assert answer["usageMetadata"]["candidatesTokenCount"] == 1


def test_nothing() -> None:
    answer = whole(ChatMessage())
    assert answer["candidates"][0]["content"] == {"parts": [], "role": "model"}
    assert answer["usageMetadata"] == USAGE


def test_several_answers_have_one_prompt() -> None:
    answer = whole(ChatMessage("a"), ChatMessage("b"))
    assert [each["index"] for each in answer["candidates"]] == [0, 1]
    usage = {**USAGE, "candidatesTokenCount": 4, "totalTokenCount": 11}
    assert answer["usageMetadata"] == usage


@pytest.mark.parametrize(
    ("end", "calls", "reason"),
    [
        (finished(), [], "STOP"),
        (finished(), [CALLED], "STOP"),
        (finished(stop_type="word"), [], "STOP"),
        (finished(stop_type="limit"), [], "MAX_TOKENS"),
        (finished(stop_type="limit"), [CALLED, ToolCall("b", "f", "{")], "MAX_TOKENS"),
        (finished(stop_type="word"), [ToolCall("b", "f", '{"b')], "MALFORMED_FUNCTION_CALL"),
        (finished(), [ToolCall("b", "f", "[]"), CALLED], "MALFORMED_FUNCTION_CALL"),
    ],
)  # fmt: skip
def test_reasons_for_the_end(end: Finished, calls: list[ToolCall], reason: str) -> None:
    [candidate] = whole(ChatAnswer(ChatMessage(calls=calls), end))["candidates"]
    assert candidate["finishReason"] == reason
    made = [part["functionCall"]["id"] for part in candidate["content"]["parts"]]
    assert made == [call.id for call in calls if call.arguments == "{}"]
    assert ("finishMessage" in candidate) == (reason == "MALFORMED_FUNCTION_CALL")


def test_messages_about_invalid_calls() -> None:
    calls = [ToolCall("a", "f", "1"), ToolCall("b", "g", '{"b":')]
    [candidate] = whole(ChatMessage(calls=calls))["candidates"]
    assert candidate["finishMessage"] == 'f: 1\ng: {"b":'


def test_probabilities() -> None:
    chosen = [{"token": "a", "tokenId": 5, "logProbability": -0.5}]
    rival = {"token": "", "tokenId": 6, "logProbability": -2.0}
    message = ChatMessage("a")
    event = ChatEvent(0, [Content("a")], finished(), message, PROBS)
    answer = ChatAnswer(message, finished(), [event])
    for n_top, tops in ((0, []), (1, chosen), (2, [*chosen, rival])):
        probabilities = Probabilities(n_top, post_sampling=False)
        [candidate] = whole(answer, probabilities=probabilities)["candidates"]
        expected = {"chosenCandidates": chosen, "topCandidates": [{"candidates": tops}]}
        assert candidate["logprobsResult"] == expected
        source = form(probabilities=probabilities)
        source.begin(event)
        piece = json.loads(source.event(event).removeprefix(b"data: "))
        assert piece["candidates"][0]["logprobsResult"] == expected


@pytest.mark.parametrize(("said", "text"), [('"a\\"b"', 'a"b'), ('"a', '"a'), ("5", "5")])
def test_a_value_that_comes_whole(said: str, text: str) -> None:
    answer = whole(ChatMessage(said, "hm"), is_enum=True)
    assert answer["candidates"][0]["content"]["parts"][1:] == [{"text": text}]
    deltas: list[list[ChatDelta]] = [[Reasoning("hm")]]
    deltas += [[Content(each)] for each in said]
    _, last = streamed(deltas, is_enum=True)
    assert parts_of([last]) == [{"text": text}]
    assert whole(ChatMessage(), is_enum=True)["candidates"][0]["content"]["parts"] == []
    assert len(streamed([], is_enum=True)) == 1


# ---- streams -----------------------------------------------------------------------------------


def test_a_stream() -> None:
    first, second, last = streamed([[Reasoning("hm")], [Content("Hel"), Content("lo")]])
    assert first["candidates"] == [
        {"content": {"parts": [{"text": "hm", "thought": True}], "role": "model"}, "index": 0}
    ]
    assert second["candidates"][0]["content"]["parts"] == [{"text": "Hel"}, {"text": "lo"}]
    assert last["candidates"] == [
        {
            "content": {"parts": [{"text": ""}], "role": "model"},
            "finishReason": "STOP",
            "index": 0,
        }
    ]
    counts = {"candidatesTokenCount": 1, "thoughtsTokenCount": 1}
    assert last["usageMetadata"] == {**USAGE, **counts}


def test_thoughts_that_are_not_shown() -> None:
    first, last = streamed([[Reasoning("hm")], [Content("a")]], shows_thoughts=False)
    assert parts_of([first]) == [{"text": "a"}]
    assert last["usageMetadata"]["thoughtsTokenCount"] == 1


def test_calls_come_whole() -> None:
    call = {"id": "a", "name": "f", "args": {"b": 1}}
    begun: list[list[ChatDelta]] = [
        [CallStart(0, "a", "f")],
        [CallArguments(0, '{"b"')],
        [CallArguments(0, ": 1}")],
    ]
    [last] = streamed(begun)
    assert parts_of([last]) == [{"functionCall": call}]
    first, last = streamed([*begun, [Content("so")]])
    assert parts_of([first]) == [{"functionCall": call}, {"text": "so"}]
    first, last = streamed([*begun, [CallStart(1, "c", "g"), CallArguments(1, "{}")]])
    assert parts_of([first]) == [{"functionCall": call}]
    assert parts_of([last]) == [{"functionCall": {"id": "c", "name": "g", "args": {}}}]


def test_a_call_that_is_cut_off() -> None:
    cut: list[list[ChatDelta]] = [[CallStart(0, "a", "f"), CallArguments(0, "{")]]
    [last] = streamed(cut, finished(stop_type="limit"))
    assert last["candidates"][0]["finishReason"] == "MAX_TOKENS"
    assert last["candidates"][0]["content"]["parts"] == [{"text": ""}]


def test_several_answers_in_a_stream() -> None:
    source = form()
    texts: dict[int, list[ChatDelta]] = {1: [Content("b")], 0: [Content("a")]}
    data = b"".join(sent(source, [each], index=index) for index, each in texts.items())
    data += asyncio.run(source.end())
    *pieces, last = check_events(answers(STREAM, 200)[EVENT_STREAM], list(read_events([data])))
    assert [each["candidates"][0]["index"] for each in pieces] == [1, 0]
    assert [each["index"] for each in last["candidates"]] == [0, 1]
    assert last["usageMetadata"]["totalTokenCount"] == 11


@pytest.mark.parametrize("status", [400, 500, 503])
def test_a_stream_that_fails(status: int) -> None:
    failure = HttpFailure(status, ErrorInfo("server_error", "dead"))
    error = gemini_error(failure)
    source = form()
    assert source.failed(failure) == b"data: %b\n\n" % encode(error)
    for texts in ([], ["a"]):
        source = form(ArrayFrames())
        pieces = json.loads(
            sent(source, [[Content(text)] for text in texts]) + source.failed(failure)
        )
        assert pieces[-1] == error
        schema = answers(STREAM, 200)["application/json"]["schema"]
        assert not list(errors(schema, pieces))


DELTAS = st.lists(
    st.lists(
        st.builds(Content, st.text(min_size=1, max_size=4))
        | st.builds(Reasoning, st.text(min_size=1, max_size=4))
        | st.just(None),
        max_size=4,
    ),
    max_size=6,
)


@given(DELTAS)
def test_a_stream_equals_the_plain_answer(given_: list[list[Any]]) -> None:
    deltas: list[list[ChatDelta]] = []
    message = ChatMessage(calls=[])
    for each in given_:
        deltas.append([])
        for one in each:
            if one is None:  # a call
                n = len(message.calls)
                new: list[ChatDelta] = [CallStart(n, f"c{n}", "f"), CallArguments(n, '{"a": 1}')]
            else:
                new = [one]
            for made in new:
                message.add(made)
            deltas[-1] += new
    pieces = streamed(deltas)
    answer = whole(message)
    assert pieces[-1]["usageMetadata"] == answer["usageMetadata"]
    said = answer["candidates"][0]["content"]["parts"]
    calls = [[part for part in each if "functionCall" in part] for each in (parts_of(pieces), said)]
    assert calls[0] == calls[1]
    for thought in (False, True):
        texts = [p["text"] for p in parts_of(pieces) if "text" in p and ("thought" in p) == thought]
        assert "".join(texts) == (message.reasoning if thought else message.content)


# ---- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 401, 404, 408, 413, 415, 500, 501, 503])
def test_errors_are_those_of_the_description(status: int) -> None:
    error = gemini_error(HttpFailure(status, ErrorInfo("server_error", "why")))
    schema = answers(GENERATE, status)["application/json"]["schema"]
    assert not list(errors(schema, error))
    assert error["error"]["message"] == "why"


@pytest.mark.parametrize(
    ("status", "name"), [(403, "PERMISSION_DENIED"), (405, "INVALID_ARGUMENT"), (507, "INTERNAL")]
)
def test_other_errors(status: int, name: str) -> None:
    error = gemini_error(HttpFailure(status, ErrorInfo("server_error", "why")))
    assert error["error"] == {"code": status, "message": "why", "status": name}


def test_too_long_a_prompt() -> None:
    info = ErrorInfo("exceed_context_size_error", "why", n_prompt_tokens=9, n_ctx=4)
    said = gemini_error(HttpFailure(400, info))["error"]["message"]
    assert said.startswith("The input token count (9) exceeds the maximum number of tokens allowed")
    assert said.endswith("(4); why")
