"""Coordinates lines and progress bars, which share the terminal."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Display(Protocol):
    """Progress bars. From `start` to `stop` they are on the terminal, below all lines, except from
    `pause` to `resume`."""

    def start(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def stop(self) -> None: ...


lock = threading.RLock()
"""Held while something is drawn, because many threads write lines."""
_shown: Display | None = None


def show(display: Display) -> None:
    """Shows the bars on the terminal."""
    global _shown
    with lock:
        display.start()
        _shown = display


def hide() -> None:
    """Removes the bars from the terminal."""
    global _shown
    with lock:
        if _shown is not None:
            _shown.stop()
        _shown = None


@contextmanager
def above_bars() -> Iterator[None]:
    """A context for writing a line. The bars are removed meanwhile, so that the line is above
    them."""
    with lock:
        if _shown is not None:
            _shown.pause()
        try:
            yield
        finally:
            if _shown is not None:
                _shown.resume()
