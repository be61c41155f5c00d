"""Texts in memory that can't be cut at any place, which leave the memory and are restored with
their checkpoints.

A conversation branches at the end of a turn, or near the end of a prompt: an answer is generated
again, the last turn is replaced, another client asks about the same document. Each time, the tokens
are the same as without a cache, and only new tokens are evaluated.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specllama.engine.options import EngineOptions, replaced
from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import Finished
from specllama.engine.wire.requests import Submit
from specllama.engine.worker.backend import Model, initialize
from specllama.engine.worker.cache.checkpoints import LAST_MESSAGES, NEAR_END
from specllama.engine.worker.generation.engine import Engine
from specllama.engine.worker.tokens import TokenArray, common_prefix
from tests.support.options_support import engine_options
from tests.support.playing import EXACT, GREEDY, stepped
from tests.support.slots import Slots
from tools.models.build import ensure

pytestmark = pytest.mark.usefixtures("restoring_pays")

N_PREDICT = 12
A, B = (f"def function_{i}(self):\n" + f"    self.value_{i} += {i}\n" * 20 for i in "ab")
QUESTIONS = ["return self.value", "raise ValueError", "yield from other"]
SMALL = {"ctx_size": 1024, "parallel": 1, "threads": 1, "warmup": False}

TIERS = ["ram", "disk", "both"]


@pytest.fixture(scope="module", params=["tiny-mamba", "tiny-hybrid", "tiny-window"])
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    initialize()
    model = Model(str(ensure(request.param)), engine_options())
    yield model
    model.close()


@pytest.fixture
def options(tmp_path: Path) -> EngineOptions:
    return engine_options(**{**EXACT, **SMALL}, slot_save_path=str(tmp_path))


@pytest.fixture(params=TIERS)
def changes(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    return tier(request.param, tmp_path)


def tier(name: str, directory: Path) -> dict[str, Any]:
    disk = {} if name == "ram" else {"cache_disk": str(directory)}
    return {"cache_ram": 0 if name == "disk" else 8192, **disk}


@pytest.fixture
def fresh(model: Model, options: EngineOptions) -> Callable[..., list[int]]:
    """The answer of a server without earlier requests."""

    def saying(*prompt: str | int) -> list[int]:
        engine = Engine(model, replaced(options, cache_ram=0))
        tokens = ask(engine, *prompt).tokens
        engine.close()
        return tokens

    return saying


def ask(engine: Engine, *prompt: str | int) -> Finished:
    params = GenerationParams(n_predict=N_PREDICT, **GREEDY)
    events = engine.submit(engine.preparation.prepare(Submit(1, [*prompt], params)))
    while engine.has_work:
        events += stepped(engine)
    (finished,) = (event for event in events if isinstance(event, Finished))
    return finished


def n_evaluated(answer: Finished) -> int:
    assert answer.timings.cache_n + answer.timings.prompt_n == answer.n_prompt
    return answer.timings.prompt_n


def test_two_conversations_take_turns(
    model: Model,
    options: EngineOptions,
    fresh: Callable[..., list[int]],
    changes: dict[str, Any],
    unified: bool,
) -> None:
    engine = Engine(model, replaced(options, kv_unified=unified, **changes))
    said = {text: ask(engine, text) for text in (A, B)}
    for text in (A, B, A, B):
        again = ask(engine, text)
        assert again.tokens == said[text].tokens == fresh(text)
        assert n_evaluated(again) <= NEAR_END, "an answer is made again"
    engine.close()


@pytest.fixture(params=[True, False], ids=["unified", "separate"])
def unified(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_the_next_turn_and_another_one_in_its_place(
    model: Model,
    options: EngineOptions,
    fresh: Callable[..., list[int]],
    changes: dict[str, Any],
) -> None:
    engine = Engine(model, replaced(options, **changes))
    said = {text: ask(engine, text) for text in (A, B)}
    for question in QUESTIONS:
        for text, first in said.items():
            prompt: list[str | int] = [text, *first.tokens, question]
            answer = ask(engine, *prompt)
            assert answer.tokens == fresh(*prompt)
            n_held = first.n_prompt + N_PREDICT - 1
            assert n_evaluated(answer) <= max(answer.n_prompt - n_held, NEAR_END), question
    engine.close()


@pytest.mark.parametrize("n_asked", [1, 30])
def test_another_question_about_the_same(
    model: Model,
    options: EngineOptions,
    fresh: Callable[..., list[int]],
    changes: dict[str, Any],
    n_asked: int,
) -> None:
    engine = Engine(model, replaced(options, **changes))
    questions = [each * n_asked for each in QUESTIONS]
    for i, question in enumerate(questions):
        for text in (A, B):
            prompt = text + question
            answer = ask(engine, prompt)
            assert answer.tokens == fresh(prompt)
            n_new = answer.n_prompt - max(
                common_prefix(tokens(model, prompt), tokens(model, text + other))
                for other in questions
                if other != question
            )
            if i == 2:
                assert n_evaluated(answer) <= max(n_new, NEAR_END), "where others have parted"
            elif i == 1 and n_asked == 1:
                assert n_evaluated(answer) <= n_new + LAST_MESSAGES[0] + NEAR_END
    engine.close()


def tokens(model: Model, text: str) -> TokenArray:
    return model.tokenize(text.encode(), add_special=True, parse_special=True)


def test_a_text_outlives_its_engine(
    model: Model, options: EngineOptions, fresh: Callable[..., list[int]], tmp_path: Path
) -> None:
    changes = tier("both", tmp_path)
    engine = Engine(model, replaced(options, **changes))
    for text in (A, B):
        ask(engine, text)
    engine.close()
    engine = Engine(model, replaced(options, **changes))
    for text in (A, B):
        again = ask(engine, text)
        assert again.tokens == fresh(text)
        assert n_evaluated(again) <= NEAR_END
    engine.close()


def test_a_restored_slot_has_its_checkpoints(
    model: Model, options: EngineOptions, fresh: Callable[..., list[int]], unified: bool
) -> None:
    options = replaced(options, cache_ram=0, kv_unified=unified)
    engine = Engine(model, options)
    slots = Slots(engine, options)
    for text in (A, B):
        ask(engine, text)
        slots.act(0, "save", text[4:14])
    engine.close()
    engine = Engine(model, options)
    slots = Slots(engine, options)
    for text in (A, B, A):
        slots.act(0, "restore", text[4:14])
        again = ask(engine, text)
        assert again.tokens == fresh(text)
        assert n_evaluated(again) <= NEAR_END
    engine.close()


def test_fewer_checkpoints_than_were_saved(
    model: Model, options: EngineOptions, fresh: Callable[..., list[int]], tmp_path: Path
) -> None:
    """A server that keeps no texts by itself can use texts that another server saved."""
    options = replaced(options, **tier("disk", tmp_path))
    engine = Engine(model, options)
    ask(engine, A)
    engine.close()
    engine = Engine(model, replaced(options, ctx_checkpoints=0))
    again = ask(engine, A)
    assert again.tokens == fresh(A)
    assert n_evaluated(again) <= NEAR_END
    assert not engine.scheduler.cache.checkpoints
    engine.close()


def test_memory_that_is_short(
    model: Model, options: EngineOptions, fresh: Callable[..., list[int]]
) -> None:
    """Whatever is evicted, the tokens are the same, and the bytes stay within the limit."""
    engine = Engine(model, replaced(options, cache_ram=1))
    assert engine.stats().n_bytes_cache_ram == 0
    for question in QUESTIONS:
        for text in (A, B, A + B, B + A):
            prompt = text + question
            assert ask(engine, prompt).tokens == fresh(prompt)
            assert engine.stats().n_bytes_cache_ram <= 1 << 20
    assert engine.stats().n_bytes_cache_ram
    engine.close()


def test_where_a_copy_can_be_cut(model: Model, options: EngineOptions) -> None:
    """Its key before it is restored."""
    for n_words in (1, 5, *range(17, 26), 100):
        engine = Engine(model, options)
        ask(engine, " return" * n_words)
        ((id, entry),) = engine.scheduler.cache.entries.items()
        n = len(entry.tokens)
        state = engine.context.save_sequence(id)
        engine.context.remove(id, 0)
        engine.context.restore_sequence(id, state, n)
        assert engine.context.first_cut(id) == engine.context.first_cut_of_copy(n), n
        engine.close()
