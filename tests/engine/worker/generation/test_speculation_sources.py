"""Texts are those without speculation: with all real sources at once, adapters, and groups."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from specllama.engine.params import GenerationParams, Speculative
from specllama.engine.wire.replies import Finished
from specllama.engine.wire.requests import Submit
from specllama.engine.worker.backend import Model, initialize
from specllama.engine.worker.constraints import constraint as masks
from specllama.engine.worker.generation import verifying as speculation
from specllama.engine.worker.generation.engine import Engine
from specllama.engine.worker.generation.verifying import Exact
from specllama.engine.worker.speculation.pace import ProposalRecord
from specllama.engine.worker.speculation.proposing import Proposing
from tests.support.models import random_model
from tests.support.options_support import engine_options
from tests.support.playing import GREEDY
from tests.support.speculating import (
    MODES,
    PROMPTS,
    REQUESTS,
    SCHEMA,
    SINGLE_PRECISION,
    Eager,
    Mode,
    N,
    Oracle,
    assert_same,
    run,
    run_all,
    speculating,
)
from tools.models.build import ensure_adapter

pytestmark = pytest.mark.slow

SOURCES: dict[str, Any] = {
    **SINGLE_PRECISION,
    "spec_type": ("radix", "ngram-simple", "ngram-cache"),
    "spec_ngram_simple_size_n": 3,
    "spec_ngram_simple_size_m": 8,
    "model_draft": str(random_model()),
    "spec_draft_p_min": 0.0,
    "spec_draft_n_max": 4,
}
NAMES = {"radix", "ngram-simple", "ngram-cache", "draft-simple"}
COPY = "def add(first, second):\n    return first + second\n\n" * 4
TEXTS = [*PROMPTS, COPY]
ASKED: dict[str, Any] = {"speculative": Speculative("all", n_max=64)}

COMBINED: dict[str, dict[str, Any]] = {
    **REQUESTS,
    "grammar, stop, probs": {
        "seed": 7,
        "grammar": 'root ::= ("a" | "b" | " " | "return" | "\\n")+',
        "stop": ["ab", "b\n"],
        "n_probs": 2,
    },
    "schema, compact": {
        "seed": 8,
        "json_schema": SCHEMA,
        "n_predict": 120,
        "json_whitespace": "compact",
    },
    "schema, streamed, probs": {
        "seed": 8,
        "json_schema": SCHEMA,
        "n_predict": 120,
        "n_probs": 2,
        "stream": True,
    },
    "stop, streamed": {**GREEDY, "stop": ["value", "self.", "first"], "stream": True},
    "probs behind, streamed": {
        "seed": 3,
        "n_probs": 3,
        "post_sampling_probs": True,
        "stream": True,
    },
    "streamed by bytes": {"seed": 9, "temperature": 3.0, "stream": True, "ignore_eos": True},
}


class Evaluated:
    """Counts which sources were asked for tokens that were then verified."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.n_evaluated: Counter[str] = Counter()
        verified = Proposing.verified

        def count(
            proposing: Proposing, record: ProposalRecord, chunk: Any, *args: Any, **kwargs: Any
        ) -> None:
            if record.asked is not None:
                self.n_evaluated[record.asked.source] += len(chunk.proposed) - chunk.n_forced
            verified(proposing, record, chunk, *args, **kwargs)

        monkeypatch.setattr(Proposing, "verified", count)


@pytest.fixture
def plain(model: Model, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    e = speculating(monkeypatch, model, None, parallel=1)
    yield e
    e.close()


@pytest.fixture
def drafting(model: Model, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """With all sources, whose tokens are evaluated whatever they cost."""
    monkeypatch.setattr(speculation, "Pace", Eager)
    e = Engine(model, engine_options(parallel=3, **SOURCES))
    yield e
    e.close()


@pytest.mark.parametrize("name", COMBINED)
def test_the_same_text_with_all_sources(
    plain: Engine, drafting: Engine, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """At the first request, and again when the texts of the first one are known."""
    counted = Evaluated(monkeypatch)
    params = {"n_predict": N, **ASKED, **COMBINED[name]}
    wanted = run(plain, TEXTS, params)
    for _ in range(2):
        found = run(drafting, TEXTS, params)
        for prompt, each in found.items():
            assert_same(each, wanted[prompt])
    if sum(each.n_decoded for each in wanted.values()) > 2 * len(TEXTS):
        assert counted.n_evaluated["radix"] > 0
        assert counted.n_evaluated.keys() - {"grammar", "radix"}, "the sources of the first time"
    assert not drafting.scheduler.active
    assert not drafting.context._kept


REPETITIVE: dict[str, Any] = {
    "seed": 3,
    "ignore_eos": True,
    "logit_bias": [(token, 100.0) for token in (50, 51, 52)],
}


def test_all_of_them_are_used(
    plain: Engine, drafting: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Evaluated(monkeypatch)
    params = {"n_predict": 2 * N, **ASKED, **REPETITIVE}
    wanted = run(plain, TEXTS, params)
    for _ in range(2):
        for prompt, each in run(drafting, TEXTS, params).items():
            assert_same(each, wanted[prompt])
    assert counted.n_evaluated.keys() == NAMES


def test_a_mutant_that_accepts_all_is_caught(
    plain: Engine, drafting: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Exact, "confirms", lambda self, proposed, sampled, **place: True)
    with pytest.raises((AssertionError, IndexError)):
        test_the_same_text_with_all_sources(plain, drafting, monkeypatch, "sampled")


# ---- adapters ------------------------------------------------------------------------------

ADAPTERS: tuple[list[tuple[int, float]], ...] = ([], [(0, 1.0)], [(1, 1.0)], [(0, 0.5), (1, -0.5)])


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple[str, float], ...]:
    directory = tmp_path_factory.mktemp("adapters")
    return tuple(
        (str(ensure_adapter(name, directory)), 1.0) for name in ("lora-random-a", "lora-random-b")
    )


@pytest.fixture(scope="module")
def adapted(adapters: tuple[tuple[str, float], ...]) -> Iterator[Model]:
    initialize()
    model = Model(str(random_model()), engine_options(lora=adapters))
    yield model
    model.close()


def with_adapters(e: Engine, **params: Any) -> dict[int, Finished]:
    """A text with each set of adapters, all at the same time."""
    return run_all(
        e,
        [
            Submit(id, [PROMPTS[0]], GenerationParams(n_predict=N, lora=each, **ASKED, **params))
            for id, each in enumerate(ADAPTERS, start=1)
        ],
    )


@pytest.mark.parametrize("params", [GREEDY, REQUESTS["sampled"], REQUESTS["schema"]], ids=str)
@pytest.mark.parametrize("mode", [*MODES, "real"])
def test_each_adapter_has_its_own_text(
    adapted: Model,
    adapters: tuple[tuple[str, float], ...],
    monkeypatch: pytest.MonkeyPatch,
    mode: Mode | str,
    params: dict[str, Any],
) -> None:
    """Though their prompts are the same, and take turns in the steps."""
    given = {key: value for key, value in params.items() if key != "n_predict"}
    of_model = {"lora": adapters, "lora_init_without_apply": True}
    alone = speculating(monkeypatch, adapted, None, parallel=1, **of_model)
    wanted = with_adapters(alone, **given)
    alone.close()
    if mode == "real":
        monkeypatch.setattr(speculation, "Pace", Eager)
        e = Engine(adapted, engine_options(parallel=4, **of_model, **SOURCES))
    else:
        oracle = Oracle(mode, adapted.n_vocab)  # type: ignore[arg-type]
        begin = adapted.tokenize(PROMPTS[0].encode(), add_special=True, parse_special=True)
        oracle.texts += [[*begin.tolist(), *each.tokens] for each in wanted.values()]
        e = speculating(monkeypatch, adapted, oracle, parallel=4, **of_model)
    for _ in range(2):
        found = with_adapters(e, **given)
        for id, each in found.items():
            assert_same(each, wanted[id])
    assert sum(each.timings.draft_n for each in found.values()) > 0
    e.close()


# ---- groups --------------------------------------------------------------------------------


def group(e: Engine, n: int, **params: Any) -> dict[int, Finished]:
    """`n` texts of one request, which share their prompt's cells."""
    return run_all(
        e,
        [
            Submit(
                id,
                [PROMPTS[0]],
                GenerationParams(**{"n_predict": N, **ASKED, **params, "seed": id}),
                group=1,
            )
            for id in range(1, n + 1)
        ],
    )


@pytest.mark.parametrize("unified", [True, False], ids=["unified", "separate"])
@pytest.mark.parametrize(
    "params",
    [
        {"ignore_eos": True},
        {"ignore_eos": True, "stop": ["a", "self"], "stream": True},
        {"json_schema": SCHEMA, "n_predict": 120},
        {"n_probs": 2, "stream": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", [*MODES, "real"])
def test_texts_of_one_group(
    model: Model,
    plain: Engine,
    monkeypatch: pytest.MonkeyPatch,
    mode: Mode | str,
    params: dict[str, Any],
    unified: bool,
) -> None:
    """More of them than slots, each with a seed of its own."""
    # Masks that are late change which cells a text gets, and so the last digits of its attention.
    monkeypatch.setattr(masks, "INLINE_SECONDS", 60.0)
    wanted = group(plain, 5, **params)
    if mode == "real":
        monkeypatch.setattr(speculation, "Pace", Eager)
        e = Engine(model, engine_options(parallel=3, kv_unified=unified, **SOURCES))
    else:
        oracle = Oracle(mode, model.n_vocab)  # type: ignore[arg-type]
        begin = model.tokenize(PROMPTS[0].encode(), add_special=True, parse_special=True).tolist()
        oracle.texts += [[*begin, *each.tokens] for each in wanted.values()]
        e = speculating(monkeypatch, model, oracle, parallel=3, kv_unified=unified)
    found = group(e, 5, **params)
    assert {each.timings.predicted_n for each in found.values()} != {0}
    for id, each in found.items():
        assert_same(each, wanted[id])
    assert not e.scheduler.active
    e.close()
