"""Counts the cells of a unified KV cache: which sequences own how many of them."""

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

    def grow(self, sequence: int, n: int) -> None:
        """Give `sequence` `n` more cells, which must be free."""
        assert n <= self.n_free, "more cells are taken than there are"
        self.n_free -= n
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
            del self._held[sequence]

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
