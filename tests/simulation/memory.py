"""Simulates llama.cpp's memory of sequences, with hashes instead of keys and values.

A cell has a hash of its token, its position, the adapters, and of all cells that the token attended
to when it was computed. So a wrong, stale or foreign cell changes all later hashes. The division
between immediate work and work that is deferred to the next decode follows the sources of the
pinned release: `llama-kv-cache.cpp`, `llama-kv-cache-iswa.cpp`, `llama-memory-hybrid.cpp` and
`llama-memory-recurrent.cpp`.
"""

from collections import Counter, deque
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]
Kind = Literal["dense", "window", "recurrent", "hybrid"]

Mask = npt.NDArray[np.bool_]
Arrays = tuple[npt.NDArray[np.int64], Hashes, npt.NDArray[np.int64]]

MAX_SEQUENCES = 64  # bits of a cell's set of sequences
_BITS: Hashes = np.uint64(1) << np.arange(MAX_SEQUENCES, dtype=np.uint64)
END = 1 << 40
"""A position after all others."""
_MASK = (1 << 64) - 1
_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mixed_each(values: Hashes) -> Hashes:
    """Returns 64 bits that depend on all bits of each element (the finalizer of SplitMix64)."""
    values = values + np.uint64(_STEP)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(_FIRST)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(_SECOND)
    return values ^ (values >> np.uint64(31))


def combined(*parts: int) -> int:
    """Returns a 64-bit hash of `parts` in their order. Python's hash of a tuple of integers is the
    same in each process."""
    return hash(parts) & _MASK


def _term(value: int, position: int) -> int:
    """Returns a cell's term in `Reader.attended`, from its hash and the position in its key."""
    return combined(value, position)


class BatchToken(NamedTuple):
    """A token of a decode; `value` is its id, or a hash of its embedding."""

    value: int
    position: int
    sequence: int


class StateError(Exception):
    """A state that can't be restored. The sequence is lost."""


class Cells:
    """A KV cache: `n_streams` arrays of `size` cells. With a `window`, cells that no later token of
    their sequence attends to are used again."""

    def __init__(self, n_streams: int, size: int, n_sequences: int, window: int = 0) -> None:
        assert n_sequences <= MAX_SEQUENCES
        self.size, self.window = size, window
        self._n_streams = n_streams
        self._positions = np.full((n_streams, size), -1, np.int64)
        self._sequences = np.zeros((n_streams, size), np.uint64)
        self._shifts = np.zeros((n_streams, size), np.int64)
        # The data on the device, which changes when llama.cpp computes.
        self._hashes = np.zeros((n_streams, size), np.uint64)
        self._rotated = np.zeros((n_streams, size), np.int64)  # the positions that the keys contain
        self._terms = np.zeros((n_streams, size), np.uint64)  # what each cell adds to `attended`
        self._heads = [0] * n_streams
        self._copies: list[tuple[int, int]] = []
        self._has_moved = False  # whether cells have moved since the last `update`

    @property
    def n_used(self) -> int:
        """The number of used cells."""
        return int(np.count_nonzero(self._sequences))

    def _stream(self, sequence: int) -> int:
        return sequence if self._n_streams > 1 else 0

    def _of(self, sequence: int) -> Mask:
        held = self._sequences[self._stream(sequence)] & np.uint64(1 << sequence)
        found: Mask = held != 0
        return found

    def _between(self, sequence: int, start: int, stop: int) -> Mask:
        positions = self._positions[self._stream(sequence)]
        found: Mask = self._of(sequence) & (positions >= start) & (positions < stop)
        return found

    # ---- immediate work ------------------------------------------------------------

    def clear(self) -> None:
        self._positions[:] = -1
        self._sequences[:] = 0
        self._shifts[:] = 0
        self._heads = [0] * self._n_streams

    def remove(self, sequence: int, start: int, stop: int) -> None:
        found = self._between(sequence, max(0, start), stop if stop >= 0 else END)
        self._take_from(self._stream(sequence), found, sequence)

    def _take_from(self, stream: int, found: Mask, sequence: int) -> None:
        self._sequences[stream][found] &= ~np.uint64(1 << sequence)
        empty = found & (self._sequences[stream] == 0)
        self._positions[stream][empty] = -1
        self._shifts[stream][empty] = 0
        if empty.any():
            self._heads[stream] = min(self._heads[stream], int(empty.argmax()))

    def copy(self, source: int, target: int, start: int, stop: int) -> None:
        """Shares the cells of a stream, or copies the whole array of another stream at the next
        `update`."""
        if source == target:
            return
        stop = stop if stop >= 0 else END
        one, other = self._stream(source), self._stream(target)
        bit = np.uint64(1 << target)
        if one == other:
            self._sequences[one][self._between(source, max(0, start), stop)] |= bit
            return
        for bound in (start, stop):
            assert not 0 < bound < self.size - 1, "seq_cp() is only supported for full KV buffers"
        found = self._of(source)
        self._copies.append((one, other))
        self._positions[other] = np.where(found, self._positions[one], -1)
        self._shifts[other] = np.where(found, self._shifts[one], 0)
        self._sequences[other] = np.where(found, bit, np.uint64(0))
        self._heads[other] = self._heads[one]

    def move(self, sequence: int, start: int, stop: int, by: int) -> None:
        """Moves cells to other positions. The next `update` rotates their keys."""
        stream = self._stream(sequence)
        found = self._between(sequence, max(0, start), stop if stop >= 0 else END)
        self._positions[stream][found] += by
        self._shifts[stream][found] += by
        self._has_moved = True
        gone = found & (self._positions[stream] < 0)
        self._sequences[stream][gone] = 0
        self._positions[stream][gone], self._shifts[stream][gone] = -1, 0
        self._heads[stream] = int(gone.argmax()) if gone.any() else 0

    def lowest(self, sequence: int) -> int:
        """Returns the lowest position of a sequence; -1 if it has no cells."""
        found = self._positions[self._stream(sequence)][self._of(sequence)]
        return int(found.min()) if len(found) else -1

    def highest(self, sequence: int) -> int:
        """Returns the highest position of a sequence; -1 if it has no cells."""
        found = self._positions[self._stream(sequence)][self._of(sequence)]
        return int(found.max()) if len(found) else -1

    # ---- work at the next decode ---------------------------------------------------------

    def update(self) -> None:
        """Does the deferred work: copies between streams, then rotations."""
        for one, other in self._copies:
            self._hashes[other] = self._hashes[one]
            self._rotated[other] = self._rotated[one]
            self._terms[other] = self._terms[one]
        self._copies.clear()
        if self._has_moved:
            self._has_moved = False
            self._rotated += self._shifts
            for stream, cell in np.argwhere(self._shifts).tolist():
                value, position = self._hashes[stream, cell], self._rotated[stream, cell]
                self._terms[stream, cell] = _term(int(value), int(position))
            self._shifts[:] = 0

    def find(self, tokens: Sequence[BatchToken]) -> list[int] | None:
        """Returns free cells for these tokens; None if there aren't enough."""
        streams = [self._stream(token.sequence) for token in tokens]
        free = {}
        for stream, n in Counter(streams).items():
            cells = self._free(stream, n)
            if len(cells) < n:
                return None
            free[stream] = iter(cells)
        return [next(free[stream]) for stream in streams]

    def place(self, tokens: Sequence[BatchToken], places: Sequence[int]) -> None:
        """Assigns a cell to each token."""
        streams = [self._stream(token.sequence) for token in tokens]
        where = streams, [*places]
        before, owners = self._positions[where], self._sequences[where]
        self._positions[where] = [token.position for token in tokens]
        self._shifts[where] = 0
        self._sequences[where] = _BITS[[token.sequence for token in tokens]]
        if self.window and before.max(initial=-1) >= 0:
            overwritten: dict[int, int] = {}
            for position, bits in zip(before.tolist(), owners.tolist(), strict=True):
                if position >= 0:
                    owner = bits.bit_length() - 1
                    overwritten[owner] = max(overwritten.get(owner, -1), position)
            for owner, position in overwritten.items():
                # A sequence has no gaps between its first and its last cell.
                self.remove(owner, 0, position + 1)
        for stream, cell in zip(*where, strict=True):
            self._heads[stream] = cell + 1

    def _free(self, stream: int, n: int) -> list[int]:
        """Returns the first `n` usable cells, beginning at the head."""
        sequences, positions = self._sequences[stream], self._positions[stream]
        usable = sequences == 0
        if self.window:
            single = (sequences != 0) & ((sequences & (sequences - np.uint64(1))) == 0)
            for bits in set(sequences[single].tolist()):
                of_owner = sequences == np.uint64(bits)
                end = self.highest(bits.bit_length() - 1) + 1
                usable |= of_owner & (end - positions >= self.window)
        head = self._heads[stream]
        if head > np.count_nonzero(sequences) + 2 * n:
            head = 0
        found = np.flatnonzero(usable)
        at = int(np.searchsorted(found, head))
        cells: list[int] = found[at : at + n].tolist()
        cells += found[: min(at, n - len(cells))].tolist()
        return cells

    def try_to_place(self, parts: Sequence[Sequence[BatchToken]]) -> list[list[int]] | None:
        """Returns the cells for the tokens of each micro-batch; None if there aren't enough for all
        of them.

        The cells aren't reserved afterwards. If the oldest cells of a sequence would be reused,
        they are freed even if there isn't room for all: llama.cpp restores only cells that it would
        use.
        """
        if len(parts) == 1 and not self.window:
            only = self.find(parts[0])
            return None if only is None else [only]
        found: list[list[int]] = []
        undo: list[tuple[list[int], list[int], Arrays, list[int]]] = []
        for part in parts:
            arrays = self._positions.copy(), self._sequences.copy(), self._shifts.copy()
            heads = [*self._heads]
            if (places := self.find(part)) is None:
                break
            self.place(part, places)
            found.append(places)
            streams = [self._stream(token.sequence) for token in part]
            undo.append((streams, places, arrays, heads))
        for streams, places, (positions, sequences, shifts), heads in reversed(undo):
            self._positions[streams, places] = positions[streams, places]
            self._sequences[streams, places] = sequences[streams, places]
            self._shifts[streams, places] = shifts[streams, places]
            self._heads = heads
        return found if len(found) == len(parts) else None

    def terms(self, sequence: int, stop: int) -> tuple[npt.NDArray[np.int64], Hashes]:
        """Returns the positions of `sequence` before `stop`, and the terms of their cells in a
        token's hash, which doesn't depend on the order of the cells that it attends to."""
        stream = self._stream(sequence)
        found = self._between(sequence, 0, stop)
        return self._positions[stream][found], self._terms[stream][found]

    def write(self, sequence: int, cell: int, position: int, value: int) -> int:
        """Records that the device has computed the token in `cell`. Returns its term in the hashes
        of tokens that attend to it."""
        stream, term = self._stream(sequence), _term(value, position)
        self._hashes[stream, cell] = value
        self._rotated[stream, cell] = position
        self._terms[stream, cell] = term
        return term

    def reader(self) -> "Reader":
        """Returns a reader for the tokens of one micro-batch."""
        return Reader(self)

    # ---- states --------------------------------------------------------------------------

    def save(self, sequence: int) -> npt.NDArray[np.int64]:
        """Returns position, hash and rotation of the cells of `sequence`, shape (n, 3), without
        cells outside the window."""
        stream = self._stream(sequence)
        found = self._of(sequence)
        if self.window:
            found &= self.highest(sequence) - self._positions[stream] < self.window
        columns = (
            self._positions[stream][found],
            self._hashes[stream][found].view(np.int64),
            self._rotated[stream][found],
        )
        return np.stack(columns, axis=1)

    def load(self, sequence: int, saved: npt.NDArray[np.int64]) -> None:
        """Replaces `sequence` by a saved state. Raises `StateError` if there is no room for it."""
        self.remove(sequence, 0, -1)
        tokens = [BatchToken(0, position, sequence) for position in saved[:, 0].tolist()]
        if len(tokens) > self.size or (places := self.find(tokens)) is None:
            raise StateError
        self.place(tokens, places)
        stream = self._stream(sequence)
        hashes, rotated = saved[:, 1].copy().view(np.uint64), saved[:, 2].copy()
        self._hashes[stream][places], self._rotated[stream][places] = hashes, rotated
        pairs = zip(hashes.tolist(), rotated.tolist(), strict=True)
        self._terms[stream][places] = np.array([_term(*pair) for pair in pairs], np.uint64)


class Reader:
    """The cells that the tokens of a micro-batch attend to, looked up once per sequence. Each token
    attends to its predecessor and to the cells of its predecessor, except cells that have left the
    window."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells
        self._totals: dict[int, int] = {}  # of all cells, by sequence
        self._terms: dict[int, deque[tuple[int, int]]] = {}  # of each position, for a window

    def attended(self, sequence: int, position: int) -> int:
        """Returns a hash of the earlier cells that a token of `sequence` at `position` attends
        to."""
        if sequence not in self._totals:
            positions, terms = self._cells.terms(sequence, position)
            self._totals[sequence] = int(terms.sum())
            if self._cells.window:
                order = positions.argsort()
                pairs = zip(positions[order].tolist(), terms[order].tolist(), strict=True)
                self._terms[sequence] = deque(pairs)
        total = self._totals[sequence]
        if window := self._cells.window:
            in_window = self._terms[sequence]
            while in_window and in_window[0][0] <= position - window:
                total -= in_window.popleft()[1]
        self._totals[sequence] = total = total & _MASK
        return total

    def write(self, sequence: int, cell: int, position: int, value: int) -> None:
        term = self._cells.write(sequence, cell, position, value)
        self._totals[sequence] += term
        if self._cells.window:
            self._terms[sequence].append((position, term))


class RecurrentState(NamedTuple):
    """A hash of all tokens up to `position`."""

    position: int
    value: int


class States:
    """Recurrent states, one for each sequence. A state can't be cut: no token can be removed."""

    def __init__(self) -> None:
        self._of: dict[int, RecurrentState] = {}

    def clear(self) -> None:
        self._of.clear()

    def remove(self, sequence: int, start: int, stop: int) -> bool:
        state = self._of.get(sequence)
        start, stop = max(0, start), stop if stop >= 0 else END
        if state is None or not start <= state.position < stop:
            return True
        if start > 0:
            return False
        del self._of[sequence]
        return True

    def copy(self, source: int, target: int) -> None:
        if source != target:
            self._of.pop(target, None)
            if source in self._of:
                self._of[target] = self._of[source]

    def move(self, sequence: int, start: int, stop: int, by: int) -> None:
        state = self._of.get(sequence)
        if state is not None and max(0, start) <= state.position < (stop if stop >= 0 else END):
            self._of[sequence] = state._replace(position=state.position + by)

    def position(self, sequence: int) -> int:
        state = self._of.get(sequence)
        return -1 if state is None else state.position

    def advance(self, token: BatchToken, key: int) -> int:
        """Adds `token` to its sequence, and returns the hash of all tokens of the sequence."""
        before = self._of.get(token.sequence, RecurrentState(-1, 0)).value
        value = combined(before, token.value, key)
        self._of[token.sequence] = RecurrentState(token.position, value)
        return value

    def save(self, sequence: int) -> npt.NDArray[np.int64]:
        state = self._of.get(sequence)
        if state is None:
            return np.empty((0, 2), np.int64)
        return np.array([state], np.uint64).view(np.int64)

    def load(self, sequence: int, saved: npt.NDArray[np.int64]) -> None:
        self._of.pop(sequence, None)
        if len(saved):
            position, value = saved[0].view(np.uint64).tolist()
            self._of[sequence] = RecurrentState(position, value)
