"""The text that streams: whole characters, nothing of a stop string."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.worker.generation.request import TextStream


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def play(pieces: list[bytes], stops: list[str]) -> tuple[list[str], str]:
    stream = TextStream(stops)
    shown = []
    for piece in pieces:
        shown.append(stream.feed(piece))
        if stream.stopping_word:
            return shown, stream.stopping_word
    shown.append(stream.finish())
    return shown, stream.stopping_word


def first_stop(text: str, stops: list[str]) -> tuple[str, str]:
    """The definition, written as plainly as possible."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, ""


@given(st.binary(max_size=60), st.lists(st.integers(0, 1000), max_size=12))
def test_any_cut_of_any_bytes_gives_the_decoded_text(data: bytes, cuts: list[int]) -> None:
    shown, stop = play(split(data, cuts), [])
    assert "".join(shown) == data.decode("utf-8", "replace")
    assert stop == ""


@given(st.text(max_size=40), st.lists(st.integers(0, 1000), max_size=12))
def test_no_event_holds_half_a_character(text: str, cuts: list[int]) -> None:
    text = text.replace("\ufffd", "")
    shown, _ = play(split(text.encode(), cuts), [])
    assert not any("\ufffd" in part for part in shown)


small_text = st.text("ab\n\u00e9", max_size=30)
small_stops = st.lists(st.text("ab\n\u00e9", min_size=1, max_size=5), max_size=5)


@given(small_text, small_stops, st.lists(st.integers(0, 1000), max_size=15))
def test_stop_strings_are_never_shown(text: str, stops: list[str], cuts: list[int]) -> None:
    shown, stop = play(split(text.encode(), cuts), stops)
    assert ("".join(shown), stop) == first_stop(text, stops)


def test_the_beginning_of_a_stop_string_is_held_back() -> None:
    stream = TextStream(["</s>"])
    assert stream.feed(b"a</") == "a"
    assert stream.feed(b"b<") == "</b"
    assert stream.feed(b"/s>x") == ""
    assert stream.stopping_word == "</s>"


def test_ten_thousand_stop_strings() -> None:
    stream = TextStream([f"stop {i:05}" for i in range(10_000)])
    assert stream.feed(b"this is no stop") == "this is no "
    assert stream.feed(b" 04711!") == ""
    assert stream.stopping_word == "stop 04711"
