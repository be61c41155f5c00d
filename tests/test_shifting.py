"""Which cells are dropped: against a plain reading of the rules."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.shifting import Chunk, context_shift, reusable_chunks
from engine.tokens import common_prefix


@given(st.integers(8, 5000), st.integers(0, 6000), st.one_of(st.just(0), st.integers(1, 2**31 - 1)))
def test_a_shift_makes_room_and_leaves_something(n_ctx: int, n_keep: int, n_discard: int) -> None:
    n_past = n_ctx - 1
    kept, dropped = context_shift(n_past, n_ctx, n_keep, n_discard)
    assert kept == min(n_keep, n_ctx - 4)
    assert dropped >= 1
    assert kept + dropped < n_past
    n_left = n_past - kept
    assert dropped == min(n_discard or n_left // 2, n_left - 1)


def simple(cached: list[int], prompt: list[int], start: int, n_min: int) -> list[Chunk]:
    """Token by token, as one would say it."""
    chunks, source, target = [], start, start
    while source < len(cached) and target < len(prompt):
        length = 0
        while (
            source + length < len(cached)
            and target + length < len(prompt)
            and cached[source + length] == prompt[target + length]
        ):
            length += 1
        if length >= n_min:
            chunks.append(Chunk(source, target, length))
            source, target = source + length, target + length
        else:
            source += 1
    return chunks


# Ids whose bytes look like each other at odd places.
TOKENS = st.lists(st.sampled_from([0, 1, 256, 65536, 257]), max_size=40)


@given(TOKENS, TOKENS, st.integers(1, 5))
def test_chunks_are_those_that_a_plain_search_finds(
    cached: list[int], prompt: list[int], n_min: int
) -> None:
    a, b = np.array(cached, np.int32), np.array(prompt, np.int32)
    start = common_prefix(a, b)
    assert reusable_chunks(a, b, start, n_min) == simple(cached, prompt, start, n_min)
