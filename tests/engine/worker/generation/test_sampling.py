"""Masks that take long delay no other request, and change no text."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from llguidance import LLMatcher

from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import Failed, Finished
from specllama.engine.wire.requests import Submit
from specllama.engine.worker.backend import Model
from specllama.engine.worker.constraints import constraint as masks
from specllama.engine.worker.constraints.constraint import Mask, Masks
from specllama.engine.worker.generation.engine import Engine
from tests.support.playing import GREEDY, engine, stepped

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("orders")]

GRAMMAR = 'root ::= ("a" | "b" | "c" | " ")+'


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Every mask is computed in another thread, once this is set."""
    opened = threading.Event()
    now = Masks.next

    def soon(self: Masks, matcher: LLMatcher, last: Mask) -> Any:
        def work() -> Mask:
            opened.wait()
            return now(self, matcher, last)

        return self._pool.submit(work)

    monkeypatch.setattr(masks, "INLINE_SECONDS", 0.0)
    monkeypatch.setattr(Masks, "soon", soon)
    yield opened
    opened.set()


def submit(e: Engine, id: int, prompt: str, n: int, **params: Any) -> None:
    given = GenerationParams(**{"n_predict": n, **GREEDY, **params})
    e.submit(e.preparation.prepare(Submit(id, [prompt], given)))


def run(e: Engine, *ids: int) -> dict[int, Finished]:
    """Until these are finished."""
    finished: dict[int, Finished] = {}
    while not finished.keys() >= {*ids}:
        for event in stepped(e):
            assert not isinstance(event, Failed), event
            if isinstance(event, Finished):
                finished[event.id] = event
    return finished


def alone(model: Model, prompt: str, n: int, **params: Any) -> Finished:
    e = engine(model, parallel=1)
    submit(e, 1, prompt, n, **params)
    return run(e, 1)[1]


@pytest.mark.parametrize("params", [{}, {"n_probs": 3}, {"temperature": 1.0, "seed": 7}], ids=str)
def test_others_go_on_while_a_mask_is_computed(
    model: Model, gate: threading.Event, params: dict[str, Any]
) -> None:
    gate.set()
    wanted = alone(model, "x = ", 20, grammar=GRAMMAR, **params)
    gate.clear()
    e = engine(model, parallel=2)
    submit(e, 1, "x = ", 20, grammar=GRAMMAR, **params)
    for id in range(2, 5):
        submit(e, id, f"import module_{id}", 30)
    others = run(e, 2, 3, 4)
    assert {id: f.text for id, f in others.items()} == {
        id: alone(model, f"import module_{id}", 30).text for id in others
    }
    assert stepped(e) == [], "nothing but the mask is waited for, and messages are taken"
    gate.set()
    late = run(e, 1)[1]
    assert late.tokens == wanted.tokens
    assert late.probs == wanted.probs
    assert not e.context._kept, "the logits are dropped"


@pytest.mark.parametrize("leaves", ["cancel", "pause", "preempt"])
def test_who_leaves_its_slot_while_a_mask_is_computed(
    model: Model, gate: threading.Event, leaves: str
) -> None:
    gate.set()
    wanted = alone(model, "x = ", 20, grammar=GRAMMAR)
    gate.clear()
    e = engine(model, parallel=2)
    submit(e, 1, "x = ", 20, grammar=GRAMMAR)
    stepped(e)
    stepped(e)
    assert e.context._kept
    if leaves == "cancel":
        e.cancel(1)
        assert not e.has_work
    elif leaves == "pause":
        e.pause(1)
        assert not e.has_work
    else:
        e.scheduler._preempt_youngest()
    submit(e, 2, "import", 5)
    run(e, 2)
    gate.set()
    e.resume(1)
    if leaves != "cancel":
        assert run(e, 1)[1].tokens == wanted.tokens
    assert not e.context._kept
    e.close()
