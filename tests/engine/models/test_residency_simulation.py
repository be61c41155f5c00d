"""Hundreds of models of random sizes on a machine with little memory, in virtual time.

Three bounds are checked, in addition to the limits themselves:

- **Loads.** Each loading serves a request, so there are at most as many as requests. If all models
  fit, each is loaded once. Otherwise an idle model is unloaded only if there is no room beside it
  for the models in use, the models that were used after it, and the waiting ones.
- **Waiting.** When the requests before its own have their models, a model waits no longer than
  `GENERATION`: the longest use, the longest loading and the longest unloading that were running.
- **Overtaking.** A model that was requested later is loaded earlier only if there is room for both.
"""

import heapq
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import pytest

from specllama.engine.models.memory import Need, total
from specllama.engine.models.residency import ModelSlot, Plan, Residency, Ticket, _Room

pytestmark = pytest.mark.slow

LIMITS = {"host": 64_000, "GPU0": 24_000, "GPU1": 24_000}
LONGEST_USE, LONGEST_LOADING, LONGEST_UNLOADING = 60.0, 30.0, 10.0
GENERATION = LONGEST_LOADING + LONGEST_USE + LONGEST_UNLOADING


@dataclass(eq=False)
class Waiting:
    """A request and its times."""

    ticket: Ticket
    since: float
    first: float | None = None
    """When no model that was requested earlier waited any more, if that has been."""


@dataclass
class Machine:
    """Models that load, are used and unload, at the decisions of a `Residency`."""

    random: random.Random
    needs: dict[str, Need]
    limits: dict[str, int] = field(default_factory=lambda: dict(LIMITS))
    places: int = 0
    pinned: frozenset[str] = frozenset()
    new_residency: Callable[[int], Residency] = Residency

    def __post_init__(self) -> None:
        self.now = 0.0
        self.residency = self.new_residency(self.places)
        self.residency.memory = dict(self.limits)
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.n_events = 0
        self.memory: dict[str, Need] = {}  # until the unloading is complete
        self.waiting: list[Waiting] = []
        self.loads: list[str] = []
        self.n_served = 0
        self.refused: list[Ticket] = []
        self.last_uses: dict[str, int] = {}
        self.waits: list[str] = []
        """Models without a place, before the last decisions."""
        self.longest_first = 0.0

    def at(self, seconds: float, do: Callable[[], None]) -> None:
        self.n_events += 1
        heapq.heappush(self.events, (self.now + seconds, self.n_events, do))

    def run(self) -> None:
        while self.events:
            self.now, _, do = heapq.heappop(self.events)
            do()
            self.settle()

    def ask(self, name: str) -> None:
        ticket = self.residency.request(name, self.needs[name], pinned=name in self.pinned)
        self.waiting.append(Waiting(ticket, self.now))

    def settle(self) -> None:
        names = dict.fromkeys(each.ticket.name for each in self.waiting)
        self.waits = [name for name in names if name not in self.memory]
        plan = self.residency.plan()
        for ticket in plan.refused:
            self.residency.withdraw(ticket)
            self.waiting = [each for each in self.waiting if each.ticket is not ticket]
            self.refused.append(ticket)
        for name in plan.evicted:
            assert name not in self.pinned
            self.check_eviction(name)
            self.at(self.random.uniform(0, LONGEST_UNLOADING), partial(self.end, name))
        for name in plan.admitted:
            self.begin(name)
        for ticket in plan.granted:
            [asked] = [each for each in self.waiting if each.ticket is ticket]
            self.waiting.remove(asked)
            self.grant(asked)
        self.check()

    def begin(self, name: str) -> None:
        self.loads.append(name)
        self.memory[name] = self.needs[name]
        self.check_overtaking(name)
        self.at(self.random.uniform(1, LONGEST_LOADING), partial(self.residency.settled, name))

    def end(self, name: str) -> None:
        self.residency.gone(name)
        del self.memory[name]

    def grant(self, asked: Waiting) -> None:
        name, place = asked.ticket.name, asked.ticket.place
        assert place is not None
        self.n_served += 1
        self.last_uses[name] = self.n_served
        if asked.first is not None:
            self.longest_first = max(self.longest_first, self.now - asked.first)
        # A use begins when the model is loaded.
        latest = LONGEST_USE if place.settled else LONGEST_LOADING + LONGEST_USE
        self.at(self.random.uniform(0, latest), partial(self.residency.release, place))

    def check(self) -> None:
        assert not exceeds(total(self.memory.values()), self.limits)
        assert not self.places or len(self.memory) <= self.places
        waits = dict.fromkeys(each.ticket.name for each in self.waiting)
        for asked in self.waiting:
            if asked.first is None and next(iter(waits)) == asked.ticket.name:
                asked.first = self.now

    def check_eviction(self, name: str) -> None:
        """An idle model must be in the way of others."""
        places = [p for p in self.residency._places.values() if self.residency.resident(p.name)]
        last = self.last_uses[name]
        left = [p.name for p in places if p.pinned or not p.idle or self.last_uses[p.name] > last]
        names = {*left, *self.waits, name}
        together = total(self.needs[each] for each in names)
        has_no_place = 0 < self.places < len(names)
        assert has_no_place or exceeds(together, self.limits), "it was unloaded without need"

    def check_overtaking(self, name: str) -> None:
        """The first model that waits must be able to come without the end of this one, which was
        requested later."""
        if not self.waiting or self.waiting[0].ticket.name == name:
            return
        first = self.waiting[0].ticket.name
        if not self.residency.resident(first):
            together = total([self.needs[first], self.needs[name]])
            assert not exceeds(together, self.limits), f"{name} has overtaken {first}"


def exceeds(taken: dict[str, int], limits: dict[str, int]) -> bool:
    return any(taken.get(device, 0) > most for device, most in limits.items())


def model_sizes(chance: random.Random, n: int, largest: float = 1.0) -> dict[str, Need]:
    """Models on the host, on one GPU or on both; some share their files."""

    def part(device: str) -> int:
        return int((LIMITS[device] - 100) * largest * chance.random() ** 3) + 100

    found = {}
    for i in range(n):
        devices = chance.choice([["host"], ["GPU0"], ["GPU1"], ["GPU0", "GPU1"], ["host", "GPU0"]])
        mapped = part("host") // 2 if "host" in devices else 0
        own = {"host": 100, **{device: part(device) for device in devices}}
        own["host"] = min(own["host"], LIMITS["host"] // 2)
        found[f"m{i}"] = Need(own, mapped, f"file {i // 2}")
    return found


def popular(chance: random.Random, names: list[str]) -> Iterator[str]:
    """Endless names: some models are requested far more often than others."""
    weights = [1 / (rank + 1) for rank in range(len(names))]
    while True:
        yield chance.choices(names, weights)[0]


SEEDS = range(6)


def crowd(
    seed: int, places: int, n_requests: int, new_residency: Callable[[int], Residency] = Residency
) -> Machine:
    """Runs a machine with more requests than it can serve at once."""
    chance = random.Random(seed)
    machine = Machine(chance, model_sizes(chance, 300), places=places, new_residency=new_residency)
    names = popular(chance, [*machine.needs])
    moment = 0.0
    for i in range(n_requests):
        moment += chance.expovariate(1 / (4 if i < n_requests // 3 else 20))
        machine.at(moment, partial(machine.ask, next(names)))
    machine.run()
    assert not machine.waiting
    assert machine.longest_first <= GENERATION
    return machine


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("places", [0, 5])
def test_hundreds_of_models(seed: int, places: int) -> None:
    machine = crowd(seed, places, 600)
    assert machine.n_served == 600
    assert not machine.refused, "each of them fits alone"
    assert len(set(machine.loads)) < len(machine.loads) <= machine.n_served


@pytest.mark.parametrize("seed", SEEDS)
def test_models_that_fit_are_loaded_once(seed: int) -> None:
    chance = random.Random(seed)
    machine = Machine(chance, model_sizes(chance, 100, largest=0.01))
    assert not exceeds(total(machine.needs.values()), LIMITS)
    names = popular(chance, [*machine.needs])
    for i in range(1000):
        machine.at(i * chance.random(), partial(machine.ask, next(names)))
    machine.run()
    assert len(machine.loads) == len(set(machine.loads))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_large_model_gets_its_turn_among_small_ones(seed: int) -> None:
    """The small ones are requested without end, and all of them fit beside each other."""
    chance = random.Random(seed)
    small = {f"small{i}": Need({"GPU0": 6_000}) for i in range(4)}
    machine = Machine(chance, {**small, "large": Need({"GPU0": 20_000})})
    for i in range(2000):
        machine.at(i, partial(machine.ask, f"small{i % 4}"))
    machine.at(500, partial(machine.ask, "large"))
    machine.run()
    assert machine.loads.count("large") == 1
    assert machine.longest_first <= GENERATION


@pytest.mark.parametrize("seed", SEEDS)
def test_pinned_models_stay_and_impossible_ones_are_refused(seed: int) -> None:
    chance = random.Random(seed)
    needs = model_sizes(chance, 50, largest=0.5) | {"pinned": Need({"GPU0": 13_000})}
    needs["huge"] = Need({"GPU0": 12_000})
    machine = Machine(chance, needs, pinned=frozenset({"pinned"}))
    names = popular(chance, [name for name in needs if name not in ("pinned", "huge")])
    machine.at(0, partial(machine.ask, "pinned"))
    machine.at(1, partial(machine.ask, "huge"))
    for i in range(1000):
        machine.at(5 * i, partial(machine.ask, next(names)))
    machine.run()
    assert machine.loads.count("pinned") == 1
    assert "huge" not in machine.loads
    [huge] = [ticket for ticket in machine.refused if ticket.name == "huge"]
    assert huge.room == {"GPU0": LIMITS["GPU0"] - 13_000}
    assert not machine.waiting


# ---- mutants --------------------------------------------------------------------------------


class Greedy(Residency):
    """Reserves nothing: whatever fits is loaded."""

    def _place(self, name: str, rooms: list[_Room], plan: Plan) -> None:
        super()._place(name, rooms[:1], plan)


class Rash(Residency):
    """Checks the room of the last model that waits, not of those before it."""

    def _fits(self, need: Need, rooms: Sequence[_Room]) -> bool:
        return super()._fits(need, rooms[-1:])


class Forgetful(Residency):
    """Unloads the model that was loaded first."""

    def _use(self, place: ModelSlot) -> ModelSlot:
        used = place.used
        super()._use(place).used = used
        return place


class Impatient(Residency):
    """Doesn't wait for the end of an unloading."""

    def _evict(self, place: ModelSlot, plan: Plan) -> None:
        super()._evict(place, plan)
        self._places.pop(place.name)


@pytest.mark.parametrize("mutant", [Greedy, Rash, Forgetful, Impatient])
def test_the_simulation_finds_faults(mutant: type[Residency]) -> None:
    found = 0
    for seed in range(12):
        try:
            crowd(seed, 0, 300, mutant)
        except AssertionError:
            found += 1
    assert found
