"""Frames: a four-byte little-endian length, then a body of that many bytes.

Parent and child processes exchange frames. A body is one message, usually in msgpack; in JSON if
integers may have more than 64 bits. Both ends must use the same codec."""

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import msgspec

if TYPE_CHECKING:
    import asyncio

HEADER: Final = struct.Struct("<I")
MAX_FRAME: Final = 1 << 30  # bytes of a body; a longer one means a corrupted stream

M = TypeVar("M")
M_co = TypeVar("M_co", covariant=True)


class Encoder(Protocol):
    """One of msgspec's encoders."""

    def encode(self, obj: Any, /) -> bytes: ...


class Decoder(Protocol[M_co]):
    """One of msgspec's decoders."""

    def decode(self, buf: bytes | memoryview, /) -> M_co: ...


MSGPACK: Final[Encoder] = msgspec.msgpack.Encoder()
JSON: Final[Encoder] = msgspec.json.Encoder()


class FrameError(ValueError):
    """The received bytes aren't a sequence of frames."""


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The first message of a job process: it is ready for jobs."""


def frame(message: object, encoder: Encoder = MSGPACK) -> bytes:
    """The frame of one message.

    Raises UnicodeEncodeError for a lone surrogate, RecursionError for a message nested too deeply,
    and OverflowError for an integer that msgpack can't represent.
    """
    body = encoder.encode(message)
    return HEADER.pack(len(body)) + body


class FrameReader(Generic[M]):
    """Decodes messages from the bytes of a pipe, which arrive in pieces of any length."""

    def __init__(self, decoder: Decoder[M], limit: int = MAX_FRAME) -> None:
        self.limit = limit
        """The maximum size of a body in bytes. It may be changed between two messages."""
        self._decoder = decoder
        self._rest = bytearray()  # an incomplete frame
        self._wanted = HEADER.size  # bytes needed to continue

    def feed(self, data: bytes) -> list[M]:
        """The messages that are complete with `data`. Raises FrameError and
        msgspec.MsgspecError."""
        if self._rest:
            self._rest += data
            if len(self._rest) < self._wanted:
                return []
            data = bytes(self._rest)
        view, size, start = memoryview(data), len(data), 0
        messages: list[M] = []
        self._wanted = HEADER.size
        while size - start >= HEADER.size:
            (length,) = HEADER.unpack_from(data, start)
            if length > self.limit:
                raise FrameError(f"a frame of {length} bytes")
            stop = start + HEADER.size + length
            if stop > size:
                self._wanted = HEADER.size + length
                break
            messages.append(self._decoder.decode(view[start + HEADER.size : stop]))
            start = stop
        if start < size or self._rest:
            self._rest = bytearray(view[start:])
        return messages


LIMIT = 1 << 16
"""Maximum bytes that wait for the end of a turn of the event loop. More are written at once, so
that the transport can pause its writers."""


class Outbox:
    """Collects the writes to `transport` during one turn of the event loop into a single system
    call, as each write to a pipe wakes up the reading process.

    Must be created while the loop runs. Data that waits when the transport closes is dropped,
    unless `flush` is called before.
    """

    def __init__(self, transport: "asyncio.WriteTransport") -> None:
        import asyncio  # only here: processes without an event loop start faster

        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._parts: list[bytes] = []
        self._size = 0

    @property
    def is_empty(self) -> bool:
        return not self._parts

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)
        self._size += len(data)
        if self._size >= LIMIT:
            self.flush()

    def flush(self) -> None:
        """Write the waiting data. Safe to call at any time."""
        if not self._parts:
            return
        parts, self._parts, self._size = self._parts, [], 0
        if not self._transport.is_closing():
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))


def sender(transport: "asyncio.WriteTransport") -> Callable[[object], None]:
    """Returns a function that writes a message to `transport` through an `Outbox`. It raises the
    errors of `frame`."""
    outbox = Outbox(transport)
    return lambda message: outbox.write(frame(message))
