"""Markers as wholes: common ends, and what closes what."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.helpers.render.detect.matching import (
    closings,
    common_prefix,
    common_suffix,
    openings,
)

_MARKUP = st.lists(
    st.sampled_from(["<a>", "<ab>", "</a>", "<a=", "[A]", "[/A]", "word", "wor", " ", "\n", "{"]),
    max_size=6,
).map("".join)


@given(_MARKUP, _MARKUP)
def test_common_parts_are_common(first: str, second: str) -> None:
    prefix, suffix = common_prefix(first, second), common_suffix(first, second)
    assert first.startswith(prefix)
    assert second.startswith(prefix)
    assert first.endswith(suffix)
    assert second.endswith(suffix)
    assert common_prefix(first, first) == common_suffix(first, first) == first


def test_markers_stay_whole() -> None:
    assert common_prefix("ok<|START_ACTION|>", "ok<|START_TEXT|>") == "ok"
    assert common_prefix("</f>\n<f=", "</f>\n</fs>") == "</f>\n"
    assert common_suffix("CCC<|eot_id|>", "}<|eom_id|>") == ""
    assert common_suffix("1<|end|>\n", "2<|end|>\n") == "<|end|>\n"
    assert common_prefix("call: alpha", "call: alps") == "call: "


@pytest.mark.parametrize(
    ("opening", "closing"),
    [
        ("<think>", "</think>"),
        ("[THINK]", "[/THINK]"),
        ("<|START_THINKING|>", "<|END_THINKING|>"),
        ("<|begin_of_thought|>", "<|end_of_thought|>"),
        ("<|call|>", "<|/call|>"),
    ],
)
def test_markers_that_close(opening: str, closing: str) -> None:
    assert closing in closings(opening)
    assert opening in openings(closing)


def test_a_marker_that_closes_by_turning_round() -> None:
    assert "<channel|>" in closings("<|channel>")
