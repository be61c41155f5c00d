"""ngram-simple, ngram-map-k and ngram-map-k4v against searches through the text."""

from collections import Counter
from itertools import cycle, islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.worker.speculation.ngram.lookup import (
    MAX_KEYS,
    MAX_VALUES,
    MapKState,
    NgramMapK,
    NgramMapK4V,
    NgramSimple,
)
from specllama.engine.worker.tokens import TokenBuffer
from tests.support.proposals import STEPS, Running, ask, growing, propose, texts

SIZES = st.integers(1, 4)
KINDS = [NgramSimple, NgramMapK, NgramMapK4V]


def hits(text: list[int], n: int) -> list[int]:
    """Returns the places where the last `n` tokens ended before, last place first."""
    if len(text) < n:
        return []
    return [end for end in range(len(text) - 1, n - 1, -1) if text[end - n : end] == text[-n:]]


def simple(text: list[int], size_n: int, n: int, min_hits: int) -> list[int]:
    found = hits(text, size_n)
    return list(islice(cycle(text[found[0] :]), n)) if len(found) >= min_hits else []


def k4v(text: list[int], size_n: int, size_m: int, n: int, min_hits: int) -> list[int]:
    found = hits(text, size_n)
    if len(found) < min_hits:
        return []
    counts: Counter[tuple[int, ...]] = Counter()
    for end in found[:64]:
        value = tuple(text[end : end + size_m])
        if len(value) == size_m and (value in counts or len(counts) < MAX_VALUES):
            counts[value] += 1
    for value, count in counts.most_common(1):
        if count >= 2 * (counts.total() - count):
            return [*value][:n]
    return []


@given(texts(), STEPS, SIZES, SIZES, st.integers(0, 9), st.integers(1, 3))
def test_simple_is_a_search(
    text: list[int], steps: list[int], size_n: int, size_m: int, n: int, min_hits: int
) -> None:
    for kind in (NgramSimple, NgramMapK):
        source = Running(kind(size_n, size_m, min_hits))
        for buffer in growing(text, steps):
            wanted = simple(text[: len(buffer)], size_n, min(n, size_m), min_hits)
            assert propose(source, ask(buffer, n)) == wanted


@given(texts(), STEPS, SIZES, SIZES, st.integers(0, 9), st.integers(1, 3))
def test_k4v_counts(
    text: list[int], steps: list[int], size_n: int, size_m: int, n: int, min_hits: int
) -> None:
    source = Running(NgramMapK4V(size_n, size_m, min_hits))
    for buffer in growing(text, steps):
        wanted = k4v(text[: len(buffer)], size_n, size_m, min(n, size_m), min_hits)
        assert propose(source, ask(buffer, n)) == wanted


def test_the_most_frequent_continuation_has_to_be_twice_as_frequent_as_the_others() -> None:
    source = Running(NgramMapK4V(2, 2, 1))
    one, other = [8, 9, 1, 1], [8, 9, 2, 2]
    assert propose(source, ask([*one, *other, 8, 9], id=1)) == []
    assert propose(source, ask([*one, *other, *one, 8, 9], id=2)) == [1, 1]
    assert propose(source, ask([*one, *other, *one, *other, 8, 9], id=3)) == []


@pytest.mark.parametrize("kind", [NgramMapK, NgramMapK4V])
def test_no_more_tokens_than_were_accepted_last(kind: type[NgramMapK]) -> None:
    source = Running(kind(2, 6, 1))
    text = [1, 2, 3, 4, 5, 6, 7, 8]
    tokens = ask([*text, 1, 2], 6)
    assert propose(source, tokens) == [3, 4, 5, 6, 7, 8]
    source.verified(1, 6, 2)
    assert propose(source, tokens) == [3, 4]
    source.verified(1, 0, 0)  # it was not evaluated
    assert propose(source, tokens) == [3, 4]
    source.verified(1, 2, 2)  # all of it
    assert propose(source, tokens) == [3, 4, 5, 6, 7, 8]
    source.verified(1, 6, 0)
    assert propose(source, tokens) == []
    source.verified(1, 0, 0)
    source.leave(1)
    assert propose(source, tokens) == [3, 4, 5, 6, 7, 8]


@given(st.lists(texts(), min_size=2, max_size=3), STEPS)
@pytest.mark.parametrize("kind", KINDS)
def test_sequences_have_nothing_to_do_with_each_other(
    kind: type[NgramSimple], several: list[list[int]], steps: list[int]
) -> None:
    together = Running(kind(2, 4, 1))
    apart = [Running(kind(2, 4, 1)) for _ in several]
    for buffers in zip(*(growing(text, steps) for text in several), strict=True):
        asks = [ask(buffer, id=id) for id, buffer in enumerate(buffers)]
        assert together.propose(asks) == [
            propose(source, each) for source, each in zip(apart, asks, strict=True)
        ]


def test_accepted_numbers_are_kept_for_a_number_of_keys() -> None:
    running = Running(NgramMapK(1, 1, 1))
    text = [token for token in range(MAX_KEYS + 10) for _ in range(2)]
    buffer = TokenBuffer(np.empty(0, np.int32))
    for token in text:
        buffer.append(token)
        if propose(running, ask(buffer)):
            running.verified(1, 1, 0)
    state = running.states[1]
    assert isinstance(state, MapKState)
    assert len(state.accepted) == MAX_KEYS


@given(texts(), st.integers(1, 20), st.integers(1, 20))
@pytest.mark.parametrize("kind", KINDS)
def test_a_context_shift(kind: type[NgramSimple], text: list[int], start: int, length: int) -> None:
    """Proposed tokens are in the current text."""
    source = Running(kind(2, 4, 1))
    buffer = TokenBuffer(np.array([*text, 1, 2, 1, 2, 1], np.int32))
    propose(source, ask(buffer))
    stop = min(start + length, len(buffer) - 1)
    if start < stop:
        buffer.remove(start, stop)
    buffer.append(2)
    now = buffer.view().tolist()
    assert {*propose(source, ask(buffer))} <= {*now}
