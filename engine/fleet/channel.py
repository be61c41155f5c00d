"""The TCP connection between an ingress (the server of the API) and a replica (an engine process
elsewhere). It carries the messages of an engine process's pipe, as the same frames.

The ingress connects, and sends `Hello`. The replica answers with `Welcome`, or with `Refused` and
closes the connection. From then on the ingress sends requests, and the replica sends their events:
one message for all of them in each step of the engine. The connection is not encrypted: it is for
the network of a cluster, whose own messages aren't encrypted by default either.
"""

import asyncio
import struct
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar, cast

import msgspec

from specllama.engine.wire.framing import MAX_FRAME, Decoder, FrameReader, Outbox, frame
from specllama.engine.wire.replies import Heartbeat, ModelInfo, ToServer
from specllama.engine.wire.requests import ToEngine
from specllama.engine.wire.stats import ReplicaLoad

ID_BITS: Final = 35
"""Each ingress has 2**35 request ids of its own, which follow each other. The higher bits are a
random number, so that a replica distinguishes the requests of several ingresses."""
MAX_HELLO: Final = 4096  # bytes: the first message of a connection, from an unknown sender
MAX_UNSENT: Final = 64 << 20
"""Bytes that wait for the other end. With more at MAX_SILENT consecutive beats, the other end
doesn't read, and the connection is closed. Large requests may exceed it for a moment."""
BEAT: Final = 1.0  # s between the heartbeats of either end
MAX_SILENT: Final = 15
"""Consecutive beats without a byte, after which the other end counts as gone. Beats are counted,
not seconds: a process that was stopped reads what has arrived only afterwards."""
CLOSE_SECONDS: Final = 10.0
"""How long a closed connection may take to send what is waiting."""


class Address(msgspec.Struct, frozen=True):
    """Where a replica accepts connections, and the secret that it asks for."""

    host: str
    port: int
    secret: str


class Hello(msgspec.Struct, tag="hello", frozen=True, array_like=True):
    """The first message to a replica. `version` is specllama's, which has to be the replica's own:
    messages have no other version. `first_id` is the first of the ingress's request ids."""

    version: str
    secret: str
    first_id: int


class Welcome(msgspec.Struct, tag="welcome", frozen=True, array_like=True):
    """The replica serves the ingress."""

    info: ModelInfo


class Refused(msgspec.Struct, tag="refused", frozen=True, array_like=True):
    """The replica doesn't serve the ingress. If it `may_retry`, the replica's engine process is
    being replaced."""

    reason: str
    may_retry: bool


class Report(msgspec.Struct, tag="report", frozen=True, array_like=True):
    """The load of the replica, and the changes of its cache since the last report: the hashes of
    blocks, in the form of `engine.wire.replies.Digest`."""

    load: ReplicaLoad
    added: bytes
    removed: bytes


ToIngress = ToServer | Welcome | Refused | Report
ToReplica = ToEngine | Hello | Heartbeat

_HASH: Final = struct.Struct("<Q")
to_ingress_decoder = msgspec.msgpack.Decoder(ToIngress)
to_replica_decoder = msgspec.msgpack.Decoder(ToReplica)

M = TypeVar("M")


def numbers(hashes: bytes) -> list[int]:
    """Returns hashes of 8 bytes, little-endian, as numbers. Raises ValueError for other lengths."""
    if len(hashes) % 8:
        raise ValueError("the hashes have no 8 bytes each")
    return [number for (number,) in _HASH.iter_unpack(hashes)]


def packed(hashes: Iterable[int]) -> bytes:
    """The inverse of `numbers`."""
    return b"".join(map(_HASH.pack, hashes))


class Channel(asyncio.Protocol, Generic[M]):
    """One end of a connection. `on_open` is called when it is established. Received messages `M` go
    to `on_message`, and `on_end` is called once, with the reason, when the connection ends."""

    def __init__(self, decoder: Decoder[M], *, limit: int = MAX_FRAME) -> None:
        """`limit` is the maximum size of a message in bytes."""
        self.on_open: Callable[[], None] = lambda: None
        self.on_message: Callable[[M], None] = lambda message: None
        self.on_end: Callable[[str], None] = lambda reason: None
        self._frames = FrameReader(decoder, limit)
        self._transport: asyncio.Transport | None = None
        self._outbox: Outbox | None = None
        self._beat: asyncio.TimerHandle | None = None
        self._closing: asyncio.TimerHandle | None = None
        self._n_silent = 0  # beats since the last byte
        self._n_full = 0  # consecutive beats with more than MAX_UNSENT bytes
        self._is_over = False

    @property
    def peer(self) -> str:
        """The address of the other end."""
        name = self._transport.get_extra_info("peername") if self._transport else None
        return f"{name[0]}:{name[1]}" if name else "unknown"

    def allow(self, limit: int) -> None:
        """Changes the maximum size of a message, between two messages."""
        self._frames.limit = limit

    def send(self, message: object) -> None:
        """Sends a message. Has no effect after the end of the connection."""
        if self._is_over or self._outbox is None or self._transport is None:
            return
        self._outbox.write(frame(message))

    def close(self) -> None:
        """Sends what is waiting, and closes the connection."""
        if self._is_over:
            return
        if self._transport is not None and self._outbox is not None:
            self._outbox.flush()
            self._transport.close()
            loop = asyncio.get_running_loop()
            self._closing = loop.call_later(CLOSE_SECONDS, self._transport.abort)
        self._finish("it was closed")

    # ---- asyncio's events ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports don't inherit from asyncio's classes, but have the same methods.
        self._transport = cast(asyncio.Transport, transport)
        if self._is_over:  # closed before it was established
            self._transport.abort()
            return
        self._outbox = Outbox(self._transport)
        self._watch()
        self.on_open()

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        self._n_silent = 0
        try:
            messages = self._frames.feed(data)
        except ValueError as error:  # FrameError and msgspec's errors
            self._abort(f"it violates the protocol: {error}")
            return
        for message in messages:
            if not (self._is_over or isinstance(message, Heartbeat)):
                self.on_message(message)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._closing is not None:
            self._closing.cancel()
        self._finish(f"the connection was lost ({exc})" if exc else "the other end closed it")

    # ----------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Sends a heartbeat, and ends the connection after MAX_SILENT beats without a byte, or with
        too many bytes that wait."""
        if self._n_silent > MAX_SILENT:
            self._abort(f"nothing was received for {MAX_SILENT * BEAT:.0f} s")
            return
        self._n_silent += 1
        is_full = self._transport is not None and (
            self._transport.get_write_buffer_size() > MAX_UNSENT
        )
        self._n_full = self._n_full + 1 if is_full else 0
        if self._n_full > MAX_SILENT:
            self._abort(f"the other end doesn't read: {MAX_UNSENT >> 20} MiB wait for it")
            return
        self.send(Heartbeat())
        self._beat = asyncio.get_running_loop().call_later(BEAT, self._watch)

    def _abort(self, reason: str) -> None:
        """Ends the connection without sending what is waiting."""
        if self._transport is not None:
            self._transport.abort()
        self._finish(reason)

    def _finish(self, reason: str) -> None:
        if self._is_over:
            return
        self._is_over = True
        if self._beat is not None:
            self._beat.cancel()
        self.on_end(reason)
