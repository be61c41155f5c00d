"""Counts the cells of a unified KV cache: which sequences own how many of them, and about how
far up these are."""

from collections.abc import Iterable

import numpy as np

from specllama.engine.worker.tokens import TokenBuffer


class Cells:
    """`n_cells` cells. A cell belongs to the sequences that share it, and is free if there are
    none.

    llama.cpp chooses the real places of cells; the numbers here are only used for counting.
    """

    def __init__(self, n_cells: int) -> None:
        self.n_free = n_cells
        self._owners = np.zeros(n_cells, np.int32)
        self._free = np.arange(n_cells, dtype=np.int32)  # the first `n_free` of them
        self._held: dict[int, TokenBuffer] = {}
        self._tops: dict[int, int] = {}  # the estimated highest place of a cell, by sequence

    def held(self, sequence: int) -> int:
        """The number of cells of `sequence`, one for each token of its text."""
        return len(self._held.get(sequence, ()))

    def n_of(self, sequences: Iterable[int]) -> int:
        """The number of cells of these sequences together, shared ones counted once."""
        marked = np.zeros(len(self._owners), np.bool_)
        for sequence in sequences:
            if sequence in self._held:
                marked[self._held[sequence].view()] = True
        return int(np.count_nonzero(marked))

    def n_covered(self, n_more: int = 0) -> int:
        """The estimated number of cells up to the highest used one, over which llama.cpp computes
        attention, after `n_more` cells have been taken."""
        n_used = len(self._owners) - self.n_free
        return max(n_used + n_more, *self._tops.values(), 0)

    def shares(self, sequences: Iterable[int], others: Iterable[int]) -> dict[int, float]:
        """For each of `sequences`, the number of its cells that `others` don't hold. A cell of
        several sequences counts in parts."""
        marked = np.zeros(len(self._owners), np.bool_)
        for other in others:
            if other in self._held:
                marked[self._held[other].view()] = True
        held = {id: self._held[id].view() for id in sequences if id in self._held}
        unmarked = {id: cells[~marked[cells]] for id, cells in held.items()}
        return {id: float((1 / self._owners[cells]).sum()) for id, cells in unmarked.items()}

    def grow(self, sequence: int, n: int) -> None:
        """Give `sequence` `n` more cells, which must be free."""
        assert n <= self.n_free, "more cells are taken than there are"
        self.n_free -= n
        # llama.cpp takes low cells first (`llama_kv_cache::find_slot`), so about so many are used.
        top = len(self._owners) - self.n_free
        if top > self._tops.get(sequence, 0):
            self._tops[sequence] = top
        buffer = self._held.get(sequence)
        if n == 1 and buffer is not None:  # one token of a step: faster without slices
            cell = self._free.item(self.n_free)
            self._owners[cell] = 1
            buffer.append(cell)
            return
        taken = self._free[self.n_free : self.n_free + n]
        self._owners[taken] = 1
        if buffer is None:
            self._held[sequence] = TokenBuffer(taken.copy())
        else:
            buffer.extend(taken)

    def share(self, source: int, target: int, n: int) -> None:
        """Make `target`, which has no cells, another owner of the first `n` cells of `source`."""
        assert not self.held(target), "the target of a copy holds cells"
        if n:
            shared = self._held[source].view(0, n).copy()
            self._owners[shared] += 1
            self._held[target] = TokenBuffer(shared)
            self._tops[target] = self._tops[source]

    def cut(self, sequence: int, start: int, stop: int | None = None) -> None:
        """Release the cells of `sequence` from number `start` up to `stop` (exclusive), or to the
        end."""
        buffer = self._held.get(sequence)
        if buffer is None:
            return
        stop = len(buffer) if stop is None else stop
        given = buffer.view(start, stop)
        self._owners[given] -= 1
        freed = given[self._owners[given] == 0]
        self._free[self.n_free : self.n_free + len(freed)] = freed
        self.n_free += len(freed)
        buffer.remove(start, stop)
        if not len(buffer):
            del self._held[sequence], self._tops[sequence]

    def n_alone(self, sequence: int, start: int = 0) -> int:
        """The number of cells of `sequence` from number `start` on that it doesn't share."""
        if not self.held(sequence):
            return 0
        return int(np.count_nonzero(self._owners[self._held[sequence].view(start)] == 1))

    def are_shared(self, sequence: int, start: int, other: int) -> bool:
        """True if `other` is another owner of any cell of `sequence` from number `start` on."""
        if not (self.held(sequence) and self.held(other)):
            return False
        mine, others = self._held[sequence].view(start), self._held[other].view()
        return bool(np.isin(mine, others).any())
