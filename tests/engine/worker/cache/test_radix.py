"""The radix index against a comparison with every text."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from specllama.engine.worker.cache.radix import RadixIndex
from specllama.engine.worker.tokens import TokenArray

pytestmark = pytest.mark.slow

texts = st.lists(st.integers(0, 2), min_size=1, max_size=12)


def tokens(text: Sequence[int]) -> TokenArray:
    return np.array(text, np.int32)


def n_common(a: Sequence[int], b: Sequence[int]) -> int:
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


class Index(RuleBasedStateMachine):
    """A radix tree finds the same as a comparison with every text."""

    def __init__(self) -> None:
        super().__init__()
        self.index = RadixIndex()
        self.texts: dict[int, list[int]] = {}

    @rule(holder=st.integers(0, 5), text=texts)
    def insert(self, holder: int, text: list[int]) -> None:
        self.index.insert(holder, tokens(text))
        self.texts[holder] = text

    @rule(holder=st.integers(0, 5))
    def remove(self, holder: int) -> None:
        self.index.remove(holder)
        self.texts.pop(holder, None)

    @rule(text=texts)
    def look_up(self, text: list[int]) -> None:
        expected = {h: n for h, held in self.texts.items() if (n := n_common(held, text))}
        assert self.index.matches(tokens(text)) == expected

    @rule(text=texts, n_rest=st.integers(0, 12))
    def diverge(self, text: list[int], n_rest: int) -> None:
        n, length, rest = self.index.divergence(tokens(text), n_rest)
        common = {h: n_common(held, text) for h, held in self.texts.items()}
        assert n == max(common.values(), default=0)
        similar = [self.texts[h] for h, each in common.items() if each == n]
        if n:
            found = [each for each in similar if len(each) == length]
            assert rest.tolist() in [each[n : n + n_rest] for each in found]
        else:
            assert not len(rest)

    @invariant()
    def counts(self) -> None:
        assert len(self.index) == len(self.texts)


TestIndex = Index.TestCase
