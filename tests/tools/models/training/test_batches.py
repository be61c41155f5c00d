"""Batches: rows of lessons, padded, with weights and positions."""

import numpy as np

from tools.models.lessons import curriculum
from tools.models.lessons.source import Source
from tools.models.training import batches as module
from tools.models.training.batches import STEP, batches
from tools.models.training.encoding import PROMPT_WEIGHT, encode

N_CTX = 4096


def pool(first: int = 0) -> tuple[list[module.Batch], int]:
    made, after = batches(1, first, size=2048, level=0.3, n_ctx=N_CTX)
    return list(made), after


def test_a_place_in_the_stream_always_has_the_same_batches() -> None:
    one, after = pool()
    other, again = pool()
    assert after == again > 0
    assert len(one) == len(other)
    for left, right in zip(one, other, strict=True):
        assert left.abilities == right.abilities
        assert np.array_equal(left.tokens, right.tokens)
        assert np.array_equal(left.positions, right.positions)


def test_the_next_place_has_others() -> None:
    one, after = pool()
    other, _ = pool(after)
    assert not np.array_equal(one[0].tokens, other[0].tokens)


def test_rows_are_shifted_by_one_and_padded_without_weight() -> None:
    made, _ = pool()
    for batch in made:
        assert batch.tokens.size <= 2048 or len(batch.tokens) == 1
        assert batch.tokens.shape[1] % STEP == 0
        assert set(np.unique(batch.weights)) <= {0.0, np.float32(PROMPT_WEIGHT), 1.0}
        for tokens, targets, weights in zip(
            batch.tokens, batch.targets, batch.weights, strict=True
        ):
            n = int((weights > 0).sum())
            assert np.array_equal(tokens[1:n], targets[: n - 1])
            assert (weights[:n] > 0).all()
            assert not weights[n:].any()
            assert not targets[n:].any()


def test_positions_rise_within_the_context() -> None:
    made, _ = pool()
    jumped = False
    for batch in made:
        assert (np.diff(batch.positions, axis=1) >= 1).all()
        assert batch.positions.max() < N_CTX
        jumped |= bool((np.diff(batch.positions, axis=1) > 1).any())
    assert jumped


def test_all_lessons_of_the_stream_that_are_short_enough_are_there() -> None:
    made, after = pool()
    assert sum(len(batch.abilities) for batch in made) <= after
    assert {ability for batch in made for ability in batch.abilities} == {
        "tools", "extraction", "conversation", "thinking", "copying", "infill"
    }  # fmt: skip


def test_a_row_ends_with_its_answer() -> None:
    tokens, weights = encode(curriculum.lesson(Source(5)))
    assert weights[-1] == 1
    assert len(tokens) == len(weights)
