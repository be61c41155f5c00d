"""The child's side of the pipes to its parent (the server, or the engine process for a trial
process): frames on stdin and stdout, everything else on stderr."""

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

READ_SIZE: Final = 1 << 16  # bytes: the size of a pipe's buffer; small enough when memory is short
ORPHAN_FACTOR: Final = 2  # times the limit for a job: a living parent acts earlier

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
        """`read` waits for bytes and returns at most the given number, or no bytes at the end;
        `write` returns the number of bytes that it has written."""
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
        """The next messages, all that arrived together; empty at the end of the stream."""
        while data := self._read(READ_SIZE):
            if messages := self._frames.feed(data):
                return messages
        return []

    def send(self, *messages: Out) -> None:
        """Send messages. Raises BrokenPipeError if the parent is gone, and the errors of `frame`,
        in which case no message was sent."""
        self.write(b"".join([frame(message, self._encoder) for message in messages]))

    def write(self, frames: bytes) -> None:
        """Write encoded frames. Raises BrokenPipeError if the parent is gone."""
        data = memoryview(frames)
        with self._lock:
            while data:
                data = data[self._write(data) :]


def take_over(decoder: Decoder[In], encoder: Encoder = MSGPACK) -> Link[In, Out]:
    """Reserve stdin and stdout for frames; all other output to stdout goes to stderr from now on.

    Signals to the whole process group are ignored. They are for the server, which may drain first,
    and closes the pipe when it ends.
    """
    sink = os.dup(1)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return Link.of_files(sys.stdin.fileno(), sink, decoder, encoder)


def do_jobs(
    link: Link[In, Started], reply: Callable[[In], bytes], *, memory: int, seconds: float
) -> None:
    """Do jobs one after the other, and send the frame that `reply` returns for each, until the
    parent closes the pipe.

    `memory` limits the address space in bytes, where the platform supports it. The parent ends a
    process that takes more than `seconds` for a job. If the parent itself has ended, an alarm ends
    the process after `ORPHAN_FACTOR` times as long.
    """
    limit_memory(memory)
    with suppress(BrokenPipeError):  # the parent is gone
        link.send(Started())
        while jobs := link.receive():
            for job in jobs:
                set_alarm(ORPHAN_FACTOR * seconds)
                answer = reply(job)
                set_alarm(0)
                link.write(answer)
