"""One end of a connection: pieces, garbage, a silent other end, and the end itself."""

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.fleet import channel as module
from specllama.engine.fleet.channel import (
    MAX_HELLO,
    MAX_SILENT,
    MAX_UNSENT,
    Channel,
    Hello,
    ToReplica,
    to_ingress_decoder,
    to_replica_decoder,
)
from specllama.engine.wire.framing import HEADER, MAX_FRAME, frame
from specllama.engine.wire.replies import Heartbeat, Text
from specllama.engine.wire.requests import Detokenize, Tokenize
from tests.support.covering import examples
from tests.support.fleets import PaperTransport, until

MESSAGES = [Hello("1.0", "secret", 7), Tokenize(8, ["x" * 300]), Detokenize(9, [1, 2, 3])]


class End:
    """A channel of a replica, and everything that it reports."""

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self.channel: Channel[ToReplica] = Channel(to_replica_decoder, limit=limit)
        self.transport = PaperTransport(self.channel)
        self.received: list[ToReplica] = []
        self.ends: list[str] = []
        self.channel.on_message = self.received.append
        self.channel.on_end = self.ends.append

    def connect(self) -> "End":
        self.channel.connection_made(self.transport)
        return self


def played(play: Callable[[End], None], limit: int = MAX_FRAME) -> End:
    """Returns the end of a connection after `play`, and after what follows from it."""

    async def run() -> End:
        end = End(limit).connect()
        play(end)
        for _ in range(3):
            await asyncio.sleep(0)
        end.channel.close()
        return end

    return asyncio.run(run())


# ---- what arrives -----------------------------------------------------------------------


@given(st.lists(st.integers(0, 400)))
@examples(30)
def test_messages_arrive_in_pieces_of_any_size(cuts: list[int]) -> None:
    data = b"".join(map(frame, MESSAGES))
    places = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]

    def play(end: End) -> None:
        for start, stop in pairwise(places):
            end.channel.data_received(data[start:stop])

    assert played(play).received == MESSAGES


def test_heartbeats_are_not_passed_on() -> None:
    def play(end: End) -> None:
        end.channel.data_received(frame(Heartbeat()) + frame(MESSAGES[2]) + frame(Heartbeat()))

    assert played(play).received == [MESSAGES[2]]


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nhost: here\r\n\r\n",
    "tls": bytes.fromhex("16030100c8010000c403030000"),
    "no message": HEADER.pack(5) + b"\xc1\xc1\xc1\xc1\xc1",
    "another message": frame(Text(1, "for an ingress")),
    "wrong types": HEADER.pack(8) + b"\x92\xa5hello\x01",
    "not utf-8": HEADER.pack(9) + b"\x93\xa5hello\xa1\xff",
    "nested": HEADER.pack(4000) + b"\x91" * 4000,
    "a gigabyte": HEADER.pack(MAX_FRAME + 1),
    "zero bytes": HEADER.pack(0),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_ends_the_connection_once(name: str) -> None:
    def play(end: End) -> None:
        end.channel.data_received(GARBAGE[name] + b"\0" * 8)
        end.channel.data_received(frame(MESSAGES[1]))

    end = played(play, MAX_HELLO)
    [reason] = end.ends
    assert "protocol" in reason
    assert end.transport.was_aborted
    assert not end.received


@given(st.binary(max_size=200))
@examples(100)
def test_random_bytes_do_not_raise(data: bytes) -> None:
    assert len(played(lambda end: end.channel.data_received(data)).ends) == 1


def test_an_error_of_the_receiver_is_not_one_of_the_other_end() -> None:
    def fail(message: ToReplica) -> None:
        raise ValueError("a mistake here")

    async def run() -> None:
        end = End().connect()
        end.channel.on_message = fail
        with pytest.raises(ValueError, match="mistake"):  # asyncio ends the connection
            end.channel.data_received(frame(MESSAGES[0]))
        assert not end.ends
        end.channel.close()

    asyncio.run(run())


def test_a_hello_has_a_maximum_size() -> None:
    long = Hello("1.0", "x" * MAX_HELLO, 1)
    assert played(lambda end: end.channel.data_received(frame(long)), MAX_HELLO).ends
    assert not played(lambda end: end.channel.data_received(frame(long)), MAX_HELLO).received
    huge = HEADER.pack(MAX_HELLO + 1)  # the sender doesn't get to send the rest
    assert played(lambda end: end.channel.data_received(huge), MAX_HELLO).transport.was_aborted


def test_a_changed_limit_loses_no_bytes() -> None:
    hello, beat, large = frame(MESSAGES[0]), frame(Heartbeat()), Detokenize(1, [1] * 9000)

    def play(end: End) -> None:
        end.channel.data_received(hello + beat[:6])
        end.channel.allow(MAX_FRAME)
        end.channel.data_received(beat[6:] + frame(large))

    end = played(play, MAX_HELLO)
    assert end.received == [MESSAGES[0], large]


# ---- an other end that doesn't answer ---------------------------------------------------


@pytest.fixture
def _quick_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """A beat in each turn of the event loop."""
    monkeypatch.setattr(module, "BEAT", 0.0)


@pytest.mark.usefixtures("_quick_beats")
def test_silence_ends_the_connection() -> None:
    async def run() -> None:
        end = End().connect()
        await until(lambda: end.ends)
        assert "nothing was received" in end.ends[0]
        assert end.transport.was_aborted
        assert end.transport.written == frame(Heartbeat()) * (MAX_SILENT + 1)
        await asyncio.sleep(0)
        assert len(end.ends) == 1

    asyncio.run(run())


@pytest.mark.usefixtures("_quick_beats")
def test_any_byte_breaks_the_silence() -> None:
    async def run() -> None:
        end = End().connect()
        for each in frame(MESSAGES[1]):
            for _ in range(MAX_SILENT // 2):
                await asyncio.sleep(0)
            end.channel.data_received(bytes([each]))
        assert not end.ends
        assert end.received == [MESSAGES[1]]
        end.channel.close()

    asyncio.run(run())


@pytest.mark.usefixtures("_quick_beats")
def test_an_end_that_sends_and_does_not_read_is_left() -> None:
    async def run() -> None:
        end = End().connect()
        end.transport.n_unsent = MAX_UNSENT + 1
        while not end.ends:
            end.channel.data_received(frame(Heartbeat()))
            await asyncio.sleep(0)
        assert "doesn't read" in end.ends[0]
        assert end.transport.was_aborted

    asyncio.run(run())


@pytest.mark.usefixtures("_quick_beats")
def test_a_large_message_may_take_some_beats() -> None:
    async def run() -> None:
        end = End().connect()
        for turn in range(5 * MAX_SILENT):
            end.transport.n_unsent = 2 * MAX_UNSENT if turn % MAX_SILENT else 0
            end.channel.send(MESSAGES[1])
            end.channel.data_received(frame(Heartbeat()))
            await asyncio.sleep(0)
        assert not end.ends
        end.channel.close()

    asyncio.run(run())


# ---- the end ----------------------------------------------------------------------------


def test_closing_sends_what_waits() -> None:
    async def run() -> None:
        end = End().connect()
        for each in MESSAGES:
            end.channel.send(each)
        end.channel.close()
        end.channel.send(MESSAGES[0])  # no effect
        assert end.transport.messages(to_replica_decoder) == MESSAGES
        await asyncio.sleep(0)
        assert not end.transport.was_aborted
        assert end.ends == ["it was closed"]

    asyncio.run(run())


def test_a_closed_connection_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLOSE_SECONDS", 0.0)

    async def run() -> None:
        end = End().connect()
        end.transport.n_unsent = 1
        end.channel.close()
        assert not end.transport.was_aborted
        await until(lambda: end.transport.was_aborted)
        assert end.ends == ["it was closed"]

    asyncio.run(run())


def test_messages_behind_the_end_are_dropped() -> None:
    async def run() -> None:
        end = End().connect()

        def on_message(message: ToReplica) -> None:
            end.received.append(message)
            end.channel.close()

        end.channel.on_message = on_message
        end.channel.data_received(b"".join(map(frame, MESSAGES)))
        end.channel.data_received(frame(MESSAGES[1]))
        assert end.received == MESSAGES[:1]

    asyncio.run(run())


def test_the_end_is_reported_once_whatever_comes_after_it() -> None:
    def play(end: End) -> None:
        end.channel.connection_lost(ConnectionResetError("reset"))
        end.channel.connection_lost(None)
        end.channel.close()
        end.channel.send(MESSAGES[0])

    end = played(play)
    assert end.ends == ["the connection was lost (reset)"]
    assert played(lambda end: end.channel.connection_lost(None)).ends == ["the other end closed it"]


def test_a_channel_that_is_closed_before_it_is_connected_breaks_the_connection() -> None:
    async def run() -> None:
        end = End()
        opened: list[None] = []
        end.channel.on_open = lambda: opened.append(None)
        assert end.channel.peer == "unknown"
        end.channel.send(MESSAGES[0])
        end.channel.close()
        end.connect()
        assert end.transport.was_aborted
        assert not opened
        assert end.ends == ["it was closed"]
        assert not end.transport.written

    asyncio.run(run())


def test_both_ends_understand_each_other() -> None:
    """Over a socket, with a message that is larger than the buffers of the system."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        here: Channel[Text] = Channel(to_ingress_decoder)  # type: ignore[arg-type]
        there: Channel[ToReplica] = Channel(to_replica_decoder)
        received: list[object] = []
        here.on_message = received.append
        there.on_message = lambda message: there.send(Text(1, "x" * 3_000_000))
        server = await loop.create_server(lambda: there, "127.0.0.1", 0)
        await loop.create_connection(lambda: here, *server.sockets[0].getsockname())
        assert here.peer.startswith("127.0.0.1:")
        here.send(Tokenize(1, ["y" * 3_000_000]))
        await until(lambda: received)
        assert received == [Text(1, "x" * 3_000_000)]
        ended: asyncio.Future[str] = loop.create_future()
        there.on_end = ended.set_result
        here.close()
        assert await ended == "the other end closed it"
        server.close()

    asyncio.run(run())
