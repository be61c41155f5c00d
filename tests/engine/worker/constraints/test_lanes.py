"""The lanes of trials, with sources that only report their costs."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from contract_tests.kit.server import SECONDS
from specllama.engine.worker.constraints.trial import BusyError, Lane, TooCostlyError, TrialLanes

LANES = (1.0, 2.0, 3.0)


@dataclass(eq=False)
class Source:
    """Takes as many lanes as `cost` says; `diary` is what all of them did."""

    cost: int
    diary: list["Source"] = field(default_factory=list)
    hold: Callable[[], object] = lambda: None
    tried: int = 0
    errors: list[Exception] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def attempt(self, lane: Lane, *, is_last: bool) -> None:
        self.tried += 1
        self.diary.append(self)
        self.hold()
        assert is_last == (self.tried == len(LANES))
        if self.tried <= self.cost:
            raise TooCostlyError
        self.ended.set()

    def fail(self, error: Exception) -> None:
        self.errors.append(error)
        self.ended.set()


@contextmanager
def lanes(**options: int) -> Iterator[TrialLanes]:
    made = TrialLanes(LANES, **options)
    try:
        yield made
    finally:
        made.close()


@given(costs=st.lists(st.integers(0, 3), max_size=30))
def test_everything_ends_once(costs: list[int]) -> None:
    with lanes() as each:
        sources = [Source(cost) for cost in costs]
        for source in sources:
            each.enter(source)
        assert all(source.ended.wait(SECONDS) for source in sources)
    for source in sources:
        assert source.tried == min(source.cost + 1, len(LANES))
        assert len(source.errors) == (source.cost == len(LANES))


@given(n=st.integers(0, 100), cost=st.integers(0, 3))
def test_a_cheap_source_waits_for_two_at_most(n: int, cost: int) -> None:
    """At most the running trial and one more, whatever was sent before."""
    gate = threading.Event()
    diary: list[Source] = []
    with lanes(max_waiting=n) as each:
        running = Source(0, diary, lambda: gate.wait(SECONDS))
        cheap = Source(0, diary)
        each.enter(running)
        for _ in range(n):
            each.enter(Source(cost, diary))
        each.enter(cheap)
        gate.set()
        assert cheap.ended.wait(SECONDS)
    assert diary.index(cheap) <= 2 + sum(source.tried > 1 for source in diary)


def test_costly_sources_delay_only_costly_ones() -> None:
    gate = threading.Event()
    second: list[Source] = []

    def hold() -> None:
        if costly.tried == 2:
            gate.wait(SECONDS)

    with lanes() as each:
        costly = Source(1, second, hold)
        each.enter(costly)
        for _ in range(5):
            cheap = Source(0)
            each.enter(cheap)
            assert cheap.ended.wait(SECONDS)
        assert not costly.ended.is_set()
        gate.set()
        assert costly.ended.wait(SECONDS)


def test_too_many_costly_sources_are_refused_and_cheap_ones_never() -> None:
    gate = threading.Event()
    begun = threading.Event()

    def hold() -> None:
        if first.tried == 2:
            begun.set()
            gate.wait(SECONDS)

    with lanes(max_waiting=2) as each:
        first = Source(1, hold=hold)
        each.enter(first)
        assert begun.wait(SECONDS)
        others = [Source(1) for _ in range(5)]
        for source in others:
            each.enter(source)
        cheap = Source(0)
        each.enter(cheap)
        assert cheap.ended.wait(SECONDS)
        while sum(source.tried for source in others) < len(others):
            each.submit(lambda: None).result(SECONDS)
        each.submit(lambda: None).result(SECONDS)  # the last of them has continued, too
        assert sum(bool(source.errors) for source in others) == 3
        gate.set()
        assert all(source.ended.wait(SECONDS) for source in others)
    for source in others:
        assert all(isinstance(error, BusyError) for error in source.errors)


def test_who_leaves_is_not_tried() -> None:
    gate = threading.Event()
    with lanes() as each:
        running = Source(0, hold=lambda: gate.wait(SECONDS))
        each.enter(running)
        gone, stays = Source(0), Source(0)
        each.enter(gone)
        each.enter(stays)
        assert each.withdraw(gone)
        assert not each.withdraw(gone)
        gate.set()
        assert stays.ended.wait(SECONDS)
    assert (gone.tried, gone.errors) == (0, [])


def test_other_work_has_its_turn_and_its_errors() -> None:
    with lanes() as each:
        assert each.submit(lambda: 3).result(SECONDS) == 3
        failed = each.submit(lambda: 1 // 0)
        assert isinstance(failed.exception(SECONDS), ZeroDivisionError)
