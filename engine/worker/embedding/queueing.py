"""What a request for vectors may expect of the queue: whether it is refused, the estimated wait.

Belongs to the thread that steps, except for `VectorQueueing.refuse_call`.
"""

from itertools import islice

from specllama.engine.errors import ErrorInfo
from specllama.engine.options.tables.context import ContextOptions
from specllama.engine.wire.replies import MAX_WAITING_SHOWN, WaitingState
from specllama.engine.wire.stats import ReplicaLoad, Stats
from specllama.engine.worker.embedding.jobs import EmbeddingJob
from specllama.engine.worker.embedding.planning import EmbeddingBatcher
from specllama.engine.worker.scheduling.limits import QueueLimits, refuse_allowance
from specllama.engine.worker.scheduling.step_clock import GUESSED_TOKEN


class VectorQueueing:
    """Decides whether requests may wait, by the queue of `batcher` and the times in `stats`."""

    def __init__(self, batcher: EmbeddingBatcher, stats: Stats, options: ContextOptions) -> None:
        self.limits = QueueLimits(options)
        self._batcher = batcher
        self._stats = stats

    def refuse_call(self, n_arriving: int) -> ErrorInfo | None:
        """The error of a new call while `n_arriving` others are being prepared; None if it may
        wait, or if it is the next one. May run in any thread."""
        return self.limits.refuse_call(n_arriving + self._batcher.queue.n_calls - 1)

    def refused(self, job: EmbeddingJob, now: float) -> ErrorInfo | None:
        """The error of a prepared request that may not wait. The limits of the queue apply to the
        first message of a call."""
        terms, limits, n_waiting = job.terms, self.limits, self._batcher.n_tokens
        limits.wait = wait = self.wait_seconds(job.n_tokens)
        if terms.is_accepted:
            return None
        if (error := refuse_allowance(job.n_tokens, terms.allowance)) is not None:
            return error
        if n_waiting and job.group in (0, job.id) and not terms.is_only:
            error = limits.refuse_tokens(n_waiting, job.n_tokens)
            if error is not None:
                return error
        deadlines = [ms for ms in (terms.prompt_ms, terms.timeout_ms) if ms]
        if not (deadlines and self._stats.n_prompt):
            return None
        left = job.arrived + 1e-3 * min(deadlines) - now
        return limits.refuse_late(wait, left, "its vectors")

    def wait_seconds(self, n_tokens: int) -> float:
        """The estimated seconds until a new request with `n_tokens` is complete, if each waiting
        call gets the same share. By the measured time of all steps; before the first step, a
        guess."""
        stats = self._stats
        n_before = min(self._batcher.n_tokens, n_tokens * self._batcher.queue.n_calls)
        each = stats.prompt_seconds / stats.n_prompt if stats.n_prompt else GUESSED_TOKEN
        return each * (n_before + n_tokens)

    def load(self, n_slots: int, n_busy: int) -> ReplicaLoad:
        """The present load, if a step has `n_slots` inputs, and the last one had `n_busy`."""
        stats = self._stats
        return ReplicaLoad(
            n_slots=n_slots,
            n_busy=n_busy,
            n_waiting=self._batcher.queue.n_waiting,
            n_tokens_waiting=self._batcher.n_tokens,
            prompt_seconds=stats.prompt_seconds / stats.n_prompt if stats.n_prompt else 0.0,
            wait_seconds=self.wait_seconds(1),
        )

    def states(self, now: float) -> list[WaitingState]:
        """The first waiting requests."""
        tickets = islice(self._batcher.queue.in_order(now), MAX_WAITING_SHOWN)
        return [
            WaitingState(
                id=ticket.item.id,
                place=place,
                key_name=ticket.item.terms.key_name,
                n_tokens=ticket.item.n_tokens,
                n_uncached=ticket.item.n_waiting,
                priority=ticket.item.terms.priority,
                age_ms=1e3 * (now - ticket.item.arrived),
                wait_ms=1e3 * self.wait_seconds(ticket.item.n_waiting),
            )
            for place, ticket in enumerate(tickets, 1)
        ]
