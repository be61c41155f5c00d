"""Messages of one turn of the event loop leave in one write, whole and in order."""

import asyncio

from specllama.engine.wire.framing import LIMIT, Outbox


class Recorder(asyncio.WriteTransport):
    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closing


async def turn() -> None:
    await asyncio.sleep(0)


def test_one_write_for_a_turn() -> None:
    async def scenario() -> list[bytes]:
        transport = Recorder()
        outbox = Outbox(transport)
        outbox.write(b"a")
        outbox.write(b"b")
        assert transport.writes == []
        await turn()
        outbox.write(b"c")
        await turn()
        return transport.writes

    assert asyncio.run(scenario()) == [b"ab", b"c"]


def test_much_does_not_wait() -> None:
    async def scenario() -> list[int]:
        transport = Recorder()
        outbox = Outbox(transport)
        outbox.write(b"a")
        outbox.write(bytes(LIMIT))
        sizes = [len(data) for data in transport.writes]
        outbox.write(b"b")
        await turn()
        await turn()
        return sizes + [len(data) for data in transport.writes[1:]]

    assert asyncio.run(scenario()) == [LIMIT + 1, 1]


def test_flush_sends_at_once_and_only_once() -> None:
    async def scenario() -> list[bytes]:
        transport = Recorder()
        outbox = Outbox(transport)
        outbox.write(b"a")
        outbox.flush()
        outbox.flush()
        await turn()
        return transport.writes

    assert asyncio.run(scenario()) == [b"a"]


def test_a_closing_transport_gets_nothing_more() -> None:
    async def scenario() -> list[bytes]:
        transport = Recorder()
        outbox = Outbox(transport)
        outbox.write(b"a")
        transport.closing = True
        await turn()
        return transport.writes

    assert asyncio.run(scenario()) == []
