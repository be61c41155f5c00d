"""The common parts of all texts of an answer."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.errors import EngineError
from specllama.engine.params import GenerationParams
from specllama.engine.wire.requests import Infill, Prompt
from specllama.handlers.running.batch import (
    CONTEXTS,
    MAX_PROBABILITIES,
    MAX_REPEATED,
    bound_probabilities,
    check_repeated,
)


@given(st.integers(0, 1024), st.integers(1, 4096), st.integers(-1, 10_000), st.integers(1, 1 << 20))
def test_probabilities_are_bounded_or_refused(
    n_probs: int, n_texts: int, n_predict: int, n_ctx: int
) -> None:
    params = GenerationParams(n_probs=n_probs, n_predict=n_predict)
    least = 1 if n_predict < 0 else min(n_predict, n_ctx)
    if n_texts * n_probs * least > MAX_PROBABILITIES:
        with pytest.raises(EngineError) as error:
            bound_probabilities(params, n_texts, n_ctx)
        named = {"n_probs", "n_cmpl"} | ({"n_predict"} if n_predict >= 0 else set())
        assert named <= set(re.findall(r"n_[a-z]+", str(error.value)))
        return
    bound = bound_probabilities(params, n_texts, n_ctx)
    most = CONTEXTS * n_ctx if bound.n_predict < 0 else bound.n_predict
    assert n_texts * n_probs * most <= MAX_PROBABILITIES
    if n_texts * n_probs * max(n_predict, CONTEXTS * n_ctx) <= MAX_PROBABILITIES:
        assert bound.n_predict == n_predict, "what fits is as it was"


LONG = "x" * 100_000
GAP = Infill(prefix=[LONG], suffix=[1, 2])


@pytest.mark.parametrize(
    ("params", "prompt"),
    [
        (GenerationParams(grammar=LONG), ["a"]),
        (GenerationParams(stop=["word"] * 20_000), ["a"]),
        (GenerationParams(logit_bias=[(1, 0.5)] * 10_000), ["a"]),
        (GenerationParams(), [LONG]),
        (GenerationParams(), [1] * 30_000),
        (GenerationParams(), GAP),
    ],
)
def test_long_results_are_not_repeated_a_thousand_times(
    params: GenerationParams, prompt: Prompt
) -> None:
    check_repeated([prompt], params, 8, 100_000, echo_prompt=True)
    with pytest.raises(EngineError, match=f"n_cmpl.* {MAX_REPEATED}"):
        check_repeated([prompt], params, 1024, 100_000, echo_prompt=True)
    with pytest.raises(EngineError, match="n_cmpl"):
        check_repeated([prompt] * 64, params, 16, 100_000, echo_prompt=True)


def test_prompts_count_only_in_the_answer_and_as_far_as_they_fit() -> None:
    params = GenerationParams()
    check_repeated([[LONG]], params, 1024, 100_000, echo_prompt=False)
    check_repeated([[LONG]], params, 1024, 1000, echo_prompt=True)
    check_repeated([[LONG * 1000]], params, 1, 1 << 30, echo_prompt=True)
