"""Which sequences get slots, and which ones have to leave theirs."""

import gc
import sys
from collections.abc import Callable
from itertools import count
from types import FrameType

import pytest

from specllama.engine.worker.scheduling.fairness import AGE_SECONDS
from specllama.engine.worker.scheduling.memory import PrefixOrigin
from specllama.engine.worker.scheduling.scheduler import Scheduler
from specllama.engine.worker.scheduling.sequences import Sequence
from specllama.engine.worker.scheduling.slots import MAX_PASSED, MAX_PREEMPTIONS
from tests.support.fake_kv import FakeKV, FakeTier
from tests.support.scheduling import run_step, scheduler, sequence


def submitted(
    s: Scheduler, id: int, tokens: list[int], priority: int = 0, **kwargs: int
) -> Sequence:
    one = sequence(id, tokens, priority=priority, **kwargs)
    s.submit(one)
    return one


@pytest.mark.parametrize("n_cells", [64, None])
def test_a_better_priority_preempts_and_nothing_is_evaluated_again(n_cells: int | None) -> None:
    kv = FakeKV(n_cells, 64)
    s = scheduler(kv, n_slots=1, n_sequences=3, tier=FakeTier(kv))
    low = submitted(s, 1, [1, 2, 3], priority=1)
    for _ in range(4):
        run_step(s, kv)
    text = low.tokens.view().tolist()
    high = submitted(s, 2, [4, 5])
    [chunk] = run_step(s, kv)
    assert (chunk.sequence, low.phase, s.slots.preempted) == (high, "queued", [low])
    run_step(s, kv)
    s.finish(high)
    [chunk] = run_step(s, kv)
    assert (chunk.sequence, chunk.start, chunk.stop) == (low, len(text) - 1, len(text))
    assert low.tokens.view(0, len(text)).tolist() == text
    assert low.n_cached == 0, "its own tokens didn't come from the cache"


def test_a_preempted_prompt_counts_its_own_tokens_as_evaluated() -> None:
    kv = FakeKV(64, 64)
    s = scheduler(kv, n_slots=1, n_sequences=3)
    low = submitted(s, 1, list(range(20)), priority=1)
    run_step(s, kv)
    high = submitted(s, 2, [30])
    run_step(s, kv)
    s.finish(high)
    [chunk] = run_step(s, kv)
    assert (chunk.sequence, chunk.start, low.n_cached) == (low, 8, 0)


def test_the_worst_priority_leaves_and_of_equals_the_latest() -> None:
    kv = FakeKV(256, 64)
    s = scheduler(kv, n_slots=4, n_sequences=8)
    first, second, third, fourth = (
        submitted(s, id, [id], priority) for id, priority in ((1, 2), (2, 1), (3, 2), (4, 0))
    )
    run_step(s, kv)
    for id, left in ((5, third), (6, first), (7, second)):
        submitted(s, id, [id])
        run_step(s, kv)
        assert s.slots.preempted.pop() is left
    submitted(s, 8, [8])
    run_step(s, kv)
    assert s.slots.preempted == []
    assert fourth.slot >= 0


def test_an_aged_sequence_is_not_preempted_again() -> None:
    kv = FakeKV(256, 64)
    s = scheduler(kv, n_slots=1, n_sequences=4)
    low = submitted(s, 1, [1], priority=1)
    run_step(s, kv)
    first = submitted(s, 2, [2])
    s.plan(now=1.0)
    assert (low.slot, first.slot) == (-1, 0)
    s.finish(first)
    second = submitted(s, 3, [3])
    s.plan(now=AGE_SECONDS + 2.0)
    assert (low.slot, second.slot) == (0, -1)
    s.plan(now=AGE_SECONDS + 3.0)
    assert low.slot == 0


def test_preemptions_of_a_step_are_bounded() -> None:
    kv = FakeKV(256, 64)
    n = MAX_PREEMPTIONS + 2
    s = scheduler(kv, n_slots=n, n_sequences=2 * n, n_batch=64)
    for id in range(n):
        submitted(s, id, [id], priority=3)
    run_step(s, kv)
    for id in range(n, 2 * n):
        submitted(s, id, [id])
    run_step(s, kv)
    assert len(s.slots.preempted) == MAX_PREEMPTIONS
    run_step(s, kv)
    assert len(s.slots.preempted) == n


def test_a_pinned_sequence_preempts_only_in_its_slot() -> None:
    kv = FakeKV(256, 64)
    s = scheduler(kv, n_slots=2, n_sequences=6)
    here = submitted(s, 1, [1], priority=1, id_slot=0)
    submitted(s, 2, [2], priority=9, id_slot=1)
    run_step(s, kv)
    high = submitted(s, 3, [3], id_slot=0)
    run_step(s, kv)
    assert (high.slot, here.slot) == (0, -1)


def test_a_follower_preempts_no_other() -> None:
    kv = FakeKV(256, 128)
    s = scheduler(kv, n_slots=2, n_sequences=6)
    prefix = list(range(40))
    leader = submitted(s, 1, [*prefix, 50])
    other = submitted(s, 2, [9], priority=5)
    run_step(s, kv)
    follower = submitted(s, 3, [*prefix, 60])
    run_step(s, kv)
    assert (other.slot >= 0, follower.slot) == (True, -1)
    while leader.n_past < 40:
        run_step(s, kv)
    run_step(s, kv)
    assert (other.slot, follower.slot >= 0) == (-1, True)


def test_cells_are_freed_for_a_better_priority() -> None:
    kv = FakeKV(32, 32)
    s = scheduler(kv, n_slots=3, n_sequences=6, n_batch=32)
    low = submitted(s, 1, list(range(25)), priority=1)
    run_step(s, kv)
    high = submitted(s, 2, list(range(30, 50)))
    run_step(s, kv)
    assert (high.slot >= 0, low.slot) == (True, -1)


def test_without_cells_the_worst_priority_gives_way() -> None:
    kv = FakeKV(n_cells=16, n_ctx=16)
    s = scheduler(kv, n_slots=2)
    low, high = submitted(s, 1, [1] * 4, priority=1), submitted(s, 2, [2] * 4)
    for _ in range(9):
        run_step(s, kv)
    assert (low.slot, high.slot >= 0) == (-1, True)


def test_the_prompt_of_a_better_priority_gets_the_step() -> None:
    kv = FakeKV(512, 128)
    s = scheduler(kv, n_slots=3, n_batch=64)
    submitted(s, 1, [1])
    run_step(s, kv)
    submitted(s, 2, [2] * 50, priority=4)
    submitted(s, 3, [3] * 30, priority=2)
    assert {c.sequence.id: c.n_tokens for c in s.plan(20)} == {1: 1, 3: 20}
    assert {c.sequence.id: c.n_tokens for c in s.plan(40)} == {1: 1, 3: 30, 2: 10}


def test_tokens_are_charged_as_they_are_used() -> None:
    kv = FakeKV(256, 64)
    s = scheduler(kv, n_slots=1, n_batch=64)
    one = submitted(s, 1, list(range(10)), n_predict=3)
    for _ in range(9):
        run_step(s, kv)
    submitted(s, 2, [1], owner=3)
    owner = next(iter(s.slots.queue._levels[0].owners.values()))
    s.slots.charge(one)
    assert (owner.base, owner.paid) == (18, 0)
    s.finish(one)
    assert [*s.slots.queue._levels[0].owners] == [3]


def test_an_answer_that_ends_early_is_paid_back() -> None:
    kv = FakeKV(256, 64)
    s = scheduler(kv, n_slots=1, n_batch=64)
    first, second = submitted(s, 1, [1, 2], owner=7), submitted(s, 2, [3], owner=7)
    run_step(s, kv)
    owner = s.slots.queue._levels[0].owners[7]
    assert owner.paid > 0
    run_step(s, kv)
    s.finish(first)
    assert (owner.base, owner.paid) == (3, 0)
    s.cancel(second)
    assert not s.slots.queue._levels


def n_calls(work: Callable[[], object]) -> int:
    """Returns how many functions `work` calls."""
    n = 0

    def count_one(frame: FrameType, event: str, arg: object) -> None:
        nonlocal n
        n += event in ("call", "c_call")

    gc.disable()  # Hypothesis has callbacks for it
    sys.setprofile(count_one)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return n


def test_the_work_of_a_step_does_not_grow_with_the_queue() -> None:
    kv = FakeKV(None, 1 << 15)
    ids = count(1)
    s = scheduler(kv, n_slots=2)
    calls: dict[int, tuple[int, int]] = {}
    for n_waiting in (10, 5000):
        while s.n_waiting < n_waiting:
            id = next(ids)
            submitted(s, id, [id % 250, 1, 2], owner=id % 50, group=id)
        run_step(s, kv)
        full = n_calls(s.plan)
        s.finish(s.active[0])
        calls[n_waiting] = full, n_calls(s.plan)
    assert calls[5000][0] == calls[10][0], "no slot is idle"
    assert calls[5000][1] < 3 * calls[10][1], "one is"


def test_few_followers_are_looked_at_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    kv = FakeKV(4096, 128)
    s = scheduler(kv, n_slots=3, n_sequences=6)
    prefix = list(range(40))
    for id in range(1, 500):
        submitted(s, id, [*prefix, id], group=id)
    find, n_found = s.slots._placement.find, 0

    def counted(each: Sequence) -> PrefixOrigin:
        nonlocal n_found
        n_found += 1
        return find(each)

    monkeypatch.setattr(s.slots._placement, "find", counted)
    run_step(s, kv)
    assert n_found == MAX_PASSED + 1
