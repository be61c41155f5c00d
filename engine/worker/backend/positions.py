"""Positions of tokens. Without M-RoPE, a token's position is its number in the text. With it, the
tokens of an image share positions, so later tokens have positions lower than their numbers."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_Numbers = npt.NDArray[np.int32]


class Run(NamedTuple):
    """A medium: tokens `start` up to `stop` (exclusive) of a text, which take `n_pos` positions.
    The highest position of its evaluated tokens is its first position plus `last`."""

    start: int
    stop: int
    n_pos: int
    last: int


class Positions:
    """Translates between token numbers and positions, in each sequence of a context."""

    def __init__(self) -> None:
        self._runs: dict[int, list[Run]] = {}

    def add(self, sequence: int, run: Run) -> None:
        """Add a run at the end of `sequence`. A run with the same start replaces the last one."""
        runs = self._runs.setdefault(sequence, [])
        if runs and runs[-1].start == run.start:
            runs.pop()
        runs.append(run)

    def cut(self, sequence: int, n: int) -> None:
        """Cut `sequence` to its first `n` tokens."""
        if kept := list(self._first(sequence, n)):
            self._runs[sequence] = kept
        else:
            self._runs.pop(sequence, None)

    def copy(self, source: int, target: int, n: int) -> None:
        """Set `target` to the first `n` tokens of `source`."""
        if kept := list(self._first(source, n)):
            self._runs[target] = kept
        else:
            self._runs.pop(target, None)

    def clear(self) -> None:
        """Empty all sequences."""
        self._runs.clear()

    def _first(self, sequence: int, n: int) -> Iterator[Run]:
        return (run for run in self._runs.get(sequence, ()) if run.start < n)

    def of(self, sequence: int, number: int) -> int:
        """The position of the token with that `number`, which must not be inside a run."""
        return number - sum(
            run.stop - run.start - run.n_pos for run in self._first(sequence, number)
        )

    def number(self, sequence: int, position: int) -> int:
        """The number of the first token of `sequence` at or after `position` that isn't inside a
        run."""
        number = position
        for run in self._runs.get(sequence, ()):
            if number <= run.start:
                break
            number = max(run.stop, number + run.stop - run.start - run.n_pos)
        return number

    def end(self, sequence: int, highest: int) -> int:
        """The number of tokens of `sequence`, whose highest position is `highest`."""
        runs = self._runs.get(sequence)
        if runs and highest <= self.of(sequence, runs[-1].start) + runs[-1].last:
            return runs[-1].stop
        return self.number(sequence, highest + 1)

    def translated(self, numbers: _Numbers, sequences: _Numbers) -> _Numbers:
        """The positions of tokens of several sequences, all of which follow their sequences'
        runs."""
        positions = numbers.copy()
        for sequence, runs in self._runs.items():
            positions[sequences == sequence] -= sum(r.stop - r.start - r.n_pos for r in runs)
        return positions

    # ---- in saved states ------------------------------------------------------------------

    def size(self, sequence: int) -> int:
        """The size in bytes of the result of `dump`."""
        return 4 * (4 * len(self._runs.get(sequence, ())) + 1)

    def dump(self, sequence: int) -> npt.NDArray[np.uint8]:
        """The runs of `sequence` in bytes, to be appended to a saved state."""
        runs = self._runs.get(sequence, [])
        numbers = [number for run in runs for number in run] + [len(runs)]
        return np.array(numbers, "<i4").view(np.uint8)

    def load(self, sequence: int, state: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8] | None:
        """Read the runs that `dump` has appended to `state`, for the empty `sequence`. Returns the
        state without them; None if `state` has another format."""
        if len(state) < 4:
            return None
        count = int(state[-4:].copy().view("<i4")[0])
        size = 4 * (4 * count + 1)
        if not count >= 0 or size > len(state):
            return None
        numbers = state[len(state) - size : -4].copy().view("<i4").reshape(count, 4)
        runs = [Run(*each) for each in numbers.tolist()]
        end = 0
        for run in runs:
            if not (end <= run.start < run.stop and 0 <= run.last < run.n_pos):
                return None
            end = run.stop
        self._runs.pop(sequence, None)
        if runs:
            self._runs[sequence] = runs
        return state[: len(state) - size]
