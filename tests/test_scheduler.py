"""The scheduler against a KV cache that checks as strictly as llama.cpp does."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.prefix_cache import ALL, Key
from engine.scheduler import KEY_STEPS, Chunk, Scheduler, Sequence
from engine.shifting import context_shift
from engine.tokens import TokenBuffer

A, B = ((0, 1.0),), ((0, 0.5), (1, 1.0))


class FakeKV:
    """Cells by sequence. `cuttable=False` behaves like a recurrent model's memory.

    `exact` tells of each cell whether it is what its token gives behind the tokens before it: not
    if it was moved, or computed from such cells.
    """

    def __init__(
        self, n_cells: int | None, n_ctx: int, cuttable: bool = True, shiftable: bool = True
    ) -> None:
        self.texts: dict[int, list[int]] = {}
        self.exact: dict[int, list[bool]] = {}
        self.n_cells, self.n_ctx = n_cells, n_ctx
        self.cuttable, self.shiftable = cuttable, cuttable and shiftable
        self.keys: dict[int, list[Key]] = {}  # what each cell was evaluated under

    def remove(self, sequence: int, start: int) -> bool:
        text = self.texts.get(sequence, [])
        if not self.cuttable and 0 < start < len(text):
            return False
        self.texts[sequence] = text[:start]
        self.exact[sequence] = self.exact.get(sequence, [])[:start]
        self.keys[sequence] = self.keys.get(sequence, [])[:start]
        return True

    def cut_out(self, sequence: int, start: int, stop: int) -> bool:
        text, exact = self.texts[sequence], self.exact[sequence]
        assert 0 <= start < stop < len(text), "drop held cells, and keep some behind them"
        if not self.shiftable:
            return False
        self.texts[sequence] = text[:start] + text[stop:]
        self.exact[sequence] = exact[:start] + [False] * len(text[stop:])
        self.keys[sequence] = self.keys[sequence][:start] + self.keys[sequence][stop:]
        return True

    def restore(self, sequence: int, tokens: list[int], key: Key) -> None:
        assert not self.texts.get(sequence)
        self.texts[sequence], self.keys[sequence] = list(tokens), [key] * len(tokens)
        self.exact[sequence] = [True] * len(tokens)
        self._check_cells()

    def evaluate(self, chunks: list[Chunk]) -> None:
        assert len({chunk.sequence.key for chunk in chunks}) <= 1, "keys are mixed in one step"
        for chunk in chunks:
            text = self.texts.setdefault(chunk.sequence.slot, [])
            assert len(text) == chunk.start, "positions must continue without a gap"
            text.extend(chunk.sequence.tokens.view(chunk.start, chunk.stop).tolist())
            exact = self.exact.setdefault(chunk.sequence.slot, [])
            exact.extend([all(exact)] * (chunk.stop - chunk.start))
            assert len(text) <= self.n_ctx
            keys = self.keys.setdefault(chunk.sequence.slot, [])
            keys.extend([chunk.sequence.key] * (chunk.stop - chunk.start))
            assert set(keys) == {chunk.sequence.key}, "cells of another key are used"
        self._check_cells()

    def _check_cells(self) -> None:
        if self.n_cells is not None:
            assert sum(map(len, self.texts.values())) <= self.n_cells, "no free cell"


def sequence(id: int, tokens: list[int], **kwargs: object) -> Sequence:
    array = np.array(tokens, np.int32)
    return Sequence(id=id, tokens=TokenBuffer(array), n_prompt=len(tokens), **kwargs)  # type: ignore[arg-type]


def scheduler(kv: FakeKV, n_slots: int = 2, **kwargs: object) -> Scheduler:
    arguments = {"n_batch": 8, "n_cells": kv.n_cells, **kwargs}
    return Scheduler(kv, n_slots=n_slots, n_ctx=kv.n_ctx, **arguments)  # type: ignore[arg-type]


def run_step(s: Scheduler, kv: FakeKV, next_token: int = 7) -> list[Chunk]:
    chunks = s.plan()
    kv.evaluate(chunks)
    s.advance(chunks)
    for chunk in chunks:
        if chunk.is_last:
            chunk.sequence.generating = True
            chunk.sequence.tokens.append(next_token)
    return chunks


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
    assert kv.texts[0] == [1, 2, 5]


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


def held_after(kv: FakeKV, first: list[int], second: list[int], **kwargs: object) -> Sequence:
    """The second text in the slot that served the first."""
    s = scheduler(kv, n_slots=1, n_batch=64)
    one, two = sequence(1, first), sequence(2, second, **kwargs)
    s.submit(one)
    run_step(s, kv)
    s.finish(one)
    s.submit(two)
    run_step(s, kv)
    assert kv.texts[0] == second
    return two


def test_chunks_behind_the_common_prefix_are_moved() -> None:
    kv = FakeKV(64, 64)
    two = held_after(kv, [1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 4, 5, 6, 8, 9, 0], n_reuse=2)
    assert (two.n_cached, two.n_exact) == (6, 1)
    assert kv.exact[0] == [True] + 6 * [False]


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


def test_moved_cells_are_for_those_who_asked_only() -> None:
    kv = FakeKV(64, 64)
    s = scheduler(kv, n_slots=1, n_batch=64)
    texts = ([1, 2, 3, 4, 5, 6, 7], [1, 3, 4, 5, 0, 0], [1, 3, 4, 5, 0, 0])
    cached = []
    for id, (text, n_reuse) in enumerate(zip(texts, (0, 2, 0), strict=True)):
        one = sequence(id, text, n_reuse=n_reuse)
        s.submit(one)
        run_step(s, kv)
        s.finish(one)
        cached.append(one.n_cached)
    assert cached == [0, 4, 1]
    assert all(kv.exact[0])


def test_a_shift_drops_tokens_from_text_and_cells() -> None:
    kv = FakeKV(64, 64)
    s = scheduler(kv, n_slots=1)
    one = sequence(1, [1, 2, 3, 4, 5, 6])
    s.submit(one)
    run_step(s, kv)
    assert s.shift(one, 1, 3)
    assert one.tokens.view().tolist() == [1, 5, 6, 7]
    assert (one.n_past, kv.texts[0]) == (3, [1, 5, 6])
    run_step(s, kv, 8)
    assert kv.texts[0] == [1, 5, 6, 7]
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
    assert (s.erase(0), s.erase(0), kv.texts[0]) == (3, 0, [])
    assert s.make_room_for(1, 8)
    kv.restore(1, [4] * 8, A)
    s.adopt(1, np.full(8, 4, np.int32), ALL, A)
    again = sequence(2, [4] * 6, key=A)
    s.submit(again)
    run_step(s, kv)
    assert (again.slot, again.n_cached) == (1, 5)
    assert not s.make_room_for(0, 7), "the running one keeps its cells"


class Histories(RuleBasedStateMachine):
    """Random submissions, cancellations and steps: nothing starves, nothing is mixed up."""

    @initialize(
        n_slots=st.integers(1, 4),
        unified=st.booleans(),
        n_batch=st.integers(4, 16),
        cuttable=st.booleans(),
        similarity=st.sampled_from([0.0, 0.1, 0.9]),
        continuous=st.booleans(),
        shiftable=st.booleans(),
        shifts=st.booleans(),
    )
    def begin(
        self,
        n_slots: int,
        unified: bool,
        n_batch: int,
        cuttable: bool,
        similarity: float,
        continuous: bool,
        shiftable: bool,
        shifts: bool,
    ) -> None:
        self.kv = FakeKV(24 if unified else None, 24, cuttable, shiftable)
        self.shifts = shifts
        self.shifted: set[int] = set()
        self.s = scheduler(
            self.kv, n_slots, n_batch=n_batch, similarity=similarity, continuous=continuous
        )
        self.n_batch, self.n_slots = n_batch, n_slots
        self.limits: dict[int, int] = {}
        self.alive: dict[int, Sequence] = {}
        self.next_id = 0

    @rule(
        tokens=st.lists(st.integers(0, 2), min_size=1, max_size=20),
        n_predict=st.integers(1, 30),
        pinned=st.booleans(),
        cache=st.booleans(),
        n_reuse=st.integers(0, 3),
        key=st.sampled_from([(), (), A, B]),
    )
    def submit(
        self,
        tokens: list[int],
        n_predict: int,
        pinned: bool,
        cache: bool,
        n_reuse: int,
        key: Key,
    ) -> None:
        self.next_id += 1
        slot = self.next_id % self.n_slots if pinned else -1
        new = sequence(
            self.next_id, tokens, id_slot=slot, cache_prompt=cache, n_reuse=n_reuse, key=key
        )
        self.alive[new.id] = new
        self.limits[new.id] = n_predict
        self.s.submit(new)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.alive)))
        assert self.s.cancel(id) is self.alive.pop(id)
        assert self.s.cancel(id) is None

    @rule()
    def step(self) -> None:
        chunks = self.s.plan()
        assert chunks or not self.alive, "work is waiting, but nothing is planned"
        assert sum(c.stop - c.start for c in chunks) <= self.n_batch
        assert len({c.sequence.id for c in chunks}) == len(chunks)
        if any(not c.sequence.generating for c in chunks):
            served = {c.sequence.id for c in chunks}
            waiting = [
                q
                for q in self.s.active
                if q.generating and q.n_pending == 1 and q.key == chunks[0].sequence.key
            ]
            assert all(q.id in served for q in waiting), "a prompt held generation up"
        self.kv.evaluate(chunks)
        self.s.advance(chunks)
        for chunk in chunks:
            if chunk.is_last:
                self._sample(chunk.sequence)

    @rule(n=st.integers(2, 30))
    def steps(self, n: int) -> None:
        """Far enough for contexts to become full."""
        for _ in range(n):
            self.step()

    @rule(slot=st.integers(0, 3))
    def erase(self, slot: int) -> None:
        if slot < self.n_slots and self.s.in_slot(slot) is None:
            n_tokens = len(self.kv.texts.get(slot, []))
            assert self.s.erase(slot) == n_tokens

    @rule(
        slot=st.integers(0, 3),
        tokens=st.lists(st.integers(0, 2), min_size=1, max_size=24),
        key=st.sampled_from([(), A, B]),
    )
    def restore(self, slot: int, tokens: list[int], key: Key) -> None:
        if slot >= self.n_slots or self.s.in_slot(slot) is not None:
            return
        if self.s.make_room_for(slot, len(tokens)):
            self.kv.restore(slot, tokens, key)
            self.s.adopt(slot, np.array(tokens, np.int32), ALL, key)

    @rule()
    def no_room_after_all(self) -> None:
        if self.s.plan():
            self.s.relieve()

    def _sample(self, done: Sequence) -> None:
        done.generating = True
        done.tokens.append(sum(done.tokens.view().tolist()) % 3)
        self.limits[done.id] -= 1
        if not self.limits[done.id] or (len(done.tokens) >= 24 and not self._shift(done)):
            self.s.finish(done)
            del self.alive[done.id]

    def _shift(self, full: Sequence) -> bool:
        if not self.shifts:
            return False
        before = full.tokens.view().tolist()
        n_keep, n_discard = context_shift(full.n_past, 24, full.id % 3, full.n_prompt % 4)
        if not self.s.shift(full, n_keep, n_discard):
            assert not self.kv.shiftable
            assert full.tokens.view().tolist() == before
            return False
        assert full.tokens.view().tolist() == before[:n_keep] + before[n_keep + n_discard :]
        self.shifted.add(full.id)
        return True

    @invariant()
    def what_nobody_asked_to_approximate_is_exact(self) -> None:
        if not hasattr(self, "s"):
            return
        for active in self.s.active:
            exact = self.kv.exact.get(active.slot, [])
            assert all(exact[: active.n_exact])
            if not active.n_reuse and active.id not in self.shifted:
                assert all(exact)

    @invariant()
    def the_cache_claims_what_is_held(self) -> None:
        if not hasattr(self, "s"):
            return
        for slot in range(self.n_slots):
            held = self.kv.texts.get(slot, [])
            active = self.s.in_slot(slot)
            if active is None:
                assert self.s.cache.entry(slot).tokens.tolist() == held
                assert set(self.kv.keys.get(slot, [])) <= {self.s.cache.entry(slot).key}
            else:
                assert active.slot == slot
                assert active.tokens.view(0, active.n_past).tolist() == held

    def teardown(self) -> None:
        if not hasattr(self, "s"):
            return
        for _ in range(2000):
            if not self.alive:
                break
            self.step()
        assert not self.alive, "somebody starved"
        assert not self.s.has_work


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
