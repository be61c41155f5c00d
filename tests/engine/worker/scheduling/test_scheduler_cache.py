"""The scheduler's knowledge of the KV cache: texts are shared, moved, dropped and brought back."""

from typing import Any

import pytest

from specllama.engine.worker.cache.checkpoints import LAST_MESSAGES, NEAR_END, STEP
from specllama.engine.worker.cache.texts import ALL
from specllama.engine.worker.generation.adapters import key_of
from specllama.engine.worker.scheduling.scheduler import Scheduler
from specllama.engine.worker.scheduling.sequences import Sequence
from tests.support.fake_kv import FakeKV, FakeTier
from tests.support.scheduling import A, B, finish_one, run_step, scheduler, sequence, together


def test_memory_that_cannot_be_cut_is_evaluated_again() -> None:
    kv = FakeKV(64, 64, cuttable=False)
    s = scheduler(kv, n_slots=1)
    first = sequence(1, [1, 2, 3])
    s.submit(first)
    run_step(s, kv)
    run_step(s, kv)
    s.finish(first)
    again = sequence(2, [1, 2, 5])
    s.submit(again)
    (chunk,) = run_step(s, kv)
    assert (again.n_cached, chunk.start) == (0, 0)
    assert kv.text(again.seq_id) == [1, 2, 5]


def cached(s: Scheduler, kv: FakeKV, *texts: list[int]) -> list[int]:
    """Serves the texts one after the other, and returns the number of cached tokens of each."""
    found = []
    for id, text in enumerate(texts, start=s.n_waiting + 1000):
        one = sequence(id, text)
        s.submit(one)
        while not one.generating:
            run_step(s, kv)
        run_step(s, kv)
        s.finish(one)
        found.append(one.n_cached)
    return found


UNCUTTABLE = [(0, 64), (4, 64), (0, None), (4, None)]


@pytest.mark.parametrize(("window", "n_cells"), UNCUTTABLE)
def test_checkpoints_near_the_end_and_where_texts_part(window: int, n_cells: int | None) -> None:
    kv = FakeKV(n_cells, 64, cuttable=False, window=window)
    s = scheduler(kv, n_slots=2, n_checkpoints=4)
    text = list(range(30))
    again = 30 - NEAR_END
    assert cached(s, kv, text) == [0]
    assert cached(s, kv, text)[0] >= again
    assert cached(s, kv, *([*text[:20], id, 0, 0, 0, 0] for id in (50, 51, 52))) == [0, 20, 20]


@pytest.mark.parametrize(("window", "n_cells"), UNCUTTABLE)
def test_a_checkpoint_where_a_text_goes_on(window: int, n_cells: int | None) -> None:
    kv = FakeKV(n_cells, 64, cuttable=False, window=window)
    s = scheduler(kv, n_slots=1, n_checkpoints=4)
    text, turn = list(range(20)), [7, *range(30, 50)]
    assert cached(s, kv, text, text + turn, [*text, 7, 8, 8]) == [0, 21, 21]


def test_a_text_of_which_little_can_be_kept_is_offered_before() -> None:
    kv = FakeKV(None, 64, cuttable=False)
    tier = FakeTier(kv)
    s = scheduler(kv, n_slots=1, n_checkpoints=4, tier=tier)
    text = list(range(30))
    cached(s, kv, text, [*text[:25], 1, 1])
    assert [kept.tolist()[:30] for kept, _ in tier.kept] == [text]
    assert cached(s, kv, text) == [30 - NEAR_END], "with its checkpoints"


def test_texts_part_where_one_of_the_second_tier_has_been() -> None:
    kv = FakeKV(None, 64, cuttable=False)
    s = scheduler(kv, n_slots=1, n_checkpoints=4, tier=FakeTier(kv))
    others = [50] * 20
    texts = [[*range(20), *[i] * 10] for i in (60, 61, 62)]
    assert cached(s, kv, texts[0], others, texts[1], others, texts[2])[::2] == [0, 0, 20]


def test_without_checkpoints_there_is_only_the_end() -> None:
    kv = FakeKV(64, 64, cuttable=False)
    s = scheduler(kv, n_slots=1)
    text = list(range(20))
    assert cached(s, kv, text, [*text, 7, 5, 5], text) == [0, 21, 0]
    assert not kv.saved


def test_memory_that_can_be_cut_needs_no_checkpoints() -> None:
    kv = FakeKV(64, 64)
    s = scheduler(kv, n_slots=1, n_checkpoints=8)
    one = sequence(1, list(range(8)))
    s.submit(one)
    assert [c.stop for c in run_step(s, kv)] == [8]
    assert not kv.saved


def test_long_prompts_have_checkpoints_on_their_way() -> None:
    kv = FakeKV(None, 4 * STEP, cuttable=False)
    s = scheduler(kv, n_slots=1, n_checkpoints=4, n_batch=1024)
    n = 3 * STEP + 5
    assert cached(s, kv, list(range(n))) == [0]
    (held,) = s.cache.checkpoints.values()
    end = n - NEAR_END
    short, long = (end - length for length in LAST_MESSAGES)
    assert [len(tokens) for tokens, _ in kv.saved.values()] == [STEP, 2 * STEP, long, short, end]
    assert [c.n for c in held] == [2 * STEP, long, short, end], "fewer, the farther from the end"


def test_followers_in_memory_that_cannot_be_cut() -> None:
    for window in (0, 4):
        kv = FakeKV(1024, 128, cuttable=False, window=window)
        s, texts = together(kv, 8, n_checkpoints=8)
        n_evaluated = 0
        while not all(one.generating for one in texts):
            chunks = run_step(s, kv)
            n_evaluated += sum(max(0, min(c.stop, c.sequence.n_prompt) - c.start) for c in chunks)
        assert n_evaluated == 32 + 8 * 4
        assert [one.n_shared for one in texts] == [0] + 7 * [32]


def held_after(kv: FakeKV, first: list[int], second: list[int], **kwargs: Any) -> Sequence:
    """Serves both texts in the same slot, and returns the second one's sequence."""
    s = scheduler(kv, n_slots=1, n_batch=64)
    one, two = sequence(1, first), sequence(2, second, **kwargs)
    s.submit(one)
    run_step(s, kv)
    s.finish(one)
    s.submit(two)
    run_step(s, kv)
    assert kv.text(two.seq_id) == second
    return two


def test_chunks_behind_the_common_prefix_are_moved() -> None:
    kv = FakeKV(64, 64)
    two = held_after(kv, [1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 4, 5, 6, 8, 9, 0], n_reuse=2)
    assert (two.n_cached, two.n_exact) == (6, 1)
    assert [cell.exact for cell in kv.cells[two.seq_id]] == [True] + 6 * [False]


def test_chunks_that_are_too_short_are_not() -> None:
    two = held_after(FakeKV(64, 64), [1, 2, 3, 4, 5, 6, 7], [1, 3, 4, 5, 7, 0], n_reuse=3)
    assert (two.n_cached, two.n_exact) == (4, 1)
    two = held_after(FakeKV(64, 64), [1, 2, 3, 4, 5, 6], [1, 3, 4, 6, 0], n_reuse=3)
    assert (two.n_cached, two.n_exact) == (1, ALL)


def test_nothing_is_moved_in_memory_that_cannot() -> None:
    kv = FakeKV(64, 64, shiftable=False)
    assert held_after(kv, [1, 2, 3, 4, 5], [1, 3, 4, 5, 0], n_reuse=2).n_cached == 1


def test_the_last_token_is_evaluated_again_although_it_was_moved() -> None:
    two = held_after(FakeKV(64, 64), [1, 2, 3, 4, 5], [1, 4, 5], n_reuse=2)
    assert two.n_cached == 2


def test_moved_cells_are_only_for_requests_that_allow_them() -> None:
    kv = FakeKV(64, 64)
    s = scheduler(kv, n_slots=1, n_batch=64)
    texts = ([1, 2, 3, 4, 5, 6, 7], [1, 3, 4, 5, 0, 0], [1, 3, 4, 5, 0, 0])
    cached = []
    for id, (text, n_reuse) in enumerate(zip(texts, (0, 2, 0), strict=True)):
        one = sequence(id, text, n_reuse=n_reuse)
        s.submit(one)
        run_step(s, kv)
        id_of_last = one.seq_id
        s.finish(one)
        cached.append(one.n_cached)
    assert cached == [0, 4, 1]
    assert all(cell.exact for cell in kv.cells[id_of_last])


def test_a_shift_drops_tokens_from_text_and_cells() -> None:
    kv = FakeKV(64, 64)
    s = scheduler(kv, n_slots=1)
    one = sequence(1, [1, 2, 3, 4, 5, 6])
    s.submit(one)
    run_step(s, kv)
    assert s.shift(one, 1, 3)
    assert one.tokens.view().tolist() == [1, 5, 6, 7]
    assert (one.n_past, kv.text(one.seq_id)) == (3, [1, 5, 6])
    run_step(s, kv, 8)
    assert kv.text(one.seq_id) == [1, 5, 6, 7]
    s.finish(one)
    two = sequence(2, [1, 5, 6, 7, 9])
    s.submit(two)
    run_step(s, kv)
    assert two.n_cached == 1, "what was computed behind the dropped tokens is not for others"


def test_a_prefix_under_another_key_is_not_shared() -> None:
    kv = FakeKV(64, 64)
    s = scheduler(kv, n_slots=1)
    for id, key, n_cached in ((1, (), 0), (2, A, 0), (3, A, 2), (4, B, 0), (5, (), 0), (6, (), 2)):
        one = sequence(id, [1, 2, 3], key=key)
        s.submit(one)
        run_step(s, kv)
        assert one.n_cached == n_cached, id
        s.finish(one)


def test_the_prefix_of_an_owner_is_not_shared_with_others() -> None:
    kv = FakeKV(64, 64)
    s = scheduler(kv, n_slots=4)
    mine, other = key_of([], 7), key_of([], 8)
    for id, key, n_cached in ((1, mine, 0), (2, other, 0), (3, mine, 2), (4, (), 0), (5, other, 2)):
        one = sequence(id, [1, 2, 3], key=key)
        s.submit(one)
        run_step(s, kv)
        assert one.n_cached == n_cached, id
        s.finish(one)


def test_texts_of_several_owners_share_a_step() -> None:
    kv = FakeKV(64, 64)
    s = scheduler(kv, n_slots=3)
    texts = [sequence(id, [id, 2, 3], key=key_of([(0, 1.0)], id)) for id in (1, 2)]
    texts.append(sequence(3, [3, 2, 3], key=B))
    for one in texts:
        s.submit(one)
    assert {chunk.sequence.id for chunk in s.plan()} == {1, 2}


def test_a_prefix_of_a_running_text_is_shared() -> None:
    kv = FakeKV(64, 64)
    s = scheduler(kv, n_batch=64)
    leader, other = sequence(1, [1, 2, 3, 4, 5]), sequence(2, [1, 2, 3, 9])
    s.submit(leader)
    run_step(s, kv)
    s.submit(other)
    run_step(s, kv)
    assert (other.n_cached, other.n_shared, kv.n_used) == (3, 3, 5 + 1 + 1)
    s.finish(leader)
    s.finish(other)
    assert kv.n_used == 7, "both are kept as cache"


def test_a_pinned_request_shares_another_slots_prefix() -> None:
    for n_cells in (64, None):
        kv = FakeKV(n_cells, 64)
        s = scheduler(kv, n_batch=64)
        text = list(range(30))
        for id, slot in ((1, 0), (2, 1)):
            one = sequence(id, [*text, id], id_slot=slot)
            s.submit(one)
            run_step(s, kv)
            assert one.slot == slot
            s.finish(one)
        assert one.n_cached == 30


def test_a_common_prefix_is_evaluated_once() -> None:
    kv = FakeKV(1024, 128)
    s, texts = together(kv, 8)
    n_evaluated = 0
    while not all(one.generating for one in texts):
        chunks = run_step(s, kv)
        n_evaluated += sum(max(0, min(c.stop, c.sequence.n_prompt) - c.start) for c in chunks)
    assert n_evaluated == 32 + 8 * 4
    assert [one.n_shared for one in texts] == [0] + 7 * [32]
    assert kv.n_used <= 32 + 8 * (4 + 10)


def test_a_cancelled_leader_hands_over() -> None:
    kv = FakeKV(1024, 128)
    s, texts = together(kv, 3)
    run_step(s, kv)
    run_step(s, kv)
    assert [one.slot >= 0 for one in texts] == [True, False, False]
    s.cancel(texts[0])
    run_step(s, kv)
    assert [one.n_cached for one in texts[1:]] == [16, 0]
    while not all(one.generating for one in texts[1:]):
        run_step(s, kv)
    assert texts[2].n_shared == 32


def test_finished_texts_outlive_their_slot() -> None:
    kv = FakeKV(64, 64)
    s = scheduler(kv, n_slots=1, n_sequences=4, n_batch=64)
    texts = [[id] * 5 for id in range(1, 5)]
    for id, text in enumerate([*texts, *texts]):
        one = sequence(id, text)
        s.submit(one)
        run_step(s, kv)
        s.finish(one)
        assert one.n_cached == (4 if id >= 4 else 0)


def test_the_least_recently_used_text_goes_first() -> None:
    kv = FakeKV(16, 16)
    s = scheduler(kv, n_slots=1, n_sequences=8, n_batch=16)
    for id, first in enumerate([1, 2, 1, 3, 1, 2]):
        one = sequence(id, [first, 7, 7, 7, 7, 7])
        s.submit(one)
        run_step(s, kv)
        s.finish(one)
    assert one.n_cached == 0, "2 went, not 1"


def test_a_shift_keeps_shared_cells() -> None:
    kv = FakeKV(64, 64)
    s = scheduler(kv, n_batch=64)
    one, two = sequence(1, [1, 2, 3, 4, 5, 6]), sequence(2, [1, 2, 3, 4, 5, 6, 8])
    s.submit(one)
    run_step(s, kv)
    s.submit(two)
    run_step(s, kv)
    assert two.n_shared == 6
    assert s.shift(one, 1, 2)
    assert one.n_past == 1, "two has the cells behind: they are evaluated again"
    run_step(s, kv)
    assert kv.text(one.seq_id)[:5] == [1, 4, 5, 6, 7]
    s.finish(two)
    run_step(s, kv)
    assert s.shift(one, 1, 2)
    assert one.n_past == len(one.tokens) - 1, "a finished text gives way"


def test_an_evicted_text_is_restored() -> None:
    for n_cells in (16, None):
        kv = FakeKV(n_cells, 16)
        tier = FakeTier(kv, delay=2)
        s = scheduler(kv, n_slots=1, n_batch=16, tier=tier)
        finish_one(s, kv, 1, [1] * 10)
        finish_one(s, kv, 2, [2] * 10)
        assert [text.tolist() for text, _ in tier.kept] == [[1] * 10]
        again = finish_one(s, kv, 3, [1] * 8 + [3])
        assert (again.n_restored, again.n_cached) == (8, 8)


def test_a_text_under_another_key_does_not_come_back() -> None:
    kv = FakeKV(16, 16)
    s = scheduler(kv, n_slots=1, n_batch=16, tier=FakeTier(kv))
    finish_one(s, kv, 1, [1] * 10, key=A)
    finish_one(s, kv, 2, [2] * 10)
    assert finish_one(s, kv, 3, [1] * 10, key=B).n_cached == 0
    assert finish_one(s, kv, 4, [1] * 10, key=A).n_restored == 9


def test_a_restoration_that_fails_costs_nothing_but_time() -> None:
    kv = FakeKV(16, 16)
    s = scheduler(kv, n_slots=1, n_batch=16, tier=FakeTier(kv, fails=1))
    finish_one(s, kv, 1, [1] * 10)
    finish_one(s, kv, 2, [2] * 10)
    again = finish_one(s, kv, 3, [1] * 10)
    assert (again.n_restored, again.n_cached) == (0, 0)


def test_there_must_be_room_for_all_that_comes_back() -> None:
    kv = FakeKV(16, 16)
    s = scheduler(kv, n_slots=2, n_batch=16, tier=FakeTier(kv))
    finish_one(s, kv, 1, [1] * 14)
    running = sequence(2, [2] * 6)
    s.submit(running)
    run_step(s, kv)
    assert finish_one(s, kv, 3, [1] * 4).n_restored == 0
    s.finish(running)
    assert finish_one(s, kv, 4, [1] * 10).n_restored == 9


def test_a_text_cut_for_another_is_offered_before() -> None:
    for part, n_offered in ((4, 1), (6, 0)):
        kv = FakeKV(None, 16)
        tier = FakeTier(kv)
        s = scheduler(kv, n_slots=1, n_batch=16, tier=tier)
        finish_one(s, kv, 1, [1] * 10)
        assert finish_one(s, kv, 2, [1] * part + [2]).n_cached == part
        assert len(tier.kept) == n_offered


def test_only_the_exact_part_of_a_text_is_offered() -> None:
    kv = FakeKV(16, 16)
    tier = FakeTier(kv)
    s = scheduler(kv, n_slots=1, n_batch=16, tier=tier)
    one = sequence(1, [1, 2, 3, 4, 5, 6])
    s.submit(one)
    run_step(s, kv)
    assert s.shift(one, 2, 2)
    s.finish(one)
    finish_one(s, kv, 2, [7] * 14)
    assert [text.tolist() for text, _ in tier.kept] == [[1, 2]]


def test_all_texts_at_the_end() -> None:
    kv = FakeKV(64, 64)
    s = scheduler(kv, n_slots=2, n_batch=16, n_sequences=4)
    finish_one(s, kv, 1, [1] * 5)
    running = sequence(2, [2] * 5, key=A)
    s.submit(running)
    run_step(s, kv)
    texts = [(tokens.tolist(), key) for _, tokens, key, _ in s.finished()]
    assert texts == [([2] * 5, A), ([1] * 5, ())]
    assert not s.active


def test_a_text_of_the_second_tier_shares_no_cells() -> None:
    """A text that is restored next to a running text with the same beginning needs room for all of
    it. Without it, the text was admitted, preempted and admitted again in the same step, for
    ever."""
    kv = FakeKV(24, 24)
    tier = FakeTier(kv)
    s = scheduler(kv, n_slots=2, tier=tier)
    text = [*range(1, 11)]
    cached(s, kv, text, [*range(20, 42)])
    assert [kept.tolist()[:10] for kept, _ in tier.kept] == [text]
    running, other = sequence(1, [*text[:8], 50]), sequence(2, [*text, *range(60, 65)])
    s.submit(running)
    run_step(s, kv)
    s.submit(other)
    run_step(s, kv)
    assert (running.slot, other.slot) == (0, -1)
    s.finish(running)
    run_step(s, kv)
    assert other.slot >= 0


# ---- texts of idle slots are saved when another text gets a slot.


def held(s: Scheduler) -> list[list[int]]:
    return [entry.tokens.tolist() for entry in s.cache.entries.values()]


@pytest.mark.parametrize("n_cells", [64, None])
def test_idle_texts_are_saved_and_leave_a_unified_cache(n_cells: int | None) -> None:
    kv = FakeKV(n_cells, 64)
    tier = FakeTier(kv)
    s = scheduler(kv, n_slots=2, tier=tier, saves_idle=True)
    first, second = list(range(8)), list(range(20, 30))
    finish_one(s, kv, 1, first)
    assert (held(s), tier.kept) == ([first], []), "no other text has come"
    one = sequence(2, second, id_slot=1)
    s.submit(one)
    run_step(s, kv)
    assert [tokens.tolist() for tokens, _ in tier.kept] == [first]
    assert held(s) == ([] if n_cells else [first])
    if n_cells:
        assert s.n_cells_used == one.n_past, "only the text in use has cells"
    run_step(s, kv)
    assert len(tier.kept) == 1, "no other text has got a slot"
    s.finish(one)
    again = finish_one(s, kv, 3, first)
    assert again.n_cached == len(first) - 1
    assert again.n_restored == (len(first) - 1 if n_cells else 0)


def test_idle_texts_stay_without_the_option() -> None:
    kv = FakeKV(64, 64)
    tier = FakeTier(kv)
    s = scheduler(kv, n_slots=2, tier=tier)
    finish_one(s, kv, 1, [*range(8)])
    finish_one(s, kv, 2, [*range(20, 30)])
    assert (len(held(s)), tier.kept) == (2, [])


def test_a_prefix_is_shared_before_its_text_leaves() -> None:
    kv = FakeKV(64, 64)
    s = scheduler(kv, n_slots=2, tier=FakeTier(kv), saves_idle=True)
    finish_one(s, kv, 1, [*range(12)])
    new = finish_one(s, kv, 2, [*range(8), 50, 51])
    assert (new.n_shared, new.n_restored) == (8, 0)


class FullTier(FakeTier):
    def offer(self, *args: Any, **kwargs: Any) -> bool:
        return False


def test_an_idle_text_that_can_not_be_saved_stays() -> None:
    kv = FakeKV(64, 64)
    s = scheduler(kv, n_slots=2, tier=FullTier(kv), saves_idle=True)
    finish_one(s, kv, 1, [*range(8)])
    finish_one(s, kv, 2, [*range(20, 30)])
    assert len(held(s)) == 2


# ---- the distance of checkpoints.


def made(kv: FakeKV) -> list[int]:
    return [len(tokens) for tokens, _ in kv.saved.values()]


@pytest.mark.parametrize(
    ("step", "places"),
    [
        (0, [STEP, 2 * STEP, 3 * STEP]),
        (STEP, [STEP, 2 * STEP, 3 * STEP]),
        (STEP + 1, [STEP, 3 * STEP]),
        (10 * STEP, [STEP]),
    ],
)
def test_checkpoints_in_the_middle_keep_their_distance(step: int, places: list[int]) -> None:
    kv = FakeKV(None, 5 * STEP, cuttable=False)
    s = scheduler(kv, n_slots=1, n_checkpoints=8, checkpoint_step=step, n_batch=1024)
    n = 4 * STEP + 5
    cached(s, kv, list(range(n)))
    end = n - NEAR_END
    assert made(kv) == [*places, end - LAST_MESSAGES[1], end - LAST_MESSAGES[0], end]


@pytest.mark.parametrize(("step", "n_cached"), [(0, 3000), (1000, 3000), (2000, 2000)])
def test_a_place_where_texts_part_keeps_the_distance(step: int, n_cached: int) -> None:
    """The third text parts from the others 1,000 tokens after a place where two have parted."""
    kv = FakeKV(None, 2 * STEP, cuttable=False)
    s = scheduler(kv, n_slots=3, n_checkpoints=8, checkpoint_step=step, n_batch=1024)
    text, end = list(range(6000)), [1] * 2000
    later = [*text[:3000], *end]
    found = cached(s, kv, text, [*text[:2000], *end], later, [*text[:3000], 2, *end])
    assert found == [0, 0, 2000, n_cached]
