"""Batches: rows of lessons, with weights, positions and what their parts see."""

import numpy as np
import pytest

from tools.models.lessons import curriculum
from tools.models.lessons.source import Source
from tools.models.training import batches as module
from tools.models.training.batches import batches, padded, row_of
from tools.models.training.encoding import (
    CHOICE_WEIGHT,
    CODE_WEIGHT,
    OWN_CODE_WEIGHT,
    PROMPT_WEIGHT,
    RARE_FACTOR,
    TOOLS_WEIGHT,
    encode,
)

pytestmark = pytest.mark.slow

N_CTX = 4096


def pool(first: int = 0) -> tuple[list[module.Batch], int]:
    made, after = batches(1, first, size=2048, level=0.3, n_ctx=N_CTX)
    return [batch for step in made for batch in step], after


def test_batches_are_of_about_one_size() -> None:
    made, _ = batches(1, 0, size=4096, level=0.3, n_ctx=N_CTX, together=2)
    together = list(made)
    assert {len(each) for each in together} == {2}
    sizes = [len(batch.tokens) for step in together for batch in step]
    assert max(sizes) - min(sizes) < 200
    assert 3500 < sum(sizes) / len(sizes) < 4700


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


def test_each_token_has_its_own_weight() -> None:
    made, _ = pool()
    found = {float(each) for batch in made for each in np.unique(batch.weights)}
    code, answers = (CODE_WEIGHT, OWN_CODE_WEIGHT), (1.0, TOOLS_WEIGHT)
    chosen = {each * CHOICE_WEIGHT for each in answers}
    chosen |= {each * (CHOICE_WEIGHT * RARE_FACTOR) for each in code}
    known = {PROMPT_WEIGHT, *code, *answers, *chosen}
    assert found == {float(np.float32(each)) for each in known}


def test_parts_cover_all_tokens_once_and_see_earlier_ones() -> None:
    made, _ = pool()
    for batch in made:
        assert sum(batch.lengths) == len(batch.tokens)
        ends = np.cumsum(batch.lengths)
        at = 0
        for begin, end, seen_begin, seen_end in batch.parts.tolist():
            assert at == begin < end
            at = end
            row = int(np.searchsorted(ends, begin, side="right"))
            assert ends[row] - batch.lengths[row] <= seen_begin <= seen_end <= begin
        assert at == len(batch.tokens)


def test_the_next_token_of_a_part_is_the_target() -> None:
    made, _ = pool()
    shared = 0
    for batch in made:
        for begin, end, seen_begin, seen_end in batch.parts.tolist():
            assert np.array_equal(batch.tokens[begin + 1 : end], batch.targets[begin : end - 1])
            shared += seen_end > seen_begin
    assert shared


def test_positions_rise_within_the_context() -> None:
    made, _ = pool()
    jumped = False
    for batch in made:
        assert batch.positions.max() < N_CTX
        for begin, end, seen_begin, seen_end in batch.parts.tolist():
            seen = np.append(batch.positions[seen_begin:seen_end], batch.positions[begin:end])
            steps = np.diff(seen)
            assert (steps >= 1).all()
            jumped |= bool((steps > 1).any())
    assert jumped


def test_lessons_share_the_beginning_of_their_prompts() -> None:
    prompts, answers = ([1, 2, 3, 4], [1, 2, 9], [1, 2, 3, 5, 6]), ([7, 0], [8, 0], [7, 7, 0])
    lessons = []
    for prompt, answer in zip(prompts, answers, strict=True):
        weights = [PROMPT_WEIGHT] * len(prompt) + [1.0] * len(answer)
        lessons.append((np.array(prompt + answer, np.int32), np.array(weights, np.float32)))
    row = row_of("tools", lessons)
    assert row.tokens.tolist() == [1, 2, 3, 4, 7, 9, 8, 3, 5, 6, 7, 7]
    assert row.targets.tolist() == [2, 3, 4, 7, 0, 8, 0, 5, 6, 7, 7, 0]
    assert row.places.tolist() == [0, 1, 2, 3, 4, 2, 3, 2, 3, 4, 5, 6]
    assert row.parts.tolist() == [[0, 2, 0, 0], [2, 5, 0, 2], [5, 7, 0, 2], [7, 12, 0, 2]]
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


def test_a_padded_batch_has_all_tokens_and_some_that_count_nothing() -> None:
    made, _ = pool()
    n = len(made[0].tokens)
    for size in (n + 100, n, n - 100):
        one = padded(made[0], size)
        assert {len(each) for each in (one.tokens, one.targets, one.positions, one.weights)} == {
            size
        }
        kept = min(n, size)
        assert np.array_equal(one.tokens[:kept], made[0].tokens[:kept])
        assert not one.weights[kept:].any()
        assert one.parts[0, 0] == 0
        assert np.array_equal(one.parts[1:, 0], one.parts[:-1, 1])
        assert one.parts[-1, 1] == size
        assert (one.parts[:, 0] < one.parts[:, 1]).all()
        assert (one.parts[:, 3] <= one.parts[:, 0]).all()
