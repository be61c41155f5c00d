"""Context shifts, which drop cells, and cached chunks that are reused at another position."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.worker.scheduling.placement import CachedSpan, context_shift, reusable_chunks
from specllama.engine.worker.tokens import TokenArray, common_prefix

N_CTX = st.integers(8, 5000)
N_DISCARD = st.integers(1, 2**31 - 1)


@given(N_CTX, st.integers(0, 6000), st.just(0) | N_DISCARD)
def test_a_shift_makes_room_and_leaves_something(n_ctx: int, n_keep: int, n_discard: int) -> None:
    kept, dropped = context_shift(n_ctx - 1, n_ctx, n_keep, n_discard)
    assert 0 <= kept <= n_keep
    assert dropped >= 1
    assert kept + dropped < n_ctx - 1, "something stays behind what is kept"


@given(N_CTX, st.data())
def test_available_cells_are_used(n_ctx: int, data: st.DataObject) -> None:
    n_keep = data.draw(st.integers(0, n_ctx - 4))
    n_discard = data.draw(st.integers(1, n_ctx - 2 - n_keep))
    assert context_shift(n_ctx - 1, n_ctx, n_keep, n_discard) == (n_keep, n_discard)


@pytest.mark.parametrize(
    ("n_ctx", "n_keep", "n_discard", "expected"),
    [
        (256, 0, 0, (0, 127)),  # drops half of 255 tokens
        (256, 55, 0, (55, 100)),  # drops half of the other 200
        (256, 55, 400, (55, 199)),  # drops all others except one
        (256, 300, 0, (252, 1)),  # one cell is kept free for the next token
        (8, 4, 7, (4, 2)),
    ],
)
def test_shifts(n_ctx: int, n_keep: int, n_discard: int, expected: tuple[int, int]) -> None:
    assert context_shift(n_ctx - 1, n_ctx, n_keep, n_discard) == expected


def array(*parts: list[int]) -> TokenArray:
    return np.array([token for part in parts for token in part], np.int32)


# Ids whose bytes match each other at offsets that are no multiple of their size.
TOKENS = st.lists(st.sampled_from([0, 1, 256, 65536, 257]), max_size=40)


@given(TOKENS, TOKENS, st.integers(1, 5))
def test_spans_are_equal_in_order_and_as_long_as_can_be(
    cached: list[int], prompt: list[int], n_min: int
) -> None:
    a, b = array(cached), array(prompt)
    source = target = common_prefix(a, b)
    for span in reusable_chunks(a, b, target, n_min):
        assert span.length >= n_min
        assert span.target == target, "no gap in the prompt"
        assert span.source >= source, "behind the last one"
        wanted = prompt[target : target + span.length]
        assert cached[span.source : span.source + span.length] == wanted
        assert not _occurs(wanted[:n_min], cached[source : span.source + n_min - 1]), "the first"
        source, target = span.source + span.length, target + span.length
        assert source == len(a) or target == len(b) or a[source] != b[target], "cut short"
    rest = prompt[target : target + n_min]
    assert len(rest) < n_min or not _occurs(rest, cached[source:]), "one was missed"


def _occurs(part: list[int], tokens: list[int]) -> bool:
    return any(tokens[i : i + len(part)] == part for i in range(len(tokens) - len(part) + 1))


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=5), st.integers(0, 9))
def test_gaps_are_stepped_over(parts: list[tuple[int, int]], n_prefix: int) -> None:
    """The prompt is the cached text without some parts; each other part is found in the cache."""
    prefix = [1] * n_prefix
    kept = [[100 + i] * n for i, (n, _) in enumerate(parts)]
    dropped = [[200 + i] * n for i, (_, n) in enumerate(parts)]
    cached = array(prefix, *(t for pair in zip(dropped, kept, strict=True) for t in pair))
    expected, source, target = [], n_prefix, n_prefix
    for n, n_dropped in parts:
        source += n_dropped
        expected.append(CachedSpan(source, target, n))
        source, target = source + n, target + n
    assert reusable_chunks(cached, array(prefix, *kept), n_prefix, 1) == expected


@given(TOKENS, TOKENS, st.integers(1, 5))
def test_a_longer_minimum_finds_no_more(cached: list[int], prompt: list[int], n_min: int) -> None:
    a, b = array(cached), array(prompt)
    start = common_prefix(a, b)
    if reusable_chunks(a, b, start, n_min + 1):
        assert reusable_chunks(a, b, start, n_min), "what is long enough for it is for less, too"
