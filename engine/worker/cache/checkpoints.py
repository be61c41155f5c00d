"""Checkpoints: copies of the state of memory that can't be cut, to go back to."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

State = npt.NDArray[np.uint8]
"""An opaque state of the KV cache, to be restored by it."""

NEAR_END = 4
"""Tokens at the end of a prompt that its last checkpoint leaves out: a few that a chat template
puts there are often others when the conversation goes on."""
LAST_MESSAGES = (64, 512)
"""Tokens at the end of a prompt that others leave out besides: a short last message, a long one."""
STEP = 4096
"""Tokens between checkpoints, for texts that diverge at an unknown place."""


def positions(n_done: int, n_prompt: int) -> list[int]:
    """The places for checkpoints in a prompt whose first `n_done` tokens are held."""
    end = n_prompt - NEAR_END
    wanted = {end, *(end - length for length in LAST_MESSAGES)}
    wanted.update(range(STEP, end - max(LAST_MESSAGES), STEP))
    return sorted(n for n in wanted if n > n_done)


class Checkpoint(NamedTuple):
    """The state behind the first `n` tokens of a text."""

    n: int
    state: State


class Cuts(NamedTuple):
    """Where a text can be cut: anywhere from number `first` on, and at the numbers `at`, where its
    checkpoints are."""

    first: int = 0
    at: tuple[int, ...] = ()

    def reachable(self, n: int) -> int:
        """The number of the text's first `n` tokens that it can be cut to."""
        return n if n >= self.first else max((each for each in self.at if each <= n), default=0)


def thinned(kept: Sequence[Checkpoint]) -> list[Checkpoint]:
    """All checkpoints of a text but the least useful one: without it the gap is the smallest in
    proportion to the tokens behind it. Texts branch near their end for the most part, and what is
    between two checkpoints is computed again. The last one goes last."""
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
        self.of: dict[int, list[Checkpoint]] = {}  # by sequence id; the shortest texts first

    @property
    def n_bytes(self) -> int:
        """The size of all states; what copies share counts once."""
        states = {id(each.state): each.state.nbytes for kept in self.of.values() for each in kept}
        return sum(states.values())

    def at(self, id: int, n: int) -> State | None:
        """The state behind the first `n` tokens, if there is one."""
        return next((c.state for c in self.of.get(id, ()) if c.n == n), None)

    def last(self, id: int, n: int) -> int:
        """The longest part of the first `n` tokens that has a checkpoint; 0 without any."""
        return max((c.n for c in self.of.get(id, ()) if c.n <= n), default=0)

    def add(self, id: int, n: int, state: State) -> None:
        """Add a checkpoint behind all others. If there are too many, one is dropped."""
        kept = [c for c in self.of.get(id, ()) if c.n < n]
        self.put(id, [*kept, Checkpoint(n, state)])

    def put(self, id: int, kept: Iterable[Checkpoint]) -> None:
        """A text has these checkpoints, the shortest in front, and no others; too many are
        thinned."""
        kept = list(kept)
        while len(kept) > self._limit:
            kept = thinned(kept)
        if kept:
            self.of[id] = kept
        else:
            self.of.pop(id, None)

    def inherit(self, source: int, target: int, n: int) -> None:
        """`target` is a copy of the first `n` tokens of `source`."""
        self.put(target, [c for c in self.of.get(source, ()) if c.n <= n])

    def cut(self, id: int, n: int) -> None:
        """Drop the checkpoints behind the first `n` tokens of a text, which has changed there."""
        self.put(id, [c for c in self.of.get(id, ()) if c.n <= n and n])
