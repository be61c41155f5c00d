"""Decides which models are in memory, and in which order waiting models get a place.

This module has plain data and no clock: the pool reports events, then executes the decisions of
`plan`. The rules:

- A model in memory has a place; there are `limit` places. Each use of a model holds a
  lease of its place, and a place with leases is never taken away.
- If a requested model has no place, and all are taken, the least recently used idle model (the one
  whose last lease began first) is evicted. If no model is idle, the least recently used one gets no
  new leases until it has become idle, or another place has become free. So every model gets its
  turn, however busy the others are.
- Places are assigned in the order of the first requests for their models; all requests for
  a model then get their leases together.
"""

from collections import deque
from dataclasses import dataclass, field


@dataclass(eq=False)
class ModelSlot:
    """One model's place in memory, from the decision to load it until it has been unloaded."""

    name: str
    n_leases: int = 0
    used: int = 0  # sequence number of its last lease
    settled: bool = False  # its loading is complete

    @property
    def idle(self) -> bool:
        return self.settled and not self.n_leases


@dataclass(eq=False)
class Ticket:
    """A request for a lease; `place` is set when it is granted."""

    name: str
    number: int  # in the order of arrival
    place: ModelSlot | None = None


@dataclass(frozen=True)
class Plan:
    """Decisions for the pool to execute, in this order."""

    evicted: list[str] = field(default_factory=list)  # to unload; the pool then calls `gone`
    admitted: list[str] = field(default_factory=list)  # to load; then `settled` or `gone`
    granted: list[Ticket] = field(default_factory=list)  # their leases begin


class Residency:
    """The places and the waiting requests. `limit` 0 is no limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._places: dict[str, ModelSlot] = {}
        self._leaving: set[str] = set()  # being unloaded, with a place or without
        self._waiting: dict[str, deque[Ticket]] = {}  # ordered by their first tickets
        self._n_uses = 0
        self._n_tickets = 0

    def resident(self, name: str) -> bool:
        """Returns whether the model has a place and is not being unloaded."""
        return name in self._places and name not in self._leaving

    def idle(self, name: str) -> bool:
        """Returns whether the model is in memory, without leases and waiting requests."""
        return self.resident(name) and self._places[name].idle and name not in self._waiting

    # ---- events ---------------------------------------------------------------------

    def request(self, name: str) -> Ticket:
        """Adds a request for a lease."""
        self._n_tickets += 1
        ticket = Ticket(name, self._n_tickets)
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
        if not self._waiting:  # the most frequent case
            return Plan()
        admitted = self._admit()
        shortage = self._shortage()
        evicted = self._evict(shortage)
        # All requests that waited for a place get leases, even if the next model needs the place.
        closed = self._closed(shortage - len(evicted)) - set(admitted)
        return Plan(evicted, admitted, self._grant(closed))

    def _without_place(self) -> list[str]:
        """Returns the requested models that could be loaded if there were a place."""
        return [
            name for name in self._waiting if name not in self._places and name not in self._leaving
        ]

    def _admit(self) -> list[str]:
        without_place = self._without_place()
        if self._limit:
            without_place = without_place[: max(self._limit - len(self._places), 0)]
        for name in without_place:
            self._n_uses += 1
            self._places[name] = ModelSlot(name, used=self._n_uses)
        return without_place

    def _shortage(self) -> int:
        """Returns the number of places that have to be freed, in addition to the places of models
        that are being unloaded."""
        n_leaving = sum(name in self._leaving for name in self._places)
        return max(len(self._without_place()) - n_leaving, 0)

    def _staying(self) -> list[ModelSlot]:
        """Returns the places of models that aren't being unloaded, the least recently used one
        first."""
        places = [place for name, place in self._places.items() if name not in self._leaving]
        return sorted(places, key=lambda place: place.used)

    def _evict(self, shortage: int) -> list[str]:
        evicted = [place.name for place in self._staying() if place.idle][:shortage]
        self._leaving.update(evicted)
        return evicted

    def _closed(self, shortage: int) -> set[str]:
        return {place.name for place in self._staying()[:shortage]}

    def _grant(self, closed: set[str]) -> list[Ticket]:
        granted: list[Ticket] = []
        open = [name for name in self._waiting if self.resident(name) and name not in closed]
        for name in open:
            place = self._places[name]
            for ticket in self._waiting.pop(name):
                ticket.place = self._use(place)
                granted.append(ticket)
        return granted

    def _use(self, place: ModelSlot) -> ModelSlot:
        """Begins one more lease of `place`."""
        self._n_uses += 1
        place.n_leases, place.used = place.n_leases + 1, self._n_uses
        return place
