"""The child's side of its pipes."""

import os
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from specllama.engine.wire.framing import frame
from specllama.engine.wire.link import Link

Pair = tuple[Link[Any, Any], Link[Any, Any]]
decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder()


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two ends that hear each other."""
    first, second = os.pipe(), os.pipe()
    yield (
        Link.of_files(first[0], second[1], decoder),
        Link.of_files(second[0], first[1], decoder),
    )
    for fd in (*first, *second):
        os.close(fd)


def test_messages_of_threads_are_not_mixed_up(pair: Pair) -> None:
    here, there = pair
    texts = [str(number) * 100_000 for number in range(8)]  # each longer than a pipe holds
    threads = [threading.Thread(target=here.send, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    found: list[str] = []
    while len(found) < len(texts):
        found += there.receive()
    for thread in threads:
        thread.join()
    assert sorted(found) == texts


def test_messages_that_come_together_are_received_together(pair: Pair) -> None:
    here, there = pair
    here.send(1, 2)
    here.write(frame(3) + frame(4)[:2])
    assert there.receive() == [1, 2, 3]
    here.write(frame(4)[2:])
    assert there.receive() == [4]


def test_an_unencodable_message_is_not_sent(pair: Pair) -> None:
    here, there = pair
    with pytest.raises(UnicodeEncodeError):
        here.send("good", "\ud800")
    here.send("next")
    assert there.receive() == ["next"]


def test_the_end_of_the_pipe() -> None:
    source, sink = os.pipe()
    link: Link[Any, Any] = Link.of_files(source, sink, decoder)
    link.write(frame("whole") + frame("torn")[:-1])
    os.close(sink)
    assert link.receive() == ["whole"]
    assert link.receive() == []
    os.close(source)


def test_the_reader_is_gone() -> None:
    source, sink = os.pipe()
    os.close(source)
    link: Link[Any, Any] = Link.of_files(source, sink, decoder)
    with pytest.raises(BrokenPipeError):
        link.send("no one reads this")
    os.close(sink)
