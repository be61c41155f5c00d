"""The scheduler of one context, and the size of its steps, from measured times."""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, Self

from specllama.engine import system
from specllama.engine.host import this_processor, user_cache
from specllama.engine.options import EngineOptions
from specllama.engine.worker.backend import BackendError, Context, OutOfMemoryError
from specllama.engine.worker.backend.context_setup import threads
from specllama.engine.worker.backend.library import devices
from specllama.engine.worker.backend.loaded import libraries
from specllama.engine.worker.cache.block_hashes import digest
from specllama.engine.worker.cache.disk_cache import DiskCache
from specllama.engine.worker.cache.host_cache import HostCache
from specllama.engine.worker.cache.origin import Identity
from specllama.engine.worker.cache.second_tier import SecondTier
from specllama.engine.worker.media.registry import MediaRegistry, ids_in
from specllama.engine.worker.scheduling import sweep
from specllama.engine.worker.scheduling.budget import PrefillBudget
from specllama.engine.worker.scheduling.scheduler import Scheduler
from specllama.engine.worker.scheduling.sequences import Chunk
from specllama.engine.worker.scheduling.sequences import Sequence as TokenSequence
from specllama.engine.worker.scheduling.step_clock import GUESSED_TOKEN, StepClock
from specllama.engine.worker.scheduling.sweep import Sweep

log = logging.getLogger("specllama.engine.worker.generation.planning")

MAX_STALL = 0.5
"""Part of `--target-itl-ms` that a step may spend on saving texts evicted from the KV cache."""
FETCH_SECONDS = 0.02
"""The longest wait for a file when a step has no other work: messages are read between two
waits."""
MORE = 0.5
"""The expected rest of an answer that is longer than the mean, in mean answers."""
SAVING_SECONDS = 3.0
"""The time limit for saving texts to files at exit; the server waits a little longer for the
process."""


def slot_context(context: Context, options: EngineOptions) -> int:
    """The length of a slot's context in tokens, at most `--kv-unified-per-slot`. Beyond its trained
    context a model writes nonsense, unless its positions are scaled."""
    n_ctx, trained = context.n_ctx_seq, context.model.n_ctx_train
    limit = options.context.kv_unified_per_slot
    if limit > n_ctx:
        log.warning("--kv-unified-per-slot %d has no effect: a slot has %d cells", limit, n_ctx)
    elif limit > 0:
        n_ctx = limit
    if n_ctx <= trained or options.rope.extends():
        return n_ctx
    log.warning(
        "a slot has %d instead of %d tokens: the model was trained with no more "
        "(--rope-scaling or --rope-scale extend this)",
        trained,
        n_ctx,
    )
    return trained


class SweepSizes(NamedTuple):
    """The bounds of a sweep, see `sweep.measure`."""

    n_most: int
    n_sequences: int
    n_rows: int

    @classmethod
    def of(cls, context: Context, options: EngineOptions) -> Self:
        """Returns the bounds for `context`."""
        one_row = options.sampling.backend_sampling or not context.is_cuttable
        n_most = min(context.n_batch, context.n_ubatch, context.n_ctx_seq)
        n_most = min(n_most, context.model.n_ctx_train)
        return cls(n_most, min(context.n_seq, sweep.BESIDE + 1), 1 if one_row else n_most)


def known_times(context: Context, options: EngineOptions) -> Sweep | None:
    """The step times of `context` in the user's cache; None if they must be measured."""
    place = _place(options, SweepSizes.of(context, options))
    return None if place is None else sweep.remembered(place)


def swept(
    context: Context, options: EngineOptions, stop: Callable[[], bool] = lambda: False
) -> Sweep:
    """Measures the step times of `context`, whose sequences must be empty, and stores them in the
    user's cache. Ends early, and stores nothing, when `stop` returns True. Raises
    `BackendError`."""
    sizes, is_stopped = SweepSizes.of(context, options), False

    def stopped() -> bool:
        nonlocal is_stopped
        is_stopped = is_stopped or stop()
        return is_stopped

    def evaluate(lengths: Sequence[int], every: bool) -> float:
        try:
            return context.evaluate(lengths, every=every, erase=False)
        except OutOfMemoryError:
            return float("inf")

    found = sweep.measure(evaluate, **sizes._asdict(), stop=stopped)
    if found.rows:
        context.clear(erase=True)
    log.debug("seconds of steps: %s", found)
    if found.prompts and not is_stopped and (place := _place(options, sizes)) is not None:
        sweep.remember(place, found)
    return found


def _place(options: EngineOptions, sizes: SweepSizes) -> Path | None:
    """The cache file of a sweep, named by a digest of everything that determines its times: the
    model, the device, the options, and the `sizes` of the sweep. The context size doesn't matter.
    None if the user has no cache directory."""
    digest, processor = blake2b(digest_size=16), this_processor()
    try:
        deciding = (
            replace(Identity.of_cells(options), projector=b""),
            options.compute,
            threads(options),
            [(name, about, total) for name, about, _, total in devices()],
            (processor.name, sorted(processor.flags)),
            [(str(path), path.stat().st_mtime_ns) for path in libraries()],
            tuple(sizes),
            options.sampling.backend_sampling,
        )
        directory = user_cache(os.environ) / "steps"
    except (OSError, RuntimeError):  # an unreadable file; no home
        return None
    digest.update(repr(deciding).encode())
    return directory / f"{digest.hexdigest()}.json"


class StepPlanner:
    """Plans the steps of `context`, and corrects its estimates by their measured times. Raises
    `BackendError` for options that the model's memory doesn't support."""

    def __init__(
        self,
        context: Context,
        options: EngineOptions,
        registry: MediaRegistry,
    ) -> None:
        times = known_times(context, options) if options.model.warmup else None
        self._swept = partial(swept, context, options)
        self._sweeps = options.model.warmup and times is None
        self._context = context
        self._registry = registry
        self._tier = self._make_tier(options)
        self.scheduler = Scheduler(
            context,
            n_slots=options.context.n_slots(),
            n_ctx=slot_context(context, options),
            n_cells=context.n_ctx if options.unified_kv_cache() else None,
            n_batch=context.n_batch,
            n_sequences=context.n_seq,
            similarity=options.context.slot_prompt_similarity,
            n_checkpoints=options.context.ctx_checkpoints,
            checkpoint_step=options.context.checkpoint_min_step,
            saves_idle=options.context.cache_idle_slots,
            continuous=options.context.cont_batching,
            tier=self._tier,
        )
        self.clock = StepClock(context.n_batch, times)
        """The estimated duration of steps; corrected by `measure`."""
        self._budget = PrefillBudget(
            self.clock,
            1e-3 * options.context.target_itl_ms,
            n_batch=context.n_batch,
            n_ubatch=context.n_ubatch,
        )
        _check_shifting(context, options)

    def sweep(self, stop: Callable[[], bool]) -> None:
        """Measure steps of several sizes, unless their times are known from an earlier start, until
        `stop` returns True. To be called once, before the first step."""
        if self._sweeps:
            try:
                self.clock.learn(self._swept(stop))
            except BackendError as error:
                log.warning("the duration of steps can't be measured: %s", error)
            self._sweeps = False

    def is_sweeping(self) -> bool:
        """Returns whether `sweep` still has to measure."""
        return self._sweeps

    def _make_tier(self, options: EngineOptions) -> SecondTier | None:
        disk = None
        if options.context.cache_disk:
            limit = options.context.cache_disk_size << 20
            try:
                identity = Identity.of_cells(options)
                directory = options.context.cache_disk
                first_cut = self._context.first_cut_of_copy
                disk = DiskCache(directory, limit, identity, self._registry, first_cut)
            except OSError as error:
                raise BackendError(f"--cache-disk: {error.strerror}") from None
        elif not options.context.cache_ram:
            if options.context.cache_idle_slots:
                log.warning("--cache-idle-slots has no effect without --cache-ram")
            return None
        ram = options.context.cache_ram
        return SecondTier(
            self._context,
            HostCache(None if ram < 0 else ram << 20),
            disk,
            is_busy=lambda: self.scheduler.n_generating > 0,
            compute_seconds=self._compute_seconds,
            max_stall=MAX_STALL * 1e-3 * options.context.target_itl_ms,
        )

    def _compute_seconds(self, n_tokens: int, start: int) -> float:
        return self._budget.compute_seconds(self.scheduler.n_generating, n_tokens, start)

    @property
    def n_bytes_cache_ram(self) -> int:
        """The size in bytes of the texts kept in `--cache-ram`."""
        return self._tier.n_bytes if self._tier is not None else 0

    def media(self) -> Iterator[int]:
        """The ids of the media in all cached texts."""
        for entry in self.scheduler.cache.entries.values():
            yield from ids_in(entry.tokens)
        if self._tier is not None:
            yield from self._tier.media()

    def digest(self, max_blocks: int) -> bytes:
        """The hashes of the blocks that a new request could use, see
        `engine.wire.replies.Digest`."""
        return digest(self.scheduler.slots.usable(), self._registry.name_of, max_blocks)

    @property
    def pending_seconds(self) -> float:
        """The estimated time of a step with all pending prompt tokens."""
        return self._budget.seconds(self.scheduler.n_pending)

    @property
    def knows_times(self) -> bool:
        """True if times of steps were measured, by the sweep or since."""
        return self.clock.decode_seconds(1) > 0

    def prompt_seconds(self, n_tokens: int) -> float:
        """The estimated seconds to evaluate `n_tokens` of prompts while other requests
        generate."""
        seconds = self._budget.compute_seconds(self.scheduler.n_generating, max(1, n_tokens), 0)
        return seconds if seconds > 0 else GUESSED_TOKEN * n_tokens

    @property
    def token_seconds(self) -> float:
        """The estimated seconds per token of a prompt of one micro-batch, while other requests
        generate; 0 if unknown."""
        n = self._context.n_ubatch
        return self._budget.compute_seconds(self.scheduler.n_generating, n, 0) / n

    def wait_seconds(self, n_before: int, n_tokens: int) -> float:
        """The estimated wait of one text, see `waits`."""
        return self.waits()(n_before, n_tokens)

    def waits(self) -> Callable[[int, int], float]:
        """A function that returns the estimated seconds until a text gets a slot, if `n_before`
        texts with `n_tokens` uncached prompt tokens get theirs before it; for this moment.

        Further answers are of mean length; a running answer of more than that length is expected to
        go on for `MORE` of it. The times of steps are the measured ones; before the first step,
        those of the sweep; without a sweep, guesses.
        """
        slots, running = self.scheduler.slots, self.scheduler.active
        n_idle, mean = len(slots.idle), slots.queue.mean_answer
        n_left = sorted([0.0] * n_idle + [_n_expected(each, mean) for each in running])
        n_pending = sum(s.n_pending for s in running if s.phase == "prefill")
        step = self.clock.decode_seconds(self.scheduler.n_slots) or GUESSED_TOKEN

        def wait(n_before: int, n_tokens: int) -> float:
            if n_before < n_idle:
                return 0.0
            n_steps = steps_until_free(n_left, n_before + 1, mean)
            return n_steps * step + self.prompt_seconds(n_tokens + n_pending)

        return wait

    def seconds_left(self, seconds: float) -> float:
        """The time between two steps for other work on the device, if a step takes `seconds`."""
        return self._budget.left(self.scheduler.n_generating, seconds)

    def plan(self) -> list[Chunk]:
        """The chunks that the next step evaluates. If there are none, waits up to `FETCH_SECONDS`
        for texts that are being read from files."""
        if self._tier is not None:
            self._tier.begin_step()
        chunks = self._plan()
        if not chunks and self._tier is not None:
            self._tier.wait(FETCH_SECONDS)
        return chunks

    def _plan(self) -> list[Chunk]:
        scheduler, now = self.scheduler, system.now()
        if not scheduler.has_prompts:
            return scheduler.plan(now=now)
        n_generating, length = scheduler.n_generating, scheduler.prompt_length
        limit = self._budget.limit(n_generating, length)
        return scheduler.plan(limit, self._budget.burst(n_generating, length), now=now)

    def measure(self, chunks: Sequence[Chunk], seconds: float, n_waiting: int = 0) -> None:
        """Corrects the clock by the duration of a step. `n_waiting` chunks of the same step follow
        in a decode of their own: for generating sequences both decodes are one step."""
        prompts = [chunk for chunk in chunks if not chunk.is_single]
        n_proposed = sum(len(chunk.proposed) for chunk in chunks)
        if prompts or not n_proposed:
            n_prompt = sum(chunk.n_tokens for chunk in prompts)
            length = max((chunk.start for chunk in prompts), default=0)
            n_others = len(chunks) - len(prompts) + n_waiting
            whole = seconds + self.clock.decode_seconds(n_waiting)
            self.clock.observe(n_others, n_prompt + n_proposed, length, whole)
        elif not any(chunk.n_forced for chunk in chunks):  # forced tokens need no logits
            self.clock.observe_proposals(len(chunks), n_proposed, seconds)

    def close(self) -> None:
        """Writes the files of `--cache-disk`."""
        if self._tier is not None:
            self._tier.close(self.scheduler.finished(), SAVING_SECONDS)


def _n_expected(sequence: TokenSequence, mean: float) -> float:
    """The expected number of further tokens of a sequence in a slot."""
    n_generated = max(0, len(sequence.tokens) - sequence.n_prompt)
    n_more = mean - n_generated if n_generated < mean else MORE * mean
    return n_more if sequence.n_predict < 0 else min(n_more, sequence.n_predict - n_generated)


def steps_until_free(n_left: Sequence[float], n: int, mean: float) -> float:
    """The number of steps until a slot has become free for the `n`-th time. The texts in the slots
    go on for `n_left` steps, in ascending order; all following ones have `mean` steps, of which
    fractions count."""
    n_steps, sums = 0.0, 0.0
    for n_used, steps in enumerate(n_left, 1):
        if n_used > 1 and n_steps <= steps:
            break  # the other slots become free later
        sums += steps
        n_steps = max(steps, (sums + mean * (n - n_used)) / n_used)
    return n_steps


def _check_shifting(context: Context, options: EngineOptions) -> None:
    if context.can_shift:
        return
    for name, wanted in (
        ("--context-shift", options.context.context_shift),
        ("--cache-reuse", options.context.cache_reuse > 0),
    ):
        if wanted:
            raise BackendError(f"{name}: the memory of this model can't be shifted")
