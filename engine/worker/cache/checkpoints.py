"""Checkpoints: copies of the state of memory that can't be cut, for going back."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

State = npt.NDArray[np.uint8]
"""An opaque state of the KV cache, which only the KV cache can restore."""

NEAR_END = 4
"""Distance of the last checkpoint from the end of a prompt, in tokens: a chat template often ends a
prompt with a few tokens that change when the conversation continues."""
LAST_MESSAGES = (64, 512)
"""Distances of further checkpoints from that one, in tokens: before a short or a long last
message."""
STEP = 4096
"""Tokens between checkpoints, for texts that diverge at an unknown place."""


def positions(n_done: int, n_prompt: int) -> list[int]:
    """The positions for checkpoints in a prompt whose first `n_done` tokens are evaluated."""
    end = n_prompt - NEAR_END
    wanted = {end, *(end - length for length in LAST_MESSAGES)}
    wanted.update(range(STEP, near_end(n_prompt), STEP))
    return sorted(n for n in wanted if n > n_done)


def near_end(n_prompt: int) -> int:
    """The first position for a checkpoint near the end of a prompt."""
    return n_prompt - NEAR_END - max(LAST_MESSAGES)


def spaced(wanted: Iterable[int], last: int, n_prompt: int, step: int) -> list[int]:
    """Those of the `wanted` positions, in ascending order, that are at least `step` tokens after
    the one before, the first of them after `last` (0: there is none), and all that are near the end
    of the prompt."""
    found: list[int] = []
    for n in wanted:
        if not last or n - last >= step or n >= near_end(n_prompt):
            found.append(n)
            last = n
    return found


class Checkpoint(NamedTuple):
    """The state after the first `n` tokens of a text."""

    n: int
    state: State


class Cuts(NamedTuple):
    """The positions where a text can be cut: anywhere from `first` on, and at its checkpoints,
    `at`."""

    first: int = 0
    at: tuple[int, ...] = ()

    def reachable(self, n: int) -> int:
        """The largest length, at most `n`, to which the text can be cut."""
        return n if n >= self.first else max((each for each in self.at if each <= n), default=0)


def thinned(kept: Sequence[Checkpoint]) -> list[Checkpoint]:
    """The checkpoints of a text without the least useful one: the one whose removal leaves the
    smallest gap, relative to its distance from the end. Most texts diverge near their end, and
    tokens between two checkpoints have to be computed again. The last checkpoint is removed
    last."""
    if len(kept) < 2:
        return []
    ends = [0, *(each.n for each in kept)]
    gaps = [(ends[i + 2] - ends[i]) / (ends[-1] - ends[i + 1]) for i in range(len(kept) - 1)]
    least = gaps.index(min(gaps))
    return [*kept[:least], *kept[least + 1 :]]


class Checkpoints:
    """The checkpoints of each text, at most `limit`. Copies of a text share them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.of: dict[int, list[Checkpoint]] = {}  # by sequence id; the shortest first

    @property
    def n_bytes(self) -> int:
        """The size of all states in bytes; shared states count once."""
        states = {id(each.state): each.state.nbytes for kept in self.of.values() for each in kept}
        return sum(states.values())

    def at(self, id: int, n: int) -> State | None:
        """The state after the first `n` tokens; None without a checkpoint there."""
        return next((c.state for c in self.of.get(id, ()) if c.n == n), None)

    def last(self, id: int, n: int) -> int:
        """The position of the last checkpoint within the first `n` tokens; 0 if there is none."""
        return max((c.n for c in self.of.get(id, ()) if c.n <= n), default=0)

    def add(self, id: int, n: int, state: State) -> None:
        """Add a checkpoint, which becomes the last one. If there are too many, one is dropped."""
        kept = [c for c in self.of.get(id, ()) if c.n < n]
        self.put(id, [*kept, Checkpoint(n, state)])

    def put(self, id: int, kept: Iterable[Checkpoint]) -> None:
        """Replace the checkpoints of a text by `kept`, the shortest first; thinned to the limit."""
        kept = list(kept)
        while len(kept) > self._limit:
            kept = thinned(kept)
        if kept:
            self.of[id] = kept
        else:
            self.of.pop(id, None)

    def inherit(self, source: int, target: int, n: int) -> None:
        """Give `target`, a copy of the first `n` tokens of `source`, its checkpoints."""
        self.put(target, [c for c in self.of.get(source, ()) if c.n <= n])

    def cut(self, id: int, n: int) -> None:
        """Drop the checkpoints after the first `n` tokens of a text, which has changed there."""
        self.put(id, [c for c in self.of.get(id, ()) if c.n <= n and n])
