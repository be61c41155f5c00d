"""Both spellings of fields become the described one."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.handlers.binding.validation import Spellings

INNER = {
    "type": "object",
    "properties": {"mimeType": {"type": "string"}, "anyObject": {"type": "object"}},
}
SCHEMA = {
    "type": "object",
    "allOf": [{"properties": {"topP": {"type": "number"}}}],
    "properties": {
        "inlineData": INNER,
        "manyParts": {"type": "array", "items": INNER},
        "stopSequences": {"type": "array", "items": {"type": "string"}},
        "model_id": {"type": "string"},
    },
}
SPELLINGS = Spellings.of(SCHEMA)


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ({"top_p": 1, "model_id": "a"}, {"topP": 1, "model_id": "a"}),
        ({"inline_data": {"mime_type": "a"}}, {"inlineData": {"mimeType": "a"}}),
        ({"many_parts": {"mime_type": "a"}}, {"manyParts": {"mimeType": "a"}}),
        ({"manyParts": [{"mime_type": "a"}, 5]}, {"manyParts": [{"mimeType": "a"}, 5]}),
        ({"inlineData": {"any_object": {"mime_type": 1}}},
         {"inlineData": {"anyObject": {"mime_type": 1}}}),
        ({"un_known": {"mime_type": 1}}, {"un_known": {"mime_type": 1}}),
        ({"stop_sequences": "a"}, {"stopSequences": "a"}),
        ({"stop_sequences": None, "inline_data": []}, {"stopSequences": None, "inlineData": []}),
        ([], []),
        ("top_p", "top_p"),
    ],
)  # fmt: skip
def test_both_spellings(given_: Any, expected: Any) -> None:
    assert SPELLINGS.read(given_) == expected


def test_depth_is_no_matter() -> None:
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    assert SPELLINGS.read({"many_parts": deep}) == {"manyParts": deep}


ANYTHING = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["inlineData", "manyParts", "topP", "anyObject", "other"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=10,
)


@given(ANYTHING)
def test_canonical_spellings_stay(value: Any) -> None:
    once = SPELLINGS.read(value)
    assert SPELLINGS.read(once) == once
