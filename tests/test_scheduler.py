"""The scheduler against a KV cache that checks as strictly as llama.cpp does."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.checkpoints import LAST_MESSAGE, NEAR_END, STEP, State
from engine.prefix_cache import ALL, Found, Key
from engine.scheduler import KEY_STEPS, Scheduler
from engine.sequences import Chunk, Sequence, shares
from engine.shifting import context_shift
from engine.tokens import TokenArray, TokenBuffer, common_prefix

A, B = ((0, 1.0),), ((0, 0.5), (1, 1.0))


@dataclass(eq=False)
class Cell:
    """What one cell of the cache holds, and of how many sequences it is a part."""

    token: int
    key: Key
    exact: bool
    owners: set[int]


class FakeKV:
    """Cells by sequence id and position. `cuttable=False` behaves like a recurrent model's
    memory, or, with a `window`, like one of which the last `window` tokens (and a few more) are
    held. `n_cells` None stands for separate caches.

    `exact` tells of each cell whether it is what its token gives behind the tokens before it: not
    if it was moved, or computed from such cells.
    """

    def __init__(
        self,
        n_cells: int | None,
        n_ctx: int,
        cuttable: bool = True,
        shiftable: bool = True,
        window: int = 0,
    ) -> None:
        self.n_cells, self.n_ctx = n_cells, n_ctx
        self.is_cuttable, self.window = cuttable, window
        self.lost: dict[int, int] = {}  # how many tokens have left the window
        self.saved: dict[int, tuple[list[int], Key]] = {}  # by number: what a state is of
        self.n_rewound = 0
        self.cuttable, self.shiftable = cuttable, cuttable and shiftable
        self.cells: dict[int, list[Cell]] = {}
        self.n_copied = 0

    def text(self, sequence: int) -> list[int]:
        return [cell.token for cell in self.cells.get(sequence, [])]

    @property
    def n_used(self) -> int:
        return len({id(cell) for held in self.cells.values() for cell in held})

    def remove(self, sequence: int, start: int) -> bool:
        if 0 < start < self.first_cut(sequence):
            return False
        self._cut(sequence, start)
        return True

    def _cut(self, sequence: int, start: int) -> None:
        held = self.cells.get(sequence, [])
        for cell in held[start:]:
            cell.owners.discard(sequence)
        self.cells[sequence] = held[:start]
        if not start:
            self.lost.pop(sequence, None)

    def first_cut(self, sequence: int) -> int:
        if self.cuttable:
            return 0
        n_held = len(self.cells.get(sequence, []))
        if not self.window:
            return n_held
        lost = self.lost.get(sequence, 0)
        return min(n_held, lost + self.window) if lost else 0

    def _lose(self, sequence: int) -> None:
        n_left = len(self.cells[sequence]) - self.window - self.window // 2
        if self.window and n_left > self.lost.get(sequence, 0):
            self.lost[sequence] = n_left

    def save(self, sequence: int) -> State | None:
        assert not self.cuttable, "there is no need for checkpoints"
        held = self.cells[sequence]
        number = len(self.saved)
        self.saved[number] = [cell.token for cell in held], held[0].key
        return np.array([number], np.uint32).view(np.uint8)

    def rewind(self, sequence: int, n: int, state: State) -> bool:
        assert len(self.cells.get(sequence, [])) >= n, "cells are missing"
        tokens, key = self.saved[int(state.view(np.uint32)[0])]
        held = self.cells[sequence][:n]
        assert [cell.token for cell in held] == tokens, "the state is of another text"
        assert {cell.key for cell in held} == {key}, "the state was computed under another key"
        assert all(cell.exact for cell in held)
        self._cut(sequence, n)
        if self.window and n > self.window:
            self.lost[sequence] = n - self.window
        self.n_rewound += 1
        return True

    def cut_out(self, sequence: int, start: int, stop: int) -> bool:
        held = self.cells[sequence]
        assert 0 <= start < stop < len(held), "drop held cells, and keep some behind them"
        if not self.shiftable:
            return False
        for cell in held[stop:]:
            assert cell.owners == {sequence}, "somebody else's cells are moved"
            cell.exact = False
        for cell in held[start:stop]:
            cell.owners.discard(sequence)
        self.cells[sequence] = held[:start] + held[stop:]
        return True

    def copy(self, source: int, target: int, n: int, state: State | None = None) -> bool:
        held = self.cells[source]
        assert not self.cells.get(target), "the target of a copy holds cells"
        assert 0 < n <= len(held), "more is copied than is held"
        is_cut = n < self.first_cut(source)
        if is_cut and state is None:
            return False
        if self.n_cells is None:
            self.cells[target] = [Cell(c.token, c.key, c.exact, {target}) for c in held[:n]]
        else:
            for cell in held[:n]:
                cell.owners.add(target)
            self.cells[target] = held[:n]
        if lost := self.lost.get(source, 0):
            self.lost[target] = lost
        self.n_copied += n
        return not is_cut or state is None or self.rewind(target, n, state)

    def restore(self, sequence: int, tokens: list[int], key: Key) -> None:
        assert not self.cells.get(sequence)
        self.cells[sequence] = [Cell(token, key, True, {sequence}) for token in tokens]
        self._lose(sequence)
        self._check_cells()

    def evaluate(self, chunks: list[Chunk]) -> None:
        assert len({chunk.sequence.key for chunk in chunks}) <= 1, "keys are mixed in one step"
        for chunk in chunks:
            id, key = chunk.sequence.seq_id, chunk.sequence.key
            held = self.cells.setdefault(id, [])
            assert len(held) == chunk.start, "positions must continue without a gap"
            assert {cell.key for cell in held} <= {key}, "cells of another key are used"
            exact = all(cell.exact for cell in held)
            tokens = chunk.sequence.tokens.view(chunk.start, chunk.stop).tolist()
            self.cells[id] = held + [Cell(token, key, exact, {id}) for token in tokens]
            assert len(self.cells[id]) <= self.n_ctx
            self._lose(id)
        self._check_cells()

    def _check_cells(self) -> None:
        if self.n_cells is not None:
            assert self.n_used <= self.n_cells, "no free cell"


class FakeTier:
    """A tier that takes everything, after a look whether it is what it is said to be. What is
    found takes `delay` looks to be fetched; every `fails`th restoration fails."""

    def __init__(self, kv: FakeKV, delay: int = 0, fails: int = 0) -> None:
        self.kv, self.delay, self.fails = kv, delay, fails
        self.kept: list[tuple[TokenArray, Key]] = []
        self.looks: dict[int, int] = {}
        self.n_restorations = 0

    def offer(self, sequence: int, tokens: TokenArray, key: Key) -> None:
        cells = self.kv.cells[sequence]
        assert [cell.token for cell in cells] == tokens.tolist()
        assert all(cell.exact and cell.key == key for cell in cells)
        self.kept.append((tokens.copy(), key))

    def find(self, tokens: TokenArray, key: Key, n_held: int) -> Found | None:
        best, found = n_held, None
        for i, (text, its_key) in enumerate(self.kept):
            n = common_prefix(text, tokens)
            if its_key == key and n > best and (n == len(text) or self.kv.cuttable):
                best, found = n, i
        if found is None:
            return None
        self.looks[found] = self.looks.get(found, 0) + 1
        length = len(self.kept[found][0])
        return Found(best, length, found if self.looks[found] > self.delay else None)

    def restore(self, sequence: int, found: Found) -> bool:
        self.n_restorations += 1
        assert isinstance(found.text, int)
        tokens, key = self.kept[found.text]
        if self.fails and self.n_restorations % self.fails == 0:
            return False
        self.kv.restore(sequence, tokens.tolist(), key)
        return True


def sequence(id: int, tokens: list[int], **kwargs: Any) -> Sequence:
    array = np.array(tokens, np.int32)
    return Sequence(id=id, tokens=TokenBuffer(array), n_prompt=len(tokens), **kwargs)  # type: ignore[arg-type]


def finish_one(s: Scheduler, kv: FakeKV, id: int, tokens: list[int], **kwargs: Any) -> Sequence:
    """Serve a text alone, to its first token."""
    one = sequence(id, tokens, **kwargs)
    s.submit(one)
    while not one.generating:
        run_step(s, kv)
    s.finish(one)
    return one


def scheduler(kv: FakeKV, n_slots: int = 2, **kwargs: Any) -> Scheduler:
    arguments: dict[str, Any] = {"n_batch": 8, "n_cells": kv.n_cells, **kwargs}
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
    assert kv.text(again.seq_id) == [1, 2, 5]


def cached(s: Scheduler, kv: FakeKV, *texts: list[int]) -> list[int]:
    """How much of each text was held when it came after the others."""
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
    s = scheduler(kv, n_slots=1, n_checkpoints=3, n_batch=1024)
    n = 3 * STEP + 5
    assert cached(s, kv, list(range(n))) == [0]
    (held,) = s.cache.checkpoints.values()
    assert [c.n for c in held] == [STEP, 2 * STEP, n - NEAR_END]
    assert len(kv.saved) == 4
    assert n - NEAR_END - LAST_MESSAGE in [len(tokens) for tokens, _ in kv.saved.values()]


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


def held_after(kv: FakeKV, first: list[int], second: list[int], **kwargs: Any) -> Sequence:
    """The second text in the slot that served the first."""
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


def test_moved_cells_are_for_those_who_asked_only() -> None:
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
    assert (s.erase(0), s.erase(0), kv.n_used) == (3, 0, 0)
    id = s.adopt(1, np.full(8, 4, np.int32), ALL, A)
    assert id is not None
    kv.restore(id, [4] * 8, A)
    again = sequence(2, [4] * 6, key=A)
    s.submit(again)
    run_step(s, kv)
    assert (again.slot, again.n_cached) == (1, 5)
    new = np.full(7, 5, np.int32)
    assert s.adopt(0, new, ALL, ()) is None, "the running one keeps its cells"


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


def together(kv: FakeKV, n: int, **kwargs: Any) -> tuple[Scheduler, list[Sequence]]:
    """`n` texts with 32 tokens in common and 4 of their own, submitted at once."""
    s = scheduler(kv, n_slots=n, n_sequences=2 * n, **kwargs)
    prefix = list(range(32))
    texts = [sequence(id, [*prefix, *4 * [id]]) for id in range(100, 100 + n)]
    for one in texts:
        s.submit(one)
    return s, texts


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
    s.cancel(texts[0].id)
    run_step(s, kv)
    assert [one.n_cached for one in texts[1:]] == [16, 0]
    while not all(one.generating for one in texts[1:]):
        run_step(s, kv)
    assert texts[2].n_shared == 32


def test_followers_let_others_pass() -> None:
    kv = FakeKV(1024, 128)
    s, _ = together(kv, 3)
    other = sequence(200, [9, 9])
    s.submit(other)
    run_step(s, kv)
    assert other.slot >= 0


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


def test_a_shift_leaves_what_others_share() -> None:
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


def test_prompts_share_a_limited_step() -> None:
    kv = FakeKV(1024, 256)
    s = scheduler(kv, n_slots=4, n_batch=64)
    s.submit(sequence(1, [1]))
    run_step(s, kv)
    for id, n in ((2, 100), (3, 3), (4, 50)):
        s.submit(sequence(id, [id] * n))
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


def test_what_was_cut_is_no_burst_any_more() -> None:
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
        chunks[0].sequence.tokens.append(7)


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
    run_step(s, kv)
    assert [c.sequence.seq_id for c in s.plan()] == [0, 1, 2]


def test_shares_of_a_step() -> None:
    prompts = [sequence(1, [0] * 100), sequence(2, [0] * 3), sequence(3, [0] * 50)]
    assert [n for _, n in shares(prompts, 20)] == [10, 3, 7]
    assert [n for _, n in shares(prompts, 1000)] == [100, 3, 50]
    assert shares(prompts, 0) == []
    assert [(s.id, n) for s, n in shares(prompts, 1)] == [(1, 1)]


def test_what_was_given_up_comes_back() -> None:
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
    texts = [(tokens.tolist(), key) for _, tokens, key in s.finished()]
    assert texts == [([2] * 5, A), ([1] * 5, ())]
    assert not s.active


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
        n_more=st.integers(0, 3),
        window=st.sampled_from([0, 0, 4]),
        n_checkpoints=st.sampled_from([0, 1, 3]),
        tier=st.sampled_from([None, (0, 0), (2, 0), (0, 2), (3, 3)]),
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
        n_more: int,
        window: int,
        n_checkpoints: int,
        tier: tuple[int, int] | None,
    ) -> None:
        self.kv = FakeKV(24 if unified else None, 24, cuttable, shiftable, window)
        self.n_checkpoints = n_checkpoints
        self.tier = FakeTier(self.kv, *tier) if tier is not None else None
        self.shifts = shifts
        self.shifted: set[int] = set()
        self.s = scheduler(
            self.kv,
            n_slots,
            n_batch=n_batch,
            n_sequences=n_slots + n_more,
            n_checkpoints=n_checkpoints,
            similarity=similarity,
            continuous=continuous,
            tier=self.tier,
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
        if not chunks and self.tier is not None and not self.s.active:
            return  # it may be fetching
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
            found = self.s.cached(slot)
            n_tokens = 0 if found is None else len(self.kv.text(found[0]))
            assert self.s.erase(slot) == n_tokens

    @rule(
        slot=st.integers(0, 3),
        tokens=st.lists(st.integers(0, 2), min_size=1, max_size=24),
        key=st.sampled_from([(), A, B]),
    )
    def restore(self, slot: int, tokens: list[int], key: Key) -> None:
        if slot >= self.n_slots or self.s.in_slot(slot) is not None:
            return
        id = self.s.adopt(slot, np.array(tokens, np.int32), ALL, key)
        if id is not None:
            self.kv.restore(id, tokens, key)

    @rule(n=st.integers(1, 3))
    def give_up(self, n: int) -> None:
        for _ in range(n):
            self.s.cache.evict()

    @precondition(lambda self: self.tier is not None and self.tier.kept)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 2), max_size=5))
    def come_back(self, data: st.DataObject, tokens: list[int]) -> None:
        """Somebody goes on with a text that the tier has, or with a part of it."""
        assert self.tier is not None
        kept, key = data.draw(st.sampled_from(self.tier.kept))
        n = data.draw(st.integers(0, len(kept)))
        wanted = [*kept[:n].tolist(), *tokens][:20] or [0]
        self.submit(wanted, data.draw(st.integers(1, 30)), False, True, 0, key)

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
            exact = [cell.exact for cell in self.kv.cells.get(active.seq_id, [])]
            assert all(exact[: active.n_exact])
            if not active.n_reuse and active.id not in self.shifted:
                assert all(exact)

    @invariant()
    def the_cache_claims_what_is_held(self) -> None:
        if not hasattr(self, "s"):
            return
        claimed = {active.seq_id: active for active in self.s.active}
        assert not claimed.keys() & self.s.cache.entries.keys()
        for id, held in self.kv.cells.items():
            assert all(id in cell.owners for cell in held)
            keys = {cell.key for cell in held}
            if (active := claimed.get(id)) is not None:
                assert self.s.in_slot(active.slot) is active
                assert active.tokens.view(0, active.n_past).tolist() == self.kv.text(id)
            elif (entry := self.s.cache.entries.get(id)) is not None:
                assert entry.tokens.tolist() == self.kv.text(id)
                assert keys == {entry.key}
            else:
                assert not held, "cells that nobody knows of"
        held = self.s.cache.checkpoints
        assert held.keys() <= claimed.keys() | self.s.cache.entries.keys()
        assert all(len(each) <= self.n_checkpoints for each in held.values())
        for id, each in held.items():
            for checkpoint in each:
                tokens, _ = self.kv.saved[int(checkpoint.state.view(np.uint32)[0])]
                assert tokens == self.kv.text(id)[: checkpoint.n]
        labels = [entry.slot for entry in self.s.cache.entries.values() if entry.slot >= 0]
        assert len(labels) == len(set(labels)), "two last texts of one slot"
        if self.kv.n_cells is not None:
            assert self.s.n_cells_used == self.kv.n_used

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
