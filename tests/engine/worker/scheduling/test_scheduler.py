"""Slots and their requests, and the chunks of a step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.worker.cache.texts import ALL
from specllama.engine.worker.scheduling.sequences import Chunk
from specllama.engine.worker.scheduling.sharing import (
    KEY_STEPS,
    LAST_STEPS,
    LITTLE_MORE,
    evenly,
    shares,
)
from specllama.engine.worker.scheduling.step_clock import FEW_ROWS
from tests.support.fake_kv import FakeKV
from tests.support.scheduling import A, B, run_step, scheduler, sequence, together


def test_a_prompt_is_cut_into_batches_and_then_generates() -> None:
    kv = FakeKV(64, 64)
    s = scheduler(kv)
    s.submit(sequence(1, list(range(20))))
    sizes = [sum(c.stop - c.start for c in run_step(s, kv)) for _ in range(5)]
    assert sizes == [8, 8, 4, 1, 1]


def test_generation_goes_on_while_a_prompt_is_evaluated() -> None:
    kv = FakeKV(64, 64)
    s = scheduler(kv)
    s.submit(sequence(1, [1, 2]))
    run_step(s, kv)
    s.submit(sequence(2, list(range(20))))
    chunks = run_step(s, kv)
    assert [(c.sequence.id, c.stop - c.start) for c in chunks] == [(1, 1), (2, 7)]


def test_without_continuous_batching_prompts_wait_for_generation() -> None:
    kv = FakeKV(64, 64)
    s = scheduler(kv, continuous=False)
    first = sequence(1, [1, 2])
    s.submit(first)
    run_step(s, kv)
    s.submit(sequence(2, [3]))
    assert [c.sequence.id for c in run_step(s, kv)] == [1]
    s.finish(first)
    assert [c.sequence.id for c in run_step(s, kv)] == [2]


def test_the_next_step_is_planned_before_its_tokens_are_known() -> None:
    kv = FakeKV(64, 64)
    s = scheduler(kv, n_slots=2)
    texts = [sequence(1, [1, 2]), sequence(2, [7, 8, 9])]
    for text in texts:
        s.submit(text)
    chunks = s.plan()
    assert chunks == [Chunk(texts[0], 0, 2), Chunk(texts[1], 0, 3)]
    kv.evaluate(chunks)
    s.advance(chunks)
    following = s.plan_next(chunks)
    assert following == [Chunk(texts[0], 2, 3), Chunk(texts[1], 3, 4)]
    assert s.plan_next(chunks[:1]) == [], "the other one has no token in it"
    for text in texts:
        text.append(5)
    assert s.plan() == following
    s.submit(sequence(3, [4]))
    assert s.plan_next(chunks) == [], "somebody waits"


def test_the_second_time_only_the_last_token_is_evaluated() -> None:
    kv = FakeKV(64, 64)
    s = scheduler(kv, n_slots=1)
    first = sequence(1, [1, 2, 3])
    s.submit(first)
    run_step(s, kv)
    s.finish(first)
    again = sequence(2, [1, 2, 3])
    s.submit(again)
    (chunk,) = run_step(s, kv)
    assert (again.n_cached, chunk.start, chunk.stop) == (2, 2, 3)


def test_a_paused_sequence_gives_its_slot_and_goes_on_where_it_was() -> None:
    kv = FakeKV(64, 64)
    s = scheduler(kv, n_slots=1, n_sequences=2)
    unread, other = sequence(1, [1, 2, 3]), sequence(2, [4, 5])
    s.submit(unread)
    for _ in range(4):
        run_step(s, kv)
    s.submit(other)
    s.pause(unread)
    assert (s.n_waiting, s.n_paused) == (1, 1)
    assert [c.sequence.id for c in run_step(s, kv)] == [2]
    s.resume(unread)
    assert [c.sequence.id for c in run_step(s, kv)] == [2], "the other has the slot"
    s.finish(other)
    (chunk,) = run_step(s, kv)
    assert (chunk.sequence.id, chunk.start, chunk.stop) == (1, 6, 7), "its cells were still there"


def test_a_paused_sequence_can_be_cancelled_and_is_no_work() -> None:
    kv = FakeKV(64, 64)
    s = scheduler(kv, n_slots=1)
    first, second = (sequence(id, [1, 2, 3]) for id in (1, 2))
    s.submit(first)
    s.submit(second)
    run_step(s, kv)
    s.pause(first)
    s.pause(second)
    assert not s.has_work
    assert s.plan() == []
    s.cancel(second)
    s.resume(second)
    assert not s.has_work
    s.resume(first)
    assert [c.sequence.id for c in run_step(s, kv)] == [1]


def test_a_sequence_without_its_next_token_delays_no_other() -> None:
    kv = FakeKV(64, 64)
    s = scheduler(kv)
    late, other = sequence(1, [1, 2, 3]), sequence(2, [4, 5])
    s.submit(late)
    chunks = s.plan()
    kv.evaluate(chunks)
    s.advance(chunks)
    assert s.plan() == []
    assert not s.has_prompts
    s.submit(other)
    assert s.has_prompts
    for _ in range(3):
        assert [c.sequence.id for c in run_step(s, kv)] == [2]
    assert s.in_slot(late.slot) is late
    late.append(7)
    assert [(c.sequence.id, c.start) for c in run_step(s, kv)] == [(1, 3), (2, 4)]


def test_cache_prompt_false_evaluates_everything() -> None:
    kv = FakeKV(64, 64)
    s = scheduler(kv, n_slots=1)
    first = sequence(1, [1, 2, 3])
    s.submit(first)
    run_step(s, kv)
    s.finish(first)
    again = sequence(2, [1, 2, 3], cache_prompt=False)
    s.submit(again)
    run_step(s, kv)
    assert again.n_cached == 0


def test_the_slot_with_the_longest_common_prefix_is_chosen() -> None:
    kv = FakeKV(64, 64)
    s = scheduler(kv, n_slots=3)
    for id, tokens in ((1, [9, 9, 9]), (2, [1, 2, 3, 4]), (3, [8, 5])):
        one = sequence(id, tokens)
        s.submit(one)
        run_step(s, kv)
        s.finish(one)
    probe = sequence(4, [1, 2, 3, 8])
    s.submit(probe)
    run_step(s, kv)
    assert (probe.slot, probe.n_cached) == (1, 3)


def test_id_slot_waits_for_its_slot_and_others_pass() -> None:
    kv = FakeKV(64, 64)
    s = scheduler(kv)
    first = sequence(1, [1], id_slot=0)
    s.submit(first)
    run_step(s, kv)
    pinned, other = sequence(2, [2], id_slot=0), sequence(3, [3])
    s.submit(pinned)
    s.submit(other)
    run_step(s, kv)
    assert (pinned.slot, other.slot) == (-1, 1)
    s.finish(first)
    run_step(s, kv)
    assert pinned.slot == 0


def test_idle_texts_give_way_and_then_the_youngest() -> None:
    kv = FakeKV(n_cells=16, n_ctx=16)
    s = scheduler(kv, n_slots=3)
    idle = sequence(1, [1, 2, 3, 4])
    s.submit(idle)
    run_step(s, kv)
    s.finish(idle)
    old, young = sequence(2, [5, 6, 7, 8]), sequence(3, [9, 10, 11, 12])
    s.submit(old)
    s.submit(young)
    for _ in range(9):
        run_step(s, kv)
    assert (old.slot >= 0, young.slot, s.n_waiting) == (True, -1, 1)
    s.finish(old)
    run_step(s, kv)
    assert young.slot >= 0, "the preempted one goes on"


def test_a_step_for_which_there_are_no_cells_gets_smaller() -> None:
    """llama.cpp may have fewer cells than the scheduler counts, which omits sliding windows."""
    kv = FakeKV(64, 64)
    s = scheduler(kv, n_slots=3)
    for id in (1, 2, 3):
        s.submit(sequence(id, [id] * 10))
    sizes = []
    while True:
        sizes.append(sum(chunk.n_tokens for chunk in s.plan()))
        if not s.relieve():
            break
    assert sizes[:4] == [8, 4, 2, 1]
    assert len(sizes) < 10, "a preempted sequence waits"
    assert [each.id for each in s.active] == [1]
    for _ in range(8):
        run_step(s, kv)
    assert len(s.active) == 3


def test_the_slot_with_the_same_key_is_chosen() -> None:
    kv = FakeKV(64, 64)
    s = scheduler(kv, n_slots=3)
    for id, key in ((1, A), (2, B), (3, ())):
        one = sequence(id, [1, 2, 3], key=key)
        s.submit(one)
        run_step(s, kv)
        s.finish(one)
    probe = sequence(4, [1, 2, 3], key=B)
    s.submit(probe)
    run_step(s, kv)
    assert (probe.slot, probe.n_cached) == (1, 2)


def test_keys_take_turns() -> None:
    kv = FakeKV(256, 256)
    s = scheduler(kv, n_slots=4)
    keys = {1: (), 2: A, 3: (), 4: B}
    for id, key in keys.items():
        s.submit(sequence(id, [id], key=key))
    served = [{c.sequence.id for c in run_step(s, kv)} for _ in range(6 * KEY_STEPS)]
    turns = [served[i : i + KEY_STEPS] for i in range(0, len(served), KEY_STEPS)]
    assert turns == [[ids] * KEY_STEPS for ids in ({1, 3}, {2}, {4}) * 2]


def test_a_key_that_cannot_go_on_lets_others_pass() -> None:
    kv = FakeKV(n_cells=16, n_ctx=16)
    s = scheduler(kv, n_slots=2, n_batch=16)
    old, young = sequence(1, [1] * 8, key=A), sequence(2, [2] * 8, key=B)
    s.submit(old)
    s.submit(young)
    for _ in range(60):
        for done in (old, young):
            if done.slot >= 0 and len(done.tokens) == 16:
                s.finish(done)
        run_step(s, kv)
    assert [len(one.tokens) for one in (old, young)] == [16, 16]


def test_an_erased_slot_forgets_and_a_restored_one_remembers() -> None:
    kv = FakeKV(n_cells=8, n_ctx=8)
    s = scheduler(kv, n_slots=2)
    one = sequence(1, [1, 2, 3], id_slot=0)
    s.submit(one)
    run_step(s, kv)
    s.finish(one)
    assert (s.texts.erase(0), s.texts.erase(0), kv.n_used) == (3, 0, 0)
    id = s.texts.adopt(1, np.full(8, 4, np.int32), ALL, A)
    assert id is not None
    kv.restore(id, [4] * 8, A)
    again = sequence(2, [4] * 6, key=A)
    s.submit(again)
    run_step(s, kv)
    assert (again.slot, again.n_cached) == (1, 5)
    new = np.full(7, 5, np.int32)
    assert s.texts.adopt(0, new, ALL, ()) is None, "the running one keeps its cells"


def test_followers_let_others_pass() -> None:
    kv = FakeKV(1024, 128)
    s, _ = together(kv, 3)
    other = sequence(200, [9, 9])
    s.submit(other)
    run_step(s, kv)
    assert other.slot >= 0


def test_prompts_share_a_limited_step() -> None:
    kv = FakeKV(1024, 256)
    s = scheduler(kv, n_slots=4, n_batch=64)
    s.submit(sequence(1, [1]))
    run_step(s, kv)
    for id, n in ((2, 100), (3, 3), (4, 50)):
        s.submit(sequence(id, [id] * n, group=2))
    assert {c.sequence.id: c.stop - c.start for c in s.plan(20)} == {1: 1, 2: 10, 3: 3, 4: 7}


def test_a_burst_is_not_cut() -> None:
    for n_each, sizes in ((9, [9, 9]), (11, [10])):
        kv = FakeKV(1024, 256)
        s = scheduler(kv, n_slots=4, n_batch=64)
        s.submit(sequence(1, [1]))
        run_step(s, kv)
        for id in (2, 3):
            s.submit(sequence(id, [id] * n_each))
        assert [c.stop - c.start for c in s.plan(10, 20)] == [1, *sizes]


def test_a_split_prompt_is_no_burst() -> None:
    kv = FakeKV(1024, 256)
    s = scheduler(kv, n_slots=4, n_batch=64)
    s.submit(sequence(1, [1]))
    run_step(s, kv)
    s.submit(sequence(2, [2] * 25))
    for n in (10, 10, 5):
        chunks = s.plan(10, 20)
        assert chunks[1].stop - chunks[1].start == n
        kv.evaluate(chunks)
        s.advance(chunks)
        chunks[0].sequence.append(7)


def test_separate_caches_in_use_are_neighbours() -> None:
    kv = FakeKV(None, 64)
    s = scheduler(kv, n_slots=6)
    for id, slot in enumerate((4, 0, 2, 5, 1, 3)):  # the order of their last use
        one = sequence(id, [id], id_slot=slot)
        s.submit(one)
        run_step(s, kv)
        s.finish(one)
    for id in range(10, 13):
        s.submit(sequence(id, [id]))
    run_step(s, kv)
    assert sorted(active.slot for active in s.active) in ([2, 3, 4], [3, 4, 5])


def test_separate_caches_are_evaluated_in_order() -> None:
    kv = FakeKV(None, 64)
    s = scheduler(kv, n_slots=3)
    for id, slot in ((1, 2), (2, 0), (3, 1)):
        s.submit(sequence(id, [id], id_slot=slot))
    assert [c.sequence.seq_id for c in run_step(s, kv)] == [0, 1, 2], "prompts"
    s.finish(s.active[-1])
    s.submit(sequence(4, [4, 5]))
    mixed = s.plan()
    assert [c.sequence.seq_id for c in mixed] == [0, 1, 2], "a prompt between tokens"
    assert [c.n_tokens for c in mixed] == [1, 2, 1]


def test_shares_of_a_step() -> None:
    prompts = [sequence(1, [0] * 100), sequence(2, [0] * 3), sequence(3, [0] * 50)]
    assert [n for _, n in shares(prompts, 20)] == [10, 3, 7]
    assert [n for _, n in shares(prompts, 1000)] == [100, 3, 50]
    assert shares(prompts, 0) == []
    assert [(s.id, n) for s, n in shares(prompts, 1)] == [(1, 1)]


def test_the_best_rank_gets_its_tokens_before_shorter_prompts() -> None:
    """Otherwise an urgent prompt would take another step."""
    prompts = [
        sequence(1, [0] * 15, priority=-1),
        sequence(2, [0] * 3),
        sequence(3, [0] * 9, priority=-1),
    ]
    assert [(s.id, n) for s, n in shares(prompts, 25)] == [(1, 15), (2, 1), (3, 9)]


def test_long_prompts_take_turns_where_halves_are_too_few() -> None:
    prompts = [sequence(1, [0] * 900), sequence(2, [0] * 800), sequence(3, [0] * 5)]
    turns = [[(s.id, n) for s, n in shares(prompts, 128, least=65, turn=turn)] for turn in (1, 2)]
    assert turns == [[(1, 128)], [(2, 123), (3, 5)]]
    assert [(s.id, n) for s, n in shares(prompts[:1], 128, least=65, turn=2)] == [(1, 128)]
    assert [(s.id, n) for s, n in shares(prompts[:2], 130, least=65)] == [(1, 65), (2, 65)]


@pytest.mark.parametrize(
    ("n_pending", "chunks"),
    [
        (300, [100, 100, 100]),
        (310, [104, 103, 103]),
        (420, [100, 107, 107, 106]),
        (180, [90, 90]),
        (125, [125]),
        (128, [128]),  # the halves would be too few
        (60, [60]),
    ],
)
def test_the_rest_of_a_prompt_is_not_a_few_tokens(n_pending: int, chunks: list[int]) -> None:
    kv = FakeKV(2048, 1024)
    s = scheduler(kv, n_batch=256)
    s.submit(sequence(1, [1, 2]))
    run_step(s, kv)
    prompt = sequence(2, [3] * n_pending)
    s.submit(prompt)
    found = []
    while not prompt.generating:
        found += [chunk.stop - chunk.start for chunk in run_step(s, kv, n_prompt=100)[1:]]
    assert found == chunks


def test_a_request_for_many_texts_leaves_slots_to_others() -> None:
    kv = FakeKV(512, 64)
    s = scheduler(kv, n_slots=4)
    for id in range(1, 21):
        s.submit(sequence(id, [id, 1], group=1))
    run_step(s, kv)
    assert sorted(each.id for each in s.active) == [1, 2, 3, 4]
    for id in range(21, 24):
        s.submit(sequence(id, [id, 1], group=id))
    admitted = []
    for _ in range(6):
        before = {each.id for each in s.active}
        s.finish(next(iter(s.active)))
        run_step(s, kv)
        admitted += [each.id for each in s.active if each.id not in before]
    assert admitted == [21, 22, 23, 5, 6, 7]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=12), st.integers(1, 5))
def test_turns_are_shared_between_requests(groups: list[int], n_slots: int) -> None:
    """If requests arrive at once, no client gets two slots more than a client with waiting
    requests."""
    kv = FakeKV(1024, 64)
    s = scheduler(kv, n_slots=n_slots)
    for id, group in enumerate(groups, start=1):
        s.submit(sequence(id, [id, 1], group=group))
    run_step(s, kv)
    running = [groups[each.id - 1] for each in s.active]
    assert len(running) == min(n_slots, len(groups))
    for group in set(groups):
        if running.count(group) < groups.count(group):
            assert all(running.count(other) <= running.count(group) + 1 for other in groups)


@given(st.integers(1, 5000), st.integers(1, 2000))
def test_the_last_steps_of_a_prompt_are_even(n_pending: int, n_prompt: int) -> None:
    sizes = []
    left = n_pending
    while left:
        sizes.append(evenly(left, n_prompt))
        left -= sizes[-1]
        assert 1 <= sizes[-1] <= max(LITTLE_MORE * n_prompt + 1, min(n_pending, 2 * FEW_ROWS))
    if n_prompt > FEW_ROWS and n_pending > FEW_ROWS:
        assert min(sizes) > FEW_ROWS
    assert sizes[:-LAST_STEPS] == [n_prompt] * len(sizes[:-LAST_STEPS])
