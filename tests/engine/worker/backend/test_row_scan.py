"""Looking through many rows at the same time finds what looking at each finds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.worker.backend.row_scan import PART, RowScan

N_VOCAB = 1000
VALUES = [-1.0, 0.0, 0.5, 1.0]
BOUNDS = st.sampled_from([0.25, 1.0, 2.0, np.inf])


@given(st.lists(BOUNDS, min_size=1, max_size=9), st.integers(1, 5), st.integers(0, 1000))
def test_each_row_has_the_tokens_that_reach_its_bound(
    bounds: list[float], n_threads: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.choice(VALUES, size=(len(bounds), N_VOCAB), p=[0.5, 0.4, 0.05, 0.05])
    rows = rows.astype(np.float32)
    scan = RowScan(N_VOCAB, n_threads)
    try:
        found = scan.reaching(rows, bounds)
    finally:
        scan.close()
    for row, bound, ids in zip(rows, bounds, found, strict=True):
        wanted = [int(row.argmax())] if bound == np.inf else np.flatnonzero(row >= bound).tolist()
        assert ids.tolist() == (wanted if len(wanted) <= N_VOCAB // PART else [])
        assert ids.dtype == np.int32


@pytest.mark.parametrize(("n_rows", "n_vocab", "is_worth_it"), [
    (1, 1 << 20, False),
    (2, 1000, False),
    (32, 128_256, True),
])  # fmt: skip
def test_few_logits_wake_no_thread(n_rows: int, n_vocab: int, is_worth_it: bool) -> None:
    assert RowScan(n_vocab, 4).is_worth_it(n_rows) is is_worth_it
    assert not RowScan(n_vocab, 1).is_worth_it(n_rows)
