"""The models in memory: a machine of random histories, and the cases that the rules are made
for."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from specllama.engine.models.memory import Need, total
from specllama.engine.models.residency import NOTHING, ModelSlot, Plan, Residency, Ticket

pytestmark = pytest.mark.slow

NAMES = ["a", "b", "c", "d", "e"]
DEVICES = ["host", "GPU0"]
MOST = 5
MEMORY = st.dictionaries(st.sampled_from(DEVICES), st.integers(MOST, 2 * MOST))
"""Limits; each model fits alone."""
NEEDS = st.fixed_dictionaries(
    {
        name: st.builds(
            Need,
            st.dictionaries(st.sampled_from(DEVICES), st.integers(0, MOST - 2)),
            st.integers(0, 2),
            st.sampled_from(["one file", "another file"]),
        )
        for name in NAMES
    }
)


class World:
    """The surroundings of a `Residency`: models that load, serve and end, and checks of the
    rules."""

    def __init__(
        self,
        limit: int,
        memory: dict[str, int] | None = None,
        needs: dict[str, Need] | None = None,
    ) -> None:
        self.limit = limit
        self.memory = memory or {}
        self.needs = needs or {}
        self.residency = Residency(limit)
        self.residency.memory = self.memory
        self.waiting: list[Ticket] = []  # in the order of arrival
        self.leases: list[Ticket] = []
        self.loading: set[str] = set()
        self.loaded: set[str] = set()
        self.leaving: set[str] = set()
        self.granted: dict[str, int] = {}  # when a model's last lease began
        self.clock = 0

    @property
    def in_memory(self) -> set[str]:
        return self.loading | self.loaded

    def leased(self, name: str) -> bool:
        return any(ticket.name == name for ticket in self.leases if self._valid(ticket))

    def _valid(self, ticket: Ticket) -> bool:
        return ticket.place is self.places[ticket.name]

    @property
    def places(self) -> dict[str, ModelSlot | None]:
        return {name: self.residency._places.get(name) for name in NAMES}

    def idle(self) -> list[str]:
        return [name for name in self.loaded - self.leaving if not self.leased(name)]

    def request(self, name: str) -> Ticket:
        ticket = self.residency.request(name, self.needs.get(name, NOTHING))
        self.waiting.append(ticket)
        self.apply()
        return ticket

    def request_now(self, name: str) -> None:
        """A lease at once is one that a ticket would have got at once."""
        place = self.residency.grant_now(name)
        assert (place is not None) == (
            not self.waiting and name in self.in_memory and name not in self.leaving
        )
        if place is not None:
            assert place is self.places[name]
            self.clock += 1
            self.granted[name] = self.clock
            self.leases.append(Ticket(name, 0, place))
        self.apply()

    def withdraw(self, ticket: Ticket) -> None:
        self.waiting.remove(ticket)
        self.residency.withdraw(ticket)
        self.apply()

    def release(self, ticket: Ticket) -> None:
        self.leases.remove(ticket)
        assert ticket.place is not None
        self.residency.release(ticket.place)
        self.apply()

    def settle(self, name: str) -> None:
        self.loading.remove(name)
        self.loaded.add(name)
        self.residency.settled(name)
        self.apply()

    def leave(self, name: str) -> None:
        self.leaving.add(name)
        self.residency.leave(name)
        self.apply()

    def gone(self, name: str) -> None:
        for models in (self.leaving, self.loading, self.loaded):
            models.discard(name)
        self.residency.gone(name)
        self.apply()

    def apply(self) -> None:
        queue = self._queue()
        idle = self.idle()
        plan = self.residency.plan()
        assert self.memory or plan.admitted == queue[: len(plan.admitted)]  # first come
        assert not set(plan.admitted) & self.in_memory
        self.loading.update(plan.admitted)
        if self.limit:
            assert len(self.in_memory) <= self.limit
        elif not self.memory:
            assert plan.admitted == queue
        taken = total(self.needs.get(name, NOTHING) for name in self.in_memory)
        assert all(taken.get(device, 0) <= most for device, most in self.memory.items())
        assert not plan.refused
        assert set(plan.evicted) <= set(idle)
        if plan.evicted and not self.memory:
            assert self.limit
            by_age = sorted(idle, key=lambda name: self.granted.get(name, 0))
            assert plan.evicted == by_age[: len(plan.evicted)]
        self.leaving.update(plan.evicted)
        for ticket in plan.granted:
            assert ticket.name in self.in_memory - self.leaving
            self.clock += 1
            self.granted[ticket.name] = self.clock
            self.waiting.remove(ticket)
            self.leases.append(ticket)
        again = self.residency.plan()
        assert again == Plan()

    def _queue(self) -> list[str]:
        """Models that wait for a place, in the order of their first requests."""
        names = dict.fromkeys(ticket.name for ticket in self.waiting)
        return [name for name in names if name not in self.in_memory | self.leaving]


class Histories(RuleBasedStateMachine):
    @initialize(limit=st.integers(0, 3), memory=MEMORY, needs=NEEDS)
    def begin(self, limit: int, memory: dict[str, int], needs: dict[str, Need]) -> None:
        self.world = World(limit, memory, needs)

    @rule(name=st.sampled_from(NAMES))
    def request(self, name: str) -> None:
        self.world.request(name)

    @rule(name=st.sampled_from(NAMES))
    def request_now(self, name: str) -> None:
        self.world.request_now(name)

    @precondition(lambda self: self.world.waiting)
    @rule(data=st.data())
    def withdraw(self, data: Any) -> None:
        self.world.withdraw(data.draw(st.sampled_from(self.world.waiting)))

    @precondition(lambda self: self.world.leases)
    @rule(data=st.data())
    def release(self, data: Any) -> None:
        self.world.release(data.draw(st.sampled_from(self.world.leases)))

    @precondition(lambda self: self.world.loading - self.world.leaving)
    @rule(data=st.data(), ok=st.booleans())
    def loading_ends(self, data: Any, ok: bool) -> None:
        loading = sorted(self.world.loading - self.world.leaving)
        name = data.draw(st.sampled_from(loading))
        if ok:
            self.world.settle(name)
        else:
            self.world.leave(name)

    @precondition(lambda self: self.world.leaving)
    @rule(data=st.data())
    def gone(self, data: Any) -> None:
        self.world.gone(data.draw(st.sampled_from(sorted(self.world.leaving))))

    @precondition(lambda self: self.world.idle())
    @rule(data=st.data())
    def falls_asleep(self, data: Any) -> None:
        self.world.gone(data.draw(st.sampled_from(sorted(self.world.idle()))))

    @rule(name=st.sampled_from(NAMES))
    def unloaded_by_hand(self, name: str) -> None:
        """Also one that sleeps, and has no place."""
        self.world.leave(name)

    @invariant()
    def nobody_waits_without_a_reason(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        if world.waiting and not world.leaving:
            # Somebody is at work, and will be done.
            assert world.leases or world.loading

    def teardown(self) -> None:
        """Everybody gets their turn, though new requests for the others never end."""
        if not hasattr(self, "world"):
            return
        world, patient = self.world, list(self.world.waiting)
        for _ in range(4 * len(NAMES)):
            for name in sorted(world.in_memory):
                world.request(name)
            for ticket in list(world.leases):
                world.release(ticket)
            for name in sorted(world.loading - world.leaving):
                world.settle(name)
            for name in sorted(world.leaving):
                world.gone(name)
        assert not set(patient) & set(world.waiting)
        while world.waiting:
            world.withdraw(world.waiting[0])
        while world.leases:
            world.release(world.leases[0])
        assert not any(place and place.n_leases for place in world.places.values())
        assert not world.residency._waiting


Histories.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
test_histories = Histories.TestCase


def loaded(world: World, *names: str) -> list[Ticket]:
    """Models in memory, with a lease each."""
    tickets = [world.request(name) for name in names]
    for name in names:
        world.settle(name)
    return tickets


def test_the_least_recently_used_idle_model_makes_room() -> None:
    world = World(2)
    a, b = loaded(world, "a", "b")
    world.release(b)
    world.release(a)
    world.release(world.request("a"))
    world.request("c")
    assert world.leaving == {"b"}
    world.gone("b")
    assert world.in_memory == {"a", "c"}


def test_a_model_that_is_used_is_never_taken_away() -> None:
    world = World(1)
    (a,) = loaded(world, "a")
    world.request("b")
    assert not world.leaving
    world.release(a)
    assert world.leaving == {"a"}


def test_endless_requests_for_one_model_do_not_shut_out_another() -> None:
    world = World(1)
    (first,) = loaded(world, "a")
    other = world.request("b")
    later = world.request("a")
    assert later in world.waiting
    world.release(first)
    world.gone("a")
    assert other in world.leases
    world.settle("b")
    assert later in world.waiting
    world.release(other)
    world.gone("b")
    assert later in world.leases


def test_a_model_is_open_again_when_another_one_makes_room() -> None:
    world = World(2)
    _, b = loaded(world, "a", "b")
    world.request("c")
    held_back = world.request("a")  # the least recently used one, and busy
    assert held_back in world.waiting
    world.release(b)
    assert world.leaving == {"b"}
    assert held_back in world.leases


def test_a_model_that_loads_is_not_taken_away_before_it_was_of_use() -> None:
    world = World(1)
    ticket = world.request("a")
    world.release(ticket)
    world.request("b")
    assert not world.leaving
    world.settle("a")
    assert world.leaving == {"a"}


def test_who_gives_up_gives_up_the_place_in_the_queue() -> None:
    world = World(1)
    (busy,) = loaded(world, "a")
    impatient = world.request("b")
    world.request("c")
    world.request("b")
    world.withdraw(impatient)
    world.release(busy)
    world.gone("a")
    assert world.in_memory == {"c"}


def test_a_lease_may_end_after_its_model() -> None:
    world = World(1)
    (old,) = loaded(world, "a")
    world.leave("a")
    world.gone("a")
    new = world.request("a")
    world.release(old)
    world.settle("a")
    world.request("b")
    assert not world.leaving  # because of `new`
    world.release(new)
    assert world.leaving == {"a"}


# ---- memory -------------------------------------------------------------------------------


def of_size(**sizes: int) -> dict[str, Need]:
    """Models by name, with their memory on the host."""
    return {name: Need({"host": size}) for name, size in sizes.items()}


def test_only_what_is_needed_makes_room() -> None:
    world = World(0, {"host": 10}, of_size(a=1, b=8, c=1, d=8))
    for ticket in loaded(world, "a", "b", "c"):
        world.release(ticket)
    world.request("d")
    assert world.leaving == {"b"}, "a, which is older, would not be enough, and isn't needed"


def test_only_a_model_on_the_device_that_is_short_makes_room() -> None:
    needs = {"a": Need({"host": 5}), "b": Need({"GPU0": 5}), "c": Need({"GPU0": 8})}
    world = World(0, {"host": 10, "GPU0": 10}, needs)
    for ticket in loaded(world, "a", "b"):
        world.release(ticket)
    world.request("c")
    assert world.leaving == {"b"}


def test_a_small_model_does_not_wait_for_a_large_one_that_waits() -> None:
    world = World(0, {"host": 10}, of_size(a=8, b=8, c=2))
    (busy,) = loaded(world, "a")
    world.request("b")
    world.request("c")
    assert world.in_memory == {"a", "c"}, "b will fit beside c"
    world.release(busy)
    world.gone("a")
    assert world.in_memory == {"b", "c"}


def test_small_models_do_not_take_the_room_of_a_large_one() -> None:
    world = World(0, {"host": 10}, of_size(a=5, b=9, c=3, d=3))
    (busy,) = loaded(world, "a")
    world.request("b")
    world.request("c")
    assert world.in_memory == {"a"}, "c fits beside a, but not beside b"
    world.release(busy)
    world.gone("a")
    assert world.in_memory == {"b"}


def test_a_refused_model_is_not_in_the_way() -> None:
    residency = Residency(0)
    residency.memory = {"host": 10}
    residency.request("large", Need({"host": 11}))
    small = residency.request("small", Need({"host": 1}))
    plan = residency.plan()
    [refused] = plan.refused
    assert (refused.name, refused.room) == ("large", {"host": 10})
    assert plan.granted == [small]


def test_models_that_wait_keep_others_from_being_kept() -> None:
    residency = Residency(1)
    assert not residency.keep("a")
    residency.request("a")
    residency.plan()
    assert residency.keep("a")
    residency.request("b")
    residency.plan()
    assert not residency.keep("a")
    residency.end_keeping("a")
    residency.end_keeping("b")


def test_idle_models_make_room_for_one_that_grows() -> None:
    residency = Residency(0)
    residency.memory = {"host": 10}
    for name in "abc":
        ticket = residency.request(name, Need({"host": 3}))
        residency.plan()
        residency.settled(name)
        assert ticket.place is not None
        residency.release(ticket.place)
    assert residency.plan() == Plan()
    residency.measured("c", Need({"host": 5}))
    assert residency.plan() == Plan(evicted=["a"])
    residency.measured("b", Need({"host": 50}))
    assert residency.plan() == Plan(evicted=["b"]), "not the one that was used last"
    residency.measured("gone", Need({"host": 50}))
    assert residency.plan() == Plan()


@pytest.mark.parametrize("how", ["pinned", "kept"])
def test_pinned_and_kept_models_make_no_room(how: str) -> None:
    """Neither for one that grows, nor for one that is loaded; then the next oldest one goes."""
    residency = Residency(0)
    residency.memory = {"host": 10}
    for name in "abc":
        is_pinned = how == "pinned" and name == "a"
        ticket = residency.request(name, Need({"host": 3}), pinned=is_pinned)
        residency.plan()
        residency.settled(name)
        assert ticket.place is not None
        residency.release(ticket.place)
    if how == "kept":
        assert residency.keep("a")
    residency.request("d", Need({"host": 3}))
    assert residency.plan().evicted == ["b"]
    residency.gone("b")
    assert residency.plan().admitted == ["d"]
    residency.settled("d")
    residency.measured("d", Need({"host": 6}))
    assert residency.plan().evicted == ["c"]
    residency.gone("c")
    residency.measured("d", Need({"host": 9}))
    assert residency.plan() == Plan()
    residency.end_keeping("a")
    residency.measured("d", Need({"host": 10}))
    assert residency.plan().evicted == ([] if how == "pinned" else ["a"])


def test_a_plan_counts_on_models_that_it_loads() -> None:
    """One plan has all decisions: a second one would also evict for the last model."""
    state = Histories()
    small, large = Need({}, 1, "one file"), Need({"host": 3}, 0, "one file")
    needs = {"a": large, "b": small, "c": small, "d": small, "e": Need({}, 2, "another file")}
    state.begin(limit=3, memory={"host": 5}, needs=needs)
    for name in "bdace":
        state.request(name=name)
    state.teardown()
