"""Steps and the encoder use the device in turns, as two that compute at once hinder each other.

Their threads wait for each other by spinning, so on the same cores either takes several times as
long. The encoder's work is cut into slices; between two of them a step can have its turn.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SLICE_SECONDS = 0.004
"""About the length of a slice, and so a step's longest wait for its turn."""
MAX_OPERATIONS = 4096
_FIRST_OPERATIONS = 8


class Turns:
    """Who may compute now. One thread steps, and one encodes.

    While no step wants the device, the encoder has it. In front of each step it may use it for the
    seconds that the step allows; what the last slice took too many of is kept from the next ones,
    and what it has not used is gone.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._encoding = False  # there is something to encode
        self._computing = False  # a slice
        self._wanted = False  # by a step, which waits
        self._stepping = False
        self._left = 0.0  # seconds of the encoder before a step that waits
        self._begun = 0.0  # the slice
        self._operations = _FIRST_OPERATIONS

    @contextmanager
    def step(self, allowed: float) -> Iterator[None]:
        """The device belongs to a step while this lasts. Before, the encoder gets `allowed` seconds
        of it, if it has work."""
        with self._changed:
            self._left = min(0.0, max(self._left, -allowed)) + allowed
            self._wanted = True
            self._changed.wait_for(self._is_free)
            self._wanted, self._stepping = False, True
        try:
            yield
        finally:
            with self._changed:
                self._stepping = False
                self._changed.notify_all()

    def _is_free(self) -> bool:
        return not self._computing and (not self._encoding or self._left <= 0)

    @contextmanager
    def encode(self) -> Iterator[None]:
        """Something is encoded while this lasts, from the first slice on."""
        try:
            yield
        finally:
            with self._changed:
                self._end_slice()
                self._encoding = False
                self._changed.notify_all()

    def next_slice(self) -> int:
        """Waits for the encoder's turn. The operations of the slice that begins; the one before has
        ended."""
        with self._changed:
            self._end_slice()
            self._encoding = True
            self._changed.notify_all()
            self._changed.wait_for(self._may_encode)
            self._computing = True
            self._begun = self._clock()
            return self._operations

    def _may_encode(self) -> bool:
        return not self._stepping and (not self._wanted or self._left > 0)

    def _end_slice(self) -> None:
        if self._computing:
            self._computing = False
            seconds = self._clock() - self._begun
            self._left -= seconds
            ratio = SLICE_SECONDS / max(1e-9, seconds)
            wanted = round(self._operations * min(2.0, max(0.25, ratio)))
            self._operations = min(MAX_OPERATIONS, max(1, wanted))
