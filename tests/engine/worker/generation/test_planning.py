"""The estimated wait for a slot."""

from heapq import heapify, heapreplace

from hypothesis import example, given
from hypothesis import strategies as st

from specllama.engine.worker.generation.planning import steps_until_free


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
