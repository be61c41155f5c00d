"""Models whose memory can't be cut at any token: recurrent, hybrid, with a sliding window.

Whatever was served before and is served at the same time, a request gets the same tokens as alone.
"""

import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import Failed, Finished
from specllama.engine.wire.requests import Submit
from specllama.engine.worker.backend import Model, initialize
from specllama.engine.worker.cache.checkpoints import NEAR_END
from specllama.engine.worker.generation.engine import Engine
from tests.support.options_support import engine_options
from tests.support.playing import GREEDY, engine, play, stepped
from tools.models.build import ensure

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("orders"), pytest.mark.covering(1)]

PREFIX = "import os\nimport sys\n\n\ndef first(a, b):\n    return a + b\n\n\n" * 4


@pytest.fixture(scope="module", params=["tiny-mamba", "tiny-hybrid", "tiny-window"])
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    initialize()
    model = Model(str(ensure(request.param)), engine_options())
    yield model
    model.close()


@pytest.fixture(params=[True, False], ids=["unified", "separate"])
def unified(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


SMALL = {"ctx_size": 2048, "warmup": False}


def uncut(model: Model, unified: bool, **options: Any) -> Engine:
    return engine(model, **{"parallel": 4, "kv_unified": unified, **SMALL, **options})


@cache
def _alone(model: Model, prompt: str, n_predict: int) -> list[int]:
    e = engine(model, parallel=1, **SMALL)
    tokens = play(e, [prompt], n_predict=n_predict, cache_prompt=False, **GREEDY)[prompt].tokens
    e.close()
    return tokens


def alone(model: Model, prompt: str, n_predict: int) -> list[int]:
    """The first tokens that a server says that has seen nothing else."""
    return _alone(model, prompt, max(n_predict, 40))[:n_predict]


def check(e: Engine, prompts: list[str], n_predict: int = 40, **params: Any) -> list[Finished]:
    results = play(e, prompts, n_predict=n_predict, **GREEDY, **params)
    for prompt in prompts:
        assert results[prompt].tokens == alone(e.model, prompt, n_predict), prompt[-30:]
    return [results[prompt] for prompt in prompts]


def test_in_company(model: Model, unified: bool) -> None:
    e = uncut(model, unified)
    check(e, [f"def function_{i}(self, value):" * (i + 1) for i in range(6)])
    check(e, [f"class Number{i}:" * (i + 1) for i in range(6)])


def test_a_shared_prefix(model: Model, unified: bool) -> None:
    e = uncut(model, unified)
    prompts = [f"{PREFIX}def function_{i}(self, value):" for i in range(6)]
    check(e, prompts)
    check(e, prompts)
    check(e, prompts, cache_prompt=False)


def test_checkpoints_are_used(model: Model, unified: bool) -> None:
    e = uncut(model, unified)
    (first,) = check(e, [PREFIX], 10)
    (again,) = check(e, [PREFIX], 10)
    assert first.timings.cache_n == 0
    assert 1 <= again.timings.prompt_n <= NEAR_END
    together = check(e, [f"{PREFIX[:-30]}{i}" for i in range(4)], 10)
    assert sum(turn.timings.prompt_n for turn in together) < 2 * together[0].n_prompt


def test_without_checkpoints(model: Model, unified: bool) -> None:
    e = uncut(model, unified, ctx_checkpoints=0)
    for text in (PREFIX, PREFIX, PREFIX[:150]):
        check(e, [text], 10)
    assert not e.scheduler.cache.checkpoints


def test_shared_windows_leave_room(model: Model) -> None:
    # llama.cpp uses cells again that have left a window, but not if two sequences have them: of
    # a sliding window's 256 cells here, most would be of both.
    e = uncut(model, True, parallel=2, batch_size=64, ubatch_size=64)
    text = PREFIX * 3
    first = e.preparation.prepare(Submit(1, [text], GenerationParams(n_predict=200, **GREEDY)))
    e.submit(first)
    while not first.n_decoded:
        stepped(e)
    second = e.preparation.prepare(
        Submit(2, [f"{text}x"], GenerationParams(n_predict=200, **GREEDY))
    )
    e.submit(second)
    running = {1: (text, 200), 2: (f"{text}x", 200)}
    for _ in range(600):
        if running:
            finish(e, running)
    assert not running
    assert second.sequence.n_cached > 150


def test_prefixes_of_each_length(model: Model, unified: bool) -> None:
    e = uncut(model, unified, parallel=2)
    for n in (300, 200, 250, 100, 10, 290, 301, 400):
        check(e, [f"{(2 * PREFIX)[:n]}for"], 10)


def test_the_same_again(model: Model, unified: bool) -> None:
    e = uncut(model, unified, parallel=1)
    for _ in range(3):
        check(e, [PREFIX])
    check(e, [PREFIX], cache_prompt=False)
    check(e, [PREFIX], 60)


def test_a_conversation(model: Model, unified: bool) -> None:
    e = uncut(model, unified)
    for text in (PREFIX, "x = 1\n"):
        for i in range(4):
            (turn,) = check(e, [text])
            text += turn.text + f"\n# {i}\n"


def test_prompts_in_small_chunks(model: Model, unified: bool) -> None:
    e = uncut(model, unified, batch_size=16, ubatch_size=8)
    prompts = [f"{PREFIX}def function_{i}(self, value):" for i in range(6)]
    check(e, prompts)
    check(e, prompts)


def test_after_a_cancelled_prompt(model: Model, unified: bool) -> None:
    for n_steps in (1, 2, 5, 30):
        e = uncut(model, unified, batch_size=32, ubatch_size=16, parallel=2)
        for id, end in enumerate(["one", "two", "three"]):
            params = GenerationParams(n_predict=50, **GREEDY)
            e.submit(e.preparation.prepare(Submit(100 + id, [PREFIX + end], params)))
        for _ in range(n_steps):
            stepped(e)
        for id in range(3):
            e.cancel(100 + id)
        check(e, [PREFIX + "two", PREFIX + "four"])
        e.close()


def test_preemption(model: Model) -> None:
    e = engine(model, **{**SMALL, "ctx_size": 256}, parallel=4, kv_unified=True)
    check(e, [f"import module_{i}" for i in range(4)], 190)


def test_a_full_context(model: Model, unified: bool) -> None:
    e = uncut(model, unified, ctx_size=512, parallel=2)
    n_ctx = e.info.n_ctx
    for _ in range(2):
        results = play(e, ["a b c", PREFIX], n_predict=-1, **GREEDY)
        for prompt, result in results.items():
            assert (result.stop_type, result.truncated) == ("limit", True)
            assert result.n_prompt + result.n_decoded == n_ctx
            assert result.tokens == alone(model, prompt, result.n_decoded)


def test_pinned_to_slots(model: Model, unified: bool) -> None:
    e = uncut(model, unified, parallel=3)
    for i in (0, 1, 2, 1, 0):
        (result,) = check(e, [f"{PREFIX}def function_{i}"], id_slot=i)
        assert result.id_slot == i
    check(e, [f"{PREFIX}def function_{i}" for i in range(3)], id_slot=2)


def test_histories(model: Model, unified: bool) -> None:
    """A few dozen requests that come, share, end and are cancelled at random."""
    rng = random.Random(7)
    for _ in range(2):
        e = uncut(
            model,
            unified,
            ctx_size=rng.choice([512, 1024]),
            parallel=rng.choice([2, 3]),
            batch_size=rng.choice([16, 64, 2048]),
            ubatch_size=rng.choice([16, 64]),
        )
        running: dict[int, tuple[str, int]] = {}
        for id in range(1, 25):
            prompt = PREFIX[: rng.choice([5, 101, 200])] + rng.choice(["", "x", "x y"])
            n_predict = rng.choice([1, 5, 40])
            params = GenerationParams(
                n_predict=n_predict,
                cache_prompt=rng.random() < 0.8,
                id_slot=rng.choice([-1, -1, 0]),
                **GREEDY,
            )
            e.submit(e.preparation.prepare(Submit(id, [prompt], params)))
            running[id] = prompt, n_predict
            if rng.random() < 0.2:
                gone = rng.choice(list(running))
                del running[gone]
                e.cancel(gone)
            for _ in range(rng.choice([0, 1, 3, 50])):
                finish(e, running)
        while e.has_work:
            finish(e, running)
        assert not running
        e.close()


def finish(e: Engine, running: dict[int, tuple[str, int]]) -> None:
    for event in stepped(e):
        assert not isinstance(event, Failed), event
        if isinstance(event, Finished):
            prompt, n_predict = running.pop(event.id)
            assert event.tokens == alone(e.model, prompt, n_predict)
