"""The limits of owners: their own texts are dropped, and no other ones."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.worker.cache.prefix_cache import PrefixCache
from specllama.engine.worker.cache.texts import CachedText
from tests.support.fake_kv import FakeKV, FakeTier

N_TEXTS = 12
LIMITS = {0: 0, 1: 100, 2: 30}
"""The bytes of each owner; a token takes one."""

closed = st.tuples(st.sampled_from([*LIMITS]), st.integers(1, 60), st.booleans())


class Stage:
    """A cache with room for all texts."""

    def __init__(self, *, has_tier: bool) -> None:
        self.kv = FakeKV(1 << 12, 1 << 10)
        self.tier = FakeTier(self.kv) if has_tier else None
        self.cache = PrefixCache(self.kv, 2 * N_TEXTS, 1 << 12, tier=self.tier)
        self.n_texts = 0

    def close(self, owner: int, n: int, limit: int) -> int:
        """Adds a finished text of `n` tokens, unlike all others. Returns its sequence id."""
        self.n_texts += 1
        tokens = np.arange(n, dtype=np.int32) + 1000 * self.n_texts
        id = self.cache.open(None, tokens, ())
        self.kv.restore(id, tokens.tolist(), ())
        self.cache.grow(id, n)
        self.cache.close(id, CachedText(tokens, owner=owner, limit=limit))
        return id

    def of(self, owner: int) -> list[int]:
        """The sequence ids of the texts of an owner, the least recently used one first."""
        return [id for id, entry in self.cache.entries.items() if entry.owner == owner]

    def n_bytes(self, owner: int) -> int:
        n_kept = self.tier.n_bytes_of(owner) if self.tier is not None else 0
        return n_kept + sum(len(self.cache.entries[id].tokens) for id in self.of(owner))


@given(st.lists(closed, max_size=N_TEXTS), st.booleans())
def test_an_owner_keeps_to_its_limit(texts: list[tuple[int, int, bool]], has_tier: bool) -> None:
    one = Stage(has_tier=has_tier)
    for owner, n, evicts in texts:
        others = {each: (one.of(each), one.n_bytes(each)) for each in LIMITS if each != owner}
        before, limit = one.of(owner), LIMITS[owner]
        id = one.close(owner, n, limit)
        left = one.of(owner)
        assert left[-1] == id
        assert left[:-1] == before[len(before) + 1 - len(left) :], "the oldest ones are dropped"
        if limit:
            assert one.n_bytes(owner) <= max(limit, n)
        assert others == {each: (one.of(each), one.n_bytes(each)) for each in others}
        if evicts:
            sizes = {each: one.n_bytes(each) for each in LIMITS}
            one.cache.evict()
            assert all(one.n_bytes(each) <= sizes[each] for each in LIMITS)


def test_the_second_tier_is_dropped_first() -> None:
    one = Stage(has_tier=True)
    assert one.tier is not None
    first = one.close(1, 60, 100)
    one.cache.give_up(first)
    assert one.n_bytes(1) == one.tier.n_bytes_of(1) == 60
    second = one.close(1, 50, 100)
    assert one.of(1) == [second]
    assert one.tier.n_bytes_of(1) == 0


def test_a_text_beyond_the_limit_stays_until_the_next_one() -> None:
    one = Stage(has_tier=True)
    large = one.close(1, 150, 100)
    assert one.of(1) == [large]
    small = one.close(1, 10, 100)
    assert one.of(1) == [small]


def test_a_text_beyond_the_limit_is_not_saved() -> None:
    one = Stage(has_tier=True)
    large = one.close(1, 150, 100)
    one.cache.give_up(large)
    assert one.n_bytes(1) == 0
