"""JSON texts of requests."""

import gc
import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.formats.schema_check import UndecodableError, decoded

pytestmark = pytest.mark.slow

DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(DOCUMENTS)
def test_json_is_decoded(document: object) -> None:
    assert decoded(json.dumps(document).encode()) == document


CUT = st.text(st.sampled_from('\ud83d\ude00\\"a\u00e9\U0001f600'))
"""Texts with halves of emoji in them."""


@given(st.dictionaries(CUT, CUT))
def test_half_of_a_surrogate_pair_is_the_replacement_character(document: dict[str, str]) -> None:
    raw = json.dumps(document)
    text = json.dumps(json.loads(raw), ensure_ascii=False)
    whole = json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    with suppress(UndecodableError):  # of one half right after a backslash
        assert decoded(raw.encode()) == whole
    assert "\\\\" in raw or decoded(raw.encode()) == whole


@pytest.mark.parametrize("raw", [rb'"\ud83d"', rb'"a\udE00b"', rb'"\ud83d\ud83d\ude00"'])
def test_texts_that_are_cut_inside_of_an_emoji(raw: bytes) -> None:
    assert "\ufffd" in decoded(raw)
    assert decoded(raw).encode()


def test_an_escaped_backslash_before_a_u_is_text() -> None:
    assert decoded(rb'["\\ud83d", "\ud83d"]') == ["\\ud83d", "\ufffd"]


def test_a_byte_order_mark_is_passed_over() -> None:
    assert decoded(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}
    assert decoded(bytearray(b'\xef\xbb\xbf"\\ud83d"')) == "\ufffd"
    with pytest.raises(UndecodableError):
        decoded(b"\xef\xbb\xbf\xef\xbb\xbf1")


@given(st.binary())
def test_invalid_json_is_rejected(raw: bytes) -> None:
    with suppress(UndecodableError):
        json.dumps(decoded(raw))
    assert gc.isenabled()


def test_no_garbage_is_looked_for_meanwhile() -> None:
    phases: list[str] = []

    def seen(phase: str, info: dict[str, int]) -> None:
        phases.append(phase)

    gc.collect()
    gc.callbacks.append(seen)
    try:
        value = decoded(b"[%s[]]" % (b"[]," * 10_000))
        during = list(phases)
    finally:
        gc.callbacks.remove(seen)
    assert len(value) == 10_001
    assert during.count("start") <= 1  # afterwards


@pytest.mark.parametrize("collects", [True, False])
def test_who_has_switched_it_off_keeps_it_so(collects: bool) -> None:
    gc.enable() if collects else gc.disable()
    try:
        decoded(b"{}")
        with pytest.raises(UndecodableError):
            decoded(b"{")
        assert gc.isenabled() is collects
    finally:
        gc.enable()
