"""Promises of the budget on any machine; `test_budget_simulation` has the rest."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.worker.scheduling.budget import (
    HARDLY,
    LONE_SECONDS,
    MIN_SHARE,
    MIN_TOKENS,
    PATHS,
    PrefillBudget,
    _best,
)
from specllama.engine.worker.scheduling.step_cost import (
    FORGET,
    CostVerdict,
    StepCost,
    low_median,
    sizes,
)


@given(st.integers(1, 9000))
def test_sizes(n_most: int) -> None:
    found = sizes(n_most)
    assert found == sorted(set(found))
    assert found[0] == 1
    assert found[-1] == n_most
    for small, large in pairwise(found):
        assert large <= 1.5 * small or large - small <= 32


@given(st.lists(st.floats(0, 10), min_size=1))
def test_half_are_not_above_the_low_median(values: list[float]) -> None:
    found = low_median(values)
    assert found in values
    assert 2 * sum(value <= found for value in values) >= len(values)
    assert 2 * sum(value >= found for value in values) > len(values)


observations = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 2048), st.integers(0, 32768), st.floats(1e-6, 1e3)),
    max_size=60,
)


@given(observations, st.integers(0, 9), st.integers(0, 32768), st.sampled_from((0.0, 1e-3, 0.1)))
def test_limits_are_in_bounds_after_anything(
    history: list[tuple[int, int, int, float]], n_generating: int, length: int, target: float
) -> None:
    budget = PrefillBudget(target, n_batch=2048, n_ubatch=512)
    for observation in history:
        budget.limit(observation[0], observation[2])
        budget.observe(*observation)
    limit = budget.limit(n_generating, length)
    assert MIN_TOKENS <= limit <= 2048
    if not n_generating:
        assert limit % 512 == 0
    elif not target:
        assert limit == 2048
    assert 0 <= budget.burst(n_generating, length) <= 2048
    assert budget.compute_seconds(n_generating, 100, length) >= 0


@given(st.floats(1e-6, 1e-2))
def test_prompts_alone_are_not_cut_small(each: float) -> None:
    budget = PrefillBudget(0.15, n_batch=2048, n_ubatch=512)
    for _ in range(9):
        n = budget.limit(0, 0)
        assert n in (512, 1024, 1536, 2048)
        assert n == 512 or each * n <= 1.01 * LONE_SECONDS
        budget.observe(0, n, 0, each * n)


def test_with_nothing_known_a_step_is_small() -> None:
    assert PrefillBudget(0.1, n_batch=2048, n_ubatch=512).limit(2, 0) == PATHS
    assert PrefillBudget(0.1, n_batch=64, n_ubatch=64).limit(2, 0) == 64


def test_a_bigger_step_that_takes_hardly_longer() -> None:
    """Its tokens cost less, though it misses the target by a little."""
    assert HARDLY * 0.098 >= 0.108
    assert _best({32: 0.098, 64: 0.5, 96: 0.108, 128: 0.3}, 0.1) == 96
    assert _best({32: 0.05, 64: 0.09, 96: 0.3, 128: 0.4}, 0.1) == 64


def test_prompts_go_on_where_the_target_is_out_of_reach() -> None:
    budget = PrefillBudget(0.15, n_batch=4096, n_ubatch=512)
    found = []
    for _ in range(40):
        budget.observe(4, 0, 0, 1.0)
        n = budget.limit(4, 0)
        found.append((n, 1.0 + 1e-3 * n))
        budget.observe(4, n, 0, found[-1][1])
    assert found[-1][1] <= HARDLY * (1 + MIN_SHARE)
    assert found[-1][0] >= 384


def test_a_burst_is_what_takes_three_targets() -> None:
    budget = PrefillBudget(0.1, n_batch=2048, n_ubatch=512)
    for n in (64, 128, 256):
        budget.observe(2, n, 0, 1e-3 * n)
    assert budget.burst(2, 0) == 256
    assert budget.burst(0, 0) == 2048


def test_computing_takes_longer_behind_longer_texts() -> None:
    budget = PrefillBudget(0.1, n_batch=2048, n_ubatch=512)
    assert budget.compute_seconds(0, 100, 0) == 0
    for start in range(0, 8192, 512):
        budget.observe(0, 512, start, 512 * (1e-3 + 1e-6 * start))
    assert 0.9 < budget.compute_seconds(0, 1000, 0) < 1.6
    assert 8 < budget.compute_seconds(0, 1000, 8192) < 11


def test_other_work_makes_a_change() -> None:
    cost = StepCost(2048)
    for _ in range(6):
        for n in (32, 64, 128):
            assert cost.observe(0, n, 0, 1e-3 * n) is CostVerdict.USUAL
    assert [cost.observe(0, 64, 0, 0.32) for _ in range(2)] == [
        CostVerdict.ODD,
        CostVerdict.CHANGED,
    ]
    known = cost.seconds(0, 128, 0)
    assert known is not None
    assert 0.6 <= known <= 0.7  # the others are five times as slow, too, until they are measured
    assert cost.observe(0, 128, 0, 0.128) is CostVerdict.ODD
    assert cost.seconds(0, 128, 0) == 0.128


def test_a_single_odd_step_changes_nothing() -> None:
    cost = StepCost(2048)
    for _ in range(6):
        cost.observe(2, 64, 0, 0.064)
    cost.observe(2, 64, 0, 5.0)
    assert cost.seconds(2, 64, 0) == 0.064


def test_what_is_not_seen_for_long_is_forgotten() -> None:
    cost = StepCost(2048)
    cost.observe(0, 256, 0, 9.0)
    for _ in range(FORGET + 1):
        cost.observe(0, 64, 0, 0.064)
    known = cost.seconds(0, 256, 0)
    assert known is not None
    assert abs(known - 0.256) < 1e-6


def test_other_work_gets_what_a_step_leaves_and_some_in_any_case() -> None:
    budget = PrefillBudget(0.1, n_batch=2048, n_ubatch=512)
    budget.observe(2, 0, 0, 0.02)
    assert budget.left(2, 0.03) == pytest.approx(0.07)
    assert budget.left(2, 0.5) == pytest.approx(MIN_SHARE * 0.02)
    assert budget.left(0, 0.5) == 0.5
    without_target = PrefillBudget(0, n_batch=2048, n_ubatch=512)
    without_target.observe(2, 0, 0, 0.02)
    assert without_target.left(2, 0.5) == pytest.approx(0.02)
