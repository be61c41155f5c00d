"""The slots, and the admission of waiting sequences to them.

Plain data, as in `engine.worker.scheduling.scheduler`, which plans the steps of the sequences that
have a slot.
"""

from collections.abc import Callable
from typing import Literal

from specllama.engine.worker.cache.prefix_cache import PrefixCache
from specllama.engine.worker.cache.texts import ALL, Found, Tier
from specllama.engine.worker.scheduling.admission import AdmissionQueue
from specllama.engine.worker.scheduling.fairness import QueueTicket
from specllama.engine.worker.scheduling.memory import (
    MIN_FOLLOW,
    CacheLayout,
    Cutting,
    PrefixOrigin,
)
from specllama.engine.worker.scheduling.placement import Placement
from specllama.engine.worker.scheduling.sequences import Phase, Sequence, next_start

MAX_PREEMPTIONS = 4
"""Maximum number of sequences that give their slots to others with better priorities, in one
step."""
MAX_PASSED = 64
"""Maximum number of calls that are passed over in one step because they wait for a prefix: finding
the prefix of each takes up to a tenth of a millisecond."""

Outcome = Literal["admitted", "waits for a prefix", "no room"]


class SlotTable:
    """The sequences in slots, and the waiting ones.

    `finish` takes a sequence out of its slot, and keeps its cells in the cache. The other arguments
    are as in `Scheduler`.
    """

    def __init__(
        self,
        cache: PrefixCache,
        layout: CacheLayout,
        cutting: Cutting,
        tier: Tier | None,
        finish: Callable[[Sequence, Phase], None],
        *,
        n_slots: int,
        n_ctx: int,
        similarity: float,
    ) -> None:
        self.queue: AdmissionQueue[Sequence] = AdmissionQueue()
        """The sequences that wait."""
        self.active: dict[int, Sequence] = {}
        """The sequences in slots, by slot, in the order of their admission."""
        self.running: dict[int, Sequence] = {}
        """The same sequences, by sequence id."""
        self.idle = list(range(n_slots))
        """The idle slots, the least recently used first."""
        self.preempted: list[Sequence] = []
        """Sequences that had to leave their slots since the list was last emptied."""
        self._cache = cache
        self._layout = layout
        self._finish = finish
        self._n_ctx = n_ctx
        self._similarity = similarity
        self._now = 0.0
        self._has_admitted = False
        self._placement = Placement(cache, layout, cutting, tier, self.running, n_ctx=n_ctx)
        self.usable = self._placement.usable
        """The cached texts that a new sequence could use."""

    @property
    def n_free(self) -> int:
        """The number of idle slots that no waiting sequence will get."""
        return max(0, len(self.idle) - self.queue.n_waiting)

    @property
    def may_admit(self) -> bool:
        """True if the next step may give a waiting sequence a slot."""
        return self.queue.n_waiting > 0 and (bool(self.idle) or self._may_preempt())

    def n_uncached(self, sequence: Sequence) -> int:
        """The number of tokens of a new sequence that would have to be evaluated if it were
        admitted when the running ones have evaluated their prompts."""
        source = self._placement.find(sequence)
        return len(sequence.tokens) - source.n - source.n_soon

    def submit(self, sequence: Sequence, n_uncached: int | None = None) -> None:
        """Queue `sequence`. `n_uncached`: the number of its tokens that aren't cached; None: all
        pending ones."""
        n_answer = min(self.queue.mean_answer, self._n_ctx - len(sequence.tokens))
        if sequence.n_predict >= 0:
            n_generated = max(0, len(sequence.tokens) - sequence.n_prompt)
            n_answer = max(0, min(n_answer, sequence.n_predict - n_generated))
        sequence.ticket = QueueTicket(
            item=sequence,
            id=sequence.id,
            group=sequence.group,
            owner=sequence.owner,
            weight=sequence.weight,
            priority=sequence.priority,
            pin=sequence.id_slot,
            n_tokens=sequence.n_pending if n_uncached is None else n_uncached,
            n_answer=n_answer,
        )
        self.queue.add(sequence.ticket, self._now)

    def withdraw(self, sequence: Sequence) -> None:
        """Take a sequence out of the queue."""
        assert sequence.ticket is not None
        self.queue.remove(sequence.ticket)
        sequence.ticket = None

    def free(self, sequence: Sequence, phase: Phase) -> None:
        """Free the slot of `sequence`, which enters `phase`."""
        assert sequence.ticket is not None
        self.charge(sequence)
        self.queue.leave(sequence.ticket)
        sequence.ticket = None
        if phase == "ended" and sequence.generating:
            self.queue.answered(len(sequence.tokens) - sequence.n_prompt)
        sequence.enter(phase)
        del self.active[sequence.slot]
        del self.running[sequence.seq_id]
        self.idle.append(sequence.slot)
        sequence.slot = sequence.seq_id = -1
        sequence.n_ahead = 0

    def charge(self, sequence: Sequence) -> None:
        """Charge the account of a sequence in a slot for the tokens evaluated since the last
        time."""
        n, sequence.n_charged = sequence.n_past - sequence.n_charged, sequence.n_past
        if n > 0 and sequence.ticket is not None:
            self.queue.use(sequence.ticket, n)

    # ---- admission -----------------------------------------------------------------------

    def admit(self, now: float) -> bool:
        """Fill the idle slots; then let sequences with better priorities preempt others. True if a
        sequence got a slot."""
        self._now = now
        self._has_admitted = False
        if not self.may_admit:
            return False
        for sequence in self.active.values():
            self.charge(sequence)
        stuck = self._fill()
        for _ in range(MAX_PREEMPTIONS if self._may_preempt() else 0):
            ticket = stuck or self.queue.urgent()
            victim = None if ticket is None else self._victim(ticket)
            if ticket is None or victim is None:
                break
            if self._prefix(ticket.item) is None:
                self.queue.set_aside(ticket, all=True)
            else:
                self._preempt(victim)
                stuck = None if self._try(ticket) == "admitted" else ticket
        self.queue.restore()
        return self._has_admitted

    def _fill(self) -> QueueTicket[Sequence] | None:
        """Admit sequences to the idle slots. Returns the first one that has to wait for cells."""
        n_passed = 0
        while self.idle and n_passed < MAX_PASSED:
            if (ticket := self.queue.first(self._now)) is None:
                break
            if ticket.pin >= 0 and ticket.pin not in self.idle:
                self.queue.set_aside(ticket)  # waits for its own slot; later ones may overtake it
                continue
            outcome = self._try(ticket)
            if outcome == "no room":
                return ticket
            if outcome == "waits for a prefix":
                self.queue.set_aside(ticket, all=True)
                n_passed += 1
        return None

    def _try(self, ticket: QueueTicket[Sequence]) -> Outcome:
        """Give the first sequence of the queue a slot, if possible."""
        sequence = ticket.item
        if (prefix := self._prefix(sequence)) is None:
            return "waits for a prefix"
        source, found = prefix
        if not self._fits(sequence, source, found):
            return "no room"
        slot = self._choose_slot(sequence, source)
        self._placement.place(sequence, source, found, slot)
        self.queue.admit(ticket, self._now, sequence.n_pending)
        self._occupy(slot, sequence)
        self._has_admitted = True
        return "admitted"

    def _prefix(self, sequence: Sequence) -> tuple[PrefixOrigin, Found | None] | None:
        """The cached prefix of a sequence; None if another sequence is about to evaluate more of
        it, or if it is being fetched."""
        source = self._placement.find(sequence)
        if source.n_soon >= MIN_FOLLOW:
            return None
        found = self._placement.find_in_second_tier(sequence, source)
        return None if found is not None and found.text is None else (source, found)

    def _fits(self, sequence: Sequence, source: PrefixOrigin, found: Found | None) -> bool:
        """True if there are cells for the whole text in addition to the cells that running
        sequences still need. A prefix `found` in the second tier needs cells of its own."""
        if not self.active:
            return True
        shared = source.n if found is None and source.seq_id in self.running else 0
        needed = len(sequence.tokens) - shared + sum(s.n_pending for s in self.active.values())
        return self._layout.has_room(self._cache, self.running, needed)

    def _choose_slot(self, sequence: Sequence, source: PrefixOrigin) -> int:
        if sequence.id_slot >= 0:
            return sequence.id_slot
        entry = self._cache.entries.get(source.seq_id)
        wanted = self._similarity * len(sequence.tokens)
        if entry is not None and entry.slot >= 0 and 0 < wanted < source.n:
            return entry.slot
        return self._layout.choose_slot(self.idle, self.active)

    def _occupy(self, slot: int, sequence: Sequence) -> None:
        self._cache.unlabel(slot)
        self.idle.remove(slot)
        self.active[slot] = self.running[sequence.seq_id] = sequence
        sequence.slot, sequence.n_charged = slot, sequence.n_past
        start = next_start(sequence.spans, sequence.n_past)
        sequence.n_ready = ALL if start is None else start
        sequence.settle()

    # ---- preemption ----------------------------------------------------------------------

    def _may_preempt(self) -> bool:
        worst = max((s.rank for s in self.active.values()), default=0.0)
        return self.queue.best_priority < worst

    def _victim(self, ticket: QueueTicket[Sequence]) -> Sequence | None:
        """The sequence that gives its slot to `ticket`: the one with the worst rank; of equals, the
        one admitted last. None if all ranks are good enough."""
        slots = [s for s in self.active.values() if ticket.pin < 0 or s.slot == ticket.pin]
        worst = max(reversed(slots), key=lambda s: s.rank, default=None)
        return worst if worst is not None and worst.rank > ticket.priority else None

    def _preempt(self, sequence: Sequence) -> None:
        """Put a sequence in a slot back into the queue. Its cells stay cached."""
        self._finish(sequence, "queued")
        sequence.start_again(is_cached=True)
        self.submit(sequence, 1)
        self.preempted.append(sequence)
