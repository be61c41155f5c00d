"""Signals that come before the server handles them itself: they just end the program."""

import signal
import sys
from types import FrameType

_received: list[int] = []


def handle() -> None:
    """From now on SIGINT and SIGTERM raise `SystemExit`. To be called from the main thread.

    Python raises it wherever it is, also where nobody can catch it, as in a callback of an import:
    it is lost then, and `received` alone tells."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)


def received() -> bool:
    """Whether one has come, which may have been lost."""
    return bool(_received)


def _end(number: int, _: FrameType | None) -> None:
    _received.append(number)
    sys.unraisablehook = lambda _: None  # who asked for the end need not hear that it was lost
    sys.exit(0)
