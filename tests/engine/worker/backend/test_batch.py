"""llama.cpp's view of a batch that is filled piece by piece."""

import ctypes
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.worker.backend.batch import TokenBatch

N_MAX = 64

Row = tuple[int, int, int, bool]
"""Token, position, sequence, whether the output is wanted."""


def seen(batch: TokenBatch) -> list[Row]:
    """Read through the pointers, as llama.cpp does."""
    struct: Any = batch.filled()
    rows = range(struct.n_tokens)
    assert all(struct.n_seq_id[i] == 1 for i in rows)
    return [
        (struct.token[i], struct.pos[i], struct.seq_id[i][0], bool(struct.logits[i])) for i in rows
    ]


runs = st.lists(
    st.tuples(
        st.lists(st.integers(0, 999), min_size=1, max_size=12),
        st.integers(0, 1000),
        st.integers(0, 255),
        st.booleans(),
    ),
    max_size=5,
)


@given(before=runs, filled=runs)
def test_a_run_is_consecutive_and_only_its_last_output_is_wanted(
    before: list[tuple[list[int], int, int, bool]], filled: list[tuple[list[int], int, int, bool]]
) -> None:
    batch = TokenBatch(N_MAX)
    for tokens, start, sequence, output in before:
        batch.add(tokens, start, sequence, output=output)
    batch.clear()
    expected: list[Row] = []
    for tokens, start, sequence, output in filled:
        index = batch.add(np.array(tokens, np.int32), start, sequence, output=output)
        last = len(tokens) - 1
        expected += [(t, start + i, sequence, output and i == last) for i, t in enumerate(tokens)]
        assert index == len(expected) - 1
    assert seen(batch) == expected


def test_singles_stand_before_and_behind_a_run() -> None:
    batch = TokenBatch(N_MAX)
    assert batch.add_singles([5, 6], [10, 20], [1, 2], [True, False]) == range(2)
    assert batch.add([7, 8], 0, 3) == 3
    assert batch.add_singles([9], [30], [4], [True]) == range(4, 5)
    assert batch.add_singles([], [], [], []) == range(5, 5)
    assert seen(batch) == [
        (5, 10, 1, True),
        (6, 20, 2, False),
        (7, 0, 3, False),
        (8, 1, 3, True),
        (9, 30, 4, True),
    ]


def test_the_rows_of_outputs_are_counted() -> None:
    batch = TokenBatch(8)
    batch.add([1, 2, 3], 0, 0)
    batch.add_singles([4, 5, 6], [3, 9, 2], [1, 2, 3], [True, False, True])
    assert batch.rows([2, 3, 5]).tolist() == [0, 1, 2]
    assert batch.rows([5, 2]).tolist() == [2, 0]


def test_every_output_is_wanted_where_pooling_needs_them() -> None:
    batch = TokenBatch(N_MAX, all_outputs=True)
    batch.add([1, 2, 3], 0, 0, output=False)
    batch.add_singles([4], [0], [1], [False])
    assert [wanted for *_, wanted in seen(batch)] == [True] * 4


def test_the_pointers_are_those_of_the_arrays() -> None:
    batch = TokenBatch(N_MAX)
    batch.add([3], 0, 0)
    batch.sequences[0] = 9
    struct: Any = batch.filled()
    assert struct.seq_id[0][0] == 9
    assert ctypes.addressof(struct.token.contents) == batch.tokens.ctypes.data
