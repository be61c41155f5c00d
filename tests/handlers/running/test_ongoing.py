"""Streams that are kept: their bytes, their owners, their bounds."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.errors import EngineError
from specllama.handlers.running.ongoing import KeptStream, KeptStreams, OffsetLostError, Owner

ME, OTHER = Owner("key", "a"), Owner("other key", "a")


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await test()

    asyncio.run(main())


def opened(streams: KeptStreams, owner: Owner = ME) -> KeptStream:
    stream = streams.open(owner)
    assert stream is not None
    return stream


async def read(stream: KeptStream, offset: int = 0) -> bytes:
    return b"".join([data async for data in stream.read(offset)])


def test_a_removed_stream_ends_the_preparation_of_its_request() -> None:
    async def test() -> None:
        streams, begun, ended = KeptStreams(), asyncio.Event(), asyncio.Event()

        async def load() -> str:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            return "never"

        work = asyncio.create_task(streams.prepared(ME, load()))
        await begun.wait()
        assert streams.is_preparing(ME)
        assert not streams.is_preparing(OTHER)
        streams.remove(ME)
        assert not streams.is_preparing(ME)
        with pytest.raises(EngineError, match="cancelled"):
            await work
        assert ended.is_set()

    run(test)


def test_a_stream_is_removed_just_when_its_request_is_prepared() -> None:
    async def test() -> None:
        streams, loaded = KeptStreams(), asyncio.Event()
        work = asyncio.create_task(streams.prepared(ME, loaded.wait()))
        await asyncio.sleep(0)
        loaded.set()
        streams.remove(ME)
        with pytest.raises(EngineError, match="cancelled"):
            await work
        assert await streams.prepared(ME, asyncio.sleep(0, "ready")) == "ready"
        assert not streams.is_preparing(ME)

    run(test)


def test_a_newer_request_replaces_one_that_is_being_prepared() -> None:
    async def test() -> None:
        streams = KeptStreams()
        first = asyncio.create_task(streams.prepared(ME, asyncio.Event().wait()))
        await asyncio.sleep(0)
        second = asyncio.create_task(streams.prepared(ME, asyncio.Event().wait()))
        with pytest.raises(EngineError, match="cancelled"):
            await first
        assert streams.is_preparing(ME)
        second.cancel()  # as at the server's end: not an answer
        with pytest.raises(asyncio.CancelledError):
            await second
        assert not streams.is_preparing(ME)

    run(test)


def test_readers_get_past_and_future_events() -> None:
    async def test() -> None:
        stream = opened(KeptStreams())
        stream.append(b"one ")
        readers = [asyncio.create_task(read(stream, offset)) for offset in (0, 2, 6, 99)]
        await asyncio.sleep(0)
        assert not any(reader.done() for reader in readers)
        for word in (b"two ", b"", b"three"):
            stream.append(word)
            await asyncio.sleep(0)
        stream.finish()
        stream.append(b"too late")
        text = b"one two three"
        assert await asyncio.gather(*readers) == [text, text[2:], text[6:], b""]
        assert await read(stream, 4) == text[4:]
        status = stream.status
        assert (status.is_done, status.total_bytes) == (True, len(text))
        assert 0 < status.started_at <= status.completed_at

    run(test)


def test_the_beginning_of_a_long_stream_goes() -> None:
    async def test() -> None:
        streams = KeptStreams(max_stream_bytes=10)
        stream = opened(streams)
        slow = stream.read()
        assert await anext(slow) == b""
        stream.append(b"0123456789abc")
        assert (stream.n_dropped, stream.size, streams.n_bytes) == (3, 10, 10)
        with pytest.raises(OffsetLostError):
            await anext(slow)
        with pytest.raises(OffsetLostError):
            await read(stream, 2)
        stream.finish()
        assert await read(stream, 3) == b"3456789abc"
        assert stream.status.total_bytes == 13

    run(test)


def test_another_stream_takes_the_place() -> None:
    async def test() -> None:
        streams = KeptStreams()
        cancelled: list[str] = []
        first = opened(streams)
        first.made_by(lambda: cancelled.append("first"))
        reader = asyncio.create_task(read(first))
        await asyncio.sleep(0)
        second = opened(streams)
        assert cancelled == ["first"]
        assert await reader == b""
        assert streams.get(ME) is second
        first.made_by(lambda: cancelled.append("late"))
        assert cancelled == ["first", "late"], "a late one is informed at once"
        second.made_by(lambda: cancelled.append("second"))
        second.finish()
        streams.remove(ME)
        assert cancelled == ["first", "late"], "there is nothing to cancel any more"
        assert streams.get(ME) is None
        streams.remove(ME)

    run(test)


def test_a_failed_stream_is_not_kept() -> None:
    async def test() -> None:
        streams = KeptStreams()
        first = opened(streams)
        second = opened(streams)
        streams.discard(first)
        assert streams.get(ME) is second
        streams.discard(second)
        assert (len(streams), streams.n_bytes) == (0, 0)

    run(test)


def test_a_complete_stream_goes_after_its_time() -> None:
    async def test() -> None:
        streams = KeptStreams(seconds=0)
        complete, running = opened(streams), opened(streams, OTHER)
        complete.append(b"x")
        complete.finish()
        while len(streams) > 1:
            await asyncio.sleep(0)
        assert (streams.get(ME), streams.get(OTHER), streams.n_bytes) == (None, running, 0)

    run(test)


def test_too_many_streams() -> None:
    async def test() -> None:
        streams = KeptStreams(max_streams=2)
        first, second = opened(streams), opened(streams, OTHER)
        assert streams.open(Owner("", "c")) is None
        assert streams.get(ME) is first
        second.finish()
        third = opened(streams, Owner("", "c"))
        assert streams.get(OTHER) is None
        assert opened(streams, third.owner) is not third, "a new one in the old one's place"
        streams.close()
        assert len(streams) == 0
        assert first.done

    run(test)


def test_too_many_bytes() -> None:
    async def test() -> None:
        streams = KeptStreams(max_bytes=10)
        long, short, complete = (opened(streams, Owner("", each)) for each in "abc")
        complete.append(b"12345")
        complete.finish()
        short.append(b"12")
        long.append(b"1234567")
        assert streams.get(complete.owner) is None
        assert (long.n_dropped, short.n_dropped, streams.n_bytes) == (0, 0, 9)
        short.append(b"34")
        assert (long.n_dropped, short.n_dropped, streams.n_bytes) == (1, 0, 10)

    run(test)


def test_streams_are_found_by_their_owners_alone() -> None:
    async def test() -> None:
        streams = KeptStreams()
        names = ("a", "a::m", "a::m::n", "ab", "b::a")
        for name in names:
            opened(streams, Owner("key", name))
        opened(streams, OTHER)

        def found(*wanted: str) -> list[str]:
            return [each.owner.conversation for each in streams.find("key", wanted)]

        assert found("a") == ["a", "a::m", "a::m::n"]
        assert found("b", "a::m", "a::m", "a::m::n") == ["b::a", "a::m", "a::m::n"]
        assert found("", "::", "c", "a::") == []
        assert streams.find("", ["a"]) == []

    run(test)


Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["open", "append", "append", "finish", "remove", "discard"]),
        st.integers(0, 5),
        st.integers(0, 30),
    ),
    max_size=80,
)


@given(STEPS)
def test_bounds_hold_and_bytes_are_never_wrong(steps: list[Step]) -> None:
    async def test() -> None:
        streams = KeptStreams(max_streams=4, max_bytes=60, max_stream_bytes=25)
        sent: dict[KeptStream, bytes] = {}
        last: dict[int, KeptStream] = {}
        for what, who, n in steps:
            stream = last.get(who)
            if what == "open":
                if (opened := streams.open(Owner("", str(who)))) is not None:
                    last[who] = opened
                    sent[opened] = b""
            elif what == "remove":
                streams.remove(Owner("", str(who)))
            elif stream is not None:
                data = bytes((len(sent[stream]) + i) % 251 for i in range(n))
                if what == "append":
                    sent[stream] += b"" if stream.done else data
                    stream.append(data)
                elif what == "finish":
                    stream.finish()
                else:
                    streams.discard(stream)
            kept = [each for key in range(6) if (each := streams.get(Owner("", str(key))))]
            assert len(kept) == len(streams) <= 4
            assert streams.n_bytes == sum(each.size for each in kept) <= 60
            for each in kept:
                assert each.size <= 25
                assert each.status.total_bytes == len(sent[each])
        for stream in {*last.values()}:
            stream.finish()
            if streams.get(stream.owner) is stream:
                begin = stream.n_dropped
                assert await read(stream, begin) == sent[stream][begin:]

    run(test)
