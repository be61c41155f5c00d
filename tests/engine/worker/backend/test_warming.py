"""The evaluations that come before the first request."""

import itertools

import pytest
from llama_cpp import llama_cpp

from specllama.engine import system
from specllama.engine.worker.backend import (
    Context,
    EmbeddingContext,
    Model,
    initialize,
    warm_up,
    warming,
)
from tests.support.models import random_model
from tests.support.options_support import engine_options
from tools.models.build import ensure

SHIPPED = ""
LONG = pytest.mark.long_on_device  # kernels of their own, which are compiled first
GENERATE = [pytest.param(f"tiny-{name}", marks=LONG) for name in ("mamba", "hybrid", "window")]
EMBED = [pytest.param(f"tiny-{name}", marks=LONG) for name in ("embed", "bert", "rerank")]


def evaluated(
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    n_seq: int = 4,
    unified: bool = True,
    **options: object,
) -> list[tuple[int, int]]:
    """The numbers of tokens and sequences that the warm-up evaluates at a time; afterwards there is
    nothing left of them."""
    initialize()
    chosen = engine_options(**{"ctx_size": 1024, **options})
    model = Model(str(ensure(name) if name else random_model()), chosen)
    if chosen.embedding.embeds():
        context: Context = EmbeddingContext(model, chosen, n_seq)
    else:
        context = Context(model, chosen, n_seq, unified)
    decode, seen = context.decode, []

    batch = context.batch

    def spy() -> None:
        n = batch.n_tokens
        seen.append((n, len(set(batch.sequences[:n].tolist()))))
        if chosen.embedding.embeds():
            assert batch.outputs[:n].all()
        decode()

    monkeypatch.setattr(context, "decode", spy)
    try:
        warm_up(context)
        for sequence in range(n_seq):
            assert llama_cpp.llama_memory_seq_pos_max(context._memory, sequence) == -1
        if chosen.embedding.embeds():
            assert batch.outputs.all()
    finally:
        context.close()
        model.close()
    return seen


@pytest.mark.parametrize("unified", [True, False], ids=["unified", "separate"])
@pytest.mark.parametrize("name", [SHIPPED, *GENERATE])
def test_every_kind_of_memory_sees_every_kind_of_batch(
    name: str, unified: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = evaluated(name, monkeypatch, unified=unified)
    assert seen == [(1, 1), (8, 4), (64, 1)]


@pytest.mark.parametrize("name", EMBED)
def test_so_do_models_that_embed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = evaluated(name, monkeypatch, embedding=True, reranking=name == "tiny-rerank")
    assert seen == [(1, 1), (8, 4), (64, 1)]


def test_one_sequence_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    assert evaluated(SHIPPED, monkeypatch, n_seq=1) == [(1, 1), (8, 1), (64, 1)]


def test_nothing_is_larger_than_a_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = evaluated(SHIPPED, monkeypatch, n_seq=3, batch_size=20, ubatch_size=5)
    assert seen == [(1, 1), (3, 3), (5, 1)]


@LONG
def test_nor_larger_than_the_training_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warming, "CHUNK", 100_000)
    n_trained = 128  # more than that has no positions
    seen = evaluated("tiny-bert", monkeypatch, embedding=True)
    assert seen[-1] == (n_trained, 1)


def test_a_large_model_on_a_slow_machine_does_without_the_chunk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(warming, "SMALL", 0)
    monkeypatch.setattr(system, "now", itertools.count(step=5).__next__)
    assert evaluated(SHIPPED, monkeypatch) == [(1, 1), (8, 4), (8, 4)]
    monkeypatch.setattr(system, "now", lambda: 0.0)
    assert evaluated(SHIPPED, monkeypatch)[-1] == (64, 1)
