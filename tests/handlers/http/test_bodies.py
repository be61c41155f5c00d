"""Values of bodies, counted while they arrive, and the bytes of all bodies."""

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.handlers.http.bodies import BodyBudget, ValueCount
from specllama.handlers.http.errors import RequestError

pytestmark = pytest.mark.slow

TEXT = st.text('ab"\\,:[]{}é\n', max_size=8)
DOCUMENTS = st.recursive(
    st.none() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


def n_values(value: Any) -> int:
    """Counts the values and keys around `value`, and `value` itself."""
    if isinstance(value, dict):
        return 1 + sum(1 + n_values(each) for each in value.values())
    return 1 + sum(map(n_values, value)) if isinstance(value, list) else 1


def n_containers(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, dict | list) + sum(map(n_containers, inner))


def n_keys(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (len(value) if isinstance(value, dict) else 0) + sum(map(n_keys, inner))


def is_taken(
    parts: Iterable[bytes], most: int, most_nodes: int = 1 << 20, large: int = 1 << 20
) -> bool:
    async def run() -> None:
        count = ValueCount(most, most_nodes, large)
        for part in parts:
            await count.add(part)

    try:
        asyncio.run(run())
    except RequestError as error:
        return error.failure.status != 413
    return True


@given(DOCUMENTS, st.integers(1, 9), st.booleans())
def test_text_in_strings_is_no_value(document: Any, size: int, ascii: bool) -> None:
    text = json.dumps(document, ensure_ascii=ascii).encode()
    parts = [text[i : i + size] for i in range(0, len(text), size)]
    n = n_values(document)
    assert not is_taken(parts, n - 1) or n == 1
    # An empty container has the mark of a value, and none.
    assert is_taken(parts, n + n_containers(document))


@given(DOCUMENTS, st.integers(1, 9), st.integers(0, 9))
def test_objects_arrays_and_keys_are_counted_apart(document: Any, size: int, large: int) -> None:
    text = json.dumps(document).encode()
    parts = [text[i : i + size] for i in range(0, len(text), size)]
    n = n_containers(document) + n_keys(document)
    assert is_taken(parts, 1 << 20, n + 1, large)
    assert not is_taken(parts, 1 << 20, n, large) or n == 0


@given(DOCUMENTS, st.integers(1, 9))
def test_a_body_is_never_counted_short(document: Any, size: int) -> None:
    text = json.dumps(document).encode()
    count = ValueCount()

    async def run() -> None:
        for i in range(0, len(text), size):
            await count.add(text[i : i + size])

    asyncio.run(run())
    assert count.n >= n_values(document) - 1


def test_a_text_full_of_punctuation_is_one_value() -> None:
    assert is_taken([b'["', *[b'\\",{:[' * 100] * 100, b'"]'], 3)


def test_a_body_without_room_gets_a_time_to_retry() -> None:
    budget = BodyBudget()
    budget.take(60, 100)
    with pytest.raises(RequestError) as error:
        budget.take(50, 100)
    assert error.value.failure.status == 503
    assert int(error.value.failure.headers["Retry-After"]) > 0
    budget.give(60)
    budget.take(100, 100)
