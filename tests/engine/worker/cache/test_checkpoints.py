"""Checkpoints of texts."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.worker.cache.checkpoints import Checkpoint, Checkpoints, Cuts, thinned

STATE = np.zeros(1, np.uint8)


def test_shared_parts_of_copies_count_once() -> None:
    checkpoints = Checkpoints(4)
    assert checkpoints.n_bytes == 0
    checkpoints.add(1, 10, np.zeros(100, np.uint8))
    checkpoints.add(1, 20, np.zeros(50, np.uint8))
    checkpoints.inherit(1, 2, 20)
    assert checkpoints.n_bytes == 150
    checkpoints.cut(1, 0)
    assert checkpoints.n_bytes == 150
    checkpoints.cut(2, 10)
    assert checkpoints.n_bytes == 100


def at(*places: int) -> list[Checkpoint]:
    return [Checkpoint(n, STATE) for n in places]


def test_the_least_useful_one_goes_first() -> None:
    kept, gone = at(100, 200, 900, 990, 1000), []
    while kept:
        fewer = thinned(kept)
        gone += [each.n for each in kept if each not in fewer]
        kept = fewer
    assert gone == [100, 200, 900, 990, 1000]
    assert thinned(at(100, 110, 900, 1000)) == at(110, 900, 1000), "close to another"


def test_gaps_grow_with_the_distance_from_the_end() -> None:
    checkpoints = Checkpoints(8)
    for n in range(10, 10_001, 10):
        checkpoints.add(1, n, STATE)
    kept = [0, *(each.n for each in checkpoints.of[1])]
    gaps = [b - a for a, b in pairwise(kept)]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] == 10


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=30), st.integers(1, 8))
def test_the_last_one_is_kept_and_never_too_many(places: list[int], limit: int) -> None:
    checkpoints = Checkpoints(limit)
    places = sorted(set(places))
    for n in places:
        checkpoints.add(1, n, STATE)
    kept = [each.n for each in checkpoints.of[1]]
    assert len(kept) == min(limit, len(places))
    assert kept[-1] == places[-1]
    assert set(kept) <= set(places)


def test_where_a_text_can_be_cut() -> None:
    cuts = Cuts(7, (2, 5))
    assert [cuts.reachable(n) for n in range(10)] == [0, 0, 2, 2, 2, 5, 5, 7, 8, 9]
    assert [Cuts().reachable(n) for n in range(3)] == [0, 1, 2]
