"""Compaction with a scripted model, which counts words as tokens and writes the summaries."""

import asyncio
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from specllama.engine.chat.request import ChatRequest
from specllama.engine.errors import EngineError
from specllama.engine.params import GenerationParams
from specllama.engine.wire.requests import Terms
from specllama.handlers.apis.responses import compaction
from specllama.handlers.apis.responses.compaction import (
    KIND,
    LEFT_OUT,
    RECALL,
    SUMMARIZE,
    AutoCompaction,
    Compacted,
    Compactor,
    expanded,
    newest_turn,
    sealed_item,
)
from specllama.handlers.apis.responses.items import input_items
from specllama.handlers.apis.responses.messages import messages
from specllama.handlers.running.sealing import KEY_BYTES, Seal, Sealing
from tests.support.http_support import request_with

N_QUESTION = len(SUMMARIZE.split())
SEAL = Seal(bytes(KEY_BYTES))
SEALING = Sealing(lambda: bytes(KEY_BYTES))


class Script:
    """The answers of the model; None is one that was cut off. `asked` are the conversations."""

    def __init__(self, *answers: str | None, n_ctx: int = 1000) -> None:
        self.answers = list(answers)
        self.asked: list[list[str]] = []
        self.engine: Any = SimpleNamespace(info=SimpleNamespace(n_ctx=n_ctx))

    def compactor(self) -> Compactor:
        model: Any = None
        return Compactor(model, self.engine, Terms(), GenerationParams(), ChatRequest(messages=[]))


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    async def count(_: Any, engine: Any, chat: ChatRequest) -> int:
        return sum(len(text.split()) for text in texts(chat.messages))

    async def prepare(_: Any, engine: Any, chat: ChatRequest, params: Any) -> ChatRequest:
        return chat

    monkeypatch.setattr(compaction, "count_tokens", count)
    monkeypatch.setattr(compaction, "prepare", prepare)
    with request_with():
        yield


def use(monkeypatch: pytest.MonkeyPatch, script: Script) -> Compactor:
    class Batch:
        def __init__(self, _: Any, chat: ChatRequest, **options: Any) -> None:
            script.asked.append(texts(chat.messages))

        async def __aenter__(self) -> "Batch":
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

        async def results(self) -> list[Any]:
            text = script.answers.pop(0)
            finished = SimpleNamespace(stop_type="limit" if text is None else "eos")
            message = SimpleNamespace(
                content="x" if text is None else text, tool_calls=[], ends_in_call=False
            )
            return [SimpleNamespace(message=message, finished=finished)]

    monkeypatch.setattr(compaction, "ChatBatch", Batch)
    monkeypatch.setattr(
        compaction,
        "finish_reason",
        lambda _, finished: "length" if finished.stop_type == "limit" else "stop",
    )
    return script.compactor()


def items(*said: str, system: str = "") -> list[Any]:
    """Returns the items of a conversation; the user begins."""
    given: Any = [{"role": "system", "content": system}] if system else []
    roles = ("user", "assistant")
    given += [{"role": roles[i % 2], "content": text} for i, text in enumerate(said)]
    return input_items(given)


def texts(found: Sequence[Any]) -> list[str]:
    return [str(each["content"]) for each in found]


def as_read(compacted: Compacted) -> list[str]:
    return texts(messages(compacted.items()))


def compact(compactor: Compactor, given: list[Any], *more: str, n_kept: int = 0) -> Compacted:
    return asyncio.run(compactor.compact(given, *more, n_kept=n_kept))


# ---- the summary


def test_the_model_summarizes_the_whole_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script("  They like figs. ")
    given = items("I like figs.", "Noted.", system="You are Ada.")
    made = compact(use(monkeypatch, script), given)
    assert script.asked == [["You are Ada.", "I like figs.", "Noted.", SUMMARIZE]]
    assert as_read(made) == ["You are Ada.", RECALL, "They like figs."]
    assert made.left_out == 0


def test_instructions_replace_the_request_for_a_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script("Figs.")
    compact(use(monkeypatch, script), items("I like figs."), "Name the fruit.")
    assert script.asked == [["I like figs.", "Name the fruit."]]


def test_the_newest_items_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script("S")
    given = items("a", "b", "c", "d", "e")
    made = compact(use(monkeypatch, script), given, n_kept=newest_turn(given))
    assert script.asked[0][:-1] == ["a", "b", "c", "d"]
    assert as_read(made) == [RECALL, "S", "e"]


def test_nothing_but_the_newest_items_is_not_summarized(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script()
    made = compact(use(monkeypatch, script), items("a", system="s"), n_kept=1)
    assert as_read(made) == ["s", "a"]
    assert not script.asked


def test_a_long_conversation_is_summarized_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each summary includes the one before it."""
    script = Script("one", "two", "three", n_ctx=(N_QUESTION + 29) * 4 // 3)
    said = [f"{name} " * 10 for name in ("a", "b", "c", "d", "e", "f")]
    made = compact(use(monkeypatch, script), items(*said))
    summaries = [asked[1] if asked[0] == RECALL else "" for asked in script.asked]
    assert summaries == ["", "one", "two"]
    parts = [text for asked in script.asked for text in asked if text in said]
    assert parts == said, "each message is read once, in order"
    assert as_read(made) == [RECALL, "three"]
    assert made.left_out == 0


def test_a_turn_longer_than_the_context_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script("S", n_ctx=200)
    made = compact(use(monkeypatch, script), items("x " * 500, "y", "z", "w"))
    assert script.asked == [["z", "w", SUMMARIZE]]
    assert (made.summary, made.left_out) == ("S", 1)


def test_a_summary_that_leaves_no_room_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script("long " * 100, "S", n_ctx=200)
    made = compact(use(monkeypatch, script), items("x " * 90, "y", "z " * 90, "w"))
    assert [asked[0] for asked in script.asked] == ["x " * 90, "z " * 90]
    assert (made.summary, made.left_out) == ("S", 1)


def test_the_number_of_summaries_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "MAX_PASSES", 2)
    script = Script("S", "T", "U", n_ctx=(N_QUESTION + 29) * 4 // 3)
    said = [f"{i} " * 10 for i in range(40)]
    made = compact(use(monkeypatch, script), items(*said))
    assert len(script.asked) <= 3
    assert made.left_out
    assert said[-1] in script.asked[-1]


# ---- without a summary


@pytest.mark.parametrize("answer", ["", " \n", None])
def test_the_oldest_turns_are_left_out_without_a_summary(
    answer: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(answer, n_ctx=1000)
    said = [f"{i} " * 100 for i in range(7)]
    made = compact(use(monkeypatch, script), items(*said, system="s"))
    assert made.summary == ""
    assert made.left_out == 2
    assert as_read(made) == ["s", RECALL, LEFT_OUT % 2, *said[4:]]


def test_the_newest_turn_stays_without_a_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script("", n_ctx=100)
    made = compact(use(monkeypatch, script), items("a " * 20, "b", "c " * 60), n_kept=1)
    assert as_read(made) == [RECALL, LEFT_OUT % 1, "c " * 60]


def test_a_failure_of_the_engine_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: Any) -> ChatRequest:
        raise EngineError.of("unavailable_error", "full")

    monkeypatch.setattr(compaction, "prepare", fail)
    with pytest.raises(EngineError, match="full"):
        compact(use(monkeypatch, Script()), items("a"))


# ---- the item


def test_an_item_takes_the_place_of_all_items_before_it() -> None:
    head, tail = items(system="s"), items("last")
    item: Any = sealed_item(Compacted(head=head, summary="S", tail=tail, left_out=3), SEAL)
    assert (item["type"], item["left_out"]) == ("compaction", 3)
    given = [*items("old", "older", system="other"), *head, item, *items("new")]
    found = asyncio.run(expanded(given, SEALING))
    assert texts(messages(found)) == ["other", "s", RECALL, "S", "last", "new"]


def test_the_last_of_several_items_counts() -> None:
    first: Any = sealed_item(Compacted(summary="first"), SEAL)
    second: Any = sealed_item(Compacted(summary="second"), SEAL)
    found = asyncio.run(expanded([first, *items("x"), second], SEALING))
    assert texts(messages(found)) == [RECALL, "second"]


def test_a_conversation_without_an_item_stays() -> None:
    given = items("a", "b")
    assert asyncio.run(expanded(given, SEALING)) == given


@pytest.mark.parametrize("wrong", ["", "x", "changed", "another kind", "another key"])
def test_an_item_of_another_server_is_refused(wrong: str) -> None:
    item: Any = sealed_item(Compacted(summary="S"), SEAL)
    match wrong:
        case "changed":
            item["encrypted_content"] = item["encrypted_content"][:-8] + "AAAAAAA="
        case "another kind":
            item["encrypted_content"] = SEAL.seal("other", b"{}")
        case "another key":
            item["encrypted_content"] = Seal(b"1" * KEY_BYTES).seal(KIND, b"{}")
        case _:
            item["encrypted_content"] = wrong
    with pytest.raises(EngineError, match="can't be read") as refused:
        asyncio.run(expanded([item], SEALING))
    assert refused.value.info.type == "invalid_request_error"


# ---- by itself


def automatic(
    monkeypatch: pytest.MonkeyPatch, script: Script, given: list[Any], threshold: int | None
) -> tuple[AutoCompaction, list[str]]:
    compactor = use(monkeypatch, script)
    model: Any = None

    def chat(conversation: Sequence[Any]) -> ChatRequest:
        return ChatRequest(messages=messages(conversation))

    made = AutoCompaction(given, threshold, chat, lambda *_: compactor, SEAL)
    return made, texts(asyncio.run(made(model, script.engine)).messages)


@pytest.mark.parametrize("threshold", [10, None])
def test_a_short_conversation_is_not_compacted(
    threshold: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = items("a", "b", "c")
    made, read = automatic(monkeypatch, Script(), given, threshold)
    assert made.item is None
    assert read == ["a", "b", "c"]


@pytest.mark.parametrize(("threshold", "n_words"), [(10, 12), (None, 800)])
def test_a_long_conversation_is_compacted(
    threshold: int | None, n_words: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = items("a " * n_words, "b", "new")
    made, read = automatic(monkeypatch, Script("S", n_ctx=1000), given, threshold)
    assert made.item is not None
    item: Any = made.item
    assert read[-1] == "new"
    assert texts(messages(asyncio.run(expanded([*given, item], SEALING)))) == read
    if threshold is not None:
        assert read == [RECALL, "S", "new"]


def test_one_turn_is_never_compacted(monkeypatch: pytest.MonkeyPatch) -> None:
    made, read = automatic(monkeypatch, Script(), items("a " * 50), 10)
    assert made.item is None
    assert len(read) == 1
