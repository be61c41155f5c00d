"""The order of admission, in random histories of a machine with a few slots."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations, count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from specllama.engine.worker.scheduling.admission import AdmissionQueue
from specllama.engine.worker.scheduling.fairness import AGE_SECONDS, MAX_DEBTORS, QueueTicket

LONGEST = 24  # tokens of a text
WEIGHTS = {0: 1.0, 1: 1.0, 2: 2.0, 3: 0.5}  # by owner


@dataclass(eq=False)
class Text:
    n_prompt: int
    n_answer: int
    expected: int
    n_used: int = 0
    ticket: "QueueTicket[Text]" = field(init=False)

    @property
    def n_left(self) -> int:
        return self.n_prompt + self.n_answer - self.n_used


class Machine:
    """Serves texts in slots, a token of each in every step."""

    def __init__(self, n_slots: int) -> None:
        self.queue: AdmissionQueue[Text] = AdmissionQueue()
        self.n_slots = n_slots
        self.slots: dict[int, Text] = {}
        self.waiting: list[Text] = []
        self.used: dict[tuple[int, ...], int] = {}  # tokens, by owner and by call
        self.now = 0.0
        self.ids = count(1)

    def submit(
        self, n_prompt: int = 1, n_answer: int = 1, expected: int = 1, **kwargs: Any
    ) -> Text:
        text = Text(n_prompt, n_answer, expected)
        owner = kwargs.get("owner", 0)
        kwargs = {"group": 0, "weight": WEIGHTS.get(owner, 1.0), **kwargs}
        text.ticket = QueueTicket(
            item=text, id=next(self.ids), n_tokens=n_prompt, n_answer=expected, **kwargs
        )
        self.queue.add(text.ticket, self.now)
        self.waiting.append(text)
        return text

    def admit(self) -> list[Text]:
        """Fills the idle slots."""
        admitted = []
        idle = [slot for slot in range(self.n_slots) if slot not in self.slots]
        while idle and (ticket := self.queue.first(self.now)) is not None:
            if ticket.pin >= 0 and ticket.pin not in idle:
                self.queue.set_aside(ticket)
                continue
            slot = ticket.pin if ticket.pin >= 0 else idle[0]
            idle.remove(slot)
            text = ticket.item
            self.queue.admit(ticket, self.now, min(text.n_prompt, max(1, text.n_left)))
            self.slots[slot] = text
            self.waiting.remove(text)
            admitted.append(text)
        self.queue.restore()
        return admitted

    def step(self) -> None:
        self.now += 1
        for slot, text in list(self.slots.items()):
            text.n_used += 1
            ticket = text.ticket
            self.queue.use(ticket, 1)
            for key in keys(ticket):
                self.used[key] = self.used.get(key, 0) + 1
            if text.n_left <= 0:
                self.leave(slot)

    def leave(self, slot: int) -> Text:
        text = self.slots.pop(slot)
        self.queue.leave(text.ticket)
        return text

    def queue_again(self, text: Text) -> None:
        """Its prompt is cached by now."""
        text.ticket.n_tokens = 1
        self.queue.add(text.ticket, self.now)
        self.waiting.append(text)


def keys(ticket: "QueueTicket[Text]") -> Iterator[tuple[int, ...]]:
    yield ticket.priority, ticket.owner
    yield ticket.priority, ticket.owner, ticket.group


def bound(n_slots: int, *weights: float) -> float:
    """The proved bound, see `engine.worker.scheduling.fairness`."""
    return (3 * n_slots + 2) * LONGEST / min(weights)


class Histories(RuleBasedStateMachine):
    """Texts come, end, are cancelled, paused and preempted."""

    @initialize(n_slots=st.integers(1, 4))
    def begin(self, n_slots: int) -> None:
        self.machine = Machine(n_slots)
        self.paused: list[Text] = []
        self.least: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}

    @rule(
        owner=st.sampled_from([*WEIGHTS]),
        group=st.integers(0, 2),
        priority=st.sampled_from([0, 0, 0, -1, 2]),
        n_prompt=st.integers(1, LONGEST // 2),
        n_answer=st.integers(0, LONGEST // 2),
        expected=st.integers(0, LONGEST // 2),
        pin=st.sampled_from([-1, -1, -1, -1, 0, 3]),
        n=st.integers(1, 5),
    )
    def submit(self, owner: int, group: int, pin: int, n: int, **kwargs: int) -> None:
        pin = min(pin, self.machine.n_slots - 1)
        for _ in range(n):
            self.machine.submit(owner=owner, group=10 * owner + group, pin=pin, **kwargs)

    @rule(n=st.integers(1, 60))
    def run(self, n: int) -> None:
        for _ in range(n):
            self._admit()
            self.machine.step()

    def _admit(self) -> None:
        machine = self.machine
        machine.admit()
        idle = set(range(machine.n_slots)) - machine.slots.keys()
        assert not any(
            text.ticket.pin < 0 or text.ticket.pin in idle for text in machine.waiting if idle
        ), "a slot is idle, and a text waits for it"
        self._compare()

    def _compare(self) -> None:
        """Compares the tokens of all flows that have always had a text that waits for any slot."""
        waiting = {
            key: text.ticket.weight if len(key) == 2 else 1.0
            for text in self.machine.waiting
            if text.ticket.pin < 0
            for key in keys(text.ticket)
        }
        pairs = [
            (one, other)
            for one, other in combinations(sorted(waiting), 2)
            if len(one) == len(other) and one[: len(one) - 1] == other[: len(one) - 1]
        ]
        pairs += [(other, one) for one, other in pairs]
        least = {}
        for one, other in pairs:
            of_one, of_other = (self.machine.used.get(k, 0) / waiting[k] for k in (one, other))
            more = of_one - of_other
            least[one, other] = min(more, self.least.get((one, other), more))
            limit = bound(self.machine.n_slots, waiting[one], waiting[other])
            assert more - least[one, other] <= limit
        self.least = least

    @precondition(lambda self: self.machine.waiting)
    @rule(data=st.data(), pauses=st.booleans())
    def cancel(self, data: st.DataObject, pauses: bool) -> None:
        text = data.draw(st.sampled_from(self.machine.waiting))
        self.machine.waiting.remove(text)
        self.machine.queue.remove(text.ticket)
        if pauses:
            self.paused.append(text)

    @precondition(lambda self: self.machine.slots)
    @rule(data=st.data(), how=st.sampled_from(["end", "pause", "preempt"]))
    def take_out(self, data: st.DataObject, how: str) -> None:
        text = self.machine.leave(data.draw(st.sampled_from(sorted(self.machine.slots))))
        if how == "pause":
            self.paused.append(text)
        elif how == "preempt":
            self.machine.queue_again(text)

    @rule()
    def resume(self) -> None:
        for text in self.paused:
            self.machine.queue_again(text)
        self.paused.clear()

    @rule(seconds=st.floats(0, 2 * AGE_SECONDS))
    def wait(self, seconds: float) -> None:
        self.machine.now += seconds

    @invariant()
    def the_counts_are_right(self) -> None:
        queue, waiting = self.machine.queue, self.machine.waiting
        assert queue.n_waiting == len(queue) == len(waiting)
        assert queue.n_tokens == sum(text.ticket.n_tokens for text in waiting)
        calls = {(t.ticket.priority, t.ticket.owner, t.ticket.group) for t in waiting}
        assert queue.n_calls == len(calls)

    @invariant()
    def the_order_lists_all(self) -> None:
        listed = [ticket.id for ticket in self.machine.queue.in_order(self.machine.now)]
        assert sorted(listed) == sorted(text.ticket.id for text in self.machine.waiting)

    def teardown(self) -> None:
        if not hasattr(self, "machine"):
            return
        self.resume()
        while self.machine.waiting or self.machine.slots:
            self._admit()
            self.machine.step()
        queue = self.machine.queue
        assert (queue._levels, queue._pinned, queue._aside) == ({}, {}, [])
        assert (queue.n_tokens, queue.n_calls) == (0, 0)


Histories.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestHistories = pytest.mark.slow(Histories.TestCase)


def order(machine: Machine, n: int | None = None) -> list[int]:
    """The owners of the texts, in the order of their admission to a single slot."""
    served: list[int] = []
    while machine.waiting and (n is None or len(served) < n):
        served += [text.ticket.owner for text in machine.admit()]
        while machine.slots:
            machine.step()
    return served


def test_owners_get_tokens_by_their_weights() -> None:
    machine = Machine(1)
    for _ in range(30):
        machine.submit(10, 10, 10, owner=1)  # weight 1
        machine.submit(5, 5, 5, owner=2)  # weight 2
    assert order(machine, 25).count(2) == pytest.approx(20, abs=1), "4 half as long texts for each"


@pytest.mark.parametrize("weight", [0.125, 0.25, 1.0, 4.0])
@pytest.mark.parametrize("n_own", [0, 3])
def test_the_place_of_a_new_text_is_estimated_by_its_weight(weight: float, n_own: int) -> None:
    machine = Machine(1)
    for _ in range(20):
        machine.submit(owner=1)
    for group in range(n_own):
        machine.submit(owner=9, group=100 + group, weight=weight)
    machine.submit(owner=5, priority=-1)
    machine.submit(owner=5, priority=1)
    n_before = machine.queue.n_before(9, weight, 0)
    new = machine.submit(owner=9, group=200, weight=weight)
    place = [*machine.queue.in_order(machine.now)].index(new.ticket)
    assert n_before == pytest.approx(place, abs=1)


def test_many_texts_of_a_call_do_not_delay_another_call() -> None:
    machine = Machine(1)
    for _ in range(64):
        machine.submit(group=1)
    other = machine.submit(group=2)
    machine.admit()
    machine.step()
    machine.step()
    machine.admit()
    assert machine.slots[0] is other


def test_what_is_not_used_is_given_back() -> None:
    machine = Machine(1)
    for _ in range(9):
        machine.submit(2, 0, expected=20, owner=0)
        machine.submit(2, 10, expected=20, owner=1)
    assert order(machine, 7).count(0) == 6


def test_an_owner_that_sends_one_text_after_the_other_pays_its_debts() -> None:
    machine = Machine(1)
    for _ in range(40):
        machine.submit(1, 1, 1, owner=1)
    machine.submit(1, 20, expected=1, owner=0)
    served = []
    for _ in range(30):
        [text] = machine.admit()
        served.append(text.ticket.owner)
        while machine.slots:
            machine.step()
        if text.ticket.owner == 0:
            machine.submit(1, 20, expected=1, owner=0)
    assert served.count(0) <= 4, "21 tokens each, like 10 of the others"


def test_debts_are_bounded() -> None:
    machine = Machine(1)
    for _ in range(9):
        machine.submit(1, 0, 0, owner=-1, pin=0)
    for owner in range(3 * MAX_DEBTORS):
        text = machine.submit(1, 30, 0, owner=owner)
        while text not in machine.admit():
            machine.step()
        machine.leave(0)
        machine.submit(1, 0, 0, owner=-1)
    [level] = machine.queue._levels.values()
    assert len(level._debts) <= MAX_DEBTORS


def test_a_better_priority_comes_first_and_the_others_age() -> None:
    machine = Machine(1)
    for _ in range(3):
        machine.submit(priority=2, owner=2)
    for _ in range(10):
        machine.submit(priority=0, owner=0)
    assert order(machine, 2) == [0, 0]
    machine.now += 2 * AGE_SECONDS + 1
    assert order(machine) == [2, *[0] * 8, 2, 2], "one text of the level, then it ages again"


def test_a_level_that_is_not_passed_over_does_not_age() -> None:
    """Otherwise, a text that waited long for a slot could never be preempted."""
    machine = Machine(1)
    for _ in range(2):
        machine.submit(priority=1)
    machine.now += 9 * AGE_SECONDS
    [text] = machine.admit()
    assert text.ticket.rank == 1


def test_the_urgent_ticket_is_the_first_one_of_the_best_level() -> None:
    machine = Machine(1)
    assert machine.queue.urgent() is None
    old = machine.submit(priority=1)
    new = machine.submit(priority=0)
    machine.submit(priority=0)
    ticket = machine.queue.urgent()
    assert ticket is not None
    assert (ticket.item, machine.queue.best_priority) == (new, 0)
    assert [each.item for each in machine.queue.in_order(0.0)][-1] is old


@settings(max_examples=25, deadline=None)
@given(
    n_slots=st.integers(1, 3),
    n_texts=st.integers(1, 3),
    sizes=st.lists(st.integers(1, LONGEST), min_size=1, max_size=8),
    fresh=st.booleans(),
)
def test_no_text_starves(n_slots: int, n_texts: int, sizes: list[int], fresh: bool) -> None:
    """Others always come, of the same owner or of new ones, more than can be served."""
    machine = Machine(n_slots)
    mine = [machine.submit(LONGEST // 2, LONGEST // 2, owner=1) for _ in range(n_texts)]
    steps = 0
    while any(text in machine.waiting for text in mine):
        while len(machine.waiting) < 20:
            n = next(machine.ids)
            size = sizes[n % len(sizes)]
            machine.submit(size, 0, 0, owner=n if fresh else 1, group=n)
        machine.admit()
        machine.step()
        steps += 1
        assert steps < 20 * (3 * n_slots + 2) * LONGEST


def test_pinned_texts_wait_for_their_slot_by_priority() -> None:
    machine = Machine(2)
    machine.submit(1, 9, pin=0)
    machine.admit()
    late, soon = machine.submit(pin=0, priority=1), machine.submit(pin=0)
    other = machine.submit()
    assert machine.admit() == [other]
    order = []
    while machine.waiting:
        machine.step()
        order += machine.admit()
    assert order == [soon, late]


@settings(max_examples=50, deadline=None)
@given(
    texts=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 9), st.integers(0, 2)),
        max_size=30,
    )
)
def test_the_listed_order_is_the_order(texts: list[tuple[int, int, int, int]]) -> None:
    machine = Machine(1)
    for owner, group, n, priority in texts:
        machine.submit(n, 0, 0, owner=owner, group=10 * owner + group, priority=priority)
    machine.queue.first(0.0)
    listed = [ticket.item for ticket in machine.queue.in_order(0.0)]
    served: list[Text] = []
    while machine.waiting:
        served += machine.admit()
        for slot in list(machine.slots):
            machine.queue.use(machine.slots[slot].ticket, machine.slots[slot].n_prompt)
            machine.leave(slot)
    assert [t.ticket.id for t in served] == [t.ticket.id for t in listed]


def test_jobs_are_served_in_parts() -> None:
    """A job with many inputs, and one with a few."""
    queue: AdmissionQueue[list[int]] = AdmissionQueue()
    many, few = [10] * 100, [10] * 3
    for id, job in enumerate((many, few)):
        queue.add(QueueTicket(item=job, id=id, group=id, n_tokens=job[0]), 0.0)
    served = []
    for _ in range(6):
        ticket = queue.first(0.0)
        assert ticket is not None
        served.append(ticket.id)
        ticket.item.pop()
        if ticket.item:
            queue.serve_part(ticket, 0.0, ticket.item[-1])
        else:
            queue.admit(ticket, 0.0)
            queue.leave(ticket)
    assert served == [0, 1, 0, 1, 0, 1]
    assert queue.n_waiting == 1
