"""Idle texts leave a unified KV cache for the second tier when they have delayed other texts."""

from typing import Any

import pytest

from specllama.engine.worker.scheduling import idle
from specllama.engine.worker.scheduling.scheduler import Scheduler
from tests.support.fake_kv import FakeKV, FakeTier
from tests.support.scheduling import finish_one, run_step, scheduler, sequence

N_CELLS = 256
LONG = [*range(100, 160)]


@pytest.fixture(autouse=True)
def small_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "MIN_CELLS", 8)
    monkeypatch.setattr(idle, "ROWS_OF_STEP", 0)


class Stage:
    """A scheduler with two slots; idle texts are worth moving after `rows` rows."""

    def __init__(self, rows: int = 50, n_cells: int | None = N_CELLS, **options: Any) -> None:
        self.kv = FakeKV(n_cells, N_CELLS)
        self.tier = FakeTier(self.kv)
        self.tier.rows = rows
        self.s: Scheduler = scheduler(self.kv, n_slots=2, tier=self.tier, n_sequences=8, **options)
        self.s.slots.queue.mean_answer = 0
        self.n_texts = 0

    def finish(self, tokens: list[int]) -> int:
        """Serves a text, and returns the number of its tokens that came from the tier."""
        self.n_texts += 1
        return finish_one(self.s, self.kv, self.n_texts, tokens).n_restored

    @property
    def held(self) -> list[list[int]]:
        return [entry.tokens.tolist() for entry in self.s.cache.entries.values()]

    @property
    def kept(self) -> list[list[int]]:
        return [tokens.tolist() for tokens, _ in self.tier.kept]


def test_a_text_leaves_after_enough_rows_and_comes_back() -> None:
    one = Stage(rows=50)
    one.finish(LONG)
    for first in (0, 20):
        one.finish([*range(first, first + 16)])
        assert LONG in one.held, "32 rows have passed, and are about to"
    one.finish([*range(40, 60)])
    assert (LONG in one.held, one.kept) == (False, [LONG])
    assert one.finish([*LONG, 1, 2]) == len(LONG)


def test_the_pending_rows_of_a_new_text_count() -> None:
    one = Stage(rows=50)
    one.finish(LONG)
    new = sequence(9, [*range(55)])
    one.s.submit(new)
    one.s.plan()
    assert (new.n_past, one.held, one.kept) == (0, [], [LONG]), "before its first token"


def test_the_expected_answers_count() -> None:
    for n_predict, stays in ((20, True), (40, False)):
        one = Stage(rows=50)
        one.finish(LONG)
        one.s.slots.queue.mean_answer = 100
        one.s.submit(sequence(9, [*range(15)], n_predict=n_predict))
        one.s.plan()
        assert (LONG in one.held) == stays


def test_a_shared_prefix_stays() -> None:
    one = Stage(rows=50)
    one.finish(LONG)
    running = sequence(9, [*LONG[:55], *range(80)])
    one.s.submit(running)
    for _ in range(12):
        run_step(one.s, one.kv)
    assert (running.n_shared, one.held) == (55, [LONG])
    one.finish([*range(200, 240)])
    assert one.held[0] == LONG, "most of its cells are in use"
    one.s.finish(running)


def test_texts_with_a_common_prefix_count_its_cells_once() -> None:
    one = Stage(rows=50)
    ends = [[200, 201], [210, 211], [220, 221]]
    for end in ends:
        one.finish([*LONG, *end])
    one.finish([*range(60)])
    assert len(one.held) == 4, "each delays by a third of its cells"
    one.finish([*range(60, 120)])
    one.finish([*range(120, 180)])
    assert [[*LONG, *end] in one.held for end in ends] == [False] * 3


def test_few_cells_are_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "MIN_CELLS", len(LONG) + 1)
    one = Stage(rows=1)
    one.finish(LONG)
    one.finish([*range(70)])
    assert (one.kept, len(one.held)) == ([], 2)
    one.finish([*range(70, 80)])
    assert len(one.held) == 1, "together with the second text"


def test_a_long_text_bears_an_idle_one_of_a_small_part() -> None:
    one = Stage(rows=1)
    one.finish(LONG[:20])
    one.finish([*range(100)])
    assert one.kept == []


@pytest.mark.parametrize(
    "options", [{"saves_idle": False}, {"n_cells": None}], ids=["not wanted", "separate"]
)
def test_texts_stay(options: dict[str, Any]) -> None:
    one = Stage(rows=1, **options)
    one.finish(LONG)
    one.finish([*range(90)])
    assert (one.kept, len(one.held)) == ([], 2)


class SlowTier(FakeTier):
    """Has time for one text in each step."""

    n_steps = n_asked = n_offered = 0

    def is_worth(self, n_tokens: int, n_bytes: int, n_passed: float) -> bool:
        self.n_asked += 1
        return self.n_offered < self.n_steps and super().is_worth(n_tokens, n_bytes, n_passed)

    def offer(self, *args: Any, **kwargs: Any) -> bool:
        self.n_offered += 1
        return super().offer(*args, **kwargs)


def test_the_next_steps_go_on() -> None:
    kv = FakeKV(N_CELLS, N_CELLS)
    tier = SlowTier(kv)
    tier.rows = 10
    s = scheduler(kv, n_slots=2, tier=tier, n_sequences=8)
    s.slots.queue.mean_answer = 0
    texts = [[*range(first, first + 20)] for first in (100, 200, 300)]
    for id, text in enumerate(texts):
        finish_one(s, kv, id, text)
    s.submit(sequence(9, [*range(30)]))
    left = []
    for _ in range(6):
        tier.n_steps += 1
        run_step(s, kv)
        left.append(len(s.cache.entries))
    assert left == [2, 1, 0, 0, 0, 0]
    asked = tier.n_asked
    run_step(s, kv)
    assert tier.n_asked == asked, "all is done"
