"""Writes that leave together: one system call for all that is said in a turn of the event loop.

A write to a pipe or a socket wakes up who reads it, which costs more than most messages do.
"""

import asyncio

LIMIT = 1 << 16
"""Bytes that wait for the end of the turn. What is more goes out at once, so that the transport
can make its writers pause."""


class Outbox:
    """Collects what is written to `transport` until the event loop comes round again.

    To be made while the loop runs. What waits when the transport closes is dropped, unless
    `flush` is called before.
    """

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._parts: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)
        self._size += len(data)
        if self._size >= LIMIT:
            self.flush()

    def flush(self) -> None:
        """Write what waits. Safe to call at any time."""
        if not self._parts:
            return
        parts, self._parts, self._size = self._parts, [], 0
        if not self._transport.is_closing():
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))
