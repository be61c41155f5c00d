"""The memory of evicted texts."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.worker.cache.evicted import BLOCK, N_HASHES, EvictedTexts
from specllama.engine.worker.tokens import TokenArray
from tests.support.scheduling import A, B

tokens = st.lists(st.integers(-3, 40000), max_size=5 * BLOCK)
beginnings = st.integers(0, 5 * BLOCK)


def array(text: list[int]) -> TokenArray:
    return np.array(text, np.int32)


@given(tokens, tokens, beginnings, st.integers(0, 6 * BLOCK))
def test_whole_blocks_of_a_common_beginning_are_known(
    text: list[int], other: list[int], n_same: int, at: int
) -> None:
    memory = EvictedTexts()
    memory.add(array(text), A)
    asked = [*text[:n_same], *other]
    stop = (at // BLOCK + 1) * BLOCK
    is_known = stop <= min(len(text), len(asked)) and asked[:stop] == text[:stop]
    assert memory.has(array(asked), A, at) == is_known
    assert not memory.has(array(asked), B, at)


def test_older_texts_are_forgotten_for_newer_ones() -> None:
    memory = EvictedTexts()
    n = 4 * BLOCK
    for i in range(N_HASHES):
        memory.add(np.arange(i, i + n, dtype=np.int32), ())
    assert memory.has(np.arange(N_HASHES - 1, N_HASHES - 1 + n, dtype=np.int32), (), 0)
    known = [memory.has(np.arange(i, i + n, dtype=np.int32), (), 0) for i in range(1000)]
    assert not all(known)
