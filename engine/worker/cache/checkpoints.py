"""Checkpoints: copies of the state of memory that can't be cut, to go back to."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

State = npt.NDArray[np.uint8]
"""An opaque state of the KV cache, to be restored by it."""

NEAR_END = 4
"""Tokens at the end of a prompt that its last checkpoint leaves out: a few that a chat template
puts there are often others when the conversation goes on."""
LAST_MESSAGE = 512
"""Tokens at the end of a prompt that another one leaves out."""
STEP = 4096
"""Tokens between checkpoints, for texts that diverge at an unknown place."""


def positions(n_done: int, n_prompt: int) -> list[int]:
    """The places for checkpoints in a prompt whose first `n_done` tokens are held."""
    wanted = {n_prompt - NEAR_END, n_prompt - NEAR_END - LAST_MESSAGE}
    wanted.update(range(STEP, n_prompt - NEAR_END - LAST_MESSAGE, STEP))
    return sorted(n for n in wanted if n > n_done)


class Checkpoint(NamedTuple):
    """The state behind the first `n` tokens of a text."""

    n: int
    state: State


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
        """Add a checkpoint behind all others. If there are too many, the one is dropped that leaves
        the smallest gap: what is between two others is soon computed again."""
        kept = [c for c in self.of.get(id, ()) if c.n < n]
        kept.append(Checkpoint(n, state))
        if len(kept) > self._limit:
            gaps = [after.n - (kept[i - 1].n if i else 0) for i, after in enumerate(kept[1:])]
            del kept[gaps.index(min(gaps)) if gaps else 0]
        self.of[id] = kept

    def inherit(self, source: int, target: int, n: int) -> None:
        """`target` is a copy of the first `n` tokens of `source`."""
        if shared := [c for c in self.of.get(source, ()) if c.n <= n]:
            self.of[target] = shared

    def cut(self, id: int, n: int) -> None:
        """Drop the checkpoints behind the first `n` tokens of a text, which has changed there."""
        kept = [c for c in self.of.get(id, ()) if c.n <= n and n]
        if kept:
            self.of[id] = kept
        else:
            self.of.pop(id, None)
