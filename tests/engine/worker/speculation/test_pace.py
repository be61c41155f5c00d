"""The number of proposed tokens, on simulated machines."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from specllama.engine.worker.scheduling.step_clock import StepClock
from specllama.engine.worker.scheduling.sweep import Sweep, measure
from specllama.engine.worker.speculation.pace import PLAIN, Offer, Pace, ProposalRecord
from tests.support.speculating import Timed

pytestmark = pytest.mark.slow

Cost = Callable[[int], float]
"""Seconds of a step by its rows."""


def flat_gpu(rows: int) -> float:
    return 0.012 + 0.00002 * rows


def bandwidth_cpu(rows: int) -> float:
    """The weights are read once for some rows; then computing takes longer."""
    return max(0.040 + 0.0015 * rows, 0.006 * rows)


def steep_cpu(rows: int) -> float:
    """Every row costs nearly as much as the first one."""
    return 0.002 + 0.009 * rows


def stairs(rows: int) -> float:
    """Kernels for one row, up to eight, up to thirty-two."""
    return {1: 0.010, 2: 0.016}.get(rows, 0.016 if rows <= 8 else 0.030 if rows <= 32 else 0.1)


MACHINES = [flat_gpu, bandwidth_cpu, steep_cpu, stairs]


def sweep_of(cost: Cost) -> Sweep:
    return measure(lambda lengths, _: cost(sum(lengths)), n_most=512, n_sequences=4, n_rows=64)


@dataclass
class Simulation:
    """`n` sequences whose proposals are right with the chance `p` at each place."""

    cost: Cost
    n: int
    p: float
    target: float = 0.0
    n_each: int = 8
    is_swept: bool = True
    length: int = 0
    """Tokens after which a sequence ends and another begins; 0: never."""
    rng: random.Random = field(default_factory=lambda: random.Random(7))

    def __post_init__(self) -> None:
        self.pace = Timed(self.target, 512, sweep_of(self.cost) if self.is_swept else None)
        self.records = [ProposalRecord() for _ in range(self.n)]
        self.said = [0] * self.n
        self.rows: list[int] = []
        self.seconds: list[float] = []

    def run(self, steps: int) -> float:
        """Tokens per second, as a multiple of those without proposals."""
        tokens, seconds = 0, 0.0
        for _ in range(steps):
            offers = [Offer(record, "source", self.n_each) for record in self.records]
            chosen = self.pace.choose(self.n, offers)
            took = self.cost(self.n + sum(chosen)) * self.rng.choice([1, 1, 1, 1.05, 1.3])
            for at, (offer, k) in enumerate(zip(offers, chosen, strict=True)):
                right = 0
                while right < k and self.rng.random() < self.p:
                    right += 1
                self.pace.verified(offer.record, "source", k, right)
                tokens += 1 + right
                self._count(at, 1 + right)
            self.pace.observe(self.n, sum(chosen), took)
            self.rows.append(sum(chosen))
            self.seconds.append(took)
            seconds += took
        noise = (3 + 1.05 + 1.3) / 5
        return tokens / seconds / (self.n / (self.cost(self.n) * noise))

    def _count(self, at: int, n: int) -> None:
        self.said[at] += n
        if self.length and self.said[at] >= self.length:
            self.records[at] = ProposalRecord()
            self.said[at] = 0


def expected(cost: Cost, n: int, p: float, n_each: int) -> float:
    """The most that can be gained with as many tokens for each sequence."""
    each = [(1 + sum(p**i for i in range(1, k + 1)), n + n * k) for k in range(n_each + 1)]
    return max(n * t / cost(rows) for t, rows in each) / (n / cost(n))


@pytest.mark.covering(2)
@pytest.mark.parametrize("cost", MACHINES)
@pytest.mark.parametrize("length", [0, 100])
@pytest.mark.parametrize("n", [1, 4, 8])
def test_a_useless_source_costs_next_to_nothing(cost: Cost, n: int, length: int) -> None:
    assert Simulation(cost, n, 0.0, length=length).run(1000) >= 0.98


@pytest.mark.covering(2)
@pytest.mark.parametrize("cost", MACHINES)
@pytest.mark.parametrize("p", [0.4, 0.75, 0.95])
@pytest.mark.parametrize("n", [1, 4, 8])
def test_a_source_that_is_often_right_gains(cost: Cost, n: int, p: float) -> None:
    possible = expected(cost, n, p, 8)
    gained = Simulation(cost, n, p).run(1500)
    assert gained - 1 >= 0.5 * (possible - 1) - 0.08


@pytest.mark.covering(2)
@pytest.mark.parametrize("cost", MACHINES)
@pytest.mark.parametrize("p", [0.2, 0.4, 0.6, 0.75, 0.95])
@pytest.mark.parametrize("n", [1, 4, 8])
def test_no_text_becomes_slower(cost: Cost, n: int, p: float) -> None:
    assert Simulation(cost, n, p).run(1500) >= 0.96


@pytest.mark.parametrize("cost", [flat_gpu, bandwidth_cpu])
def test_a_change_is_followed(cost: Cost) -> None:
    simulation = Simulation(cost, 4, 0.0)
    simulation.run(600)
    simulation.p = 0.9
    simulation.run(150)
    assert simulation.run(200) >= 0.8 * expected(cost, 4, 0.9, 8)
    simulation.p = 0.0
    simulation.run(100)
    assert simulation.run(400) >= 0.98


def test_a_machine_that_changes_is_followed() -> None:
    simulation = Simulation(flat_gpu, 1, 0.75)
    assert simulation.run(400) > 2
    simulation.cost = lambda rows: 0.012 * rows
    simulation.run(3 * PLAIN)
    assert simulation.run(400) >= 0.95


def test_one_that_copies_beside_those_that_do_not() -> None:
    """The rows go to the sequences that benefit from them."""
    pace, rng = Timed(0.0, 512, sweep_of(bandwidth_cpu)), random.Random(1)
    records, given = [ProposalRecord() for _ in range(4)], [0, 0, 0, 0]
    for step in range(500):
        chosen = pace.choose(4, [Offer(record, "source", 8) for record in records])
        for id, k in enumerate(chosen):
            pace.verified(records[id], "source", k, k if id == 2 else 0)
            given[id] += k * (step > 250)
        seconds = bandwidth_cpu(4 + sum(chosen)) * rng.choice([1, 1.05])
        pace.observe(4, sum(chosen), seconds)
    assert given[2] > 1000
    assert sum(given) - given[2] < 40


def test_steps_keep_their_target() -> None:
    simulation = Simulation(bandwidth_cpu, 4, 0.95, target=0.060)
    simulation.run(800)
    tail = simulation.rows[400:]
    assert sum(bandwidth_cpu(4 + n) > 0.066 for n in tail) < 0.2 * len(tail)
    assert max(tail) > 0


def test_few_are_none_if_few_are_of_no_use() -> None:
    pace, record = Timed(0.0, 512, sweep_of(steep_cpu)), ProposalRecord()
    for _ in range(300):
        (k,) = pace.choose(1, [Offer(record, "source", 6, n_min=5)])
        assert k in (0, 5, 6)
        pace.verified(record, "source", k, 0)
        pace.observe(1, k, steep_cpu(1 + k))


def test_no_more_than_a_batch_has_room_for() -> None:
    pace, records = Timed(0.0, 16, sweep_of(flat_gpu)), [ProposalRecord() for _ in range(8)]
    for _ in range(100):
        chosen = pace.choose(8, [Offer(record, "source", 30) for record in records])
        assert sum(chosen) <= 8
        for record, k in zip(records, chosen, strict=True):
            pace.verified(record, "source", k, k)
        pace.observe(8, sum(chosen), flat_gpu(8 + sum(chosen)))


def test_a_full_pace_takes_all_that_a_batch_has_room_for() -> None:
    pace, record = Pace(StepClock(16), 0.001, 16, is_full=True), ProposalRecord()
    for _ in range(20):  # whatever was confirmed, and however long it takes
        assert pace.choose(1, [Offer(record, "source", 4)], 60.0) == [4]
        pace.verified(record, "source", 4, 0)
    sizes = ((9, 0), (9, 6), (3, 0))  # the second one has room for fewer than it needs
    offers = [Offer(record, "source", n, n_min=n_min) for n, n_min in sizes]
    assert pace.choose(3, offers) == [9, 0, 3]


def test_finding_them_takes_time_too() -> None:
    """A draft model that takes as long as the model itself."""
    pace, record = Timed(0.0, 512, sweep_of(flat_gpu)), ProposalRecord()
    asked = []
    for _ in range(300):
        (k,) = pace.choose(1, [Offer(record, "draft", 8)], flat_gpu(1))
        asked.append(k)
        pace.verified(record, "draft", k, min(k, 3))
        pace.observe(1, k, flat_gpu(1 + k))
    assert sum(asked) < 100, "trials"


@pytest.mark.parametrize("seconds_each", [0.002, 0.012, 0.03])
@pytest.mark.parametrize("n", [1, 8])
def test_trials_of_slow_sources_take_a_small_part_of_the_time(n: int, seconds_each: float) -> None:
    """Several sources of which none is ever right, and texts that end soon."""
    pace, seconds, finding = Timed(0.0, 512, sweep_of(flat_gpu)), 0.0, 0.0
    steps = 2000
    for step in range(steps):
        if step % 100 == 0:
            records = [ProposalRecord() for _ in range(n)]
        for source in ("a", "b", "c"):
            offers = [Offer(record, source, 8) for record in records]
            chosen = pace.choose(n, offers, seconds_each)
            finding += seconds_each * max(chosen)
            for offer, k in zip(offers, chosen, strict=True):
                pace.verified(offer.record, source, k, 0)
        pace.observe(n, 0, flat_gpu(n))
        seconds += flat_gpu(n)
    assert finding < 0.03 * seconds


# ---- forced tokens in a decode of their own ----------------------------------------------


def early(seconds_of_one: float, seconds_each: float, n: int) -> bool:
    """Returns whether `n` tokens pay with four sequences, whose steps take 40 ms."""
    pace = Timed(0.0, 64)
    for n_generating in (1, 4):
        pace.observe(n_generating, 0, 0.040)
    for n_rows in (1, 2, 4, 8, 16):
        for _ in range(3):
            pace.clock.observe_rows(n_rows, seconds_of_one + n_rows * seconds_each)
    return pace.is_early_faster(n, 4)


@pytest.mark.parametrize(("n", "pays"), [(1, False), (2, False), (8, True), (16, True)])
def test_a_reading_of_the_weights_pays_with_enough_tokens(n: int, pays: bool) -> None:
    """A GPU, on which it takes as long as a step."""
    assert early(0.040, 0.0, n) is pays


def test_rows_without_logits_always_pay_if_rows_are_the_cost() -> None:
    assert all(early(0.001, 0.002, n) for n in range(2, 17))


def test_early_tokens_are_tried_where_nothing_is_known() -> None:
    assert Timed(0.0, 64).is_early_faster(1, 4)
