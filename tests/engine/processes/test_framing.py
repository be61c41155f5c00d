"""Messages of the engine process, read in pieces of any length."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.processes.framing import HEADER, MAX_FRAME, FrameError
from engine.protocol.messages import Frames, Heartbeat, LoadFailed, Progress, ToServer, frame

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
    data, frames = b"".join(map(frame, messages)), Frames()
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
    assert len(Frames().feed(written[:cut])) == sum(end <= cut for end in ends)


def test_nonsense_is_no_frame() -> None:
    with pytest.raises(FrameError):
        Frames().feed(HEADER.pack(MAX_FRAME + 1))
    with pytest.raises(msgspec.MsgspecError):
        Frames().feed(HEADER.pack(2) + b"\xc1\xc1")
