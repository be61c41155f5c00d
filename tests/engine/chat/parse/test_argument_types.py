"""Literals of other languages become JSON, whole and in pieces."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.chat.parse.argument_types import copy_literal, literal_as_json
from specllama.engine.chat.parse.json_stream import JsonError
from specllama.engine.chat.parse.reader import Reader
from tests.support.chat_strategies import pieces

QUOTE = '<|"|>'
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_characters="'\"")),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.from_regex("[a-z_]{1,5}", fullmatch=True), inner, max_size=3)
    ),
    max_leaves=6,
)


def read(parts: list[str], quote: str = QUOTE, *, cut_off: bool = False) -> str:
    reader, found = Reader(), list[str]()
    steps = copy_literal(reader, found.append, quote)
    waiting = iter(parts)
    for _ in steps:
        part = next(waiting, None)
        if part is None:
            reader.end(cut_off=cut_off)
        else:
            reader.push(part)
    return "".join(found)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", 42),
        ("-2.5e3", -2500.0),
        ("True", True),
        ("false", False),
        ("None", None),
        ("'a'", "a"),
        ('"a\\n\\u00e9"', "a\né"),
        ("'it\\'s'", "it's"),
        ("'it's \"so\": more'", 'it\'s "so": more'),
        ("'a \\d'", "a \\d"),
        ("(1, 'two',)", [1, "two"]),
        ("[]", []),
        ("{'a': [1, {}], \"b\": None}", {"a": [1, {}], "b": None}),
        ("{a:1,b:word}", {"a": 1, "b": "word"}),
        (f"{{a:{QUOTE}x'y\"z{QUOTE}}}", {"a": "x'y\"z"}),
    ],
)
def test_literals(text: str, value: Any) -> None:
    for cut in range(len(text) + 1):
        assert json.loads(read([text[:cut], text[cut:]])) == value


@pytest.mark.parametrize(
    "text", ["", "'open", "[1", "{a", "{a:", "{a 1}", "[1 2]", "[" * 99, QUOTE]
)
def test_an_unfinished_literal_is_none(text: str) -> None:
    with pytest.raises(JsonError):
        read([text])


def test_half_a_word_is_no_literal() -> None:
    with pytest.raises(JsonError):
        read(["12"], cut_off=True)


@given(value=values, data=st.data())
def test_pythons_literals_are_read(value: Any, data: st.DataObject) -> None:
    assert json.loads(read(data.draw(pieces(repr(value) + " ")))) == value


@given(value=values)
def test_json_is_a_literal(value: Any) -> None:
    found = literal_as_json(json.dumps(value))
    assert found is not None
    assert json.loads(found) == value


@pytest.mark.parametrize("text", ["word", "1 2", "[word]", "NaN", ""])
def test_texts_that_are_no_literal(text: str) -> None:
    assert literal_as_json(text) is None
