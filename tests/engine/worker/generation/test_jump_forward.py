"""Forced and accepted tokens equal the tokens that are sampled under the masks, and so do the
tokens after them."""

import json
from typing import Any

import numpy as np
import pytest

from specllama.engine.params import DEFAULT_SAMPLERS, GenerationParams, ThinkingRules, Thoughts
from specllama.engine.worker.backend import Model, Sampler
from specllama.engine.worker.backend.candidates import Candidates
from specllama.engine.worker.constraints import constraint as masks
from specllama.engine.worker.constraints.compiler import Compiler
from specllama.engine.worker.tokens import TokenSet

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("orders"), pytest.mark.covering(2)]

N_CTX = 256
N_TOKENS = 120
SCHEMA = {
    "type": "object",
    "properties": {
        "identifier": {"type": "integer"},
        "available": {"type": "boolean"},
        "colours": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 4},
        "description": {"type": "string", "maxLength": 20},
    },
    "required": ["identifier", "available", "colours", "description"],
}
TEXTS: dict[str, dict[str, Any]] = {
    "spaced": {"json_schema": json.dumps(SCHEMA), "json_whitespace": "spaced"},
    "compact": {"json_schema": json.dumps(SCHEMA), "json_whitespace": "compact"},
    "flexible": {"json_schema": json.dumps(SCHEMA)},
    "thoughts": {
        "thinking": ThinkingRules(
            Thoughts("<think>", "</think>", open=True), budget=5, message=" That is all there is."
        )
    },
}
CHAINS: dict[str, dict[str, Any]] = {
    "default": {},
    "greedy": {"temperature": 0.0},
    "mirostat": {"mirostat": 1},
    "mirostat 2": {"mirostat": 2},
    "adaptive": {"samplers": [*DEFAULT_SAMPLERS, "adaptive_p"], "adaptive_target": 0.4},
    "xtc": {"xtc_probability": 0.7, "xtc_threshold": 0.05},
    "dry": {"dry_multiplier": 3.0, "dry_allowed_length": 1, "dry_penalty_last_n": -1},
    "penalties": {"repeat_penalty": 1.5, "frequency_penalty": 0.6, "presence_penalty": 0.4},
}


class Rows:
    """Stands in for a context whose logits are made of the text's length."""

    def __init__(self, model: Model) -> None:
        self.model, self.n_batch = model, 0
        self.candidates = Candidates(model.n_vocab)

    def logits(self, index: int) -> Any:
        rng = np.random.default_rng(index)
        return rng.normal(scale=3, size=self.model.n_vocab).astype(np.float32)


def text(
    compiler: Compiler, model: Model, params: GenerationParams, n_ahead: int
) -> tuple[list[int], int]:
    """A text, and how many of its tokens were taken without logits."""
    guide, _ = compiler.guided(params)
    assert guide is not None
    context: Any = Rows(model)
    sampler = Sampler(model, params, N_CTX, np.arange(9, dtype=np.int32))
    tokens: list[int] = []
    n_taken = 0
    try:
        while len(tokens) < N_TOKENS and not guide.ended:
            for token in guide.forced(n_ahead):
                sampler.take(token)
                tokens.append(token)
                n_taken += 1
                if guide.advance(token):
                    return tokens, n_taken
            if guide.ended:
                break
            token = sampler.sample_among(context, len(tokens), allowed_of(guide, model))[0]
            tokens.append(token)
            if token in model.eog or guide.advance(token):
                break
        return tokens, n_taken
    finally:
        sampler.close()


def allowed_of(guide: Any, model: Model) -> Any:
    allowed = guide.allowed
    return TokenSet.of([*range(model.n_vocab)], model.n_vocab) if allowed is None else allowed


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize("constraint", TEXTS.values(), ids=TEXTS)
def test_the_same_seed_gives_the_same_tokens(
    compiler: Compiler,
    model: Model,
    constraint: dict[str, Any],
    chain: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(masks, "INLINE_SECONDS", 60.0)  # however busy the machine is
    n_jumped = 0
    for seed in range(4):
        params = GenerationParams(**{"seed": seed, **constraint, **chain})
        wanted, none = text(compiler, model, params, 0)
        assert none == 0
        for n_ahead in (1, 3, 50):
            tokens, n_taken = text(compiler, model, params, n_ahead)
            assert tokens[:N_TOKENS] == wanted[: len(tokens)][:N_TOKENS]
            assert len(tokens) >= len(wanted)
            n_jumped += n_taken
    assert n_jumped > 0
