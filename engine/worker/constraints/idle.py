"""Background work that delays no request."""

import threading
from collections.abc import Callable

CHECK_SECONDS = 0.05
QUIET_CHECKS = 10
"""Checks in a row without a request after which none is expected at once."""


class IdleTime:
    """Waits for moments without requests. `is_busy()` is true while there are some, and may be
    called from any thread."""

    def __init__(self, is_busy: Callable[[], bool]) -> None:
        self._is_busy = is_busy
        self._urgent = threading.Event()
        self._quiet = False

    def wait(self) -> None:
        """Return in a quiet moment, or once it is urgent. Call it between short pieces of work,
        always from the same thread."""
        if self._quiet and not self._is_busy():
            return
        rest = QUIET_CHECKS
        while rest > 0 and not self._urgent.wait(CHECK_SECONDS):
            rest = QUIET_CHECKS if self._is_busy() else rest - 1
        self._quiet = True

    def hurry(self) -> None:
        """End the wait: a request needs the work now."""
        self._urgent.set()
