"""The ends of connections between an ingress and replicas, without a network."""

import asyncio
from collections.abc import Callable
from typing import Any

from specllama.engine.fleet.channel import Channel, ToIngress, to_ingress_decoder
from specllama.engine.wire.framing import FrameReader
from specllama.engine.wire.replies import Heartbeat


class PaperTransport(asyncio.Transport):
    """The transport of a channel. `written` has the bytes that the channel has sent; `n_unsent` of
    them wait for the other end."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.written = b""
        self.n_unsent = 0
        self.was_aborted = False
        self._protocol = protocol
        self._is_closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self._is_closing
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            if not self.n_unsent:
                self._lose()

    def abort(self) -> None:
        self.was_aborted = self._is_closing = True
        self._lose()

    def _lose(self) -> None:
        asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    def get_write_buffer_size(self) -> int:
        return self.n_unsent

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1234) if name == "peername" else default

    def messages(self, decoder: Any) -> list[Any]:
        """Returns the messages that the channel has sent, without heartbeats."""
        received: list[Any] = FrameReader(decoder).feed(self.written)
        return [each for each in received if not isinstance(each, Heartbeat)]


class PaperChannel(Channel[ToIngress]):
    """A connection to a replica that a test plays. `sent` has the messages to the replica that the
    test has not taken yet."""

    def __init__(self) -> None:
        super().__init__(to_ingress_decoder)
        self.sent: list[Any] = []
        self.is_closed = False

    def send(self, message: object) -> None:
        if not self.is_closed:
            self.sent.append(message)

    def close(self) -> None:
        self.is_closed = True

    def taken(self) -> list[Any]:
        """Returns the messages since the last call."""
        sent, self.sent = self.sent, []
        return sent

    def say(self, message: ToIngress) -> None:
        """Sends a message of the replica, unless the connection has ended."""
        if not self.is_closed:
            self.on_message(message)


async def until(condition: Callable[[], object]) -> None:
    """Lets other tasks run until `condition()` is true."""
    while not condition():
        await asyncio.sleep(0)
