"""Decides which models are in memory, and in which order waiting models get a place.

This module has plain data and no clock: the pool reports events, then executes the decisions of
`plan`. The rules:

- A model in memory has a place, and needs memory on some devices. The number of places and the
  memory of each device may be limited. Each use of a model holds a lease of its place, and a place
  with leases is never taken away, nor is that of a pinned model, or of one that is kept for a time.
- A requested model that fits beside all others is loaded. Otherwise others have to make room: the
  least recently used idle models (those whose last leases began first) are evicted, but only as
  many as are needed, and only models that use what is short. If they don't suffice, the least
  recently used busy models get no new leases until they have become idle, or until there is room
  by other means. So every model gets its turn, however busy the others are.
- Models get their turn in the order of the first requests for them; all requests for a model then
  get their leases together. The room that a model waits for is reserved: a model that was requested
  later is loaded earlier only if both fit.
- A model that doesn't fit beside the pinned ones is refused.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from specllama.engine.models.memory import PLACES, Need, total

NOTHING = Need()
"""The memory of a model that hasn't been measured, or that has no limit."""


@dataclass(eq=False)
class ModelSlot:
    """One model's place in memory, from the decision to load it until it has been unloaded."""

    name: str
    need: Need = NOTHING
    pinned: bool = False  # for as long as it is in memory
    kept: bool = False  # for a time
    n_leases: int = 0
    used: int = 0  # sequence number of its last lease
    settled: bool = False  # its loading is complete

    @property
    def idle(self) -> bool:
        return self.settled and not self.n_leases


@dataclass(eq=False)
class Ticket:
    """A request for a lease; `place` is set when it is granted. `room` is set when it is refused:
    it has the devices on which the model doesn't fit, with the bytes that it could get there."""

    name: str
    number: int  # in the order of arrival
    place: ModelSlot | None = None
    need: Need = NOTHING
    pinned: bool = False
    awaited: frozenset[str] = frozenset()  # the models that have to go before its own is loaded
    room: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """Decisions for the pool to execute, in this order."""

    evicted: list[str] = field(default_factory=list)  # to unload; the pool then calls `gone`
    admitted: list[str] = field(default_factory=list)  # to load; then `settled` or `gone`
    granted: list[Ticket] = field(default_factory=list)  # their leases begin
    refused: list[Ticket] = field(default_factory=list)  # the pool then calls `withdraw`


@dataclass(frozen=True)
class _Room:
    """The state that the first waiting models wait for: some have `gone`, and they have their
    `reserved` memory."""

    gone: frozenset[str]
    reserved: list[Need]


LOOK_AHEAD = 16
"""The number of models without a place that a plan considers, in the order of their requests."""


class Residency:
    """The places and the waiting requests. `limit` is the number of places; 0 is no limit."""

    def __init__(self, limit: int) -> None:
        self.memory: dict[str, int] = {}
        """The bytes that all models may take on each device. A missing device has no limit."""
        self._limit = limit
        self._places: dict[str, ModelSlot] = {}
        self._leaving: set[str] = set()  # being unloaded, with a place or without
        self._waiting: dict[str, deque[Ticket]] = {}  # ordered by their first tickets
        self._n_uses = 0
        self._n_tickets = 0
        self._has_grown = False  # a model's memory has changed since the last plan

    def resident(self, name: str) -> bool:
        """Returns whether the model has a place and is not being unloaded."""
        return name in self._places and name not in self._leaving

    def idle(self, name: str) -> bool:
        """Returns whether the model is in memory, without leases and waiting requests."""
        return self.resident(name) and self._places[name].idle and name not in self._waiting

    @property
    def is_occupied(self) -> bool:
        """True if any model is in memory or waits."""
        return bool(self._places or self._waiting)

    def has_room(self, need: Need) -> bool:
        """Returns whether a model fits beside all models in memory and all that wait."""
        waiting = [self._waiting[name][0].need for name in self._without_place()]
        return not self._short([*self._needs(self._places.values()), *waiting, need])

    # ---- events ---------------------------------------------------------------------

    def request(self, name: str, need: Need = NOTHING, *, pinned: bool = False) -> Ticket:
        """Adds a request for a lease. `need` is the memory that the model will take."""
        self._n_tickets += 1
        ticket = Ticket(name, self._n_tickets, need=need, pinned=pinned)
        self._waiting.setdefault(name, deque()).append(ticket)
        return ticket

    def grant_now(self, name: str) -> ModelSlot | None:
        """Begins a lease without a ticket, and returns its place, if `plan` would grant the lease
        at once. Returns None if any request waits, or if the model has no place or is being
        unloaded."""
        if self._waiting or not self.resident(name):
            return None
        return self._use(self._places[name])

    def withdraw(self, ticket: Ticket) -> None:
        """Withdraws the ticket, which has no lease yet."""
        waiting = self._waiting.pop(ticket.name)
        waiting.remove(ticket)
        if waiting:
            self._waiting[ticket.name] = waiting
            self._waiting = dict(sorted(self._waiting.items(), key=lambda item: item[1][0].number))

    def release(self, place: ModelSlot) -> None:
        """Ends a lease of `place`, whose model may have been unloaded meanwhile."""
        place.n_leases -= 1

    def settled(self, name: str) -> None:
        """Marks the model as loaded."""
        if place := self._places.get(name):
            place.settled = True

    def measured(self, name: str, need: Need) -> None:
        """Corrects the memory of a model with a place."""
        place = self._places.get(name)
        if place is not None and place.need != need:
            place.need = need
            self._has_grown = True

    def keep(self, name: str) -> bool:
        """Keeps an idle or busy model from being evicted, until `end_keeping`. Returns False,
        without an effect, if another model waits for memory: it would wait even longer."""
        if not self.resident(name) or self._without_place():
            return False
        self._places[name].kept = True
        return True

    def end_keeping(self, name: str) -> None:
        if place := self._places.get(name):
            place.kept = False

    def leave(self, name: str) -> None:
        """Marks the model as being unloaded: it gets no leases and no new place until `gone`."""
        self._leaving.add(name)

    def gone(self, name: str) -> None:
        """Removes the model, which has been unloaded."""
        self._leaving.discard(name)
        self._places.pop(name, None)

    # ---- decisions ----------------------------------------------------------------

    def plan(self) -> Plan:
        """Returns the decisions that follow from the events so far."""
        plan = Plan()
        if not (self._waiting or self._has_grown):  # the most frequent case
            return plan
        self._has_grown = False
        self._shrink(plan)
        rooms = [_Room(frozenset(), [])]
        for name in list(self._waiting):
            if name in self._places:
                if name not in self._leaving and name not in rooms[-1].gone:
                    self._grant(name, plan)
            elif name not in self._leaving and len(rooms) <= LOOK_AHEAD:
                self._place(name, rooms, plan)
        return plan

    def _shrink(self, plan: Plan) -> None:
        """Evicts idle models if those in memory have grown beyond a limit. The model that was used
        last stays: it would grow again."""
        staying = self._staying()
        if short := self._short(self._needs(staying)):
            last = max(staying, key=lambda place: place.used)
            for place in sorted(staying, key=lambda place: place.used):
                may_go = place.idle and not (place.pinned or place.kept or place is last)
                if may_go and _uses(place, short):
                    self._evict(place, plan)
                    staying.remove(place)
                    if not (short := self._short(self._needs(staying))):
                        return

    def _place(self, name: str, rooms: "list[_Room]", plan: Plan) -> None:
        """Loads a requested model, or makes room for it, or refuses it."""
        ticket = self._waiting[name][0]
        pinned = self._needs(place for place in self._staying() if place.pinned)
        if short := self._short([*pinned, ticket.need]):
            taken = total(pinned)
            room = {each: max(self.memory.get(each, 0) - taken.get(each, 0), 0) for each in short}
            for refused in self._waiting[name]:
                refused.room = room
                plan.refused.append(refused)
            return
        gone, reserved = rooms[-1].gone, [*rooms[-1].reserved, ticket.need]
        chosen: list[ModelSlot] = []
        if self._short(self._needs_without(gone, reserved)):
            found = self._sufficient(gone, reserved, ticket)
            if found is None:  # it waits until earlier models are loaded, or kept ones may go
                return
            chosen = found
            for place in chosen:
                if place.idle and place.name not in self._leaving:
                    self._evict(place, plan)
        elif self._fits(ticket.need, rooms):
            self._n_uses += 1
            self._places[name] = ModelSlot(name, ticket.need, ticket.pinned, used=self._n_uses)
            plan.admitted.append(name)
            self._grant(name, plan)
            return
        ticket.awaited = frozenset(place.name for place in chosen)
        rooms.append(_Room(gone | ticket.awaited, reserved))

    def _fits(self, need: Need, rooms: "Sequence[_Room]") -> bool:
        """Returns whether a model can be loaded now, without a longer wait for those before it."""
        return not any(
            self._short(self._needs_without(room.gone, [*room.reserved, need])) for room in rooms
        )

    def _sufficient(
        self, gone: Set[str], reserved: Sequence[Need], ticket: Ticket
    ) -> list[ModelSlot] | None:
        """Returns the models that have to go, in addition to `gone`, to make room for `reserved`;
        None if there is no room even without all models that may go.

        Models that are being unloaded go first, then idle ones, then busy ones, the least recently
        used ones first. But the earlier choice for the ticket stays if nothing better is found:
        models that were requested later have been loaded because they fit beside the rest.
        """
        candidates = [
            place
            for name, place in self._places.items()
            if name not in gone and (name in self._leaving or not (place.pinned or place.kept))
        ]
        chosen = candidates

        def short() -> set[str]:
            names = {place.name for place in chosen}
            return self._short(self._needs_without(gone | names, reserved))

        def rank(place: ModelSlot) -> tuple[bool, bool, bool, int]:
            is_leaving = place.name in self._leaving
            is_idle = place.idle and not is_leaving
            is_new = not is_idle and place.name not in ticket.awaited
            return not (is_leaving or is_idle), not is_leaving, is_new, place.used

        if short():
            return None
        chosen = []
        for place in sorted(candidates, key=rank):
            if not (missing := short()):
                break
            if _uses(place, missing):
                chosen.append(place)
        for place in reversed(chosen.copy()):
            chosen.remove(place)
            if short():
                chosen.append(place)
        return sorted(chosen, key=lambda place: place.used)

    def _evict(self, place: ModelSlot, plan: Plan) -> None:
        self._leaving.add(place.name)
        plan.evicted.append(place.name)

    def _grant(self, name: str, plan: Plan) -> None:
        place = self._places[name]
        for ticket in self._waiting.pop(name):
            ticket.place = self._use(place)
            plan.granted.append(ticket)

    def _use(self, place: ModelSlot) -> ModelSlot:
        """Begins one more lease of `place`."""
        self._n_uses += 1
        place.n_leases, place.used = place.n_leases + 1, self._n_uses
        return place

    # ---- places and memory ----------------------------------------------------------

    def _without_place(self) -> list[str]:
        """Returns the requested models that could be loaded if there were a place."""
        return [
            name for name in self._waiting if name not in self._places and name not in self._leaving
        ]

    def _staying(self) -> list[ModelSlot]:
        return [place for name, place in self._places.items() if name not in self._leaving]

    def _needs(self, places: Iterable[ModelSlot]) -> list[Need]:
        return [place.need for place in places]

    def _needs_without(self, gone: Set[str], others: Iterable[Need]) -> list[Need]:
        """Returns the needs of all models except the ones that have `gone`, and the others."""
        return [*(p.need for name, p in self._places.items() if name not in gone), *others]

    def _short(self, needs: Sequence[Need]) -> set[str]:
        """Returns the devices on which models with these needs exceed the limit."""
        found = {PLACES} if 0 < self._limit < len(needs) else set[str]()
        if self.memory:
            taken = total(needs)
            found |= {name for name, most in self.memory.items() if taken.get(name, 0) > most}
        return found


def _uses(place: ModelSlot, devices: set[str]) -> bool:
    """Returns whether the place of a model counts on one of the devices."""
    return bool(devices) and (PLACES in devices or bool(devices & place.need.on_devices().keys()))
