"""Ollama's answers to a prompt, whole and line by line."""

import asyncio
import json
from typing import Any

from specllama.engine import system
from specllama.engine.chat.output import ChatDelta, ChatMessage, Content, Reasoning
from specllama.engine.errors import ErrorInfo
from specllama.handlers.apis.ollama.format import Watch
from specllama.handlers.apis.ollama.generation import GenerationFormat
from specllama.handlers.http.errors import HttpFailure
from specllama.handlers.running.chat_batch import ChatAnswer, ChatEvent
from tests.support.factories import delta, finished


async def context_of(text: str) -> list[int]:
    return [1, *text.encode()]


def events(*texts: tuple[str, list[ChatDelta]], stop_type: Any = "eos") -> list[ChatEvent]:
    """Returns events of a stream, each with the engine's text and the parsed delta."""
    message, made = ChatMessage(), []
    for index, (text, deltas) in enumerate(texts):
        for each in deltas:
            message.add(each)
        is_last = index == len(texts) - 1
        source = finished(text, stop_type=stop_type) if is_last else delta(text)
        made.append(ChatEvent(0, deltas, source, message))
    return made


def lines(form: GenerationFormat, given: list[ChatEvent]) -> list[dict[str, Any]]:
    data = b"".join(form.event(event) for event in given) + asyncio.run(form.end())
    assert data.endswith(b"\n")
    return [json.loads(line) for line in data.splitlines()]


THOUGHT: list[tuple[str, list[ChatDelta]]] = [
    ("<think>a", [Reasoning("a")]),
    ("</think>b", [Content("b")]),
    ("", []),
]


def test_a_stream() -> None:
    *pieces, last = lines(
        GenerationFormat("m", Watch(0.0, 0.0), None, context_of), events(*THOUGHT)
    )
    assert [(piece["response"], piece.get("thinking")) for piece in pieces] == [
        ("", "a"),
        ("b", None),
    ]
    assert all(piece["done"] is False and piece["model"] == "m" for piece in pieces)
    assert (last["response"], last["done"], last["done_reason"]) == ("", True, "stop")
    assert last["context"] == [1, *b"<think>a</think>b"]
    assert (last["prompt_eval_count"], last["load_duration"]) == (7, 0)


def test_a_whole_answer() -> None:
    message = ChatMessage("b", "a")
    given = [ChatEvent(0, [], finished("<think>a</think>b"), message)]
    form = GenerationFormat("m", Watch(0.0, 0.0), None, context_of)
    answer = asyncio.run(form.whole([ChatAnswer(message, finished(), given)]))
    assert (answer["response"], answer["thinking"], answer["done"]) == ("b", "a", True)
    assert answer["context"] == [1, *b"<think>a</think>b"]


def test_without_a_context() -> None:
    given = events(("b", [Content("b")]), stop_type="limit")
    [piece, last] = lines(GenerationFormat("m", Watch(0.0, 0.0)), given)
    assert piece["response"] == "b"
    assert last["done_reason"] == "length"
    assert "context" not in last


def test_a_failure_is_a_line() -> None:
    failure = HttpFailure(500, ErrorInfo("server_error", "gone"))
    assert json.loads(GenerationFormat("m", Watch(0.0, 0.0)).failed(failure)) == {"error": "gone"}


def test_a_model_that_is_loaded_first() -> None:
    now = system.now()
    assert Watch(now, now).durations()["load_duration"] == 0
    durations = Watch(now - 2, now - 1).durations()
    assert 0 < durations["load_duration"] < durations["total_duration"]
