"""The child's side of its pipes to the server: frames on stdin and stdout, everything else on
stderr."""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, Generic, TypeVar

from specllama.engine import system
from specllama.engine.wire.framing import (
    MSGPACK,
    Decoder,
    Encoder,
    FrameReader,
    Started,
    frame,
)
from specllama.engine.wire.startup import limit_memory, set_alarm

READ_SIZE: Final = 1 << 16  # bytes: what a pipe holds; also there when memory is short
ORPHAN_FACTOR: Final = 2  # times the limit for a job: by then the server would have acted

In = TypeVar("In")
Out = TypeVar("Out")


class Link(Generic[In, Out]):
    """Frames in and out; sending is safe from any thread."""

    def __init__(
        self,
        read: Callable[[int], bytes],
        write: Callable[[memoryview], int],
        decoder: Decoder[In],
        encoder: Encoder = MSGPACK,
    ) -> None:
        """`read` waits for bytes and returns at most so many, or nothing at the end; `write`
        returns how many bytes it has taken."""
        self._read = read
        self._write = write
        self._frames = FrameReader(decoder)
        self._encoder = encoder
        self._lock = system.Lock()

    @classmethod
    def of_files(
        cls, source: int, sink: int, decoder: Decoder[In], encoder: Encoder = MSGPACK
    ) -> "Link[In, Out]":
        """Reads and writes these file descriptors."""
        return cls(partial(os.read, source), partial(os.write, sink), decoder, encoder)

    def receive(self) -> list[In]:
        """The next messages, as many as have come together; none at the end of the stream."""
        while data := self._read(READ_SIZE):
            if messages := self._frames.feed(data):
                return messages
        return []

    def send(self, *messages: Out) -> None:
        """Raises BrokenPipeError if the server is gone, and what `frame` raises: then nothing
        was sent."""
        self.write(b"".join([frame(message, self._encoder) for message in messages]))

    def write(self, frames: bytes) -> None:
        """Raises BrokenPipeError if the server is gone."""
        data = memoryview(frames)
        with self._lock:
            while data:
                data = data[self._write(data) :]


def take_over(decoder: Decoder[In], encoder: Encoder = MSGPACK) -> Link[In, Out]:
    """Keep stdin and stdout for frames; what anything prints goes to stderr from now on.

    Signals to the whole process group are ignored: they are for the server, which may want to
    drain, and closes the pipe at its end.
    """
    sink = os.dup(1)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return Link.of_files(sys.stdin.fileno(), sink, decoder, encoder)


def do_jobs(
    link: Link[In, Started], reply: Callable[[In], bytes], *, memory: int, seconds: float
) -> None:
    """Send the frame that `reply` makes of each job, one after the other, until the server closes
    the pipe.

    `memory` limits the address space, in bytes, where the platform can. The server ends a process
    that takes more than `seconds` for a job; if the server is no more, an alarm does.
    """
    limit_memory(memory)
    with suppress(BrokenPipeError):  # the server is gone
        link.send(Started())
        while jobs := link.receive():
            for job in jobs:
                set_alarm(ORPHAN_FACTOR * seconds)
                answer = reply(job)
                set_alarm(0)
                link.write(answer)
