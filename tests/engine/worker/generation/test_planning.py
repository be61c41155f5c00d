"""The estimated wait for a slot, and the size of its context."""

from heapq import heapify, heapreplace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specllama.engine.worker.generation.planning import slot_context, steps_until_free
from tests.support.options_support import engine_options


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=6),
    st.integers(1, 40),
    st.integers(1, 20),
)
@example([0, 1000, 1000], 20, 10)  # two slots are occupied for a long time
def test_the_steps_until_a_slot_is_free(n_left: list[int], n: int, mean: int) -> None:
    """The estimate counts fractions of texts, so it is less than one text too early."""
    slots = [*n_left]
    heapify(slots)
    for _ in range(n - 1):
        heapreplace(slots, slots[0] + mean)
    estimated = steps_until_free(sorted(n_left), n, mean)
    assert estimated - 1e-6 <= slots[0] <= estimated + mean + 1e-6


@pytest.mark.parametrize(
    ("limit", "n_cells", "n_ctx", "warning"),
    [
        (0, 1000, 1000, ""),
        (-1, 1000, 1000, ""),
        (600, 1000, 600, ""),
        (1000, 1000, 1000, ""),
        (1001, 1000, 1000, "--kv-unified-per-slot 1001 has no effect: a slot has 1000 cells"),
        (3000, 4000, 2000, "2000 instead of 3000"),
        (600, 4000, 600, ""),
    ],
)
def test_a_slot_has_at_most_its_limit(
    limit: int, n_cells: int, n_ctx: int, warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    context: Any = SimpleNamespace(n_ctx_seq=n_cells, model=SimpleNamespace(n_ctx_train=2000))
    assert slot_context(context, engine_options(kv_unified_per_slot=limit)) == n_ctx
    assert warning in caplog.text
    assert bool(caplog.records) == bool(warning)
