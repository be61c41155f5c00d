"""The waiting texts, and their order of admission: by priority, then fairly by tokens.

Pure Python without a clock: the caller passes the time.

**Priority.** The texts of a lower level come first. Levels age: while a better level is served, a
level that waits becomes better by one for every `AGE_SECONDS`, until one of its texts is admitted.
A level ages as a whole, not each text: otherwise the texts of a flood would become better than all
later ones, and the owners would no longer get fair shares. `QueueTicket.rank` is the aged priority
at the admission; a waiting text may only preempt a running one with a greater rank.

**Fairness.** Within a level, `engine.worker.scheduling.fairness` has the order and its proof.
"""

from bisect import insort
from collections.abc import Iterator
from typing import Generic, TypeVar

from specllama.engine.worker.scheduling.fairness import (
    CallFlow,
    Level,
    OwnerFlow,
    QueueTicket,
    head,
    in_order,
)

T = TypeVar("T")

LEAST_WEIGHT = 1e-3
FIRST_ANSWER = 128.0
"""The expected tokens of an answer, until answers have ended."""
ANSWER_SHARE = 1 / 16
"""The part that the newest answer has in the mean length of the answers."""
MANY_OWNERS = 256
"""With more owners than these, the place of a new text is estimated as the last one of its
level."""


class AdmissionQueue(Generic[T]):
    """The waiting tickets, and the accounts of the running ones.

    A ticket is added, then admitted or removed; an admitted one leaves. `first`, `set_aside` and
    `restore` look through the waiting tickets in their order.
    """

    def __init__(self) -> None:
        self.n_waiting = 0
        self.n_tokens = 0
        """The uncached prompt tokens of the waiting texts."""
        self.n_calls = 0
        """The number of client calls with a waiting text."""
        self.mean_answer = FIRST_ANSWER
        """The mean number of tokens of the last answers."""
        self._levels: dict[int, Level[T]] = {}
        self._pinned: dict[
            int, list[QueueTicket[T]]
        ] = {}  # by slot, in the order of their admission
        self._aside: list[QueueTicket[T]] = []

    def __len__(self) -> int:
        return self.n_waiting

    def add(self, ticket: QueueTicket[T], now: float) -> None:
        level = self._levels.get(ticket.priority)
        if level is None:
            level = self._levels[ticket.priority] = Level(ticket.priority)
        owner = level.owner(ticket.owner)
        owner.weight = max(LEAST_WEIGHT, ticket.weight)
        call = owner.calls.get(ticket.group)
        if call is None:
            call = owner.calls[ticket.group] = CallFlow(ticket.group, owner, owner.order.virtual)
        ticket.call, ticket.since = call, now
        self._count(ticket, 1)
        if ticket.pin < 0:
            self._enter(ticket)
        else:
            pinned = self._pinned.setdefault(ticket.pin, [])
            insort(pinned, ticket, key=lambda each: each.place)
            if pinned[0] is ticket:
                if len(pinned) > 1:
                    self._exit(pinned[1])
                self._enter(ticket)

    def remove(self, ticket: QueueTicket[T]) -> None:
        """Remove a ticket that waits."""
        self._take(ticket)
        self._forget_idle(ticket.call)

    def admit(self, ticket: QueueTicket[T], now: float, n_tokens: int | None = None) -> None:
        """Serve `ticket`, which is the first one. `n_tokens`: its uncached prompt tokens now."""
        call, owner = ticket.call, ticket.call.owner
        self._serve(ticket, now)
        change = 0 if n_tokens is None else n_tokens - ticket.n_tokens
        ticket.paid = ticket.cost + change
        for flow in (call, owner):
            flow.n_running += 1
            flow.paid += ticket.paid
        self._take(ticket)
        if change:
            self._correct(call, change)

    def serve_part(self, ticket: QueueTicket[T], now: float, n_next: int) -> None:
        """Serve a part of `ticket`, which is the first one; its next part has `n_next` tokens."""
        self._serve(ticket, now)
        self.n_tokens += n_next - ticket.n_tokens
        ticket.n_tokens = n_next
        self._renew(ticket.call)

    def use(self, ticket: QueueTicket[T], n_tokens: int) -> None:
        """Charge a running ticket for `n_tokens` that were evaluated."""
        paid = min(ticket.paid, n_tokens)
        self._use_paid(ticket, paid)
        if n_tokens > paid:
            self._correct(ticket.call, n_tokens - paid)

    def leave(self, ticket: QueueTicket[T]) -> None:
        """End the account of a running ticket."""
        call = ticket.call
        for flow in (call, call.owner):
            flow.n_running -= 1
        if (paid := ticket.paid) > 0:
            self._use_paid(ticket, paid)
            self._correct(call, -paid)
        self._forget_idle(call)

    def answered(self, n_tokens: int) -> None:
        """An answer has ended with `n_tokens`."""
        self.mean_answer += ANSWER_SHARE * (n_tokens - self.mean_answer)

    # ---- looking through the queue -------------------------------------------------------

    def first(self, now: float) -> QueueTicket[T] | None:
        """The next ticket; None if all are set aside."""
        level = self._first_level(now)
        return None if level is None else head(level)

    def urgent(self) -> QueueTicket[T] | None:
        """The first ticket of the best level, regardless of age."""
        waiting = [each for each in self._levels.values() if each.order.first() is not None]
        return head(min(waiting, key=lambda each: each.priority)) if waiting else None

    @property
    def best_priority(self) -> int:
        """The least priority of all levels."""
        return min((each for each, level in self._levels.items() if level.n_waiting), default=0)

    def set_aside(self, ticket: QueueTicket[T], *, all: bool = False) -> None:
        """Pass over `ticket`, or all tickets of its call, until `restore`."""
        for each in [*ticket.call.tickets] if all else [ticket]:
            self._exit(each)
            self._aside.append(each)

    def restore(self) -> None:
        """Put the tickets that were set aside back into their places."""
        for ticket in self._aside:
            insort(ticket.call.tickets, ticket)
            self._renew(ticket.call)
        self._aside.clear()

    def in_order(self, now: float) -> Iterator[QueueTicket[T]]:
        """The waiting tickets in the order in which they would be admitted if no others came;
        after each level, the tickets behind others for the same slot."""
        levels = [each for each in self._levels.values() if each.n_waiting]
        for level in sorted(levels, key=lambda each: each.rank(now)):
            yield from in_order(level)
            for pinned in self._pinned.values():
                yield from (t for t in pinned[1:] if t.call.owner.level is level)

    def call(self, owner: int, group: int, priority: int) -> CallFlow[T] | None:
        """The flow of a client call that has texts."""
        level = self._levels.get(priority)
        flow = None if level is None else level.owners.get(owner)
        return None if flow is None else flow.calls.get(group)

    def n_before(self, owner: int, weight: float, priority: int) -> int:
        """The estimated number of waiting texts that are admitted before a new one."""
        n = sum(each.n_waiting for p, each in self._levels.items() if p < priority)
        level = self._levels.get(priority)
        if level is None:
            return n
        if len(level.owners) > MANY_OWNERS:
            return n + level.n_waiting
        own = level.owners.get(owner)
        n_own = 0 if own is None else sum(each.n_waiting > 0 for each in own.calls.values())
        share = (n_own + 1) / weight
        others = (each for each in level.owners.values() if each is not own)
        return n + n_own + sum(min(each.n_waiting, int(share * each.weight)) for each in others)

    # ---- flows ---------------------------------------------------------------------------

    def _first_level(self, now: float) -> Level[T] | None:
        waiting = [each for each in self._levels.values() if each.order.first() is not None]
        if len(waiting) < 2:
            return waiting[0] if waiting else None
        return min(waiting, key=lambda each: (each.rank(now), each.priority))

    def _serve(self, ticket: QueueTicket[T], now: float) -> None:
        call, owner = ticket.call, ticket.call.owner
        level = owner.level
        ticket.rank = level.rank(now)
        level.order.serve(owner, ticket.n_answer)
        owner.order.serve(call, ticket.n_answer)
        level.passed = None
        if len(self._levels) > 1:
            for each in self._levels.values():
                if each.priority > level.priority and each.n_waiting and each.passed is None:
                    each.passed = now

    def _use_paid(self, ticket: QueueTicket[T], n_tokens: float) -> None:
        for each in (ticket, ticket.call, ticket.call.owner):
            each.paid -= n_tokens

    def _correct(self, call: CallFlow[T], n_tokens: float) -> None:
        """Charge the flows of `call` for `n_tokens` more, or less."""
        owner = call.owner
        call.base += n_tokens
        owner.base += n_tokens / owner.weight
        if call.tickets:
            self._renew(call)
        elif owner.entry:
            self._renew_owner(owner)

    def _enter(self, ticket: QueueTicket[T]) -> None:
        """Put `ticket` into its call, whose flows start at the virtual time."""
        call, owner = ticket.call, ticket.call.owner
        if not call.tickets:
            call.base = max(call.base, owner.order.virtual)
        if not owner.entry:
            owner.base = max(owner.base, owner.level.order.virtual)
        insort(call.tickets, ticket)
        self._renew(call)

    def _exit(self, ticket: QueueTicket[T]) -> None:
        ticket.call.tickets.remove(ticket)
        self._renew(ticket.call)

    def _renew(self, call: CallFlow[T]) -> None:
        """Update the tags of the flows of `call`."""
        owner = call.owner
        if call.tickets:
            owner.order.offer(call, call.tickets[0].cost)
        else:
            owner.order.withdraw(call)
        self._renew_owner(owner)

    def _renew_owner(self, owner: OwnerFlow[T]) -> None:
        first = owner.order.first()
        if first is not None:
            owner.level.order.offer(owner, first.tickets[0].cost)
        else:
            owner.level.order.withdraw(owner)

    def _take(self, ticket: QueueTicket[T]) -> None:
        """Take a waiting ticket out."""
        self._count(ticket, -1)
        pinned = self._pinned.get(ticket.pin, [])
        was_first = not pinned or pinned[0] is ticket
        if pinned:
            pinned.remove(ticket)
            if not pinned:
                del self._pinned[ticket.pin]
        if was_first:
            self._exit(ticket)
            if pinned:
                self._enter(pinned[0])

    def _count(self, ticket: QueueTicket[T], change: int) -> None:
        call = ticket.call
        had_waiting = call.n_waiting > 0
        for each in (call, call.owner, call.owner.level, self):
            each.n_waiting += change
        self.n_calls += (call.n_waiting > 0) - had_waiting
        self.n_tokens += change * ticket.n_tokens

    def _forget_idle(self, call: CallFlow[T]) -> None:
        """Forget the flows of `call` that have no text any more."""
        owner, level = call.owner, call.owner.level
        if call.is_idle:
            del owner.calls[call.id]
        if owner.is_idle:
            level.drop(owner.id)
        if not level.owners:
            del self._levels[level.priority]
