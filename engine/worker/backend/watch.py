"""Detects a computation that never ends.

A call of llama.cpp, or of a driver below it, that doesn't return can only be ended with its
process. So the computing thread reports what it begins, and another thread checks every second
whether it has ended. The time limit follows from earlier times on this machine, so kernel
compilation, slow processors and large models need no separate limits.
"""

from collections.abc import Callable
from typing import Final

from specllama.engine import system
from specllama.engine.wire.startup import disk_reads

FIRST: Final = 300.0
"""Minimum limit in seconds of work that is done for the first time, and of all work while the model
is loaded: kernels may be compiled."""
FLOOR: Final = 60.0
"""Minimum limit in seconds of work that was done before."""
FACTOR: Final = 100.0
"""Limit of repeated work, as a multiple of its longest time so far."""
MARGIN: Final = 10.0
"""Limit for a number of tokens that is new, as a multiple of the time to evaluate them one by
one."""
UNKNOWN: Final = 0.1
"""Assumed seconds per token before any measurement."""

Shape = tuple[str, int, int]
"""The name of the work, the id of the object that does it, and the bit length of the number of
tokens."""


class _Work:
    """The current work of a thread."""

    __slots__ = ("begun", "has_failed", "n_tokens", "seconds", "shape")

    def __init__(self, shape: Shape, n_tokens: int, begun: float) -> None:
        self.shape = shape
        self.n_tokens = n_tokens
        self.begun = begun
        self.seconds = 0.0  # counted by `look`
        self.has_failed = False


class ThreadWatch:
    """Watches one thread, which reports what it begins (`begin`), and when it waits for other
    threads (`rest`). Each report also ends the work before, so all of its work is covered.

    Only seconds in which the checking thread (`look`) was running count. A time in which this
    process was stopped (a paused container, a sleeping laptop) counts as a single check. Seconds
    with disk reads don't count either: reading evicted weights back may take long.
    """

    def __init__(self, disk_reads: Callable[[], int] = disk_reads, *, loads: bool = False) -> None:
        """`loads`: the thread loads the model first, until `loaded` is called."""
        self._disk_reads = disk_reads
        self._n_reads = 0  # at the last check
        self._loads = loads
        self._work: _Work | None = None
        self._first: dict[Shape, float] = {}  # seconds: kernels may have been compiled
        self._longest: dict[Shape, float] = {}  # maximum of all later times

    # ---- called by the watched thread ------------------------------------------------------

    def begin(self, what: str, n_tokens: int = 0, by: object = None) -> None:
        """Report that the thread begins `what`, with `n_tokens`. `by` is the object that does it,
        if objects need separate times."""
        now = system.now()
        self._end(now)
        self._work = _Work((what, id(by), n_tokens.bit_length()), n_tokens, now)

    def failed(self) -> None:
        """Report that the current work has failed, so its time isn't recorded."""
        if self._work is not None:
            self._work.has_failed = True

    def rest(self) -> None:
        """Report that the thread waits for other threads."""
        self._end(system.now())
        self._work = None

    def loaded(self) -> None:
        """Report that the model is loaded."""
        self._loads = False

    def _end(self, now: float) -> None:
        if (work := self._work) is None or work.has_failed:
            return
        seconds = min(now - work.begun, work.seconds + 1.0)  # only counted seconds
        shape = work.shape
        if shape not in self._first:
            self._first[shape] = seconds
        elif seconds > self._longest.get(shape, -1.0):
            self._longest[shape] = seconds

    # ---- called by the checking thread ----------------------------------------------------

    def look(self, seconds: float) -> str | None:
        """To be called every `seconds`. Returns a sentence about work that exceeds its limit; None
        if there is none."""
        n_reads, before = self._disk_reads(), self._n_reads
        self._n_reads = n_reads
        if (work := self._work) is None or n_reads != before:
            return None
        work.seconds += seconds
        limit = self._limit(work)
        if work.seconds <= limit:
            return None
        tokens = f" of {work.n_tokens} token{'s' * (work.n_tokens > 1)}" if work.n_tokens else ""
        return (
            f"{work.shape[0]}{tokens} has not ended for {work.seconds:.0f} s "
            f"(the limit is {limit:.0f} s)"
        )

    def _limit(self, work: _Work) -> float:
        known = self._first | self._longest
        seen = known.get(work.shape)
        least = FLOOR if seen is not None and not self._loads else FIRST
        if seen is not None:
            return max(least, FACTOR * seen)
        by = work.shape[1]
        each = [
            seconds / (1 << (bits - 1))
            for (_, other, bits), seconds in known.items()
            if other == by and bits
        ]
        return max(least, MARGIN * work.n_tokens * max(each, default=UNKNOWN))


stepping: Final = ThreadWatch(loads=True)
"""Watches the thread that loads the model and steps."""
encoding: Final = ThreadWatch()
"""Watches the thread that encodes media."""
