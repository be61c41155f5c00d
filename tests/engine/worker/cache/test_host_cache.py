"""Texts kept below the KV cache, against a list that is searched from end to end."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.worker.cache.host_cache import HostCache, KeptText, TextIndex
from engine.worker.cache.prefix_cache import Key
from engine.worker.tokens import TokenArray, common_prefix

pytestmark = pytest.mark.slow

A: Key = ((0, 1.0),)
texts = st.lists(st.integers(0, 2), min_size=1, max_size=8)
keys = st.sampled_from([(), A])


def tokens(text: list[int]) -> TokenArray:
    return np.array(text, np.int32)


@dataclass(eq=False)
class Model:
    """The same as `HostCache`, in the obvious way."""

    limit: int | None
    whole: bool
    texts: list[KeptText]  # in the order of their use
    born: list[KeptText]

    def is_covered(self, a: KeptText, b: KeptText) -> bool:
        """True if `a` is of no use beside `b`."""
        n = common_prefix(a.tokens, b.tokens)
        same = not self.whole or len(a.tokens) == len(b.tokens)
        return a.key == b.key and n == len(a.tokens) and same

    def use_covering(self, text: KeptText) -> bool:
        found = [other for other in self.texts if self.is_covered(text, other)]
        found.sort(key=self.born.index)
        self.texts = [other for other in self.texts if other not in found] + found
        return bool(found)

    def put(self, text: KeptText) -> list[KeptText]:
        if self.use_covering(text):
            return []
        if self.limit is not None and text.n_bytes > self.limit:
            return [text]
        self.texts = [other for other in self.texts if not self.is_covered(other, text)]
        gone = []
        while self.limit is not None and self.n_bytes + text.n_bytes > self.limit:
            gone.append(self.texts.pop(0))
        self.texts.append(text)
        self.born.append(text)
        return gone

    def usable(self, text: KeptText, wanted: TokenArray, key: Key) -> int:
        n = common_prefix(text.tokens, wanted)
        return n if text.key == key and (n == len(text.tokens) or not self.whole) else 0

    @property
    def n_bytes(self) -> int:
        return sum(text.n_bytes for text in self.texts)


class Caches(RuleBasedStateMachine):
    @initialize(limit=st.sampled_from([None, 0, 60, 120]), whole=st.booleans())
    def begin(self, limit: int | None, whole: bool) -> None:
        self.cache, self.model = HostCache(limit, whole), Model(limit, whole, [], [])

    @rule(text=texts, key=keys, n_bytes=st.integers(1, 70))
    def put(self, text: list[int], key: Key, n_bytes: int) -> None:
        new = KeptText(tokens(text), key, np.zeros(n_bytes, np.uint8))
        gone, expected = self.cache.put(new), self.model.put(new)
        assert gone == expected

    @rule(text=texts, key=keys)
    def find(self, text: list[int], key: Key) -> None:
        wanted = tokens(text)
        most = max((self.model.usable(k, wanted, key) for k in self.model.texts), default=0)
        found = self.cache.find(wanted, key)
        if found is None:
            assert most == 0
        else:
            assert found[1] == most == self.model.usable(*(found[0], wanted, key))
            assert found[0] in self.model.texts

    @precondition(lambda self: self.model.texts)
    @rule(data=st.data())
    def use_or_drop(self, data: st.DataObject) -> None:
        text = data.draw(st.sampled_from(self.model.texts))
        self.model.texts.remove(text)
        if data.draw(st.booleans()):
            self.cache.use(text)
            self.model.texts.append(text)
        else:
            self.cache.drop(text)

    @invariant()
    def the_same(self) -> None:
        if not hasattr(self, "cache"):
            return
        assert list(self.cache) == self.model.texts
        assert self.cache.n_bytes == self.model.n_bytes
        assert self.model.limit is None or self.cache.n_bytes <= self.model.limit


TestCaches = Caches.TestCase
TestCaches.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


def test_the_least_recently_used_one_goes_first() -> None:
    cache = HostCache(3 * 14)
    first, second, third, fourth = (
        KeptText(tokens([i]), (), np.zeros(10, np.uint8)) for i in range(4)
    )
    for text in (first, second, third):
        assert cache.put(text) == []
    cache.use(first)
    assert cache.put(fourth) == [second]
    assert cache.find(tokens([1, 5]), ()) is None
    assert cache.find(tokens([0, 5]), ()) == (first, 1)


def test_of_equals_the_shortest_is_found() -> None:
    index = TextIndex(whole=False)
    index.add(1, tokens([1, 2, 3, 4, 5]), ())
    index.add(2, tokens([1, 2, 4]), ())
    assert index.longest(tokens([1, 2, 9]), ()) == (2, 2)
    assert index.longest(tokens([1, 2, 9]), A) == (-1, 0)


def test_whole_texts_only() -> None:
    index = TextIndex(whole=True)
    index.add(1, tokens([1, 2, 3]), ())
    assert index.longest(tokens([1, 2, 4]), ()) == (-1, 0)
    assert index.longest(tokens([1, 2, 3, 4]), ()) == (1, 3)
