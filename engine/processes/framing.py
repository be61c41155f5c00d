"""Frames: a four-byte little-endian length, then a body of that many bytes."""

import struct
from typing import Generic, TypeVar

import msgspec

HEADER = struct.Struct("<I")
MAX_FRAME = 1 << 30  # bytes; a longer one means a corrupted stream
M = TypeVar("M")


class FrameError(ValueError):
    """What was read is no sequence of frames."""


class FrameReader(Generic[M]):
    """Cuts what comes through a pipe, in pieces of any length, into messages."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[M]) -> None:
        self._decoder = decoder
        self._rest = bytearray()  # the beginning of a frame
        self._wanted = HEADER.size  # bytes of it to go on with

    def feed(self, data: bytes) -> list[M]:
        """The messages that end in `data`. Raises FrameError and msgspec.MsgspecError."""
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
            if length > MAX_FRAME:
                raise FrameError(f"a frame of {length} bytes")
            stop = start + HEADER.size + length
            if stop > size:
                self._wanted = HEADER.size + length
                break
            messages.append(self._decoder.decode(view[start + HEADER.size : stop]))
            start = stop
        self._rest = bytearray(view[start:])
        return messages
