"""The transport of a connection: writes the head of an answer together with its body, capitalizes
header names, and ends connections whose client stops reading."""

import asyncio
from functools import cache
from typing import Any

from specllama.engine.wire.framing import Outbox

# ---- The limit for clients that stop reading, also in a process that was paused.


LATE = 1.0
"""A timer that is later than so many seconds shows that the process was paused."""


def is_late(timer: asyncio.TimerHandle | None) -> bool:
    """True if this process was paused (for example its container) when `timer` was due. Data that
    the client has sent meanwhile are not read yet, so the timer must not end the connection."""
    return timer is not None and asyncio.get_running_loop().time() - timer.when() > LATE


class Stall:
    """Ends the connection of `transport` if its client reads no waiting byte for `seconds`.

    A slow client that continues to read is not affected."""

    def __init__(self, transport: asyncio.Transport, seconds: float) -> None:
        self._transport = transport
        self._seconds = seconds
        self._waiting = 0  # bytes, when the timer was set
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Starts the time limit if bytes are waiting in the write buffer. Can be called at any
        time."""
        if self._timer is None and (waiting := self._transport.get_write_buffer_size()):
            self._waiting = waiting
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._seconds, self._check)

    def end(self) -> None:
        """Stops the time limit, because the client reads again or has disconnected."""
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

    uvicorn writes head and body separately, and header names in lower case, which some clients,
    against the standard, don't accept.
    """

    def __init__(self, transport: asyncio.Transport, stall: Stall) -> None:
        super().__init__()
        self._transport = transport
        self._stall = stall
        self._heads = Outbox(transport)  # sends a head without a body in the loop's next turn

    def write(self, data: bytes | bytearray | memoryview) -> None:
        written = bytes(data)
        # uvicorn writes a head with one call. No body begins like this, and the parts of a stream
        # begin with their length.
        if written.startswith(b"HTTP/1."):
            self._heads.write(_with_capitals(written))
        elif not self._heads.is_empty:
            self._heads.write(written)
            self._heads.flush()
        elif not self._transport.is_closing():  # uvloop, unlike asyncio, would raise an error
            self._transport.write(written)

    def close(self) -> None:
        self._heads.flush()
        self._transport.close()
        self._stall.begin()  # otherwise the rest could wait for the client without limit

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

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._transport.set_protocol(protocol)

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
