"""What a request may expect of the queue: whether it is refused, its place, the estimated wait.
Reports the load of the process.

Belongs to the thread that steps.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice

from specllama.engine.errors import ErrorInfo
from specllama.engine.options.tables.context import ContextOptions
from specllama.engine.wire.replies import (
    MAX_WAITING_SHOWN,
    Accepted,
    Event,
    Queued,
    Relaxed,
    WaitingState,
)
from specllama.engine.wire.stats import ReplicaLoad
from specllama.engine.worker.generation.planning import StepPlanner
from specllama.engine.worker.generation.request import Request
from specllama.engine.worker.scheduling.limits import QueueLimits, refuse_allowance
from specllama.engine.worker.scheduling.sequences import Sequence

SHOW_SECONDS = 1.0
"""The shortest time between two reports of the places in the queue."""
MAX_PLACES = 512
"""Places up to this one are reported when they change; a later one only as it was estimated when
the request began to wait."""
REPORTS = 64
"""Maximum number of reports in one step."""
RESERVED = 1024
"""Tokens that are reserved for an answer without `n_predict`: a key with a small limit could
otherwise send no such request. The real number is settled at the end."""


class Queueing:
    """Decides whether requests may wait, and reports their places."""

    def __init__(self, planner: StepPlanner, options: ContextOptions) -> None:
        self.limits = QueueLimits(options)
        self._planner = planner
        self._slots = planner.scheduler.slots
        self._n_ctx = planner.scheduler.n_ctx
        self._shows = False  # a request wants to know its place
        self._shown = 0.0  # when places were last looked up
        self._reports: deque[tuple[Request, Queued]] = deque()

    def submit(self, request: Request, now: float) -> list[Event] | ErrorInfo:
        """Queue a prepared request. Returns its first events, or the error if it may not wait."""
        sequence, terms, slots = request.sequence, request.terms, self._slots
        must_wait = not slots.n_free
        asks = terms.is_metered or terms.allowance >= 0 or terms.prompt_ms or terms.timeout_ms
        if not (must_wait or asks):
            slots.submit(sequence)
            return first_events(request)
        n_uncached = self._n_uncached(request)
        n_before, wait = self._wait(sequence) if must_wait else (0, 0.0)
        n_tokens = n_uncached + self._room(request)
        refused = self._refused(request, n_uncached, n_tokens, wait, now)
        if refused is not None:
            return refused
        slots.submit(sequence, n_uncached)
        if sequence.ticket is not None:
            sequence.ticket.call.n_reserved += n_tokens
        events = first_events(request, n_tokens)
        if terms.shows_queue and must_wait:
            self._shows = True
            request.place = n_before + 1
            events.append(Queued(request.id, request.place, 1e3 * wait))
        return events

    def _refused(
        self, request: Request, n_uncached: int, n_tokens: int, wait: float, now: float
    ) -> ErrorInfo | None:
        """The error of a request that may not wait. A request that an earlier process has accepted
        may."""
        terms, sequence, limits = request.terms, request.sequence, self.limits
        if not terms.is_accepted:
            call = self._slots.queue.call(sequence.owner, sequence.group, sequence.priority)
            n_others = 0 if call is None else call.n_reserved
            if (error := refuse_allowance(n_others + n_tokens, terms.allowance)) is not None:
                return error
            if wait and not terms.is_only:
                error = limits.refuse_tokens(self._slots.queue.n_tokens, n_uncached)
                if error is not None:
                    return error
        if not self._planner.knows_times:
            return None
        if terms.prompt_ms:
            seconds = wait + self._planner.prompt_seconds(n_uncached)
            error = limits.refuse_late(seconds, request.deadlines.prompt - now, "its prompt")
            if error is not None:
                return error
        if terms.timeout_ms:
            return limits.refuse_late(wait, request.deadlines.total - now, "the wait for a slot")
        return None

    def _n_uncached(self, request: Request) -> int:
        if request.is_repeated and request.sequence.cache_prompt:
            return 1
        return self._slots.n_uncached(request.sequence)

    def _room(self, request: Request) -> int:
        """The number of tokens that are reserved for the answer."""
        room = self._n_ctx - request.sequence.n_prompt
        n_predict = request.params.n_predict
        return min(room, RESERVED if n_predict < 0 else n_predict)

    def _wait(self, sequence: Sequence) -> tuple[int, float]:
        """The number of texts before a new sequence, and its estimated wait in seconds."""
        queue = self._slots.queue
        n = queue.n_before(sequence.owner, sequence.weight, sequence.priority)
        wait = self._planner.wait_seconds(n, self._n_tokens_of(n))
        self.limits.wait = wait
        return n, wait

    def _n_tokens_of(self, n: int) -> int:
        """The uncached prompt tokens of the next `n` texts, of mean length."""
        queue = self._slots.queue
        return queue.n_tokens * n // queue.n_waiting if queue.n_waiting else 0

    @property
    def wait_seconds(self) -> float:
        """The estimated wait of a request that comes last."""
        n = self._slots.queue.n_waiting
        self.limits.wait = self._planner.wait_seconds(n, self._n_tokens_of(n))
        return self.limits.wait

    @property
    def load(self) -> ReplicaLoad:
        """The present load."""
        slots, planner = self._slots, self._planner
        running, queue = slots.active.values(), slots.queue
        return ReplicaLoad(
            n_slots=planner.scheduler.n_slots,
            n_busy=len(running),
            n_waiting=queue.n_waiting,
            n_tokens_waiting=queue.n_tokens
            + sum(each.n_pending for each in running if each.phase != "ready"),
            prompt_seconds=planner.token_seconds,
            step_seconds=planner.clock.decode_seconds(
                min(len(running) + 1, planner.scheduler.n_slots)
            ),
            wait_seconds=self.wait_seconds,
        )

    def refuse_call(self, n_arriving: int) -> ErrorInfo | None:
        """The error of a new call while `n_arriving` others are being prepared; None if it may
        wait, or if a slot is idle. May run in any thread."""
        n_waiting = n_arriving + self._slots.queue.n_calls - len(self._slots.idle)
        return self.limits.refuse_call(n_waiting)

    # ---- places --------------------------------------------------------------------------

    def reports(self, running: Mapping[int, Request], now: float) -> Iterator[Event]:
        """The new places of waiting requests that want to know them."""
        if not self._shows:
            return
        if now >= self._shown + SHOW_SECONDS:
            self._shown = now
            self._look_up(running, now)
        for _ in range(min(REPORTS, len(self._reports))):
            request, report = self._reports.popleft()
            if request.sequence.phase == "queued" and not request.started:
                request.place = report.place
                yield report

    def _look_up(self, running: Mapping[int, Request], now: float) -> None:
        self._reports.clear()
        self._shows = self._slots.queue.n_waiting > MAX_PLACES
        wait = self._planner.waits()
        for place, (sequence, n_tokens) in enumerate(islice(self._in_order(now), MAX_PLACES), 1):
            request = running[sequence.id]
            if not request.terms.shows_queue or request.started:
                continue
            self._shows = True
            if place != request.place:
                ms = 1e3 * wait(place - 1, n_tokens)
                self._reports.append((request, Queued(request.id, place, ms)))

    def _in_order(self, now: float) -> Iterator[tuple[Sequence, int]]:
        """The waiting sequences, and the prompt tokens before each."""
        n_tokens = 0
        for ticket in self._slots.queue.in_order(now):
            yield ticket.item, n_tokens
            n_tokens += ticket.n_tokens

    def states(self, running: Mapping[int, Request], now: float) -> list[WaitingState]:
        """The first waiting requests."""
        states: list[WaitingState] = []
        wait = self._planner.waits()
        first = islice(self._in_order(now), MAX_WAITING_SHOWN)
        for place, (sequence, n_tokens) in enumerate(first, 1):
            request, ticket = running[sequence.id], sequence.ticket
            states.append(
                WaitingState(
                    id=request.id,
                    place=place,
                    key_name=request.terms.key_name,
                    n_tokens=len(sequence.tokens),
                    n_uncached=0 if ticket is None else ticket.n_tokens,
                    priority=sequence.priority,
                    age_ms=1e3 * (now - request.arrived),
                    wait_ms=1e3 * wait(place - 1, n_tokens),
                )
            )
        return states


def first_events(request: Request, n_tokens: int = 0) -> list[Event]:
    """The events of an accepted request; `n_tokens` are reserved for it if it is metered."""
    events: list[Event] = []
    if request.relaxed:
        events.append(Relaxed(request.id, list(request.relaxed)))
    if request.confirm or request.terms.is_metered:
        events.append(Accepted(request.id, n_tokens if request.terms.is_metered else 0))
    return events
