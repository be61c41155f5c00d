"""Scanning many rows at the same time finds what looking at each finds."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.engine.worker.backend import row_scan
from specllama.engine.worker.backend.row_scan import NOTHING, RowScan, Top, log_sum_exp, top

SMALL, LARGE = 3000, 3 * row_scan.N_GROUPS + 700
WANTED = st.sampled_from([1, 1, 3, 40, 300, 2500, 0, -0.5, -3.0, NOTHING])


def rows_of(seed: int, n_rows: int, n_vocab: int, kind: str) -> Any:
    rng = np.random.default_rng(seed)
    rows = rng.normal(scale=3, size=(n_rows, n_vocab)).astype(np.float32)
    if kind == "ties":
        rows = rows.round(1)
    elif kind == "end":
        rows[:, -20:] += 30  # behind the last whole line
    elif kind == "column":
        rows[:, 5 :: row_scan.N_COLUMNS] += 30  # in few groups
    elif kind == "few":
        rows[rng.random(rows.shape) < 0.999] = -np.inf
    return rows


def check(row: Any, wanted: float, found: Top | None) -> None:
    assert found is not None
    assert found.ids.dtype == np.int32
    assert found.likeliest == row.argmax()
    if wanted == 1:
        return
    assert found.ids.tolist() == np.flatnonzero(row >= found.least).tolist(), "all that reach it"
    assert found.logits.tolist() == row[found.ids].tolist()
    if wanted > 0:
        n = int(wanted)
        assert len(found.ids) >= n
        assert found.largest(n).tolist() == np.argsort(-row, kind="stable")[:n].tolist()
    else:
        least = row.max() + wanted
        assert found.least <= least
        assert found.least > least - 0.1, "few others"


@settings(max_examples=60, deadline=None)
@given(
    wanted=st.lists(WANTED, min_size=1, max_size=7),
    n_vocab=st.sampled_from([SMALL, LARGE]),
    n_threads=st.integers(1, 3),
    kind=st.sampled_from(["normal", "ties", "end", "column"]),
    seed=st.integers(0, 1000),
)
def test_each_row_has_its_likeliest_tokens(
    wanted: list[float], n_vocab: int, n_threads: int, kind: str, seed: int
) -> None:
    rows = rows_of(seed, len(wanted), n_vocab, kind)
    scan = RowScan(n_vocab, n_threads, least=0)
    summed = [*range(0, len(wanted), 2)]
    try:
        found, sums = scan.tops(rows, wanted, summed)
    finally:
        scan.close()
    assert sums == [log_sum_exp(rows[i]) for i in summed]
    for row, number, each in zip(rows, wanted, found, strict=True):
        if number == NOTHING:
            assert each is None
        elif each is not None or number <= 300:
            check(row, number, each)
        alone = top(row, number)
        if number != NOTHING:
            check(row, number, alone)


@pytest.mark.parametrize("n_vocab", [SMALL, LARGE])
def test_few_more_than_wanted_are_found(n_vocab: int) -> None:
    (found,), _ = RowScan(n_vocab, 1).tops(rows_of(1, 1, n_vocab, "normal"), [40])
    assert found is not None
    assert len(found.ids) < 60


@pytest.mark.parametrize("n_vocab", [SMALL, LARGE])
@pytest.mark.parametrize("number", [40, -0.5])
def test_a_row_without_likeliest_tokens_has_none(n_vocab: int, number: float) -> None:
    """NaN, too few logits that aren't -inf, and no logit at all."""
    rows = rows_of(2, 4, n_vocab, "normal")
    rows[0] = np.nan
    rows[1:3] = -np.inf
    rows[2, :100:5] = 1.0  # 20 tokens
    found, _ = RowScan(n_vocab, 1).tops(rows, 4 * [number])
    assert found[0] is None
    assert found[1] is None
    if number > 0:
        assert found[2] is None
    else:
        check(rows[2], number, found[2])
    check(rows[3], number, found[3])


def test_too_many_equal_logits() -> None:
    found, _ = RowScan(LARGE, 1).tops(np.zeros((2, LARGE), np.float32), [40, 1])
    assert found == [None, None]
    (first,), _ = RowScan(LARGE, 1).tops(np.zeros((1, LARGE), np.float32), [1])
    assert first is not None
    assert first.likeliest == 0


def test_the_likeliest_of_nan_is_none() -> None:
    rows = rows_of(3, 2, LARGE, "normal")
    rows[0, 7] = np.nan
    found, _ = RowScan(LARGE, 1).tops(rows, [1, 1])
    assert found[0] is None
    assert found[1] is not None
    assert found[1].ids.tolist() == [rows[1].argmax()]
