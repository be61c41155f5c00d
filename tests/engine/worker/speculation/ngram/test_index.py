"""The index of n-grams against a search through the text."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.worker.speculation.ngram.index import Hashing, NgramIndex, mixed, mixed_all
from specllama.engine.worker.tokens import TokenBuffer
from tests.support.proposals import STEPS, growing, texts

LENGTHS = st.integers(1, 5)


def ends(text: list[int], ngram: list[int]) -> list[int]:
    """Returns the places where `ngram` ends before another token, last place first."""
    n = len(ngram)
    return [end for end in range(len(text) - 1, n - 1, -1) if text[end - n : end] == ngram]


@given(texts(), STEPS, LENGTHS)
def test_all_earlier_occurrences_are_found(text: list[int], steps: list[int], n: int) -> None:
    index = NgramIndex(n)
    for buffer in growing(text, steps):
        index.update(buffer)
        known = text[: len(buffer)]
        wanted = ends(known, known[-n:]) if len(known) >= n else []
        assert list(index.earlier(buffer)) == wanted


@given(texts(), STEPS, st.lists(st.integers(0, 3), min_size=1, max_size=3))
def test_any_ngram_is_found(text: list[int], steps: list[int], ngram: list[int]) -> None:
    index = NgramIndex(len(ngram))
    for buffer in growing(text, steps):
        index.update(buffer)
        found = index.before_more(buffer, np.array(ngram, np.int32))
        assert list(found) == ends(text[: len(buffer)], ngram)


@given(texts(), texts(), LENGTHS)
def test_another_text_is_indexed_anew(first: list[int], second: list[int], n: int) -> None:
    index = NgramIndex(n)
    index.update(TokenBuffer(np.array(first, np.int32)))
    other = TokenBuffer(np.array(second + [7] * 9, np.int32))
    index.update(other)
    fresh = NgramIndex(n)
    fresh.update(other)
    assert list(index.earlier(other)) == list(fresh.earlier(other))


@pytest.mark.parametrize("n", [1, 3, 12])
@pytest.mark.parametrize("steps", [[5000], [100] * 50, [1] * 5000])
def test_a_long_text_in_any_steps(n: int, steps: list[int]) -> None:
    text = np.random.default_rng(n).integers(0, 40, 5000).tolist()
    text[-600:] = text[1000:1600]
    index = NgramIndex(n)
    for buffer in growing(text, steps):
        index.update(buffer)
    assert index.update(buffer)
    assert list(index.earlier(buffer)) == ends(text, text[-n:])
    assert index.n_bytes <= 24 * len(text)


def test_colliding_hashes_do_not_change_the_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("specllama.engine.worker.speculation.ngram.index.mixed", lambda _: 0)
    monkeypatch.setattr(
        "specllama.engine.worker.speculation.ngram.index.mixed_all",
        lambda hashes: hashes * np.uint64(0),
    )
    text = [1, 2, 3, 4, 1, 2, 5, 1, 2]
    buffer = TokenBuffer(np.array(text, np.int32))
    index = NgramIndex(2)
    index.update(buffer)
    assert list(index.earlier(buffer)) == [6, 2]
    assert list(index.before_more(buffer, np.array([3, 4], np.int32))) == [4]
    assert list(index.before_more(buffer, np.array([4, 3], np.int32))) == []


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=40), LENGTHS)
def test_hashes_of_windows_are_rolled_ones(tokens: list[int], n: int) -> None:
    hashing = Hashing(n)
    array = np.array(tokens, np.int32)
    windows = [array[i : i + n] for i in range(len(tokens) - n + 1)]
    hashes = [hashing.of(window) for window in windows]
    if hashes:
        assert hashing.windows(array).tolist() == hashes
        assert mixed_all(hashing.windows(array)).tolist() == [mixed(hash) for hash in hashes]
    for i in range(len(hashes) - 1):
        assert hashing.rolled(hashes[i], tokens[i], tokens[i + n]) == hashes[i + 1]


@given(texts(), STEPS, LENGTHS, st.integers(1, 9))
def test_a_long_text_is_indexed_piece_by_piece(
    text: list[int], steps: list[int], n: int, most: int
) -> None:
    index = NgramIndex(n)
    n_indexed = 0
    for buffer in growing(text, steps):
        n_indexed = min(len(buffer), n_indexed + most)
        assert index.update(buffer, most) == (n_indexed == len(buffer))
    while not index.update(buffer, most):
        n_indexed += most
    assert n_indexed >= len(text) - most
    wanted = ends(text, text[-n:]) if len(text) >= n else []
    assert list(index.earlier(buffer)) == wanted
