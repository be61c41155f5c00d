"""Messages of the engine process, read in pieces of any length."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.wire.framing import (
    HEADER,
    JSON,
    MAX_FRAME,
    FrameError,
    FrameReader,
    frame,
)
from specllama.engine.wire.replies import (
    Heartbeat,
    LoadFailed,
    Progress,
    ToServer,
    to_server_decoder,
)


def reader() -> FrameReader[ToServer]:
    return FrameReader(to_server_decoder)


MESSAGES = st.lists(
    st.one_of(
        st.builds(Heartbeat),
        st.builds(Progress, st.floats(0, 1)),
        st.builds(LoadFailed, st.text(max_size=300)),
    ),
    max_size=12,
)


@given(MESSAGES, st.lists(st.integers(1, 80), min_size=1))
def test_pieces_of_any_length_give_the_same_messages(
    messages: list[ToServer], lengths: list[int]
) -> None:
    data, frames = b"".join(map(frame, messages)), reader()
    found: list[ToServer] = []
    start = 0
    while start < len(data):
        length = lengths[len(found) % len(lengths)]
        found += frames.feed(data[start : start + length])
        start += length
    assert found == messages


@given(MESSAGES, st.data())
def test_a_message_is_there_with_its_last_byte(
    messages: list[ToServer], data: st.DataObject
) -> None:
    written = b"".join(map(frame, messages))
    cut = data.draw(st.integers(0, len(written)))
    ends, at = [], 0
    for message in messages:
        at += len(frame(message))
        ends.append(at)
    assert len(reader().feed(written[:cut])) == sum(end <= cut for end in ends)


def test_nonsense_is_no_frame() -> None:
    with pytest.raises(FrameError):
        reader().feed(HEADER.pack(MAX_FRAME + 1))
    with pytest.raises(msgspec.MsgspecError):
        reader().feed(HEADER.pack(2) + b"\xc1\xc1")


def test_a_reader_may_have_a_lower_limit() -> None:
    frames = FrameReader(msgspec.msgpack.Decoder(bytes), limit=10)
    assert frames.feed(frame(b"x" * 8)) == [b"x" * 8]
    with pytest.raises(FrameError, match="11 bytes"):
        frames.feed(frame(b"x" * 9))


@given(st.integers())
def test_json_has_integers_of_any_size(number: int) -> None:
    assert FrameReader(msgspec.json.Decoder(int)).feed(frame(number, JSON)) == [number]
    if not -(2**63) <= number < 2**64:
        with pytest.raises(OverflowError):
            frame(number)
