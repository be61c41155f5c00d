"""Shrinks a failing history: omits parts of it as long as it still fails."""

import time
from collections.abc import Iterator, Sequence

from tests.simulation.history import History

ORDERS = 3
"""The number of task orders that are tried for each smaller history."""


class Shrinker:
    """Looks for the smallest failing history of `seed`, for at most `seconds`."""

    def __init__(self, seed: int, seconds: float = 60.0) -> None:
        self._seed = seed
        self._end = time.monotonic() + seconds

    def smallest(self, failed: History) -> History:
        """Returns a history in which no part can be omitted, within the time; `failed` fails."""
        size = max(1, len(failed.parts) // 2)
        while size and time.monotonic() < self._end:
            for chunk in _chunks(failed.parts, size):
                if (smaller := self._without(failed, chunk)) is not None:
                    failed = smaller
                    break
            else:
                size //= 2
                continue
            size = min(size, max(1, len(_left(failed)) // 2))
        return failed

    def _without(self, failed: History, chunk: Sequence[str]) -> History | None:
        """Returns a failing history without `chunk`; None if no tried order of tasks fails."""
        omitted = failed.omitted | set(chunk)
        if omitted == failed.omitted:
            return None
        for order in range(failed.order, failed.order + ORDERS):
            if time.monotonic() > self._end:
                return None
            history = History(self._seed, order, omitted)
            try:
                history.run()
            except Exception:  # any failure counts, even if it isn't the first one
                return history
        return None


def _left(history: History) -> list[str]:
    return [part for part in history.parts if part not in history.omitted]


def _chunks(parts: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """Returns the parts in pieces, last ones first, because a failure more often needs early
    ones."""
    for start in reversed(range(0, len(parts), size)):
        yield parts[start : start + size]
