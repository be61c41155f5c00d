"""Turns the chunks of a plan into the batch that is decoded."""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from specllama.engine import system
from specllama.engine.wire.stats import REQUIRED, Stats
from specllama.engine.worker.backend import (
    BackendError,
    Context,
    OutOfCellsError,
    OutOfMemoryError,
)
from specllama.engine.worker.backend.batch import TokenBatch
from specllama.engine.worker.cache.texts import Key
from specllama.engine.worker.generation.media_embeddings import Embeddings
from specllama.engine.worker.generation.request import Request
from specllama.engine.worker.generation.sampling import Output, Sampling
from specllama.engine.worker.scheduling.scheduler import Scheduler
from specllama.engine.worker.scheduling.sequences import Chunk
from specllama.engine.worker.scheduling.step_clock import StepClock
from specllama.engine.worker.tokens import TokenArray


@dataclass
class StepBatch:
    """The input of one decode of a step: chunks of texts, or a part of one medium."""

    chunks: Sequence[Chunk]
    requests: Sequence[Request]
    """The request of each chunk."""
    n_waiting: int = 0
    """Number of chunks of the same step that the next decode evaluates: their sequences wait for
    this decode."""
    started: float = 0.0  # s
    indices: Sequence[int] = ()
    """For each chunk, the index in the batch of the logits of its text's last token."""
    outputs: Sequence[Output] = ()
    """The requests whose next token is chosen after this decode."""
    evaluated: Sequence[Chunk] = ()
    """The launched chunks, including any that `keep` has dropped since."""

    @property
    def is_single(self) -> bool:
        """True if each text in it adds one token, not counting proposed ones."""
        return all(chunk.is_single for chunk in self.chunks)

    def keep(self, running: Container[int]) -> None:
        """Drop the chunks of requests whose ids aren't in `running`."""
        kept = [at for at, request in enumerate(self.requests) if request.id in running]
        if len(kept) < len(self.requests):
            self.chunks = [self.chunks[at] for at in kept]
            self.requests = [self.requests[at] for at in kept]
            self.indices = [self.indices[at] for at in kept] if self.indices else ()

    def note_prompts(self, context: Context) -> None:
        """Record the probabilities of prompt tokens, for the requests that want them."""
        rows_of = zip(self.chunks, self.requests, self.indices, strict=True)
        for chunk, request, index in rows_of:
            if request.prompt_probs is not None and chunk.sequence.wants_outputs:
                rows = range(index - chunk.n_tokens + 1, index + 1)
                request.prompt_probs.note(context, chunk.start, rows)


def fill(batch: TokenBatch, chunks: Sequence[Chunk]) -> list[int]:
    """Replace the contents of the batch with the chunks, without their early tokens. Returns for
    each chunk the index of the last token of its text (its notional index, if that token was
    early). Proposed tokens follow this index."""
    batch.clear()
    if all(c.stop - c.start == 1 and not c.proposed for c in chunks):  # the usual case
        return [*_add_singles(batch, chunks)]
    lasts: list[int] = []
    for is_single, row in groupby(chunks, lambda chunk: chunk.n_late == 1):
        alike = [*row]
        lasts += _add_singles(batch, alike) if is_single else [_add(batch, c) for c in alike]
    return [last - len(c.proposed) for last, c in zip(lasts, chunks, strict=True)]


def _add_singles(batch: TokenBatch, chunks: Sequence[Chunk]) -> range:
    """Add all in one call: adding them one by one takes longer than the rest of a step's Python."""
    return batch.add_singles(
        [c.proposed[-1] if c.proposed else c.sequence.tokens.item(c.start) for c in chunks],
        [c.start + c.n_early for c in chunks],
        [c.sequence.seq_id for c in chunks],
        [c.is_last or c.sequence.wants_outputs for c in chunks],
    )


def fill_early(batch: TokenBatch, chunks: Sequence[Chunk]) -> None:
    """Replace the contents of the batch with the early tokens of the chunks, without logits."""
    batch.clear()
    for chunk in chunks:
        if chunk.n_early:
            tokens = _tokens(chunk)[: chunk.n_early]
            batch.add(tokens, chunk.start, chunk.sequence.seq_id, output=0)


def _add(batch: TokenBatch, chunk: Chunk) -> int:
    tokens, start = _tokens(chunk)[chunk.n_early :], chunk.start + chunk.n_early
    last = batch.add(tokens, start, chunk.sequence.seq_id, output=chunk.n_outputs)
    if chunk.n_pad:
        batch.add(chunk.n_pad * [tokens.item(-1)], chunk.stop, chunk.sequence.seq_id, output=0)
    return last


def _tokens(chunk: Chunk) -> TokenArray:
    tokens = chunk.sequence.tokens.view(chunk.start, chunk.stop)
    if chunk.proposed:
        tokens = np.concatenate((tokens, np.array(chunk.proposed, np.int32)))
    return tokens


# ---- Counts of what the steps do, for `GET /metrics`. Always kept: an event costs a fraction of a
# microsecond. All times are seconds.


class Counting:
    """The counts of one engine. Belongs to the thread that steps."""

    def __init__(self) -> None:
        self._stats = Stats()
        self._computed = 0.0  # when the last decode ended; 0 while idle
        self._gaps: list[float] = []  # between tokens, of the last step
        self._has_prompt = False  # the last decode had prompt tokens

    def admitted(self, request: Request, now: float) -> None:
        """`request` has got its first slot."""
        self._stats.queue.observe(now - request.arrived)

    def preempted(self) -> None:
        """A request has given its slot to one with a better priority."""
        self._stats.n_preempted += 1

    def read(self, request: Request) -> None:
        """The whole prompt of `request` is evaluated. Counted here rather than at admission, since
        a preempted request is placed again, with other cached parts."""
        sequence = request.sequence
        self._stats.n_prompt_cached += sequence.n_cached
        self._stats.n_prompt_restored += sequence.n_restored
        self._stats.n_prompt_from_files += sequence.n_from_files
        self._stats.n_prompt_shared += sequence.n_shared
        reason, missed = sequence.miss_reason or REQUIRED, self._stats.n_prompt_missed
        n_computed = sequence.n_prompt - sequence.n_cached
        missed[reason] = missed.get(reason, 0) + n_computed

    def begins(self, now: float) -> None:
        """The device begins to compute."""
        if self._computed:
            self._stats.idle_seconds += now - self._computed

    def computed(self, now: float) -> None:
        """The device has finished computing."""
        self._computed = now

    def rests(self) -> None:
        """The engine has become idle."""
        self._computed = 0.0

    def decoded(self, chunks: Sequence[Chunk], n_busy: int) -> None:
        """`chunks` are evaluated; their requests don't have their next tokens yet."""
        self._observe_gaps()
        n_prompt = sum(c.stop - c.start for c in chunks if not c.sequence.generating)
        self._has_prompt = n_prompt > 0
        self._stats.n_prompt += n_prompt
        self._stats.n_decode += 1
        self._stats.n_busy += n_busy
        for chunk in chunks:
            if (n := len(chunk.proposed) - chunk.n_forced) > 0:
                self._stats.n_drafts += 1
                self._stats.n_drafted += n
        self._stats.n_tokens_max = max([self._stats.n_tokens_max, *(c.stop for c in chunks)])

    def sampled(self, request: Request, now: float) -> None:
        """A token is chosen for `request`, and not counted in `n_decoded` yet."""
        self._stats.n_predicted += 1
        if request.n_decoded:
            self._gaps.append(now - request.last_token)
        else:
            self._stats.first_token.observe(now - request.arrived)

    def _observe_gaps(self) -> None:
        for gap in self._gaps:
            self._stats.inter_token.observe(gap)
        self._gaps.clear()

    def stepped(self, seconds: float) -> None:
        """The step of the last decode has taken `seconds`."""
        self._stats.prompt_seconds += seconds if self._has_prompt else 0.0
        self._stats.step.observe(seconds)

    def stats(self, scheduler: Scheduler, n_cells: int) -> Stats:
        """All counts since the start, and the current load."""
        self._observe_gaps()
        stats = self._stats
        stats.n_processing = len(scheduler.active)
        stats.n_deferred = scheduler.n_waiting + scheduler.n_paused
        stats.n_tokens_running = sum(len(each.tokens) for each in scheduler.active)
        stats.n_cells_running = _n_cells_running(scheduler)
        stats.n_cells_used = scheduler.n_cells_used
        stats.n_cells = n_cells
        return stats


def _n_cells_running(scheduler: Scheduler) -> int:
    """The number of cells of the texts in slots; shared cells count once."""
    cache, active = scheduler.cache, scheduler.active
    if cache.n_free is None:  # separate caches
        return sum(each.n_past for each in active)
    return cache.n_cells_of(each.seq_id for each in active)


# ---- Launching a batch on the device.


_ERRORS = (OutOfCellsError, OutOfMemoryError, BackendError)


class Decoding:
    """Passes adapters, samplers and the batch to the device. Belongs to the thread that steps."""

    def __init__(
        self,
        context: Context,
        sampling: Sampling,
        clock: StepClock,
        embeddings: Embeddings,
        counting: Counting,
    ) -> None:
        self._context = context
        self._sampling = sampling
        self._clock = clock
        self._embeddings = embeddings
        self._counting = counting
        self._applied: Key = ()  # the adapters of the last step

    def apply(self, key: Key) -> None:
        """Activate the adapters of `key`, which all chunks of a step share."""
        if key != self._applied:
            self._applied = key
            self._context.set_adapters(key)

    def launch(self, batch: StepBatch) -> Exception | None:
        """Let the device evaluate `batch`. Returns the error of `Context.decode`, if there is
        one."""
        try:
            self._launch(batch)
        except _ERRORS as error:
            return error
        return None

    def plan(self, batch: StepBatch) -> None:
        """Fill the context's batch with `batch`, a step of single tokens that aren't known yet,
        while the device may compute the step before."""
        chunks, batch.evaluated = batch.chunks, batch.chunks
        rows = self._context.batch
        rows.clear()
        batch.indices = rows.add_singles(
            [0] * len(chunks),
            [chunk.start for chunk in chunks],
            [chunk.sequence.seq_id for chunk in chunks],
            [True] * len(chunks),
        )

    def launch_planned(self, batch: StepBatch, tokens: Sequence[int]) -> Exception | None:
        """As `launch`, for a batch of `plan` with these tokens."""
        self._context.batch.tokens[: len(tokens)] = tokens
        batch.started = system.now()
        self._counting.begins(batch.started)
        try:
            self._context.decode()
        except _ERRORS as error:
            return error
        return None

    def _launch(self, batch: StepBatch) -> None:
        chunks, requests = batch.chunks, batch.requests
        batch.started, batch.evaluated = system.now(), chunks
        self._sampling.arrange(chunks, requests)
        if chunks[0].span is not None:
            (chunk,), (request,) = chunks, requests
            self._counting.begins(system.now())
            batch.indices = [self._embeddings.decode(self._context, chunk, request)]
            return
        self._evaluate_early(chunks)
        batch.indices = fill(self._context.batch, chunks)
        self._counting.begins(system.now())
        self._context.decode()

    def wait(self) -> None:
        """Wait until all is computed: progress, waits and timings refer to finished work."""
        self._context.synchronize()
        self._counting.computed(system.now())

    def _evaluate_early(self, chunks: Sequence[Chunk]) -> None:
        if n := sum(chunk.n_early for chunk in chunks):
            fill_early(self._context.batch, chunks)
            started = system.now()
            self._counting.begins(started)
            self._context.decode()
            self._context.synchronize()
            now = system.now()
            self._counting.computed(now)
            self._clock.observe_rows(n, now - started)
