"""Notices a computation that never ends.

A call of llama.cpp, or of a driver below it, that doesn't return can't be ended: only its process
can. So the thread that computes says what it begins, and another thread looks every second whether
it is still at that. How long it may take follows from how long it took before, on this machine:
kernels that are compiled, slow processors and large models need no numbers of their own.
"""

from collections.abc import Callable
from typing import Final

from specllama.engine import system
from specllama.engine.wire.startup import disk_reads

FIRST: Final = 300.0
"""The least limit, in seconds, of what is done for the first time, and of all while the model is
loaded: kernels may be compiled."""
FLOOR: Final = 60.0
"""The least limit of what was done before."""
FACTOR: Final = 100.0
"""What was done before may take this many times as long as it took at most."""
MARGIN: Final = 10.0
"""So many tokens as never before may take this many times as long as they would one by one."""
UNKNOWN: Final = 0.1
"""Seconds for one token, while nothing is known of the machine."""

Shape = tuple[str, int, int]
"""What is done, by which object, and the length of the number of tokens in bits."""


class _Work:
    """What a thread is at."""

    __slots__ = ("begun", "has_failed", "n_tokens", "seconds", "shape")

    def __init__(self, shape: Shape, n_tokens: int, begun: float) -> None:
        self.shape = shape
        self.n_tokens = n_tokens
        self.begun = begun
        self.seconds = 0.0  # in which it was seen at it
        self.has_failed = False


class ThreadWatch:
    """Watches one thread, which says what it begins (`begin`), and when it waits for others
    (`rest`). What it did before has ended then, so nothing that it does is left out.

    Only seconds count in which the thread that looks (`look`) was running. If this process was
    stopped for a while (a paused container, a laptop that slept), that is one look, however long.
    Seconds in which a disk was read don't count either: weights that were pushed out of memory come
    back in their own time.
    """

    def __init__(self, disk_reads: Callable[[], int] = disk_reads, *, loads: bool = False) -> None:
        """With `loads`, the thread loads the model first, until `loaded`."""
        self._disk_reads = disk_reads
        self._n_reads = 0  # at the last look
        self._loads = loads
        self._work: _Work | None = None
        self._first: dict[Shape, float] = {}  # seconds: kernels may have been compiled
        self._longest: dict[Shape, float] = {}  # of all later times

    # ---- the thread that is watched --------------------------------------------------------

    def begin(self, what: str, n_tokens: int = 0, by: object = None) -> None:
        """From now on the thread does `what`, with `n_tokens`; `by` is what does it, where each
        needs a time of its own."""
        now = system.now()
        self._end(now)
        self._work = _Work((what, id(by), n_tokens.bit_length()), n_tokens, now)

    def failed(self) -> None:
        """What the thread began has failed: the time of that says nothing of others."""
        if self._work is not None:
            self._work.has_failed = True

    def rest(self) -> None:
        """From now on the thread waits for others."""
        self._end(system.now())
        self._work = None

    def loaded(self) -> None:
        """The model is loaded."""
        self._loads = False

    def _end(self, now: float) -> None:
        if (work := self._work) is None or work.has_failed:
            return
        seconds = min(now - work.begun, work.seconds + 1.0)  # no more than counts
        shape = work.shape
        if shape not in self._first:
            self._first[shape] = seconds
        elif seconds > self._longest.get(shape, -1.0):
            self._longest[shape] = seconds

    # ---- the thread that looks -------------------------------------------------------------

    def look(self, seconds: float) -> str | None:
        """To be called every `seconds`. A sentence about what has taken too long, if anything."""
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
            f"what began with {work.shape[0]}{tokens} has not ended for {work.seconds:.0f} s "
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
"""Watches the thread that loads the model, and steps."""
encoding: Final = ThreadWatch()
"""Watches the thread that encodes media."""
