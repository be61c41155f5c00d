"""The requests that are being prepared for the main thread of the engine process."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from specllama.engine import system
from specllama.engine.wire.replies import Deadline
from specllama.engine.worker.generation.preparation import Preparing
from specllama.engine.worker.scheduling.limits import NEVER


@dataclass(eq=False)
class Arrival:
    """A request that is being prepared. `compiling` is the prepared part, while the request's
    constraint is compiled."""

    call: int
    is_metered: bool
    received: float = field(default_factory=lambda: system.now())
    is_cancelled: bool = False
    is_expired: bool = False  # a deadline has passed, and the server has the answer
    compiling: Preparing | None = None

    @property
    def has_ended(self) -> bool:
        """True if the server has got the last event of the request."""
        return self.is_expired or (self.is_cancelled and self.is_metered)


class Arrivals:
    """The requests that are being prepared, by id. Used from several threads."""

    def __init__(self) -> None:
        self._by_id: dict[int, Arrival] = {}
        self._calls: set[int] = set()  # those without a prepared request
        self._lock = system.Lock()  # held by the thread that ends a request
        self.next_deadline = NEVER
        """The first deadline of requests whose constraints are compiled; maybe an earlier time."""

    def __bool__(self) -> bool:
        return bool(self._by_id)

    def __getitem__(self, id: int) -> Arrival:
        return self._by_id[id]

    @property
    def n_calls(self) -> int:
        """The number of client calls of which no request is prepared yet."""
        return len(self._calls)

    @property
    def are_compiling(self) -> bool:
        """True if all requests wait for their constraints."""
        return all(each.compiling is not None for each in [*self._by_id.values()])

    def add(self, ids: Sequence[int], group: int, *, is_metered: bool) -> None:
        """The requests of one message, which belong to the call `group` (0: one of its own)."""
        call = group or ids[0]
        self._calls.add(call)
        self._by_id.update((id, Arrival(call, is_metered)) for id in ids)

    def get(self, id: int) -> Arrival | None:
        return self._by_id.get(id)

    def compiles(self, preparing: Preparing) -> None:
        """The constraint of a request with deadlines is being compiled."""
        self.next_deadline = min(self.next_deadline, preparing.deadlines.first)

    def expire(self, now: float) -> list[tuple[Arrival, Preparing, Deadline]]:
        """Cancel the requests whose deadlines have passed while their constraints are compiled."""
        expired: list[tuple[Arrival, Preparing, Deadline]] = []
        self.next_deadline = NEVER
        for arrival in [*self._by_id.values()]:
            preparing = arrival.compiling
            if preparing is None or arrival.is_cancelled:
                continue
            if not (passed := preparing.deadlines.passed(now, in_prompt=True)):
                self.compiles(preparing)
                continue
            with self._lock:
                if self._by_id.get(preparing.submit.id) is not arrival:
                    continue  # it has failed meanwhile
                arrival.is_cancelled = arrival.is_expired = True
            expired.append((arrival, preparing, passed))
        return expired

    def pop(self, id: int) -> Arrival | None:
        """Forget the request `id`: it is prepared, has failed, or is cancelled."""
        with self._lock:
            arrival = self._by_id.pop(id, None)
        if arrival is not None:
            self._calls.discard(arrival.call)
        return arrival
