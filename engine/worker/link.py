"""The engine process's end of the two pipes."""

import os
import threading

from engine.processes.framing import FrameReader
from engine.protocol.messages import ToEngine, ToServer, frame, to_engine_decoder

READ_SIZE = 1 << 18  # bytes


class Link:
    """Frames in and out; sending is safe from any thread."""

    def __init__(self, source: int, sink: int) -> None:
        self._source = source
        self._sink = sink
        self._frames = FrameReader(to_engine_decoder)
        self._lock = threading.Lock()

    def receive(self) -> list[ToEngine]:
        """The next messages, as many as have come together; none at the end of the stream."""
        while data := os.read(self._source, READ_SIZE):
            if messages := self._frames.feed(data):
                return messages
        return []

    def send(self, *messages: ToServer) -> None:
        data = memoryview(b"".join(map(frame, messages)))
        with self._lock:
            while data:
                data = data[os.write(self._sink, data) :]
