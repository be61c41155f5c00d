"""The plan of the sampler chain, and what its samplers do to a real model's tokens."""

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.engine.params import (
    ALL_SAMPLERS,
    DEFAULT_SAMPLERS,
    SAMPLER_LETTERS,
    GenerationParams,
    sampler_name,
)
from specllama.engine.worker.backend import Context, Model, Sampler, initialize
from specllama.engine.worker.backend.sampler_chain import is_greedy, plan, window
from tests.support.models import random_model
from tests.support.options_support import engine_options

N_CTX = 64
DRAWS = {"dist", "greedy", "mirostat", "mirostat_v2", "adaptive_p"}
SPEC_NAMES = {"typ_p": "typical", "temperature": "temp_ext"}

rates = st.floats(0, 2) | st.sampled_from([0.0, 1.0])
all_params = st.builds(
    GenerationParams,
    seed=st.integers(0, 2**32 - 2),
    samplers=st.lists(st.sampled_from(ALL_SAMPLERS), max_size=12) | st.just(list(DEFAULT_SAMPLERS)),
    temperature=rates,
    dynatemp_range=st.sampled_from([0.0, 0.0, 0.5]),
    top_k=st.integers(-1, 50),
    top_p=st.floats(0, 1),
    min_p=st.floats(0, 1),
    typical_p=st.floats(0, 1) | st.just(1.0),
    top_n_sigma=st.floats(-1, 5),
    xtc_probability=st.floats(0, 1) | st.just(0.0),
    xtc_threshold=st.floats(0, 1),
    min_keep=st.integers(0, 5),
    repeat_last_n=st.integers(-1, 100),
    repeat_penalty=st.floats(0.5, 2) | st.just(1.0),
    presence_penalty=rates,
    frequency_penalty=rates,
    dry_multiplier=rates,
    dry_base=st.floats(1, 3),
    dry_allowed_length=st.integers(0, 5),
    dry_penalty_last_n=st.integers(-1, 100),
    mirostat=st.sampled_from([0, 0, 0, 1, 2]),
    adaptive_target=st.floats(-1, 1),
    adaptive_decay=st.floats(0, 0.99),
    logit_bias=st.lists(st.tuples(st.integers(0, 4095), st.floats(-9, 9)), max_size=3),
    n_probs=st.integers(0, 3),
    post_sampling_probs=st.booleans(),
)


@given(all_params)
def test_every_chain_ends_with_the_one_draw(params: GenerationParams) -> None:
    *before, last = [spec.name for spec in plan(params, N_CTX)]
    assert last in DRAWS
    assert not DRAWS & set(before)
    assert (before[:1] == ["logit_bias"]) == bool(params.logit_bias)
    assert "logit_bias" not in before[1:]


@given(all_params)
def test_samplers_stand_in_the_order_of_the_request(params: GenerationParams) -> None:
    names = [spec.name for spec in plan(params, N_CTX) if spec.name != "logit_bias"]
    if params.mirostat:
        assert names == ["temp", "mirostat" if params.mirostat == 1 else "mirostat_v2"]
    elif is_greedy(params):
        assert names == ["greedy"]
    else:
        wanted = [name for name in params.samplers if name != "adaptive_p"]
        draw = "adaptive_p" if "adaptive_p" in params.samplers else "dist"
        assert names == [*(SPEC_NAMES.get(name, name) for name in wanted), draw]


@given(all_params)
def test_penalties_see_no_more_than_the_context(params: GenerationParams) -> None:
    assert 0 <= window(params, N_CTX) <= N_CTX
    for name, args in plan(params, N_CTX):
        if name == "penalties":
            assert 0 <= args[0] <= N_CTX
        if name == "dry":
            assert 0 <= args[3] <= N_CTX


def test_each_sampler_has_a_letter_and_its_own_spellings() -> None:
    assert sorted(SAMPLER_LETTERS.values()) == sorted(ALL_SAMPLERS)
    assert set(ALL_SAMPLERS) - set(DEFAULT_SAMPLERS) == {"adaptive_p", "infill"}
    for name in ALL_SAMPLERS:
        for spelling in (name, name.replace("_", "-"), name.replace("_", ""), name.upper()):
            assert sampler_name(spelling) == name


# ---- on a real model ---------------------------------------------------------------------


class Played:
    """One evaluated prompt, to be sampled repeatedly."""

    def __init__(self) -> None:
        initialize()
        options = engine_options(ctx_size=N_CTX, parallel=1, threads=1)
        self.model = Model(str(random_model()), options)
        self.context = Context(self.model, options, 1, False)
        self.prompt = self.model.tokenize(
            b"for x in x: for x in x: for", add_special=False, parse_special=False
        )
        self.last = self.context.batch.add(self.prompt, 0, sequence=0)
        self.context.decode()

    def draw(self, params: GenerationParams, n: int = 4) -> list[int]:
        sampler = Sampler(self.model, params, N_CTX, self.prompt)
        tokens = [sampler.sample(self.context, self.last) for _ in range(n)]
        sampler.close()
        return tokens

    def draw_among(self, params: GenerationParams) -> tuple[int, Any, Any]:
        sampler = Sampler(self.model, params, N_CTX, self.prompt)
        found = sampler.sample_among(self.context, self.last)
        sampler.close()
        return found


@pytest.fixture(scope="module")
def played() -> Iterator[Played]:
    played = Played()
    yield played
    played.context.close()
    played.model.close()


@given(params=all_params)
@settings(max_examples=150, deadline=None)
def test_every_plan_can_be_made_and_repeats_itself(played: Played, params: Any) -> None:
    tokens = played.draw(params)
    assert all(0 <= token < played.model.n_vocab for token in tokens)
    assert played.draw(params) == tokens
    token, ids, probs = played.draw_among(params)
    assert token == tokens[0]
    assert token in ids
    assert len(ids) == len(probs) <= played.model.n_vocab


NO_MOVERS: dict[str, Any] = {
    "temperature": 0.0,
    "dynatemp_range": 0.0,
    "mirostat": 0,
    "typical_p": 1.0,
    "xtc_probability": 0.0,
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
    "n_probs": 0,
}


@given(params=all_params, at=st.integers(0, 12))
@settings(max_examples=150, deadline=None)
def test_the_short_cut_for_greedy_requests_is_one(played: Played, params: Any, at: int) -> None:
    samplers = [*params.samplers[:at], "temperature", *params.samplers[at:]]
    samplers = [name for name in samplers if name != "infill"]
    params = msgspec.structs.replace(params, samplers=samplers, **NO_MOVERS)
    assert is_greedy(params)
    [token] = played.draw(params, 1)
    params = msgspec.structs.replace(params, n_probs=1, post_sampling_probs=True)
    assert not is_greedy(params)
    assert played.draw(params, 1) == [token]


def test_adaptive_p_draws_near_its_target(played: Played) -> None:
    logits = played.context.logits(played.last).astype(np.float64)
    probs = np.exp(logits - np.logaddexp.reduce(logits))
    top = float(probs.max())
    far = []
    for target in (top, 0.0):
        _, ids, weights = played.draw_among(
            GenerationParams(samplers=["adaptive_p"], adaptive_target=target, seed=1)
        )
        near = ids[weights.argmax()]
        far.append(abs(probs[near] - target))
    assert far[0] < 0.05
    assert far[1] < 0.01
    off = GenerationParams(samplers=["adaptive_p"], adaptive_target=-1.0, seed=1)
    _, ids, weights = played.draw_among(off)
    assert weights == pytest.approx(probs[ids], abs=1e-5)
