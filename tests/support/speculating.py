"""Proposal sources that have the coming text, and propose it rightly, wrongly or half rightly."""

import random
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import pytest

from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import Delta, Failed, Finished
from specllama.engine.wire.requests import Submit
from specllama.engine.worker.backend import Model
from specllama.engine.worker.cache.texts import Key
from specllama.engine.worker.generation.engine import Engine
from specllama.engine.worker.scheduling.step_clock import StepClock
from specllama.engine.worker.scheduling.sweep import Sweep
from specllama.engine.worker.speculation.pace import Offer, Pace
from specllama.engine.worker.speculation.source import Ask, SourceState
from specllama.engine.worker.tokens import TokenBuffer
from tests.support.options_support import engine_options
from tests.support.playing import GREEDY, stepped

Mode = Literal["right", "wrong", "half", "random"]
MODES: tuple[Mode, ...] = ("right", "wrong", "half", "random")

PROMPTS = [f"def function_{i}(self, value):" for i in range(3)]
N = 40

GRAMMAR = 'root ::= ("a" | "b" | " " | "return" | "\\n")+'
SCHEMA = (
    '{"type":"object","properties":{"first":{"type":"integer"},"second":{"type":"boolean"},'
    '"third":{"enum":["red","green"]}},"required":["first","second","third"],'
    '"additionalProperties":false}'
)

REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": GREEDY,
    "sampled": {"seed": 5, "ignore_eos": True},
    "until the end": {"seed": 5},
    "hot": {"seed": 6, "temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    "grammar": {"seed": 7, "grammar": GRAMMAR},
    "schema": {"seed": 8, "json_schema": SCHEMA, "n_predict": 120},
    "schema, probs": {"seed": 8, "json_schema": SCHEMA, "n_predict": 120, "n_probs": 2},
    "stop": {**GREEDY, "stop": ["value", "self."]},
    "probs": {**GREEDY, "n_probs": 3},
    "probs behind": {"seed": 3, "n_probs": 3, "post_sampling_probs": True},
    "penalties": {"seed": 4, "repeat_penalty": 1.4, "presence_penalty": 0.3},
    "mirostat 1": {"seed": 4, "mirostat": 1},
    "mirostat 2": {"seed": 4, "mirostat": 2},
    "dry": {**GREEDY, "dry_multiplier": 0.9},
    "adaptive": {"seed": 2, "samplers": ["top_k", "adaptive_p"], "adaptive_target": 0.3},
    "xtc": {"seed": 2, "xtc_probability": 0.6},
    "dynamic": {"seed": 2, "dynatemp_range": 0.5},
    "biased": {"seed": 2, "logit_bias": [(5, 3.0), (7, -4.0)]},
    "one": {**GREEDY, "n_predict": 1},
    "two": {**GREEDY, "n_predict": 2},
    "indent": {**GREEDY, "n_indent": 4},
    "streamed": {"seed": 9, "stream": True},
}


class OracleState(SourceState):
    """A running text with an oracle as its source."""

    def __init__(self, oracle: "Oracle", tokens: TokenBuffer, key: Key) -> None:
        super().__init__(tokens, key)
        self._oracle = oracle
        self._is_over = False
        oracle.known.add(self)

    def verified(self, n_proposed: int, n_accepted: int) -> None:
        assert not self._is_over
        self._is_over = self not in self._oracle.known  # this was the last step of the text
        self._oracle.n_proposed += n_proposed
        self._oracle.n_accepted += n_accepted

    def detach(self) -> None:
        self._oracle.known.remove(self)


class Oracle:
    """Proposes the continuation in `texts`. Other values of `mode` make it wrong, half wrong or
    random."""

    name = "oracle"

    def __init__(self, mode: Mode, n_vocab: int, n_each: int = 6) -> None:
        self.mode, self.n_vocab, self.n_each = mode, n_vocab, n_each
        self.texts: list[list[int]] = []
        self.rng = random.Random(3)
        self.n_proposed = self.n_accepted = 0
        self.known: set[OracleState] = set()

    def begin(self, tokens: TokenBuffer, key: Key) -> OracleState:
        return OracleState(self, tokens, key)

    def propose(self, asks: Sequence[Ask[OracleState]]) -> list[list[int]]:
        assert {ask.state for ask in asks} <= self.known
        said = [ask.state.tokens.view().tolist() for ask in asks]
        return [
            self._next(each, min(ask.n, self.n_each)) for each, ask in zip(said, asks, strict=True)
        ]

    def _next(self, said: list[int], n: int) -> list[int]:
        if self.mode == "random":
            return [self.rng.randrange(self.n_vocab) for _ in range(n)]
        text = next((text for text in self.texts if text[: len(said)] == said), [])
        tokens = text[len(said) :][:n]
        wrong = len(tokens) // 2 if self.mode == "half" else 0
        if tokens and self.mode in ("wrong", "half"):
            tokens[wrong] = (tokens[wrong] + 1) % self.n_vocab
        return tokens

    def close(self) -> None:
        pass


class Timed(Pace):
    """A pace with its own clock, which begins with `sweep`; `observe` adds steps to it."""

    def __init__(self, target: float, n_batch: int, sweep: Sweep | None = None) -> None:
        self.clock = StepClock(n_batch, sweep)
        super().__init__(self.clock, target, n_batch)

    def observe(self, n_generating: int, n_proposed: int, seconds: float) -> None:
        """Adds a step without prompts that took `seconds`."""
        if n_proposed:
            self.clock.observe_proposals(n_generating, n_proposed, seconds)
        else:
            self.clock.observe(n_generating, 0, 0, seconds)
        self.stepped(n_proposed, seconds)


class Eager(Pace):
    """A pace that accepts all proposals."""

    def choose(
        self, n_generating: int, offers: Sequence[Offer], seconds_each: float = 0.0
    ) -> list[int]:
        return [offer.n for offer in offers]

    def is_early_faster(self, n: int, n_generating: int) -> bool:
        return True


# With these types attention adds up in single precision, in all layouts of the KV cache. The cells
# of a unified one are in another order: in half precision that changes some tokens.
SINGLE_PRECISION: dict[str, Any] = {"cache_type_k": "f16", "cache_type_v": "bf16"}


def speculating(
    monkeypatch: pytest.MonkeyPatch,
    model: Model,
    source: Oracle | None,
    **options: Any,
) -> Engine:
    """Returns an engine that uses `source`, whatever it costs. The options of `--reproducible` are
    chosen for the shipped model, unless `options` contains others: a row's logits don't depend on
    other rows."""
    options = {**SINGLE_PRECISION, **options}
    module = "specllama.engine.worker.generation.verifying"
    sources = [] if source is None else [source]
    with monkeypatch.context() as patched:
        patched.setattr(f"{module}.proposal_sources", lambda model, options: sources)
        patched.setattr(f"{module}.Pace", Eager)
        return Engine(model, engine_options(**options))


def run(e: Engine, prompts: list[str], params: dict[str, Any]) -> dict[str, Finished]:
    """Runs `prompts` together, and returns the results, with the whole text and tokens of
    streams."""
    found = run_all(
        e,
        [
            Submit(id, [each], GenerationParams(**params))
            for id, each in enumerate(prompts, start=1)
        ],
    )
    return {prompts[id - 1]: each for id, each in found.items()}


def run_all(e: Engine, submits: Sequence[Submit]) -> dict[int, Finished]:
    """Returns the results by id, after checking that every event is valid, and that no part of a
    proposal outlasts its step."""
    results: dict[int, Finished] = {}
    streamed: dict[int, tuple[str, list[int], list[Any]]] = {}
    for submit in submits:
        e.submit(e.preparation.prepare(submit))
    while e.has_work:
        for event in stepped(e):
            assert not isinstance(event, Failed), event
            if not isinstance(event, Delta | Finished):
                continue
            text, tokens, probs = streamed.get(event.id, ("", [], []))
            so_far = text + event.text, tokens + event.tokens, probs + event.probs
            if isinstance(event, Delta):
                assert "\ufffd" not in event.text
                streamed[event.id] = so_far
            else:
                text, tokens, probs = so_far
                results[event.id] = msgspec.structs.replace(
                    event, text=text, tokens=tokens, probs=probs
                )
        assert not any(sequence.n_ahead for sequence in e.scheduler.active)
    return results


def assert_same(found: Finished, expected: Finished) -> None:
    """Compares everything that a client could see, except times and proposals."""
    assert found.tokens == expected.tokens
    assert found.text == expected.text
    assert found.probs == expected.probs
    assert (found.stop_type, found.stopping_word) == (expected.stop_type, expected.stopping_word)
    assert found.n_decoded == expected.n_decoded
    assert found.timings.predicted_n == expected.timings.predicted_n
