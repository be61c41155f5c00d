"""The limit for clients that stop reading, and limits of a process that stood still."""

import asyncio

LATE = 1.0
"""Seconds by which a timer is late only in a process that stood still."""


def is_late(timer: asyncio.TimerHandle | None) -> bool:
    """True if `timer`, which has come, says nothing of a client: this process stood still (a paused
    container), and what the client did meanwhile is not seen yet."""
    return timer is not None and asyncio.get_running_loop().time() - timer.when() > LATE


class Stall:
    """Ends the connection of `transport` when its client takes nothing for `seconds` of what waits
    for it. A slow client that goes on reading is let be."""

    def __init__(self, transport: asyncio.Transport, seconds: float) -> None:
        self._transport = transport
        self._seconds = seconds
        self._waiting = 0  # bytes, when the timer was set
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """There are bytes that the system doesn't take. Safe to call at any time."""
        if self._timer is None and (waiting := self._transport.get_write_buffer_size()):
            self._waiting = waiting
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._seconds, self._check)

    def end(self) -> None:
        """The client reads again, or is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        late, self._timer = is_late(self._timer), None
        if self._transport.get_write_buffer_size() >= self._waiting and not late:
            self._transport.abort()
        else:
            self.begin()
