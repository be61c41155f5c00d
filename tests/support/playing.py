"""Engines in this process, whose output can be compared token by token."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import Event, Failed, Finished
from specllama.engine.wire.requests import Submit
from specllama.engine.worker.backend import Model
from specllama.engine.worker.generation.engine import Engine
from tests.support.options_support import engine_options

E = TypeVar("E")

GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}

# On the CPU, llama.cpp's Flash Attention takes another path (with other roundings) from 64
# tokens in a batch on, and half precision in the cache adds a rounding. Without the two, the
# arithmetic of a sequence does not depend on the rest of the batch.
EXACT: dict[str, Any] = {"flash_attn": "off", "cache_type_k": "f32", "cache_type_v": "f32"}


def engine(model: Model, **options: Any) -> Engine:
    return Engine(model, engine_options(**{**EXACT, **options}))


class Stepping(Protocol[E]):
    """An engine whose steps send events of this type."""

    def step(self, send: Callable[[list[E]], None]) -> None: ...


def stepped(engine: Stepping[E]) -> list[E]:
    """Runs a step and returns its events."""
    events: list[E] = []
    engine.step(events.extend)
    return events


def play(engine: Engine, prompts: list[str], **params: Any) -> dict[str, Finished]:
    """Runs all prompts together, and returns the result of each."""
    names: dict[int, str] = {}
    results: dict[str, Finished] = {}

    def note(event: Event) -> None:
        assert not isinstance(event, Failed), event
        if isinstance(event, Finished):
            results[names[event.id]] = event

    for id, prompt in enumerate(prompts, start=1):
        names[id] = prompt
        request = engine.preparation.prepare(Submit(id, [prompt], GenerationParams(**params)))
        for event in engine.submit(request):
            note(event)
    while engine.has_work:
        for event in stepped(engine):
            note(event)
    return results
