"""Keeps lines and bars apart, which share the terminal."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Display(Protocol):
    """Bars. From `start` to `stop` they are on the terminal, below all that was written; from
    `pause` to `resume` they are not."""

    def start(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def stop(self) -> None: ...


lock = threading.RLock()
"""Held by whoever draws: lines come from many threads."""
_shown: Display | None = None


def show(display: Display) -> None:
    """Put the bars on the terminal."""
    global _shown
    with lock:
        display.start()
        _shown = display


def hide() -> None:
    """Take the bars off the terminal."""
    global _shown
    with lock:
        if _shown is not None:
            _shown.stop()
        _shown = None


@contextmanager
def above_bars() -> Iterator[None]:
    """Meanwhile the bars are away: a line that is written ends above them, and not beside them."""
    with lock:
        if _shown is not None:
            _shown.pause()
        try:
            yield
        finally:
            if _shown is not None:
                _shown.resume()
