"""A TCP proxy between clients and server. In calm times it changes nothing. In a storm it tears,
delays and half-closes connections, and remembers which ones."""

import asyncio
import contextlib
import random
import socket
import struct
from dataclasses import dataclass

CHUNK = 1 << 16
SHARE = 0.4
"""The share of connections in a storm that are harmed."""
LONGEST_DELAY = 1.5  # s
HALF_CLOSED = "the client's half was closed"


@dataclass
class Plan:
    """What happens to a connection. It is torn after a number of bytes of the request or the
    answer, by a reset if `reset` is set, otherwise by a normal close."""

    request_bytes: int | None = None
    answer_bytes: int | None = None
    reset: bool = False
    half_close: bool = False
    delays: int = 0
    dribble: bool = False


class Proxy:
    def __init__(self, upstream: int, dice: random.Random) -> None:
        self.torn: dict[int, str] = {}
        """What was done to connections, by the port of the client."""
        self.refused: set[int] = set()
        """Ports of clients whose connections the server refused."""
        self.storm = False
        self._upstream = upstream
        self._dice = dice
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        """Starts the proxy, and returns its address for clients."""
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = int(writer.get_extra_info("peername")[1])
        # Ports are reused: forget the connection before.
        self.torn.pop(port, None)
        self.refused.discard(port)
        try:
            to = await asyncio.open_connection("127.0.0.1", self._upstream)
        except OSError:
            self.refused.add(port)
            writer.close()
            return
        plan = self.plan() if self.storm else Plan()
        there = asyncio.create_task(self._pump(reader, to[1], port, plan, is_request=True))
        back = asyncio.create_task(self._pump(to[0], writer, port, plan, is_request=False))
        try:
            if plan.half_close:
                await there
                await back
            else:
                await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (there, back):
                task.cancel()
            await asyncio.gather(there, back, return_exceptions=True)
            for each in (writer, to[1]):
                if port in self.torn and plan.reset:
                    _reset(each)
                each.close()

    def plan(self) -> Plan:
        dice = self._dice
        if dice.random() > SHARE:
            return Plan()
        plan = Plan(reset=dice.random() < 0.5)
        match dice.choice(("request", "answer", "answer", "half", "delay", "dribble")):
            case "request":
                plan.request_bytes = dice.randrange(600)
            case "answer":
                plan.answer_bytes = int(2 ** dice.uniform(0, 16))
            case "half":
                plan.half_close = True
            case "delay":
                plan.delays = dice.randrange(1, 4)
            case _:
                plan.dribble = True
        return plan

    async def _pump(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        port: int,
        plan: Plan,
        *,
        is_request: bool,
    ) -> None:
        """Passes bytes on until the source ends, or the plan stops it."""
        limit = plan.request_bytes if is_request else plan.answer_bytes
        n = 0
        with contextlib.suppress(OSError):
            while data := await source.read(CHUNK):
                if plan.delays:
                    plan.delays -= 1
                    await asyncio.sleep(self._dice.random() * LONGEST_DELAY)
                if limit is not None and n + len(data) >= limit:
                    self.torn[port] = (
                        f"torn after {limit} bytes of the {'request' if is_request else 'answer'}"
                    )
                    sink.write(data[: limit - n])
                    await sink.drain()
                    return
                n += len(data)
                await self._write(sink, data, plan.dribble)
                if is_request and plan.half_close:
                    self.torn[port] = HALF_CLOSED
                    sink.write_eof()
                    return

    async def _write(self, sink: asyncio.StreamWriter, data: bytes, dribble: bool) -> None:
        while dribble and data and self._dice.random() < 0.98:
            n = self._dice.randrange(1, 12)
            sink.write(data[:n])
            data = data[n:]
            await sink.drain()
            await asyncio.sleep(0)
        sink.write(data)
        await sink.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Makes the connection end with a reset."""
    with contextlib.suppress(OSError, AttributeError):
        raw: socket.socket = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
