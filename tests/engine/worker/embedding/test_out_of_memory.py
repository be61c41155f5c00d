"""A device that has no memory for a batch of inputs: each is evaluated without the others."""

from typing import Any

import numpy as np
import pytest

from specllama.engine.options import Pooling
from specllama.engine.wire.replies import Failed, Vectors
from specllama.engine.wire.requests import Embed, PromptParts
from specllama.engine.worker.backend import Model, initialize
from specllama.engine.worker.embedding.embedder import Embedder
from tests.support.options_support import engine_options
from tests.support.playing import stepped
from tests.support.scarce_memory import Device
from tools.models.build import ensure

SHORT = ("a llama carries wool", "the bus leaves at nine", "x")
LARGE = "what is the name of the first one? " * 12
LONG = "who has asked for it to be returned here? " * 25


def embedder(name: str, **options: Any) -> Embedder:
    initialize()
    given = engine_options(embedding=True, threads=1, warmup=False, **options)
    return Embedder(Model(str(ensure(name)), given), given)


def answers(engine: Embedder, *requests: tuple[str, ...]) -> dict[int, Vectors | Failed]:
    """By the numbers of requests, from 1 on."""
    for id, texts in enumerate(requests, start=1):
        inputs: list[PromptParts] = [[text] for text in texts]
        engine.submit(engine.prepare(Embed(id, inputs, 2)))
    found: dict[int, Vectors | Failed] = {}
    while engine.has_work:
        found |= {event.id: event for event in stepped(engine)}
    return found


def same(one: Vectors | Failed, other: Vectors | Failed) -> bool:
    assert isinstance(one, Vectors), one
    assert isinstance(other, Vectors), other
    a, b = (np.frombuffer(each.values, "<f4") for each in (one, other))
    return bool(np.allclose(a, b, atol=2e-3))


@pytest.mark.parametrize("evaluates", [False, True], ids=["not", "in part"])
@pytest.mark.parametrize("name", ["tiny-embed", "tiny-bert", "tiny-hybrid"])
@pytest.mark.parametrize("pooling", ["mean", "none"])
def test_only_the_request_with_the_large_input_fails(
    monkeypatch: pytest.MonkeyPatch, name: str, pooling: Pooling, evaluates: bool
) -> None:
    engine = embedder(name, pooling=pooling, parallel=8)
    requests = (SHORT[:2], (SHORT[2], LARGE), SHORT[1:])
    wanted = answers(engine, *requests)
    with monkeypatch.context() as patch:
        device = Device(patch, evaluates=evaluates)
        found = answers(engine, *requests)
        assert device.n_failed == 2, "once with others, once alone"
    failed = found[2]
    assert isinstance(failed, Failed)
    assert "there is no memory left to evaluate this" in failed.error.message
    assert same(found[1], wanted[1])
    assert same(found[3], wanted[3])
    assert same(answers(engine, *requests)[2], wanted[2]), "with memory again"
    engine.close()


def test_inputs_that_are_too_much_together_all_succeed(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = embedder("tiny-embed", pooling="mean", parallel=8)
    wanted = answers(engine, SHORT, SHORT)
    device = Device(monkeypatch, evaluates=True)
    device.most = 12
    found = answers(engine, SHORT, SHORT)
    assert device.n_failed == 1
    assert all(same(found[id], wanted[id]) for id in (1, 2))
    engine.close()


@pytest.mark.parametrize("name", ["tiny-embed", "tiny-hybrid"])
def test_an_input_of_several_steps_begins_anew(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """It has no room with the others, which arrive when it has begun, but has room alone."""
    engine = embedder(name, pooling="mean", parallel=4, ubatch_size=32, ctx_size=1024)
    wanted = answers(engine, (LONG,), SHORT[:1])
    device = Device(monkeypatch, evaluates=True)
    device.most = 100
    engine.submit(engine.prepare(Embed(1, [[LONG]], 2)))
    assert stepped(engine) == []
    device.failing = 1
    engine.submit(engine.prepare(Embed(2, [[SHORT[0]]], 2)))
    found: dict[int, Vectors | Failed] = {}
    while engine.has_work:
        found |= {event.id: event for event in stepped(engine)}
    assert device.n_failed == 1
    assert all(same(found[id], wanted[id]) for id in (1, 2))
    engine.close()


def test_who_is_gone_is_not_evaluated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = embedder("tiny-embed", pooling="mean", parallel=8)
    device = Device(monkeypatch, evaluates=False)
    device.most = 0
    for id in (1, 2):
        engine.submit(engine.prepare(Embed(id, [[SHORT[0]]], 2)))
    assert stepped(engine) == []
    engine.cancel(1)
    [event] = stepped(engine)
    assert isinstance(event, Failed)
    assert event.id == 2
    assert not engine.has_work
    engine.close()
