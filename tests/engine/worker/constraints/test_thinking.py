"""Limits of thinking: of texts made up token by token, and in generations of the shipped model."""

import re
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.errors import EngineError
from specllama.engine.params import TOOL_CALLS, GenerationParams, ThinkingRules, Thoughts
from specllama.engine.wire.replies import Delta, Finished
from specllama.engine.wire.requests import Submit
from specllama.engine.worker.backend import Model
from specllama.engine.worker.constraints.thinking import ThinkingLimit
from specllama.engine.worker.generation.engine import Engine
from specllama.engine.worker.tokens import TokenSet
from tests.support.options_support import engine_options
from tests.support.playing import stepped

PIECES = [b"a", b"<t>", b"</t>", b"<", b"t>", b"/t>", b"\xc3", b"\xa4", b"!", b"END", b"</t>b"]
CLOSING = [3, 5]  # "<", "/t>"
MESSAGE = [8, 8]  # "!!"


def rules(**options: Any) -> ThinkingRules:
    thoughts = Thoughts("<t>", "</t>", options.pop("open", False), options.pop("other_ends", []))
    return ThinkingRules(thoughts, **options)


def limit(**options: Any) -> ThinkingLimit:
    message = MESSAGE if options.get("message") else []
    return ThinkingLimit(None, rules(**options), message, CLOSING, PIECES)


def say(guide: ThinkingLimit, *tokens: int, free: int = 0) -> bytes:
    """Returns the text of `tokens`, which the guide may replace, and of the tokens that it adds
    after them."""
    text = b""
    for token in [*tokens, *[free] * 8]:
        allowed = guide.allowed
        chosen = token if allowed is None else int(allowed.ids[0])
        guide.advance(chosen)
        text += PIECES[chosen]
    return text


def test_a_budget_ends_the_thoughts() -> None:
    assert say(limit(open=True, budget=2)).startswith(b"aa</t>a")
    assert say(limit(open=True, budget=0)).startswith(b"</t>a")
    assert say(limit(open=False, budget=0)) == b"a" * 8
    assert say(limit(open=False, budget=1), 1).startswith(b"<t>a</t>a")


def test_the_message_stands_before_the_end() -> None:
    assert say(limit(open=True, budget=1, message="!!")).startswith(b"a!!</t>a")


def test_no_character_is_cut() -> None:
    assert say(limit(open=True, budget=1), 6, 7).startswith("ä</t>".encode())


def test_only_anywhere_means_anywhere() -> None:
    assert say(limit(budget=0), 0, 1).startswith(b"a<t>aa")
    both = say(limit(budget=1, anywhere=True, message="!!"), 0, 1, 0, 0, 0, 0, 0, 0, 1)
    assert both.startswith(b"a<t>a!!</t>a<t>a</t>"), "the message comes once, the budget again"


def test_any_end_ends_them() -> None:
    ends = limit(open=True, budget=3, other_ends=["END"], anywhere=True)
    assert say(ends, 0, 9) == b"aEND" + b"a" * 8


def test_a_message_with_the_end_in_it() -> None:
    guide = ThinkingLimit(None, rules(open=True, budget=0), [10], CLOSING, PIECES)
    assert say(guide) == b"</t>b" + b"a" * 7


def test_a_client_ends_them() -> None:
    guide = limit(open=True, control=True, message="!!")
    guide.advance(0)
    assert guide.allowed is None
    guide.end()
    guide.end()
    assert say(guide).startswith(b"!!</t>a")
    guide.end()
    assert guide.allowed is None, "there are no thoughts to end"
    waiting = limit(open=True, control=True)
    waiting.advance(6)
    waiting.end()
    assert waiting.allowed is None, "in the middle of a character"
    waiting.advance(7)
    assert say(waiting).startswith(b"</t>")


class Without:
    """A constraint that never allows one of the tokens."""

    ended = False
    awaited: Future[Any] | None = None

    def __init__(self, forbidden: int) -> None:
        allowed = [token for token in range(len(PIECES)) if token != forbidden]
        self.allowed = TokenSet.of(allowed, len(PIECES))

    def advance(self, token: int) -> bool:
        assert token in self.allowed
        return False

    def forced(self, n: int) -> list[int]:
        return []

    likely = forced

    def look(self) -> None:
        pass

    def fork(self) -> "Without":
        return self


def test_a_constraint_that_forbids_the_end_wins() -> None:
    guide = ThinkingLimit(
        Without(CLOSING[0]), rules(open=True, budget=0, message="!!"), MESSAGE, CLOSING, PIECES
    )
    assert guide.forced(9) == MESSAGE, "the end would have to come, and can't"
    for token in (8, 8):
        assert guide.allowed is not None
        assert [*guide.allowed.ids] == [token]
        guide.advance(token)
    for _ in range(3):
        assert guide.allowed is not None
        assert len(guide.allowed) == len(PIECES) - 1
        guide.advance(0)


@given(
    st.lists(st.integers(0, len(PIECES) - 1), max_size=40),
    st.integers(0, 4),
    st.booleans(),
    st.sets(st.integers(0, 40)),
)
def test_no_thoughts_are_longer_than_the_budget(
    tokens: list[int], budget: int, is_open: bool, ends: set[int]
) -> None:
    guide = limit(open=is_open, budget=budget, anywhere=True, control=True, message="!!")
    text = b"<t>" if is_open else b""
    n_thought = 0
    for place, token in enumerate(tokens):
        if place in ends:
            guide.end()
        allowed = guide.allowed
        chosen = token if allowed is None else int(allowed.ids[0])
        if allowed is None and is_thinking(text):
            n_thought += 1
            # One more for each piece of an unfinished character.
            assert n_thought <= budget or PIECES[tokens[place - 1]] == b"\xc3"
        guide.advance(chosen)
        text += PIECES[chosen]
        if not is_thinking(text):
            n_thought = 0


def is_thinking(text: bytes) -> bool:
    marker = b"<t>"
    while (at := text.find(marker)) >= 0:
        text = text[at + len(marker) :]
        marker = b"</t>" if marker == b"<t>" else b"<t>"
    return marker == b"</t>"


# ---- generations -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine(model: Model) -> Iterator[Engine]:
    engine = Engine(model, engine_options(flash_attn="off", cache_type_k="f32", cache_type_v="f32"))
    yield engine
    engine.close()


def finish(engine: Engine, end_after: int = -1, **params: Any) -> tuple[Finished, str]:
    """The end, and all text; `end_after` so many tokens the thoughts are ended."""
    asked = GenerationParams(**{"n_predict": 40, "seed": 1, "stream": True, **params})
    request = engine.preparation.prepare(Submit(0, ["Once upon a time"], asked))
    events = list(engine.submit(request))
    while engine.has_work:
        if request.n_decoded == end_after:
            engine.end_thoughts(0)
        events += stepped(engine)
    assert isinstance(events[-1], Finished), events[-1]
    return events[-1], "".join(e.text for e in events if isinstance(e, Delta))


OPEN = Thoughts("<think>\n", "\n</think>\n\n", open=True)
TAGS = Thoughts("<think>", "</think>", open=True)


@pytest.mark.parametrize("budget", [0, 1, 7])
def test_thoughts_have_a_limit(engine: Engine, budget: int) -> None:
    result, text = finish(engine, thinking=ThinkingRules(OPEN, budget))
    begun, _, _ = text.partition("\n</think>\n\n")
    assert text.startswith(begun + "\n</think>\n\n")
    n_closing = len(engine.model.tokenize(b"\n</think>\n\n", add_special=False, parse_special=True))
    assert begun == (finish(engine, n_predict=budget)[1] if budget else "")
    assert result.n_decoded > budget + n_closing


def test_a_message_in_a_generation(engine: Engine) -> None:
    _, text = finish(engine, thinking=ThinkingRules(OPEN, 3, " Time to answer."))
    assert text.startswith(finish(engine, n_predict=3)[1] + " Time to answer.\n</think>\n\n")


@pytest.mark.slow
def test_a_limit_of_thoughts_beside_a_grammar(engine: Engine) -> None:
    grammar = 'root ::= [^<]* "</think>" [0-9]{3}'
    result, text = finish(engine, thinking=ThinkingRules(TAGS, 5), grammar=grammar)
    assert re.fullmatch("[^<]+</think>[0-9]{3}", text)
    n_closing = len(engine.model.tokenize(b"</think>", add_special=False, parse_special=True))
    assert n_closing + 6 <= result.n_decoded <= n_closing + 8


def test_thoughts_that_were_not_begun_have_no_limit(engine: Engine) -> None:
    thoughts = Thoughts("<think>", "</think>", open=False)
    assert finish(engine, thinking=ThinkingRules(thoughts, 3))[1] == finish(engine)[1]


def test_thoughts_are_ended_from_outside(engine: Engine) -> None:
    armed = ThinkingRules(TAGS, message=" Enough.", control=True)
    _, text = finish(engine, 6, thinking=armed)
    assert text.startswith(finish(engine, n_predict=6)[1] + " Enough.</think>")
    unarmed = ThinkingRules(TAGS, message=" Enough.")
    free = finish(engine)[1]
    assert finish(engine, 6, thinking=unarmed)[1] == free
    assert finish(engine, 6)[1] == free
    engine.end_thoughts(77)


def test_control_tokens_are_markers_too(engine: Engine, model: Model) -> None:
    marker = "<|fim_prefix|>"
    thoughts = Thoughts("<think>", marker, open=True)
    [token] = model.tokenize(marker.encode(), add_special=False, parse_special=True).tolist()
    asked = GenerationParams(n_predict=8, seed=1, thinking=ThinkingRules(thoughts, 3))
    request = engine.preparation.prepare(Submit(0, ["Once upon a time"], asked))
    assert isinstance(request.guide, ThinkingLimit)
    for n in range(3):
        assert request.guide.allowed is None, n
        request.guide.advance(0)
    assert request.guide.allowed is not None
    assert [*request.guide.allowed.ids] == [token]
    request.guide.advance(token)
    assert request.guide.allowed is None
    request.guide.end()
    assert request.guide.allowed is None, "the end has been seen"
    request.close()


# ---- grammars that begin in the prompt -----------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"grammar": 'root ::= "abc"'}, "abc"),
        ({"grammar": 'root ::= "abc"', "generation_prompt": "ab"}, "abc"),
        ({"grammar": 'root ::= "abc"', "generation_prompt": "ab", "grammar_type": "x"}, "abc"),
        ({"grammar": 'root ::= "abc"', "generation_prompt": "ab", "grammar_type": TOOL_CALLS}, "c"),
        ({"grammar": 'root ::= "abc"', "generation_prompt": "abc", "grammar_type": TOOL_CALLS}, ""),
        ({"grammar": 'root ::= "abc"', "grammar_type": TOOL_CALLS}, "abc"),
        ({"json_schema": '{"const": "abc"}', "generation_prompt": '"ab'}, 'c"'),
    ],
)
def test_a_grammar_may_have_begun(engine: Engine, params: dict[str, Any], text: str) -> None:
    assert finish(engine, **params)[1] == text


@pytest.mark.slow
def test_a_grammar_that_has_begun_differently(engine: Engine) -> None:
    grammar = 'root ::= "abc"'
    with pytest.raises(EngineError, match="no text begins with the generation_prompt 'xy'"):
        finish(engine, grammar=grammar, generation_prompt="xy", grammar_type=TOOL_CALLS)
