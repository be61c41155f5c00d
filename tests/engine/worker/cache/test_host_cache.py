"""Texts kept below the KV cache, against a list that is searched from end to end."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from specllama.engine.worker.cache.checkpoints import Checkpoint, Cuts, thinned
from specllama.engine.worker.cache.host_cache import LOSS, HostCache, KeptText, TextIndex
from specllama.engine.worker.cache.texts import Key
from specllama.engine.worker.tokens import TokenArray, common_prefix

pytestmark = pytest.mark.slow

A: Key = ((0, 1.0),)
texts = st.lists(st.integers(0, 2), min_size=1, max_size=8)
keys = st.sampled_from([(), A])


def tokens(text: list[int]) -> TokenArray:
    return np.array(text, np.int32)


@dataclass(eq=False)
class Model:
    """A simple implementation of `HostCache`."""

    limit: int | None
    texts: list[KeptText]  # in the order of their use
    born: list[KeptText]

    def is_covered(self, a: KeptText, b: KeptText) -> bool:
        """True if `a` is of no use in addition to `b`."""
        n = len(a.tokens)
        if a.key != b.key or common_prefix(a.tokens, b.tokens) < n:
            return False
        return n - self.usable(b, a.tokens, a.key) <= n // LOSS

    def use_covering(self, text: KeptText) -> bool:
        found = [
            other
            for other in self.texts
            if self.is_covered(text, other)
            and (
                len(other.tokens) > len(text.tokens)
                or len(other.checkpoints) >= len(text.checkpoints)
            )
        ]
        found.sort(key=lambda kept: [is_same(each, kept) for each in self.born].index(True))
        self.texts = [other for other in self.texts if other not in found] + found
        return bool(found)

    def put(self, text: KeptText) -> list[KeptText]:
        if self.use_covering(text):
            return []
        kept = text
        if self.limit is not None:
            while kept.n_bytes > self.limit and kept.checkpoints:
                kept = replace(kept, checkpoints=tuple(thinned(kept.checkpoints)))
            if kept.n_bytes > self.limit:
                return [text]
        self.texts = [other for other in self.texts if not self.is_covered(other, kept)]
        self.texts.append(kept)
        self.born.append(kept)
        lessened = [] if kept is text else [text]
        while self.limit is not None and self.n_bytes > self.limit:
            first = self.texts[0]
            if first not in lessened and not any(is_same(first, each) for each in lessened):
                lessened.append(first)
            if first.checkpoints:
                self.texts[0] = replace(first, checkpoints=tuple(thinned(first.checkpoints)))
            else:
                del self.texts[0]
        return lessened

    def usable(self, text: KeptText, wanted: TokenArray, key: Key) -> int:
        n = common_prefix(text.tokens, wanted)
        if text.key != key:
            return 0
        places = {*range(text.first_cut, len(text.tokens) + 1), *(c.n for c in text.checkpoints)}
        return max((place for place in places if place <= n), default=0)

    @property
    def n_bytes(self) -> int:
        states = {id(c.state): c.state.nbytes for text in self.texts for c in text.checkpoints}
        n_cells = sum(text.tokens.nbytes + text.state.nbytes for text in self.texts)
        return int(n_cells) + sum(states.values())


def is_same(a: KeptText, b: KeptText) -> bool:
    """True if one is the other, maybe with fewer checkpoints."""
    return a.state is b.state


def content(texts: Iterable[KeptText]) -> list[tuple[int, list[int]]]:
    """The state, and the places of the checkpoints, distinguish texts."""
    return [(id(text.state), [each.n for each in text.checkpoints]) for text in texts]


STATES = [np.zeros(n, np.uint8) for n in (3, 5, 9)]
"""The bytes of checkpoints, which texts may share."""


class Caches(RuleBasedStateMachine):
    @initialize(limit=st.sampled_from([None, 0, 60, 120]))
    def begin(self, limit: int | None) -> None:
        self.cache, self.model = HostCache(limit), Model(limit, [], [])

    @rule(
        text=texts,
        key=keys,
        n_bytes=st.integers(1, 70),
        first_cut=st.sampled_from([0, 0, 3, 8]),
        at=st.lists(st.integers(1, 7), max_size=3, unique=True),
        data=st.data(),
    )
    def put(
        self,
        text: list[int],
        key: Key,
        n_bytes: int,
        first_cut: int,
        at: list[int],
        data: st.DataObject,
    ) -> None:
        states = st.sampled_from(STATES)
        checkpoints = [Checkpoint(n, data.draw(states)) for n in sorted(at) if n <= len(text)]
        state = np.zeros(n_bytes, np.uint8)
        first = min(first_cut, len(text))
        new = KeptText(tokens(text), key, state, first, tuple(checkpoints))
        gone, expected = self.cache.put(new), self.model.put(new)
        assert content(gone) == content(expected)

    @rule(text=texts, key=keys)
    def find(self, text: list[int], key: Key) -> None:
        wanted = tokens(text)
        most = max((self.model.usable(k, wanted, key) for k in self.model.texts), default=0)
        found = self.cache.find(wanted, key)
        if found is None:
            assert most == 0
        else:
            assert found[1] == most == self.model.usable(*(found[0], wanted, key))
            assert content([found[0]])[0] in content(self.model.texts)

    @precondition(lambda self: self.model.texts)
    @rule(data=st.data())
    def use_or_drop(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.model.texts) - 1))
        text, same = self.model.texts.pop(number), list(self.cache)[number]
        if data.draw(st.booleans()):
            self.cache.use(same)
            self.model.texts.append(text)
        else:
            self.cache.drop(same)

    @invariant()
    def the_same(self) -> None:
        if not hasattr(self, "cache"):
            return
        assert content(self.cache) == content(self.model.texts)
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
    index = TextIndex()
    index.add(1, tokens([1, 2, 3, 4, 5]), (), Cuts())
    index.add(2, tokens([1, 2, 4]), (), Cuts())
    assert index.longest(tokens([1, 2, 9]), ()) == (2, 2)
    assert index.longest(tokens([1, 2, 9]), A) == (-1, 0)


def test_texts_are_found_where_they_can_be_cut() -> None:
    index = TextIndex()
    index.add(1, tokens([1, 2, 3, 4, 5]), (), Cuts(4, (2,)))
    for wanted, n in (([1], 0), ([1, 2], 2), ([1, 2, 3], 2), ([1, 2, 3, 4], 4), ([1, 3], 0)):
        assert index.longest(tokens(wanted), ()) == ((1, n) if n else (-1, 0))


def test_a_longer_text_stands_for_a_shorter_one_if_little_is_lost() -> None:
    old, new = list(range(40)), list(range(60))
    for at, stands in ((40, True), (35, True), (34, False)):
        cuts = Cuts(60, (at,))
        index = TextIndex()
        index.add(1, tokens(old), (), Cuts(40))
        assert index.covered(tokens(new), (), cuts) == ([1] if stands else [])
        index.remove(1)
        index.add(2, tokens(new), (), cuts)
        assert index.covering(tokens(old), ()) == ([2] if stands else [])


def test_the_same_text_with_more_checkpoints_takes_the_place() -> None:
    cache, state = HostCache(None), np.zeros(5, np.uint8)
    old = KeptText(tokens([1, 2, 3]), (), state, 3)
    new = replace(old, checkpoints=(Checkpoint(2, state),))
    assert cache.put(old) == cache.put(new) == cache.put(old) == []
    assert list(cache) == [new]


def test_the_oldest_text_loses_checkpoints_first() -> None:
    def text(first: int, *at: int) -> KeptText:
        cps = tuple(Checkpoint(n, np.zeros(20, np.uint8)) for n in at)
        return KeptText(tokens([first] * 10), (), np.zeros(20, np.uint8), 10, cps)

    one, two, three = text(1, 2, 4, 9), text(2, 8, 9), text(3)
    cache = HostCache(one.n_bytes + two.n_bytes)
    assert cache.put(one) == cache.put(two) == []
    assert cache.put(three) == [one], "as it was"
    assert [list(kept.cuts.at) for kept in cache] == [[], [8, 9], []]
    assert cache.put(text(4, 8, 9))[0].tokens[0] == 1
