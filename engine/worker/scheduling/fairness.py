"""Fair shares of the tokens, for the owners of waiting texts and for their calls.

Owners get shares of the tokens in proportion to their weights, and the calls of an owner get equal
shares. This is self-clocked fair queueing, among owners and among calls. A flow (an owner or a
call) has a `base`, the sum of its tokens divided by its weight. The tag of its next text is its
base plus the text's cost divided by the weight. The least tag comes first. The cost of a text is
the number of prompt tokens that aren't cached, and an estimate of the answer, paid in advance. A
running text is charged for the tokens beyond that, and gets the rest back when it leaves its slot.
The virtual time is the greatest tag that was served, without what the flow has paid in advance,
except for the prompt of the text. A flow whose first text begins to wait starts at the virtual
time, if its base isn't greater.

**The bound.** S is the number of slots, and L the most tokens that a text uses while it has a slot,
or costs. During any time in which two flows i and j (of one level, or of one owner) always have a
text that could be admitted, they use A_i and A_j tokens, and have the weights w_i and w_j:

    |A_i / w_i - A_j / w_j| <= (3 S + 2) L / min(w_i, w_j)

For equal weights of 1: let E be a flow's base without what its running texts have paid in advance.
E grows only by what the flow uses, or to the virtual time v when it begins to wait. (1) When a text
of i is admitted at the time t, its tag isn't greater than that of j, so E_i <= E_j + L + what j has
paid; later, the texts that i has in slots then use at most L each. As i and j share S slots at t,
E_i - E_j <= (S + 1) L until i begins to wait the next time. (2) If j doesn't wait at t, it starts
at v later, which is at least E_i at t, and the same follows. (3) If i begins to wait at v and
hasn't been served since: j waited when v was served, so that its tag was at least v, or started at
v later; so E_j >= v - (S + 1) L and E_i <= v + S L. Altogether E_i - E_j <= (2 S + 1) L whenever
both wait. In the time above, i uses at most S L tokens if no text of it is admitted, and
otherwise, by (1), at most (S + 1) L more than j, plus E_j - E_i at the beginning.

**No starvation.** The tag of a waiting text grows only by what its own flows use. Each text that is
served before it adds at least one token to the base of a flow, and new flows start at the virtual
time, which each of their texts raises. So each text is admitted after finitely many admissions of
its level. A level that waits is served after `AGE_SECONDS` for each level between it and the best
one, with the next admission of any text.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import Generic, Self, TypeVar

T = TypeVar("T")
F = TypeVar("F", bound="Flow")

AGE_SECONDS = 60.0
"""While a better level is served, a level that waits becomes better by one in this time."""
MAX_DEBTORS = 64
"""The number of owners without a text whose bases are remembered, while others wait: an owner that
sends its requests one after the other doesn't start at the virtual time each time."""


class Flow:
    """The texts of an owner or a call. `entry` identifies its valid entry in a heap; 0: no text of
    it waits there."""

    def __init__(self, base: float, weight: float) -> None:
        self.base = base
        self.weight = weight
        self.tag = 0.0
        self.entry = 0
        self.paid = 0.0  # tokens of its running texts that are charged, but not used yet
        self.n_waiting = self.n_running = 0

    @property
    def is_idle(self) -> bool:
        return not (self.n_waiting or self.n_running)


class FairOrder(Generic[F]):
    """Self-clocked fair queueing among flows. The entries of a flow in the heap are replaced only
    if its tag has become less; a greater tag is found when the entry is the first one."""

    def __init__(self) -> None:
        self.virtual = 0.0
        self._heap: list[tuple[float, int, F]] = []
        self._numbers = count(1)
        self._n = 0  # flows with a valid entry

    def offer(self, flow: F, cost: float) -> None:
        """The next text of `flow` has this cost."""
        tag = flow.base + cost / flow.weight
        if flow.entry and tag >= flow.tag:
            flow.tag = tag
            return
        self._n += not flow.entry
        flow.tag, flow.entry = tag, next(self._numbers)
        if len(self._heap) > 2 * self._n + MAX_DEBTORS:
            self._heap = [each for each in self._heap if each[2].entry == each[1]]
            heapify(self._heap)
        heappush(self._heap, (tag, flow.entry, flow))

    def withdraw(self, flow: F) -> None:
        """No text of `flow` waits any more."""
        self._n -= flow.entry > 0
        flow.entry = 0

    def first(self) -> F | None:
        """The flow with the least tag; the earliest one of equals."""
        heap = self._heap
        while heap:
            tag, entry, flow = heap[0]
            if flow.entry != entry:
                heappop(heap)
            elif tag < flow.tag:
                heapreplace(heap, (flow.tag, entry, flow))
            else:
                return flow
        return None

    def serve(self, flow: F, n_answer: float) -> None:
        """The next text of `flow` is admitted; `n_answer` tokens of its cost are the answer's."""
        used = flow.tag - (flow.paid + n_answer) / flow.weight
        self.virtual = max(self.virtual, used)
        flow.base = flow.tag


class CallFlow(Flow, Generic[T]):
    """The texts of one client call. `n_reserved`: the tokens that its accepted texts may use."""

    def __init__(self, id: int, owner: "OwnerFlow[T]", base: float) -> None:
        super().__init__(base, 1.0)
        self.id = id
        self.owner = owner
        self.tickets: list[QueueTicket[T]] = []  # by id, only admissible ones
        self.n_reserved = 0


class OwnerFlow(Flow, Generic[T]):
    """The calls of one API key in a level."""

    def __init__(self, id: int, level: "Level[T]", base: float) -> None:
        super().__init__(base, 1.0)
        self.id = id
        self.level = level
        self.calls: dict[int, CallFlow[T]] = {}
        self.order: FairOrder[CallFlow[T]] = FairOrder()


class Level(Generic[T]):
    """The owners with texts of one priority. `passed`: since when better levels have been served
    while it waits; None if none was since its last admission."""

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.owners: dict[int, OwnerFlow[T]] = {}
        self.order: FairOrder[OwnerFlow[T]] = FairOrder()
        self.passed: float | None = None
        self.n_waiting = 0
        self._debts: dict[int, float] = {}  # bases of owners without texts

    def rank(self, now: float) -> float:
        """The aged priority."""
        aged = 0.0 if self.passed is None else (now - self.passed) / AGE_SECONDS
        return self.priority - aged

    def owner(self, id: int) -> OwnerFlow[T]:
        if id not in self.owners:
            base = max(self._debts.pop(id, 0.0), self.order.virtual)
            self.owners[id] = OwnerFlow(id, self, base)
        return self.owners[id]

    def drop(self, id: int) -> None:
        """Forget an owner without texts."""
        owner = self.owners.pop(id)
        if not self.n_waiting:
            self._debts.clear()
        elif owner.base > self.order.virtual:
            if len(self._debts) >= MAX_DEBTORS:
                del self._debts[min(self._debts, key=lambda each: self._debts[each])]
            self._debts[id] = owner.base


@dataclass(eq=False, kw_only=True)
class QueueTicket(Generic[T]):
    """The place of `item`, a text or a job, in the queue, and its account while it runs.

    `pin` is the only slot that it may have (-1: any). `n_tokens` counts the prompt tokens that
    aren't cached, `n_answer` the expected ones of the answer. `since` is the time at which it began
    to wait. `paid` tokens are charged, but not used yet.
    """

    item: T
    id: int
    group: int
    owner: int = 0
    weight: float = 1.0
    priority: int = 0
    pin: int = -1
    n_tokens: int = 1
    n_answer: float = 0.0
    since: float = 0.0
    rank: float = 0.0
    paid: float = 0.0
    call: CallFlow[T] = field(init=False)

    @property
    def cost(self) -> float:
        return self.n_tokens + self.n_answer

    @property
    def place(self) -> tuple[float, int]:
        """Its place among the texts for the same slot."""
        return self.priority * AGE_SECONDS + self.since, self.id

    def __lt__(self, other: Self) -> bool:
        return self.id < other.id


def head(level: Level[T]) -> QueueTicket[T] | None:
    owner = level.order.first()
    call = None if owner is None else owner.order.first()
    return None if call is None else call.tickets[0]


def in_order(level: Level[T]) -> Iterator[QueueTicket[T]]:
    """The tickets of a level that may be admitted, in their order."""
    owners = [(each.tag, each.entry, each) for each in level.owners.values() if each.entry]
    heapify(owners)
    line: list[tuple[float, int, OwnerFlow[T], Iterator[QueueTicket[T]], QueueTicket[T]]] = []
    while owners or line:
        if not line or (owners and owners[0][:2] < line[0][:2]):
            tag, number, owner = heappop(owners)
            tickets = _calls_in_order(owner)
            heappush(line, (tag, number, owner, tickets, next(tickets)))
        tag, number, owner, tickets, ticket = line[0]
        yield ticket
        if (following := next(tickets, None)) is None:
            heappop(line)
        else:
            tag += following.cost / owner.weight
            heapreplace(line, (tag, number, owner, tickets, following))


def _calls_in_order(owner: OwnerFlow[T]) -> Iterator[QueueTicket[T]]:
    line = [(call.tag, call.entry, call, 0) for call in owner.calls.values() if call.entry]
    heapify(line)
    while line:
        tag, number, call, at = line[0]
        yield call.tickets[at]
        if at + 1 < len(call.tickets):
            heapreplace(line, (tag + call.tickets[at + 1].cost, number, call, at + 1))
        else:
            heappop(line)
