"""How bytes leave: with one write for an answer instead of two, and with the usual capitals in the
names of headers."""

import asyncio
from functools import cache
from typing import Any

from specllama.engine.wire.framing import Outbox

# ---- The limit for clients that stop reading, and limits of a process that stood still.


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


class Gathering(asyncio.Transport):
    """A transport that sends the head of an answer together with the beginning of its body.

    uvicorn writes the two apart, and the names of headers in small letters, which some clients,
    against the standard, don't know.
    """

    def __init__(self, transport: asyncio.Transport, stall: Stall) -> None:
        super().__init__()
        self._transport = transport
        self._stall = stall
        self._heads = Outbox(transport)  # a head that has no body leaves when the loop comes round

    def write(self, data: bytes | bytearray | memoryview) -> None:
        written = bytes(data)
        # uvicorn writes a head at once. No body begins so, and the parts of a stream have their
        # length in front.
        if written.startswith(b"HTTP/1."):
            self._heads.write(_with_capitals(written))
        elif not self._heads.is_empty:
            self._heads.write(written)
            self._heads.flush()
        elif not self._transport.is_closing():  # uvloop's would raise an error, unlike asyncio's
            self._transport.write(written)

    def close(self) -> None:
        self._heads.flush()
        self._transport.close()
        self._stall.begin()  # what is left would wait for its reader for ever

    def write_eof(self) -> None:
        self._heads.flush()
        self._transport.write_eof()
        self._stall.begin()

    def can_write_eof(self) -> bool:
        return self._transport.can_write_eof()

    def abort(self) -> None:
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()


def _with_capitals(head: bytes) -> bytes:
    status, *fields = head.split(b"\r\n")
    return b"\r\n".join((status, *map(_field, fields)))


def _field(line: bytes) -> bytes:
    name, colon, value = line.partition(b":")
    return _usual(name) + colon + value


@cache
def _usual(name: bytes) -> bytes:
    return _IRREGULAR.get(name) or b"-".join(part.capitalize() for part in name.split(b"-"))


_IRREGULAR = {b"etag": b"ETag", b"www-authenticate": b"WWW-Authenticate"}
