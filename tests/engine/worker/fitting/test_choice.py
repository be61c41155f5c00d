"""The choice of context and layers, of a model whose sizes are easy to add up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.wire.devices import CPU, DeviceUse
from specllama.engine.worker.fitting.choice import (
    AUTO,
    Asked,
    Choice,
    FitBudget,
    choose,
    largest_context,
)

N_LAYERS = 10
TOKEN = 2  # bytes of KV cache in each layer
WEIGHTS = 1000  # bytes of each layer
COMPUTE = 500


def uses(n_ctx: int, n_layers: int, device: str = "GPU0") -> list[DeviceUse]:
    """The memory of a model with ten layers."""
    there = N_LAYERS if n_layers == AUTO else n_layers
    return [
        DeviceUse(
            name=name, n_layers=n, model=n * WEIGHTS, kv_cache=n * TOKEN * n_ctx, compute=COMPUTE
        )
        for name, n in ((device, there), (CPU, N_LAYERS - there))
        if n
    ]


def on_cpu(n_ctx: int, _n_layers: int) -> list[DeviceUse]:
    return uses(n_ctx, AUTO, CPU)


def total(n_ctx: int) -> int:
    return N_LAYERS * (WEIGHTS + TOKEN * n_ctx) + COMPUTE


def asked(least_ctx: int = 4096, most_layers: int = 0, n_ctx: int = 32768) -> Asked:
    return Asked(n_ctx=n_ctx, least_ctx=least_ctx, most_layers=most_layers, step=256)


def test_fitting_options_stay_unchanged() -> None:
    for least, most_layers in ((4096, 0), (4096, N_LAYERS), (32768, 0)):
        found = choose(
            asked(least, most_layers), uses, {"GPU0": FitBudget(total(32768) + 10, margin=10)}
        )
        assert found == Choice(32768, AUTO, uses(32768, AUTO), fits=True)


def test_the_largest_context_is_chosen_that_leaves_the_margin() -> None:
    found = choose(asked(), on_cpu, {CPU: FitBudget(total(16384) + 10, margin=10)})
    assert (found.n_ctx, found.n_layers, found.fits) == (16384, AUTO, True)
    found = choose(asked(), on_cpu, {CPU: FitBudget(total(16384) + 9, margin=10)})
    assert found.n_ctx == 16384 - 256


def test_the_least_context_is_chosen_where_nothing_fits() -> None:
    found = choose(asked(), on_cpu, {CPU: FitBudget(100, margin=10)})
    assert (found.n_ctx, found.fits) == (4096, False)


def test_a_context_that_was_given_stays() -> None:
    found = choose(asked(least_ctx=32768), on_cpu, {CPU: FitBudget(100, margin=10)})
    assert (found.n_ctx, found.n_layers, found.fits) == (32768, AUTO, False)


def test_a_state_of_a_fixed_size_is_no_reason_for_a_smaller_context() -> None:
    found = choose(asked(), lambda _n_ctx, n: on_cpu(256, n), {CPU: FitBudget(100, margin=10)})
    assert (found.n_ctx, found.fits) == (32768, False)


def test_layers_leave_the_device_once_the_context_is_the_least() -> None:
    free = 6 * (WEIGHTS + TOKEN * 4096) + COMPUTE
    found = choose(asked(most_layers=N_LAYERS), uses, {"GPU0": FitBudget(free, margin=0)})
    assert (found.n_ctx, found.n_layers, found.fits) == (4096, 6, True)
    assert [use.n_layers for use in found.uses] == [6, 4]


def test_no_layer_is_on_a_device_without_room() -> None:
    found = choose(asked(most_layers=N_LAYERS), uses, {"GPU0": FitBudget(0, margin=0)})
    assert (found.n_ctx, found.n_layers) == (4096, 0)


def test_layers_that_were_given_stay() -> None:
    found = choose(asked(), uses, {"GPU0": FitBudget(0, margin=0)})
    assert (found.n_layers, found.fits) == (AUTO, False)


def test_the_machine_counts_only_where_the_model_is_on_no_device() -> None:
    budgets = {"GPU0": FitBudget(total(32768), margin=0), CPU: FitBudget(0, margin=0)}
    assert choose(asked(), uses, budgets).n_ctx == 32768
    assert choose(asked(), on_cpu, budgets).n_ctx == 4096


def test_memory_that_is_unknown_changes_nothing() -> None:
    assert choose(asked(), on_cpu, {}).fits


@given(st.integers(0, 2 * total(32768)), st.integers(0, 100_000), st.integers(256, 40_000))
def test_a_choice_is_never_larger_and_fits_where_the_least_does(
    free: int, margin: int, n_ctx: int
) -> None:
    least = min(4096, n_ctx)
    found = choose(asked(least, n_ctx=n_ctx), on_cpu, {CPU: FitBudget(free, margin)})
    assert least <= found.n_ctx <= n_ctx
    assert found.fits == (total(least) + margin <= free)
    if found.fits and found.n_ctx < n_ctx:
        assert total(min(n_ctx, found.n_ctx + 256)) + margin > free


@pytest.mark.parametrize("limit", [0, 255, 256, 257, 9999, 100_000])
def test_the_largest_context_below_another(limit: int) -> None:
    found = largest_context(10_000, 256, lambda n: n <= limit)
    assert found == min(limit, 9999) // 256 * 256
