"""What the scheduler's accounts are made of, against the simplest thing that does the same."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from engine.worker.cache.cells import Cells
from engine.worker.cache.radix import RadixIndex
from engine.worker.tokens import TokenArray, TokenBuffer

texts = st.lists(st.integers(0, 2), min_size=1, max_size=12)


def tokens(text: Sequence[int]) -> TokenArray:
    return np.array(text, np.int32)


def n_common(a: Sequence[int], b: Sequence[int]) -> int:
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


class Index(RuleBasedStateMachine):
    """A radix tree finds what a comparison with every text finds."""

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

    @invariant()
    def counts(self) -> None:
        assert len(self.index) == len(self.texts)


TestIndex = Index.TestCase


class Accounts(RuleBasedStateMachine):
    """Cells as lists of owned objects."""

    N = 40

    def __init__(self) -> None:
        super().__init__()
        self.cells = Cells(self.N)
        self.held: dict[int, list[object]] = {}

    @property
    def n_used(self) -> int:
        return len({id(cell) for held in self.held.values() for cell in held})

    @rule(sequence=st.integers(0, 4), n=st.integers(1, 12))
    def grow(self, sequence: int, n: int) -> None:
        if n <= self.cells.n_free:
            self.cells.grow(sequence, n)
            self.held.setdefault(sequence, []).extend(object() for _ in range(n))

    @rule(source=st.integers(0, 4), sharer=st.integers(0, 4), data=st.data())
    def share(self, source: int, sharer: int, data: st.DataObject) -> None:
        if not self.held.get(sharer) and source != sharer:
            n = data.draw(st.integers(0, len(self.held.get(source, []))))
            self.cells.share(source, sharer, n)
            self.held[sharer] = self.held.get(source, [])[:n]

    @rule(sequence=st.integers(0, 4), data=st.data())
    def cut(self, sequence: int, data: st.DataObject) -> None:
        held = self.held.get(sequence, [])
        start = data.draw(st.integers(0, len(held)))
        stop = data.draw(st.one_of(st.none(), st.integers(start, len(held))))
        self.cells.cut(sequence, start, stop)
        self.held[sequence] = held[:start] + held[len(held) if stop is None else stop :]

    @invariant()
    def the_same(self) -> None:
        assert self.cells.n_free == self.N - self.n_used
        assert self.cells.n_of(self.held) == self.n_used
        for sequence, held in self.held.items():
            assert self.cells.held(sequence) == len(held)
            others = [c for s, h in self.held.items() if s != sequence for c in h]
            for start in (0, len(held) // 2):
                alone = [cell for cell in held[start:] if cell not in others]
                assert self.cells.n_alone(sequence, start) == len(alone)
            for other, theirs in self.held.items():
                if other != sequence:
                    shared = any(cell in theirs for cell in held[1:])
                    assert self.cells.are_shared(sequence, 1, other) == shared


TestAccounts = Accounts.TestCase


@given(st.lists(texts))
def test_a_buffer_grows_by_many(pieces: list[list[int]]) -> None:
    buffer = TokenBuffer(tokens([]))
    for piece in pieces:
        buffer.extend(tokens(piece))
        buffer.append(9)
    assert buffer.view().tolist() == [t for piece in pieces for t in [*piece, 9]]
