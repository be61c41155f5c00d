"""The accounts of KV cells against lists of owned objects."""

from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from specllama.engine.worker.cache.cells import Cells

pytestmark = pytest.mark.slow


class Accounts(RuleBasedStateMachine):
    """Cells are counted as lists of owned objects are."""

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
        assert self.n_used <= self.cells.n_covered() <= (self.N if self.n_used else 0)
        assert self.cells.n_covered(self.N) == self.n_used + self.N
        holders = Counter(id(cell) for held in self.held.values() for cell in held)
        used = {id(cell) for other in (0, 1) for cell in self.held.get(other, [])}
        for sequence, part in self.cells.shares(self.held, (0, 1)).items():
            unused = {id(cell) for cell in self.held[sequence]} - used
            assert part == pytest.approx(sum(1 / holders[cell] for cell in unused))
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
