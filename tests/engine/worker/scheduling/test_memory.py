"""Consequences of the kind of memory: the number of granted proposals, and the places where texts
are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.worker.cache.prefix_cache import PrefixCache
from specllama.engine.worker.scheduling.memory import (
    MIN_FOLLOW,
    ROWS_OF_BATCH,
    SeparateLayout,
    UnifiedLayout,
    cutting_of,
    micro_batches,
)
from specllama.engine.worker.scheduling.sequences import Chunk, Sequence
from tests.support.fake_kv import FakeKV
from tests.support.scheduling import sequence

N_CTX = 40


def proposing(id: int, n_proposed: int, n_forced: int, length: int = 4) -> Sequence:
    found = sequence(id, [1] * length)
    found.proposed, found.n_forced = (2,) * n_proposed, n_forced
    return found


def test_one_cache_grants_all_proposals() -> None:
    ready = [proposing(1, 3, 0), proposing(2, 0, 0), proposing(3, 9, 2)]
    assert UnifiedLayout(99).grants(ready, 7, N_CTX, early=True) == [(3, 0), (0, 0), (4, 0)]


@pytest.mark.parametrize("early", [False, True])
def test_separate_caches_get_equal_numbers_of_unsure_tokens(early: bool) -> None:
    ready = [proposing(1, 3, 0), proposing(2, 9, 0)]
    assert SeparateLayout().grants(ready, 99, N_CTX, early=early) == [(3, 0), (3, 0)]
    assert SeparateLayout().grants(ready, 5, N_CTX, early=early) == [(2, 0), (2, 0)]


def test_forced_tokens_come_early_if_others_have_fewer() -> None:
    ready = [proposing(1, 5, 5), proposing(2, 0, 0), proposing(3, 2, 2)]
    assert SeparateLayout().grants(ready, 99, N_CTX, early=True) == [(5, 5), (0, 0), (2, 2)]
    assert SeparateLayout().grants(ready, 6, N_CTX, early=True) == [(5, 5), (0, 0), (1, 1)]
    assert SeparateLayout().grants(ready, 99, N_CTX, early=False) == [(0, 0)] * 3


def test_forced_tokens_of_all_come_together() -> None:
    ready = [proposing(1, 5, 4), proposing(2, 4, 2)]
    assert SeparateLayout().grants(ready, 99, N_CTX, early=True) == [(5, 2), (3, 0)]


sequences = st.builds(
    lambda proposed, forced, length: (proposed, min(proposed, forced), length),
    st.integers(0, 12),
    st.integers(0, 12),
    st.integers(1, N_CTX - 1),
)


@given(texts=st.lists(sequences, min_size=1, max_size=5), n=st.integers(0, 80))
def test_grants_keep_their_bounds(texts: list[tuple[int, int, int]], n: int) -> None:
    ready = [proposing(id, *each) for id, each in enumerate(texts)]
    unified, separate = UnifiedLayout(99), SeparateLayout()
    for layout, early in ((unified, True), (separate, True), (separate, False)):
        alike = layout is separate
        grants = layout.grants(ready, n, N_CTX, early=early)
        assert sum(each for each, _ in grants) <= n
        for text, (n_granted, n_early) in zip(ready, grants, strict=True):
            assert 0 <= n_early <= min(text.n_forced, n_granted)
            assert n_granted <= len(text.proposed)
            assert len(text.tokens) + n_granted < N_CTX or not n_granted
        if alike:
            assert len({n_granted - n_early for n_granted, n_early in grants}) == 1
        if alike and early and n >= 60:
            wanted = [min(t.n_forced, N_CTX - len(t.tokens) - 1) for t in ready]
            assert all(g >= w for (g, _), w in zip(grants, wanted, strict=True))


def test_a_prefix_of_a_leader_is_shared_as_far_as_its_memory_can_be_cut() -> None:
    leader, n_same = sequence(1, [1] * 100), 60
    leader.checkpoints_at = [32, 64]
    soon = {}
    for name, cuttable, n_checkpoints in (
        ("anywhere", True, 2),
        ("nowhere", False, 0),
        ("at checkpoints", False, 2),
    ):
        kv = FakeKV(None, 100, cuttable)
        cutting = cutting_of(kv, PrefixCache(kv, 1, None, n_checkpoints), n_checkpoints)
        soon[name] = cutting.n_soon(leader, 8, n_same)
        assert cutting.n_ahead(5) == (5 if cuttable else 0)
    assert soon == {"anywhere": 60, "nowhere": 8, "at checkpoints": 60}
    assert leader.checkpoints_at == [32, 60, 64], "the leader makes one there"
    assert n_same - 8 >= MIN_FOLLOW


# ---- Rows that are evaluated together.


def piece(seq_id: int, n: int, *, start: int = 0) -> Chunk:
    """Returns a chunk of `n` prompt tokens or, if `n` is 1, of the last chosen token."""
    found = sequence(seq_id, [1] * (start + n))
    found.seq_id, found.generating = seq_id, n == 1
    return Chunk(found, start, start + n)


def test_micro_batches_end_with_the_shortest_rows() -> None:
    assert micro_batches([0, 1, 2], [5, 5, 5]) == 1
    assert micro_batches([0, 1, 2], [5, 7, 9]) == 3
    assert micro_batches([0, 1, 2], [7, 5, 7]) == 3, "0 and 2 don't follow each other"
    assert micro_batches([0, 2, 3], [5, 5, 5]) == 2
    assert micro_batches([0, 1, 2], [1, 20, 1]) == 2
    assert micro_batches([], []) == 0


def test_prompts_of_nearly_the_same_length_get_as_many_rows() -> None:
    chunks = [piece(2, 23), piece(0, 17), piece(1, 20)]
    arranged = SeparateLayout().arranged(chunks, 100, N_CTX)
    assert [(c.sequence.seq_id, c.n_pad) for c in arranged] == [(0, 6), (1, 3), (2, 0)]
    assert all(c.n_tokens == c.stop for c in arranged), "it is no part of the text"
    few = SeparateLayout().arranged(chunks, 8, N_CTX)
    assert not any(c.n_pad for c in few), "there is no room for it"
    assert UnifiedLayout(99).arranged(chunks, 100, N_CTX) == chunks


def test_prompts_that_differ_more_are_not_padded() -> None:
    chunks = [piece(0, 17), piece(1, 1200)]
    assert SeparateLayout().arranged(chunks, 2000, 2000) == chunks


def test_nothing_is_padded_that_no_other_is_evaluated_with() -> None:
    for chunks in (
        [piece(0, 17), piece(1, 1), piece(2, 19)],  # a token between two prompts
        [piece(0, 17), piece(2, 19)],
        [piece(0, 1), piece(1, 17)],
    ):
        assert SeparateLayout().arranged(chunks, 100, N_CTX) == chunks


@given(
    lengths=st.lists(st.integers(1, N_CTX - 1), min_size=1, max_size=8),
    start=st.integers(0, 8),
    n_pad=st.integers(0, 99),
)
def test_padding_keeps_its_bounds(lengths: list[int], start: int, n_pad: int) -> None:
    chunks = [piece(id, min(n, N_CTX - start), start=start) for id, n in enumerate(lengths)]
    arranged = SeparateLayout().arranged(chunks, n_pad, N_CTX)
    before, after = [c.n_tokens for c in chunks], [c.n_tokens + c.n_pad for c in arranged]
    ids = [*range(len(chunks))]
    n_saved = micro_batches(ids, before) - micro_batches(ids, after)
    n_more = sum(after) - sum(before)
    assert 0 <= n_more <= min(n_pad, ROWS_OF_BATCH * n_saved)
    assert all(c.n_pad >= 0 and c.stop + c.n_pad <= N_CTX for c in arranged)
    assert not any(c.n_pad for c in arranged if c.n_tokens == 1)
