"""Sources that know what will be said, and say it rightly, wrongly or by half."""

import random
from collections.abc import Sequence
from typing import Any, Literal

import pytest

from engine.worker.backend import Model
from engine.worker.generation.engine import Engine
from engine.worker.speculation.pace import Offer, Pace
from engine.worker.speculation.source import Ask
from tests.support.options_support import engine_options

Mode = Literal["right", "wrong", "half", "random"]
MODES: tuple[Mode, ...] = ("right", "wrong", "half", "random")


class Oracle:
    """Proposes what `texts` go on with, or, in another `mode`, something like it."""

    name = "oracle"

    def __init__(self, mode: Mode, n_vocab: int, n_each: int = 6) -> None:
        self.mode, self.n_vocab, self.n_each = mode, n_vocab, n_each
        self.texts: list[list[int]] = []
        self.rng = random.Random(3)
        self.n_proposed = self.n_accepted = 0
        self.known: set[int] = set()

    def propose(self, asks: Sequence[Ask]) -> list[list[int]]:
        self.known |= {ask.id for ask in asks}
        return [self._next(ask.tokens.view().tolist(), min(ask.n, self.n_each)) for ask in asks]

    def _next(self, said: list[int], n: int) -> list[int]:
        if self.mode == "random":
            return [self.rng.randrange(self.n_vocab) for _ in range(n)]
        text = next((text for text in self.texts if text[: len(said)] == said), [])
        tokens = text[len(said) :][:n]
        wrong = len(tokens) // 2 if self.mode == "half" else 0
        if tokens and self.mode in ("wrong", "half"):
            tokens[wrong] = (tokens[wrong] + 1) % self.n_vocab
        return tokens

    def verified(self, id: int, n_proposed: int, n_accepted: int) -> None:
        assert id in self.known
        self.n_proposed += n_proposed
        self.n_accepted += n_accepted

    def forget(self, id: int) -> None:
        self.known.discard(id)

    def close(self) -> None:
        pass


class Eager(Pace):
    """Takes everything."""

    def choose(
        self, n_generating: int, offers: Sequence[Offer], seconds_each: float = 0.0
    ) -> list[int]:
        return [offer.n for offer in offers]


def speculating(
    monkeypatch: pytest.MonkeyPatch,
    model: Model,
    source: Oracle | None,
    **options: Any,
) -> Engine:
    """An engine that hears `source`, whatever it costs. What `--reproducible` takes is chosen for
    the shipped model, unless `options` say otherwise: a row's logits don't depend on the others."""
    module = "engine.worker.generation.speculation"
    sources = [] if source is None else [source]
    with monkeypatch.context() as patched:
        patched.setattr(f"{module}.proposal_sources", lambda model, options: sources)
        patched.setattr(f"{module}.Pace", Eager)
        return Engine(model, engine_options(**options))
