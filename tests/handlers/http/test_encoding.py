"""Answers in parts: the same JSON, and no part with much in it."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.handlers.http import json_answer as encoding
from specllama.handlers.http.json_answer import SMALL, Lazy, encode, is_large, parts

pytestmark = pytest.mark.slow

LEAVES = st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4)
DOCUMENTS = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=20)
        | st.dictionaries(st.text(max_size=3), inner, max_size=20)
        | st.lists(inner, max_size=20).map(lambda items: Lazy(lambda item: item, items, 9))
    ),
    max_leaves=60,
)


@given(text=st.text(st.characters(codec="utf-8") | st.sampled_from("\x85\u2028\u2029")))
def test_no_character_ends_the_line(text: str) -> None:
    data = encode({"text": text})
    assert len(data.decode().splitlines()) == 1
    assert msgspec.json.decode(data) == {"text": text}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "SMALL", 5)
    monkeypatch.setattr(encoding, "_RUN", 3)


@pytest.mark.usefixtures("tiny")
@given(DOCUMENTS)
def test_the_parts_are_the_whole(document: Any) -> None:
    assert b"".join(parts(document)) == encode(document)


def flat(n: int) -> Any:
    return [1.5] * n


def objects(n: int) -> Any:
    return {"content": [{"id": i, "bytes": [i, i]} for i in range(n // 5)]}


def nested(n: int) -> Any:
    return [flat(n // 50)] * 50


def lazy(n: int) -> Any:
    return {"all": Lazy(lambda i: {"top": Lazy(str, range(n // 10), 1)}, range(10), n // 10)}


@pytest.mark.parametrize("make", [flat, objects, nested, lazy])
def test_no_part_has_much_in_it(make: Any) -> None:
    """Work is counted in values of one call of the encoder."""
    n = 40 * SMALL
    document = make(n)
    most = max(part.count(b",") for part in parts(document))
    assert most <= SMALL
    assert b"".join(parts(document)) == encode(document)


def test_lazy_items_are_made_one_at_a_time() -> None:
    made: list[int] = []

    def make(i: int) -> Any:
        made.append(i)
        return flat(SMALL + 1)

    some = parts(Lazy(make, range(100), SMALL))
    while len(made) < 3:
        next(some)
    assert made == [0, 1, 2]


def test_small_and_large() -> None:
    assert not is_large({"a": [1, 2], "b": "x" * 1000, "c": {"d": None}})
    assert is_large(flat(SMALL + 1))
    assert is_large("x" * 300 * SMALL)
    assert is_large(Lazy(str, [1], SMALL + 1))
    assert not is_large(Lazy(str, [], SMALL + 1))


def test_values_that_are_no_json_are_reported() -> None:
    with pytest.raises(NotImplementedError, match="no JSON for"):
        encode(object())
    assert msgspec.json.decode(encode(Lazy(str, [1, 2], 1))) == ["1", "2"]
