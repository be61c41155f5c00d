"""Which models are in memory, and whose turn it is when there is no room for another.

Plain data and no clock: the pool reports events, then carries out what `plan` decides. The rules:

- A model in memory has a place; there are `limit` places. Whoever works with a model holds a
  lease of its place, and no place is taken away from leases.
- If a model is requested that has no place, and all are taken, the least recently used one of the
  idle models (the one whose last lease is the oldest) is evicted. If none is idle, the least
  recently used one gets no new leases until it has become idle, or a place has become free
  elsewhere: so everybody's turn comes, however busy the others are.
- Places are given away in the order of the first requests for their models; all requests for
  a model then get their leases together.
"""

from collections import deque
from dataclasses import dataclass, field


@dataclass(eq=False)
class ModelSlot:
    """One model's room in memory, from the decision to load it until it is gone."""

    name: str
    n_leases: int = 0
    used: int = 0  # the higher, the later its last lease began
    settled: bool = False  # it has been loaded

    @property
    def idle(self) -> bool:
        return self.settled and not self.n_leases


@dataclass(eq=False)
class Ticket:
    """A request for a lease; `place` is what it has got."""

    name: str
    number: int  # in the order of arrival
    place: ModelSlot | None = None


@dataclass(frozen=True)
class Plan:
    """What is to be done, in this order."""

    evicted: list[str] = field(default_factory=list)  # end these, then say `gone`
    admitted: list[str] = field(default_factory=list)  # load these, then say `settled` or `gone`
    granted: list[Ticket] = field(default_factory=list)  # these have their leases


class Residency:
    """Places and those who wait for them. `limit` 0 is no limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._places: dict[str, ModelSlot] = {}
        self._leaving: set[str] = set()  # on their way out, with a place or without
        self._waiting: dict[str, deque[Ticket]] = {}  # ordered by their first tickets
        self._n_uses = 0
        self._n_tickets = 0

    def resident(self, name: str) -> bool:
        """The model has a place, and is not about to lose it."""
        return name in self._places and name not in self._leaving

    def idle(self, name: str) -> bool:
        """The model is in memory, and nobody works with it or waits for it."""
        return self.resident(name) and self._places[name].idle and name not in self._waiting

    # ---- events ---------------------------------------------------------------------

    def request(self, name: str) -> Ticket:
        """Somebody asks for a lease."""
        self._n_tickets += 1
        ticket = Ticket(name, self._n_tickets)
        self._waiting.setdefault(name, deque()).append(ticket)
        return ticket

    def grant_now(self, name: str) -> ModelSlot | None:
        """A lease without a ticket: what `plan` would grant at once. None if somebody waits, or if
        the model has no place to stay."""
        if self._waiting or not self.resident(name):
            return None
        return self._use(self._places[name])

    def withdraw(self, ticket: Ticket) -> None:
        """The ticket, which has no lease yet, is given back."""
        waiting = self._waiting.pop(ticket.name)
        waiting.remove(ticket)
        if waiting:
            self._waiting[ticket.name] = waiting
            self._waiting = dict(sorted(self._waiting.items(), key=lambda item: item[1][0].number))

    def release(self, place: ModelSlot) -> None:
        """A lease has ended (its model may have gone before)."""
        place.n_leases -= 1

    def settled(self, name: str) -> None:
        """The model has been loaded."""
        if place := self._places.get(name):
            place.settled = True

    def leave(self, name: str) -> None:
        """The model is being ended, for whatever reason: there is no lease, nor a new place for
        it, until it is gone."""
        self._leaving.add(name)

    def gone(self, name: str) -> None:
        """The model is not in memory any more."""
        self._leaving.discard(name)
        self._places.pop(name, None)

    # ---- decisions ----------------------------------------------------------------

    def plan(self) -> Plan:
        """What is to be done after all these events."""
        if not self._waiting:  # mostly: nobody needs a place
            return Plan()
        admitted = self._admit()
        shortage = self._shortage()
        evicted = self._evict(shortage)
        # Whoever waited for a place gets its lease, even if the next in line want the place too.
        closed = self._closed(shortage - len(evicted)) - set(admitted)
        return Plan(evicted, admitted, self._grant(closed))

    def _homeless(self) -> list[str]:
        """Models that are waited for and could be loaded if there were room."""
        return [
            name for name in self._waiting if name not in self._places and name not in self._leaving
        ]

    def _admit(self) -> list[str]:
        homeless = self._homeless()
        if self._limit:
            homeless = homeless[: max(self._limit - len(self._places), 0)]
        for name in homeless:
            self._n_uses += 1
            self._places[name] = ModelSlot(name, used=self._n_uses)
        return homeless

    def _shortage(self) -> int:
        """Places that are needed beyond those that become free anyway."""
        n_leaving = sum(name in self._leaving for name in self._places)
        return max(len(self._homeless()) - n_leaving, 0)

    def _staying(self) -> list[ModelSlot]:
        """The least recently used one first."""
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
        """One more lease of it begins."""
        self._n_uses += 1
        place.n_leases, place.used = place.n_leases + 1, self._n_uses
        return place
