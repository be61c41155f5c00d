"""Handles signals until the server does so itself: they end the program."""

import signal
import sys
from types import FrameType

_received: list[int] = []


def handle() -> None:
    """Makes SIGINT and SIGTERM raise `SystemExit`. To be called from the main thread.

    Python raises the exception wherever the main thread is. In a callback of an import, for
    example, it is ignored, so `received` has to be checked as well."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)


def received() -> bool:
    """Whether a signal has arrived, also if its exception was ignored."""
    return bool(_received)


def _end(number: int, _: FrameType | None) -> None:
    _received.append(number)
    sys.unraisablehook = lambda _: None  # prints no message about an ignored exception
    sys.exit(0)
