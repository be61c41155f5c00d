"""Batches: rows of lessons, padded, with weights and positions."""

import itertools

import numpy as np

from tools.models.lessons import curriculum
from tools.models.lessons.source import Source
from tools.models.training import batches as module
from tools.models.training.batches import STEP, batches, row_of
from tools.models.training.encoding import CODE_WEIGHT, PROMPT_WEIGHT, encode

N_CTX = 4096


def pool(first: int = 0) -> tuple[list[module.Batch], int]:
    made, after = batches(1, first, size=2048, level=0.3, n_ctx=N_CTX)
    return [batch for step in made for batch in step], after


def test_batches_that_are_together_are_of_about_one_length() -> None:
    made, _ = batches(1, 0, size=2048, level=0.3, n_ctx=N_CTX, together=2)
    together = list(made)
    assert {len(each) for each in together} == {2}
    near, far = 0, 0
    for (one, other), (next_one, _) in itertools.pairwise(together):
        near += abs(one.tokens.shape[1] - other.tokens.shape[1])
        far += abs(one.tokens.shape[1] - next_one.tokens.shape[1])
    assert near < far


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
        assert set(np.unique(batch.weights)) <= {
            0.0,
            np.float32(PROMPT_WEIGHT),
            np.float32(CODE_WEIGHT),
            1.0,
        }
        for targets, weights in zip(batch.targets, batch.weights, strict=True):
            n = int((weights > 0).sum())
            assert (weights[:n] > 0).all()
            assert not weights[n:].any()
            assert not targets[n:].any()


def test_what_follows_a_token_in_its_branch_is_its_target() -> None:
    made, _ = pool()
    shared = 0
    for batch in made:
        for tokens, targets, weights, branches in zip(
            batch.tokens, batch.targets, batch.weights, batch.branches, strict=True
        ):
            n = int((weights > 0).sum())
            same = branches[1:n] == branches[: n - 1]
            assert np.array_equal(tokens[1:n][same], targets[: n - 1][same])
            shared += int(branches.max() > 1)
    assert shared


def test_positions_rise_within_the_context() -> None:
    made, _ = pool()
    jumped = False
    for batch in made:
        assert batch.positions.max() < N_CTX
        for positions, branches, weights in zip(
            batch.positions, batch.branches, batch.weights, strict=True
        ):
            own = weights > 0
            for branch in range(branches.max() + 1):
                seen = positions[own & ((branches == 0) | (branches == branch))]
                steps = np.diff(seen)
                assert (steps >= 1).all()
                jumped |= bool((steps > 1).any())
    assert jumped


def test_lessons_share_what_their_prompts_begin_with() -> None:
    prompts, answers = ([1, 2, 3, 4], [1, 2, 9], [1, 2, 3, 5, 6]), ([7, 0], [8, 0], [7, 7, 0])
    lessons = []
    for prompt, answer in zip(prompts, answers, strict=True):
        weights = [PROMPT_WEIGHT] * len(prompt) + [1.0] * len(answer)
        lessons.append((np.array(prompt + answer, np.int32), np.array(weights, np.float32)))
    row = row_of("tools", lessons)
    assert row.tokens.tolist() == [1, 2, 3, 4, 7, 9, 8, 3, 5, 6, 7, 7]
    assert row.targets.tolist() == [2, 3, 4, 7, 0, 8, 0, 5, 6, 7, 7, 0]
    assert row.places.tolist() == [0, 1, 2, 3, 4, 2, 3, 2, 3, 4, 5, 6]
    assert row.branches.tolist() == [0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 3, 3]
    assert (row.weights == 1).tolist() == [
        *(False, False, False, True, True, True, True),
        *(False, False, True, True, True),
    ]


def test_all_lessons_of_the_stream_that_are_short_enough_are_there() -> None:
    made, after = pool()
    assert sum(len(batch.abilities) for batch in made) <= after
    assert {ability for batch in made for ability in batch.abilities} == {
        "tools", "extraction", "conversation", "thinking", "copying", "infill"
    }  # fmt: skip


def test_a_row_ends_with_its_answer() -> None:
    tokens, weights = encode(curriculum.lessons(Source(5))[0])
    assert weights[-1] == 1
    assert len(tokens) == len(weights)
