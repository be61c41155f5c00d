"""Questions to all replicas of a fleet, whose answers are joined into one."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from specllama.engine.fleet.channel import ID_BITS
from specllama.engine.wire.devices import DeviceMemory
from specllama.engine.wire.replies import (
    MAX_WAITING_SHOWN,
    Adapters,
    Failed,
    Reply,
    Slots,
    SlotState,
    StatsReply,
    WaitingState,
)
from specllama.engine.wire.requests import GetAdapters, GetSlots, GetStats, SetAdapters
from specllama.engine.wire.stats import Histogram, Stats

ToAll: TypeAlias = GetSlots | GetStats | GetAdapters | SetAdapters
"""The questions that concern every replica."""

_CHOICES: Mapping[str, Callable[[list[Any]], Any]] = {
    "n_tokens_max": max,
    "wait_seconds": min,
    "report_age": max,
    "replicas": lambda values: {},
}
"""Statistics that are not summed. New requests go to the replica with the shortest wait."""
_OWN_NUMBERS = (1 << ID_BITS) - 1


class JointQuestions:
    """The questions to all replicas that are not answered yet.

    The counters of replicas that are gone stay part of the statistics, as they were when the
    replica was last asked: sums of counters must not decrease.
    """

    def __init__(self, say: Callable[[Reply | Failed], None]) -> None:
        """`say` receives the whole answers."""
        self._say = say
        self._open: dict[int, Joining] = {}
        self._last: dict[str, Stats] = {}  # of each replica
        self._gone: Stats | None = None  # the counters of replicas that are gone

    def __len__(self) -> int:
        return len(self._open)

    def ask(self, id: int, first_slots: dict[str, int]) -> None:
        """Adds a question, to the replicas with these first slots."""
        self._open[id] = Joining(id, first_slots)

    def drop(self, id: int) -> bool:
        """Forgets a question. Returns False if there is none with this id."""
        return self._open.pop(id, None) is not None

    def take(self, replica: str, answer: Reply | Failed, age: float) -> bool:
        """Takes the answer of a replica, whose last report has the age. Returns False if it isn't
        the answer to a question."""
        joining = self._open.get(answer.id)
        if joining is None:
            return False
        if isinstance(answer, StatsReply):
            self._last[replica] = answer.stats
            stats = msgspec.structs.replace(answer.stats, report_age=age)
            answer = StatsReply(answer.id, stats)
        self._finish(joining, joining.take(replica, answer))
        return True

    def leave(self, replica: str) -> list[int]:
        """Waits no longer for a replica, which is gone. Returns the questions that no replica can
        answer any more."""
        if last := self._last.pop(replica, None):
            self._gone = last if self._gone is None else with_counters(self._gone, last)
        for joining in list(self._open.values()):
            self._finish(joining, joining.leave(replica))
        lost = [id for id, joining in self._open.items() if joining.is_lost]
        for id in lost:
            del self._open[id]
        return lost

    def _finish(self, joining: "Joining", answer: Reply | Failed | None) -> None:
        if answer is None:
            return
        del self._open[joining.id]
        if isinstance(answer, StatsReply) and self._gone is not None:
            answer = StatsReply(answer.id, with_counters(answer.stats, self._gone))
        self._say(answer)


class Joining:
    """One question, and the answers of replicas so far. `first_slots` has the number of the first
    slot of each replica that was asked."""

    def __init__(self, id: int, first_slots: dict[str, int]) -> None:
        self.id = id
        self._left = dict(first_slots)
        self._answers: list[tuple[int, str, Reply]] = []
        self._failed: Failed | None = None

    @property
    def is_lost(self) -> bool:
        """True if all replicas that were asked are gone."""
        return not (self._left or self._answers or self._failed)

    def take(self, replica: str, answer: Reply | Failed) -> Reply | Failed | None:
        """Adds the answer of a replica. Returns the whole answer when it is the last one."""
        first_slot = self._left.pop(replica, None)
        if first_slot is None:
            return None
        if isinstance(answer, Failed):
            self._failed = answer
        else:
            self._answers.append((first_slot, replica, answer))
        return self._result()

    def leave(self, replica: str) -> Reply | Failed | None:
        """Leaves out a replica, which is gone. Returns the whole answer if the others have
        answered."""
        self._answers = [each for each in self._answers if each[1] != replica]
        return None if self._left.pop(replica, None) is None else self._result()

    def _result(self) -> Reply | Failed | None:
        if self._left:
            return None
        if self._failed is not None or not self._answers:
            return self._failed
        self._answers.sort(key=lambda each: each[0])
        first = self._answers[0][2]
        if isinstance(first, Slots):
            return self._slots()
        if isinstance(first, StatsReply):
            stats = {
                replica: reply.stats
                for _, replica, reply in self._answers
                if isinstance(reply, StatsReply)
            }
            joined = join_stats([*stats.values()])
            return StatsReply(self.id, msgspec.structs.replace(joined, replicas=stats))
        assert isinstance(first, Adapters)
        return first

    def _slots(self) -> Slots:
        slots: list[SlotState] = []
        waiting: list[WaitingState] = []
        n_waiting = 0
        for first_slot, _, reply in self._answers:
            assert isinstance(reply, Slots)
            n_waiting += reply.n_waiting
            waiting += (_with_own_id(each) for each in reply.waiting)
            slots += (
                msgspec.structs.replace(each, id=first_slot + each.id, id_task=_own(each.id_task))
                for each in reply.slots
            )
        waiting.sort(key=lambda each: each.place)
        return Slots(self.id, slots, waiting[:MAX_WAITING_SHOWN], n_waiting)


def _own(id: int) -> int:
    """Returns the number that an ingress gave a request, without its random bits; -1 is no
    request."""
    return id & _OWN_NUMBERS if id >= 0 else id


def _with_own_id(state: WaitingState) -> WaitingState:
    return msgspec.structs.replace(state, id=_own(state.id))


_COUNTERS = Stats.__struct_fields__[: Stats.__struct_fields__.index("n_processing")]


def with_counters(stats: Stats, other: Stats) -> Stats:
    """Returns `stats` with the counts of both since their start, and the present state of the first
    one."""
    counts = {name: _join(name, [getattr(stats, name), getattr(other, name)]) for name in _COUNTERS}
    return msgspec.structs.replace(stats, **counts)


def join_stats(all_stats: Sequence[Stats]) -> Stats:
    """Returns the statistics of several engine processes, at least one, as those of one process:
    sums, joined histograms, and the memory of all devices of a name."""
    fields = Stats.__struct_fields__
    return Stats(**{name: _join(name, [getattr(s, name) for s in all_stats]) for name in fields})


def _join(name: str, values: list[Any]) -> Any:
    if (choice := _CHOICES.get(name)) is not None:
        return choice(values)
    first = values[0]
    if isinstance(first, Histogram):
        counts = [sum(column) for column in zip(*(each.counts for each in values), strict=True)]
        return Histogram(first.bounds, counts, sum(each.total for each in values))
    if isinstance(first, dict):
        keys = {key: None for each in values for key in each}
        return {key: sum(each.get(key, 0) for each in values) for key in keys}
    if isinstance(first, list):
        return _join_devices([each for part in values for each in part])
    return sum(values)


def _join_devices(devices: Sequence[DeviceMemory]) -> list[DeviceMemory]:
    found: dict[str, DeviceMemory] = {}
    for each in devices:
        if (other := found.get(each.name)) is not None:
            free, total = other.free + each.free, other.total + each.total
            each = msgspec.structs.replace(other, free=free, total=total)
        found[each.name] = each
    return list(found.values())
