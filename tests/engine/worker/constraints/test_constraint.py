"""Forced tokens equal the tokens that sampling under the masks would choose."""

import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contract_tests.kit.json_schemas import Schema, schemas
from specllama.engine.grammars.compiling import ConstraintError
from specllama.engine.grammars.gbnf import GrammarError
from specllama.engine.params import (
    AnswerRules,
    GenerationParams,
    GrammarTrigger,
    NamedSchema,
    ThinkingRules,
    Thoughts,
)
from specllama.engine.worker.backend import Model
from specllama.engine.worker.constraints import constraint
from specllama.engine.worker.constraints.compiler import Compiler
from specllama.engine.worker.constraints.constraint import Constraint
from specllama.engine.worker.constraints.lazy import Guide

pytestmark = pytest.mark.slow

MOST_TOKENS = 60
FIM = "<|fim_prefix|>"  # a control token of the shipped model that doesn't end a text
KEYS = {
    "type": "object",
    "properties": {
        "identifier": {"type": "integer"},
        "description": {"enum": ["something", "somewhere"]},
        "available": {"type": "boolean"},
        "constant": {"const": "always the same äöü"},
    },
    "required": ["identifier", "description", "available", "constant"],
}
CALL = 'root ::= "<call>" name "(" [0-9]{1,3} ")</call>" \n name ::= "function" | "fun"'
LARK = f'start: "{FIM}call " @schema " done" @schema "{FIM}"'
ANSWER = AnswerRules(LARK, {"schema": NamedSchema("schema", json.dumps(KEYS))})


def lazily(**params: Any) -> dict[str, Any]:
    return {"grammar_lazy": True, "grammar_triggers": [GrammarTrigger("<call>")], **params}


def thinking(**params: Any) -> dict[str, Any]:
    rules = ThinkingRules(
        Thoughts("<think>", "</think>", open=True),
        budget=params.pop("budget", 3),
        message=params.pop("message", " That is enough of it."),
        control=True,
        anywhere=params.pop("anywhere", False),
    )
    return {"thinking": rules, **params}


PARAMS: dict[str, dict[str, Any]] = {
    "schema": {"json_schema": json.dumps(KEYS)},
    "grammar": {"grammar": CALL},
    "nothing": {"grammar": 'root ::= ""'},
    "fixed": {"grammar": 'root ::= "a fixed text, and no other one: äöü"'},
    "answer": {"answer": ANSWER, "preserved_tokens": [FIM]},
    "lazy": lazily(grammar=CALL),
    "thinking": thinking(),
    "thinking anywhere": thinking(anywhere=True, message=""),
    "thinking, lazy": thinking(**lazily(grammar=CALL)),
    "thinking, schema": thinking(json_schema=json.dumps(KEYS)),
    "thinking in a grammar": thinking(
        grammar='root ::= [a-z ]* "." [^<]* "</think>" "after it, " [0-9]+', budget=5
    ),
    "thinking at once": thinking(budget=0, **lazily(grammar=CALL)),
}


@pytest.fixture(autouse=True)
def every_mask_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is."""
    monkeypatch.setattr(constraint, "INLINE_SECONDS", 60.0)
    monkeypatch.setattr(constraint, "LOOK_SECONDS", 60.0)


def guide_of(compiler: Compiler, model: Model, params: dict[str, Any]) -> Guide:
    made = GenerationParams(**params)
    shown = [
        int(token)
        for text in made.preserved_tokens
        for token in model.tokenize(str(text).encode(), add_special=False, parse_special=True)
    ]
    guide, _ = compiler.guided(msgspec.structs.replace(made, preserved_tokens=[*shown]))
    assert guide is not None
    return guide


def allowed_of(guide: Guide) -> list[int] | None:
    """Returns the allowed next tokens, once they are known; None for the end, or if they are
    unknown."""
    try:
        if guide.ended:
            return []
        allowed = guide.allowed
    except ConstraintError:
        return []
    return None if allowed is None else allowed.ids.tolist()


class Words:
    """Chooses tokens: those of a text, where they may come, or any."""

    def __init__(self, model: Model, seed: int) -> None:
        self._chance = random.Random(seed)
        texts = ["a<call>function(12)</call>", "<think> so </think>", '{"identifier": 12, "', " a."]
        text = self._chance.choice(texts)
        ids = model.tokenize(text.encode(), add_special=False, parse_special=True)
        self._ids: list[int] = ids.tolist()

    def choose(self, allowed: list[int] | None) -> int:
        if self._ids and (allowed is None or self._ids[0] in allowed):
            return self._ids.pop(0)
        token: int = self._chance.choice(allowed or [*range(1000, 1100)])
        return token


def run_of(compiler: Compiler, model: Model, params: dict[str, Any], seed: int, n: int) -> int:
    """Walks through a text at random with two guides, one of which is asked for forced tokens.
    Returns the number of forced tokens."""
    plain, asked = (guide_of(compiler, model, params) for _ in range(2))
    words, chance, n_forced = Words(model, seed), random.Random(seed), 0
    expected: list[int] = []
    for _ in range(MOST_TOKENS):
        allowed = allowed_of(plain)
        if asked.awaited is not None:
            asked.awaited.result()
        if looks := chance.random() < 0.7:
            asked.look()
        is_asked = chance.random() < 0.7
        forced = asked.forced(n) if is_asked else []
        assert len(forced) <= n
        assert forced[: len(expected)] == expected[: len(forced)]
        expected = max(forced, expected, key=len)
        if looks and is_asked and n and allowed is not None and len(allowed) == 1:
            assert forced or allowed[0] in model.eog
        fork = asked.fork()
        assert fork.forced(n)[: len(forced)] == forced
        likely = asked.likely(n)
        assert len(likely) <= n
        assert likely[: len(forced)] == forced
        assert allowed_of(asked) == allowed
        assert allowed_of(fork) == allowed
        if allowed == []:
            assert not forced
            return n_forced
        if expected:
            assert allowed == [expected[0]]
            assert expected[0] not in model.eog
            n_forced += 1
        token = words.choose(allowed)
        expected = expected[1:]
        if token in model.eog:
            return n_forced
        ends = plain.advance(token)
        assert asked.advance(token) == ends
        assert fork.advance(token) == ends
        if ends:
            assert not expected
            return n_forced
    return n_forced


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
@settings(max_examples=25, deadline=None, suppress_health_check=[*HealthCheck])
@given(seed=st.integers(0, 2**32), n=st.sampled_from([0, 1, 2, 7, 100]))
def test_forced_tokens_are_the_ones_that_the_masks_allow(
    compiler: Compiler, model: Model, params: dict[str, Any], seed: int, n: int
) -> None:
    run_of(compiler, model, params, seed, n)


@settings(max_examples=60, deadline=None, suppress_health_check=[*HealthCheck])
@given(schema=schemas(), seed=st.integers(0, 2**32), n=st.sampled_from([1, 3, 100]))
def test_of_any_schema(compiler: Compiler, model: Model, schema: Schema, seed: int, n: int) -> None:
    try:
        run_of(compiler, model, {"json_schema": json.dumps(schema)}, seed, n)
    except GrammarError:
        return


@pytest.mark.parametrize(
    "name",
    ["schema", "grammar", "fixed", "thinking", "thinking, lazy", "thinking in a grammar", "lazy"],
)
def test_there_is_something_forced(compiler: Compiler, model: Model, name: str) -> None:
    """Or the tests above would pass without anything to find."""
    assert sum(run_of(compiler, model, PARAMS[name], seed, 5) for seed in range(16)) > 8


def whole(compiler: Compiler, model: Model, params: dict[str, Any]) -> tuple[list[int], Guide]:
    """A fixed text, token by token."""
    guide, tokens = guide_of(compiler, model, params), []
    while (allowed := allowed_of(guide)) and len(allowed) == 1:
        tokens += allowed
        if guide.advance(allowed[0]):
            break
    return tokens, guide


def test_a_fixed_text_is_forced_to_its_end(compiler: Compiler, model: Model) -> None:
    tokens, _ = whole(compiler, model, PARAMS["fixed"])
    text = "a fixed text, and no other one: äöü".encode()
    assert b"".join(model.piece(token, special=False) for token in tokens) == text
    guide = guide_of(compiler, model, PARAMS["fixed"])
    assert guide.forced(1000) == tokens, "and nothing behind the end"
    assert guide.forced(3) == tokens[:3]
    assert guide.forced(0) == []
    for i, token in enumerate(tokens):
        assert guide.forced(1000) == tokens[i:]
        assert guide.advance(token) == (i == len(tokens) - 1)
    assert guide.ended


def test_a_misplaced_token_is_reported(compiler: Compiler, model: Model) -> None:
    guide = guide_of(compiler, model, PARAMS["fixed"])
    first, *_ = guide.forced(10)
    with pytest.raises(ConstraintError, match="doesn't allow"):
        guide.advance(first + 1)


def test_forced_tokens_end_the_reasoning(compiler: Compiler, model: Model) -> None:
    guide = guide_of(compiler, model, thinking(budget=1))
    [word] = model.tokenize(b"a", add_special=False, parse_special=False)[:1].tolist()
    assert guide.forced(100) == []
    guide.advance(word)
    forced = guide.forced(100)
    text = b"".join(model.piece(token, special=True) for token in forced)
    assert text == b" That is enough of it.</think>"
    for token in forced:
        assert allowed_of(guide) == [token]
        guide.advance(token)
    assert guide.forced(100) == []
    assert guide.allowed is None


def test_a_failure_waits_for_its_turn(
    compiler: Compiler, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The matcher runs ahead of the text: its error is none before the text has come there."""
    tokens, _ = whole(compiler, model, PARAMS["fixed"])
    guide = guide_of(compiler, model, PARAMS["fixed"])
    assert isinstance(guide, Constraint)
    behind, n_done = guide._behind, 0

    def failing(*args: Any) -> Any:
        nonlocal n_done
        n_done += 1
        if n_done > 2:
            raise ConstraintError("too much")
        return behind(*args)

    monkeypatch.setattr(guide, behind.__name__, failing)
    assert guide.forced(100) == tokens[:3]
    assert guide.forced(100) == tokens[:3]
    assert [guide.advance(token) for token in tokens[:2]] == [False, False]
    assert allowed_of(guide) == [tokens[2]]
    with pytest.raises(ConstraintError, match="too much"):
        guide.advance(tokens[2])


def test_likely_tokens_are_the_tokenizers_spelling(compiler: Compiler, model: Model) -> None:
    """With control tokens that are text nothing is forced, as there are many spellings."""
    guide = guide_of(compiler, model, PARAMS["answer"])
    likely = guide.likely(100)
    text = b"".join(model.piece(token, special=True) for token in likely)
    assert text.startswith(f"{FIM}call".encode())
    [marker] = model.tokenize(FIM.encode(), add_special=False, parse_special=True).tolist()
    assert likely[0] == marker, "rather than spelled out"
    assert guide.forced(100) == []
    for token in likely[:3]:
        assert token in (allowed_of(guide) or [])
        guide.advance(token)
    assert guide.likely(2) == likely[3:5]


def test_forced_tokens_after_a_slow_mask_are_known_at_once(
    compiler: Compiler, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masks that take long are computed in another thread, but not for what needs no look."""
    monkeypatch.setattr(constraint, "INLINE_SECONDS", 0.0)
    guide = guide_of(compiler, model, {"grammar": 'root ::= ("yes" | "no") ", that is how it is"'})
    [word] = model.tokenize(b"no", add_special=False, parse_special=False).tolist()
    assert word in (allowed_of(guide) or [])
    guide.advance(word)
    assert guide.awaited is None
    assert len(guide.forced(100)) == 1, "what comes behind it may take long again"


def test_a_long_text_that_is_forced_is_left_to_another_thread(
    compiler: Compiler, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constraint, "INLINE_SECONDS", 0.0)
    monkeypatch.setattr(constraint, "LOOK_SECONDS", 0.0)
    guide = guide_of(compiler, model, {"grammar": 'root ::= ("yes" | "no") ", that is how it is"'})
    [word] = model.tokenize(b"no", add_special=False, parse_special=False).tolist()
    guide.advance(word)
    assert isinstance(guide, Constraint)
    assert guide._pending is not None
    guide._pending.result()
    assert len(guide.forced(100)) == 1


FREE = {"grammar": 'root ::= [^.]* ". This is the end."'}


def test_a_mask_after_a_free_choice_is_determined_later(
    compiler: Compiler, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a device computes, or at the next choice."""
    guide = guide_of(compiler, model, FREE)
    assert isinstance(guide, Constraint)
    [word] = model.tokenize(b"a", add_special=False, parse_special=False)[:1].tolist()
    determined = guide._masks.next
    masks: list[Any] = []

    def counted(*args: Any) -> Any:
        masks.append(determined(*args))
        return masks[-1]

    monkeypatch.setattr(guide._masks, "next", counted)
    assert not guide.advance(word)
    assert guide.forced(9) == guide.likely(9) == []
    assert not masks
    fork = guide.fork()
    guide.look()
    guide.look()
    assert len(masks) == 1
    assert guide.allowed is masks[0].allowed
    assert allowed_of(fork) == allowed_of(guide)

    def failing(*args: Any) -> Any:
        raise ConstraintError("too much")

    monkeypatch.setattr(guide._masks, "next", failing)
    assert not guide.advance(word)
    guide.look()
    with pytest.raises(ConstraintError, match="too much"):
        _ = guide.allowed


def test_forced_text_after_a_free_choice_is_known_at_once(compiler: Compiler, model: Model) -> None:
    guide = guide_of(compiler, model, FREE)
    stop, *rest = model.tokenize(b". This is the end.", add_special=False, parse_special=False)
    assert not guide.advance(int(stop))
    assert guide.likely(3) == [int(token) for token in rest[:3]]
