"""The engine proper: from prepared requests to events, one step at a time.

`prepare` may run in any thread (it tokenizes and builds the sampler chain); everything else
belongs to the thread that calls `step`.
"""

import logging
import random
import time
from functools import partial

import numpy as np

from engine.errors import ErrorInfo, invalid_request
from engine.options import Options
from engine.params import RANDOM_SEED, GenerationParams
from engine.protocol.messages import (
    Accepted,
    Delta,
    Event,
    Failed,
    Finished,
    Infill,
    ModelInfo,
    SlotState,
    Submit,
)
from engine.protocol.stats import Stats
from engine.worker.backend import (
    MAX_SEQUENCES,
    BackendError,
    Context,
    Model,
    NoTokenError,
    Offload,
    OffloadedSampler,
    OutOfCellsError,
    Sampler,
    warm_up,
)
from engine.worker.backend.exactness import depends_on_batch
from engine.worker.backend.model_info import model_info
from engine.worker.cache.disk_cache import DiskCache
from engine.worker.cache.host_cache import HostCache
from engine.worker.cache.origin import Identity
from engine.worker.cache.prefix_cache import Key
from engine.worker.cache.second_tier import SecondTier
from engine.worker.constraints.compiler import Compiler, ConstraintError
from engine.worker.constraints.gbnf import GrammarError
from engine.worker.generation.adapters import LoraScales
from engine.worker.generation.infill import Room
from engine.worker.generation.probabilities import ProbabilityLog
from engine.worker.generation.prompts import exceeds_context, tokenize_gap, tokenize_prompt
from engine.worker.generation.request import Request
from engine.worker.generation.sampling_pool import SamplingPool
from engine.worker.scheduling.budget import PrefillBudget
from engine.worker.scheduling.scheduler import Scheduler
from engine.worker.scheduling.sequences import Chunk
from engine.worker.scheduling.shifting import context_shift
from engine.worker.tokens import TokenArray

log = logging.getLogger("engine.worker.generation.engine")

CACHED_SEQUENCES = 16
"""Sequence ids beside those of the slots: so many more finished texts can stay as cache."""

MAX_STALL = 0.5
"""Part of `--target-itl-ms` that a step may take to save texts that leave the KV cache."""
FETCH_SECONDS = 0.02
"""How long a step without work waits for a file at the most: messages are taken in between."""
GATHER_SHARE = 0.25
"""Of a step that requests may wait for the others who come with them: without these, they would
wait for it all."""
SAVING_SECONDS = 3.0
"""For saving texts to files at the end: the server waits a little longer for the process."""


def sequence_ids(model: Model, options: Options, n_slots: int) -> int:
    """How many sequences a unified KV cache is made for. For memory that has a part for each of
    them (recurrent states, sliding windows) no more than the slots."""
    if model.is_recurrent or (model.n_swa and not options.swa_full):
        return n_slots
    # llama.cpp asserts that a micro-batch has room for a token of each.
    most = min(MAX_SEQUENCES, options.batch_size, options.ubatch_size)
    return max(n_slots, min(n_slots + CACHED_SEQUENCES, most))


class Engine:
    """One model, its KV cache, and the requests being served."""

    def __init__(self, model: Model, options: Options) -> None:
        n_slots, unified = options.n_slots(), options.unified_kv_cache()
        self.model = model
        self.lora = LoraScales(model, options)
        n_sequences = sequence_ids(model, options, n_slots) if unified else n_slots
        self.context = Context(model, options, n_sequences, unified)
        self.special = options.special  # whether control tokens show in generated text
        self._suffix_first = options.spm_infill
        self._tier = self._make_tier(options)
        self._scheduler = Scheduler(
            self.context,
            n_slots=n_slots,
            n_ctx=self.context.n_ctx_seq,
            n_cells=self.context.n_ctx if unified else None,
            n_batch=self.context.n_batch,
            n_sequences=n_sequences,
            similarity=options.slot_prompt_similarity,
            n_checkpoints=options.ctx_checkpoints,
            continuous=options.cont_batching,
            tier=self._tier,
        )
        self._budget = PrefillBudget(
            1e-3 * options.target_itl_ms,
            n_batch=self.context.n_batch,
            n_ubatch=self.context.n_ubatch,
        )
        self._shifts = options.context_shift
        self._check_shifting(options)
        self._requests: dict[int, Request] = {}
        self._telling_progress: set[int] = set()  # ids of requests in their prompt
        self._last_in_slot: dict[int, Request] = {}
        self.compiler = Compiler(model)
        self._pool = SamplingPool(self.context)
        self._applied: Key = ()  # the adapters of the last step
        self._stats = Stats() if options.metrics else None
        if options.warmup:
            warm_up(self.context)
            self._check_exactness(options)
        self._offload = Offload(self.context) if options.backend_sampling else None

    def _make_tier(self, options: Options) -> SecondTier | None:
        disk, model = None, self.model
        # Cells that can't be cut are of use to those only who begin with all of their text.
        whole = model.is_recurrent or (model.n_swa > 0 and not options.swa_full)
        if options.cache_disk:
            limit = options.cache_disk_size << 20
            try:
                identity = Identity.of_cells(options)
                disk = DiskCache(options.cache_disk, limit, identity, whole=whole)
            except OSError as error:
                raise BackendError(f"--cache-disk: {error.strerror}") from None
        elif not options.cache_ram:
            return None
        return SecondTier(
            self.context,
            HostCache(None if options.cache_ram < 0 else options.cache_ram << 20, whole),
            disk,
            is_busy=lambda: self._scheduler.n_generating > 0,
            compute_seconds=self._compute_seconds,
            max_stall=MAX_STALL * 1e-3 * options.target_itl_ms,
        )

    def _compute_seconds(self, n_tokens: int, start: int) -> float:
        return self._budget.compute_seconds(self._scheduler.n_generating, n_tokens, start)

    def _check_shifting(self, options: Options) -> None:
        if self.context.can_shift:
            return
        for name, wanted in (
            ("--context-shift", options.context_shift),
            ("--cache-reuse", options.cache_reuse > 0),
        ):
            if wanted:
                raise BackendError(f"{name}: the memory of this model can't be shifted")

    def _check_exactness(self, options: Options) -> None:
        if options.is_reproducible() and depends_on_batch(self.context):
            log.warning(
                "--reproducible can't be had here: what this model's kernels compute of a token "
                "depends on what else is in the batch (the README tells which do)"
            )

    @property
    def info(self) -> ModelInfo:
        return model_info(self.model, n_slots=self._scheduler.n_slots, n_ctx=self._scheduler.n_ctx)

    @property
    def scheduler(self) -> Scheduler:
        """For what is done to idle slots, between steps."""
        return self._scheduler

    # ---- requests ------------------------------------------------------------------------

    def prepare(self, submit: Submit) -> Request:
        """Tokenize, check and build what the steps need. Raises `EngineError`."""
        arrived = time.perf_counter()
        if isinstance(submit.prompt, Infill):
            tokens = self._tokenize_gap(submit.prompt, submit.params.n_predict)
        else:
            tokens = tokenize_prompt(self.model, submit.prompt)
        n_ctx = self._scheduler.n_ctx
        if len(tokens) >= n_ctx:
            raise exceeds_context(len(tokens), n_ctx)
        params = submit.params
        if params.seed == RANDOM_SEED:
            params.seed = random.randrange(RANDOM_SEED)  # so that the answer can tell it
        if params.id_slot >= self._scheduler.n_slots:
            raise invalid_request(
                f"id_slot {params.id_slot} does not exist: "
                f"the slots are 0 to {self._scheduler.n_slots - 1}"
            )
        params.logit_bias = self._resolve_biases(params)
        shown = self._preserved(params.preserved_tokens)
        params.preserved_tokens = [*sorted(shown)]
        params.lora = self.lora.resolve(params.lora)
        prompt = self._text(tokens) if submit.echo_prompt else ""
        try:
            guide = self.compiler.guide(params)
        except GrammarError as error:
            raise invalid_request(str(error)) from None
        probs = None
        if params.n_probs > 0:
            piece = partial(self._piece, shown=shown)
            probs = ProbabilityLog(params.n_probs, params.post_sampling_probs, piece)
        sampler: Sampler | OffloadedSampler | None = None
        if self._offload and params.backend_sampling and guide is None and probs is None:
            sampler = self._offload.sampler(params, n_ctx, tokens)
        if sampler is None:
            sampler = Sampler(self.model, params, n_ctx, tokens)
        request = Request(submit, tokens, params, sampler, prompt, probs)
        request.constraint = guide
        request.shown = shown
        request.arrived = arrived
        return request

    def _piece(self, token: int, shown: frozenset[int]) -> bytes:
        return self.model.piece(token, special=self.special or token in shown)

    def _text(self, tokens: TokenArray) -> str:
        return self.model.detokenize(tokens.tolist()).decode("utf-8", "replace")

    def _tokenize_gap(self, infill: Infill, n_predict: int) -> TokenArray:
        room = Room(n_ctx=self._scheduler.n_ctx, n_batch=self.context.n_batch, n_predict=n_predict)
        return tokenize_gap(self.model, infill, room, suffix_first=self._suffix_first)

    def _resolve_biases(self, params: GenerationParams) -> list[tuple[int | str, float]]:
        """Texts become their tokens; ids out of the vocabulary go; `ignore_eos` joins in."""
        resolved: list[tuple[int | str, float]] = []
        for token, bias in params.logit_bias:
            if isinstance(token, int):
                if 0 <= token < self.model.n_vocab:
                    resolved.append((token, bias))
            else:
                ids = self.model.tokenize(token.encode(), add_special=False, parse_special=False)
                resolved.extend((id, bias) for id in ids.tolist())
        if params.ignore_eos:
            resolved.extend((id, float("-inf")) for id in sorted(self.model.eog))
        return resolved

    def _preserved(self, preserved: list[int | str]) -> frozenset[int]:
        """The control tokens in texts, and among ids, that don't end the generation."""
        if not preserved:
            return frozenset()
        model = self.model
        found = {token for token in preserved if isinstance(token, int)}
        for text in preserved:
            if isinstance(text, str):
                ids = model.tokenize(text.encode(), add_special=False, parse_special=True)
                found.update(ids.tolist())
        return frozenset(
            token
            for token in found - model.eog
            if 0 <= token < model.n_vocab and model.is_hidden(token)
        )

    def submit(self, request: Request) -> list[Event]:
        """Queue a prepared request. An empty prompt is answered at once."""
        events: list[Event] = [Accepted(request.id)] if request.confirm else []
        self._requests[request.id] = request
        if not request.sequence.n_prompt:
            return [*events, self._finish(request)]
        self._scheduler.submit(request.sequence)
        if request.params.return_progress and request.params.stream:
            self._telling_progress.add(request.id)
        return events

    def cancel(self, id: int) -> None:
        if request := self._requests.pop(id, None):
            self._remember_slot(request)
            self._scheduler.cancel(id)
            self._telling_progress.discard(id)
            request.close()

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    @property
    def gather_seconds(self) -> float:
        """How long the next step may wait for requests that are being prepared: a part of what it
        takes, if it is the first one of all that there are; else nothing."""
        if not self._scheduler.is_fresh:
            return 0.0
        return GATHER_SHARE * self._budget.seconds(self._scheduler.n_pending)

    # ---- the step ------------------------------------------------------------------------

    def step(self) -> list[Event]:
        """Plan, evaluate once, sample; the events of all requests that have something new."""
        if self._tier is not None:
            self._tier.begin_step()
        chunks = self._plan()
        if not chunks:
            if self._tier is not None:
                self._tier.wait(FETCH_SECONDS)
            return []
        now = time.perf_counter()
        events: list[Event] = []
        for chunk in chunks:
            request = self._requests[chunk.sequence.id]
            request.slot = chunk.sequence.slot
            if not request.started:
                request.started = now
                if self._stats is not None:
                    self._stats.queue.observe(now - request.arrived)
                    self._stats.n_prompt_cached += chunk.sequence.n_cached
                    self._stats.n_prompt_restored += chunk.sequence.n_restored
                    self._stats.n_prompt_shared += chunk.sequence.n_shared
                if request.id in self._telling_progress:
                    events.append(self._progress(request))
        if chunks[0].sequence.key != self._applied:
            self._applied = chunks[0].sequence.key
            self.context.set_adapters(self._applied)
        ends = self._fill_batch(chunks)
        n_tokens = max(ends) + 1
        try:
            if self._offload is not None:
                self._offload.arrange(self._device_samplers(chunks))
            self.context.decode(n_tokens)
        except OutOfCellsError:
            if self._scheduler.relieve():
                return events
            return events + self._fail(chunks, "the KV cache is full")
        except BackendError as error:
            return events + self._fail(chunks, str(error))
        self._scheduler.advance(chunks)
        prompts = [chunk for chunk in chunks if chunk.stop - chunk.start > 1]
        n_prompt = sum(c.stop - c.start for c in chunks if not c.sequence.generating)
        if self._stats is not None:
            self._count_step(self._stats, chunks, n_prompt)
        if self._telling_progress:
            events += self._all_progress(chunks)
        self._sample_ahead(chunks, ends)
        for chunk, end in zip(chunks, ends, strict=True):
            if chunk.is_last:
                event = self._sample(self._requests[chunk.sequence.id], end)
                if event is not None:
                    events.append(event)
        seconds = self._measure(len(chunks) - len(prompts), prompts, now)
        if self._stats is not None:
            self._stats.prompt_seconds += seconds if n_prompt else 0.0
            self._stats.step.observe(seconds)
        return events

    def _plan(self) -> list[Chunk]:
        scheduler = self._scheduler
        if not scheduler.has_prompts:
            return scheduler.plan()
        n_generating, length = scheduler.n_generating, scheduler.prompt_length
        limit = self._budget.limit(n_generating, length)
        return scheduler.plan(limit, self._budget.burst(n_generating, length))

    def _measure(self, n_singles: int, prompts: list[Chunk], started: float) -> float:
        """The one place that takes the time of a step, in seconds. If nobody has asked
        for logits, nobody has waited for the device."""
        self.context.synchronize()
        seconds = time.perf_counter() - started
        n_prompt = sum(chunk.stop - chunk.start for chunk in prompts)
        length = max((chunk.start for chunk in prompts), default=0)
        self._budget.observe(n_singles, n_prompt, length, seconds)
        return seconds

    def _count_step(self, stats: Stats, chunks: list[Chunk], n_prompt: int) -> None:
        stats.n_prompt += n_prompt
        stats.n_decode += 1
        stats.n_busy += len(self._scheduler.active)
        stats.n_tokens_max = max(stats.n_tokens_max, *(c.stop for c in chunks))

    def _fill_batch(self, chunks: list[Chunk]) -> list[int]:
        """Write the chunks into the batch; the position of each chunk's last token in it."""
        context, at, ends = self.context, 0, []
        singles = [chunk for chunk in chunks if chunk.stop - chunk.start == 1]
        if n := len(singles):
            # In one go: writing single elements of arrays takes longer than all else here.
            context.tokens[:n] = [c.sequence.tokens.item(c.start) for c in singles]
            context.positions[:n] = [c.start for c in singles]
            context.sequences[:n] = [c.sequence.seq_id for c in singles]
            context.outputs[:n] = [c.is_last for c in singles]
        if n == len(chunks):
            return list(range(n))
        next_single, at = 0, n
        for chunk in chunks:
            n = chunk.stop - chunk.start
            if n == 1:
                ends.append(next_single)
                next_single += 1
                continue
            context.tokens[at : at + n] = chunk.sequence.tokens.view(chunk.start, chunk.stop)
            context.positions[at : at + n] = np.arange(chunk.start, chunk.stop)
            context.sequences[at : at + n] = chunk.sequence.seq_id
            context.outputs[at : at + n] = 0
            at += n
            context.outputs[at - 1] = chunk.is_last
            ends.append(at - 1)
        return ends

    def _device_samplers(self, chunks: list[Chunk]) -> dict[int, OffloadedSampler | None]:
        """By sequence id, for all whose next token comes from this step."""
        samplers = {}
        for chunk in chunks:
            if chunk.is_last:
                sampler = self._requests[chunk.sequence.id].sampler
                offloaded = sampler if isinstance(sampler, OffloadedSampler) else None
                samplers[chunk.sequence.seq_id] = offloaded
        return samplers

    def _fail(self, chunks: list[Chunk], message: str) -> list[Event]:
        events: list[Event] = []
        for chunk in chunks:
            request = self._requests[chunk.sequence.id]
            events.append(self._fail_one(request, ErrorInfo("server_error", message)))
        return events

    def _fail_one(self, request: Request, error: ErrorInfo) -> Failed:
        del self._requests[request.id]
        self._remember_slot(request)
        self._scheduler.discard(request.sequence)
        self._telling_progress.discard(request.id)
        request.close()
        return Failed(request.id, error)

    def _sample_ahead(self, chunks: list[Chunk], ends: list[int]) -> None:
        """Choose the tokens that take long to choose, if they are several."""
        slow = []
        for chunk, end in zip(chunks, ends, strict=True):
            request = self._requests[chunk.sequence.id]
            if chunk.is_last and request.params.n_predict != 0 and request.slow_sampler:
                slow.append((request, request.slow_sampler, end))
        if len(slow) > 1:
            tokens = self._pool.choose([(sampler, end) for _, sampler, end in slow])
            for (request, _, _), token in zip(slow, tokens, strict=True):
                request.chosen = token

    def _choose(self, request: Request, index: int) -> tuple[int, bool] | None:
        """The next token, and whether the constraint lets nothing follow it; None if it lets
        nothing follow what there is. Raises ConstraintError, NoTokenError and BackendError."""
        if request.chosen is not None:
            token, request.chosen = request.chosen, None
            return token, False
        sampler = request.sampler
        if isinstance(sampler, OffloadedSampler):
            return sampler.sample(index), False
        constraint, allowed = request.constraint, None
        if constraint is not None:
            if constraint.ended:
                return None
            allowed = constraint.allowed
        if request.probs is None:
            token = sampler.sample(self.context, index, allowed)
        else:
            token = request.probs.sample(sampler, self.context, index, allowed)
        if constraint is None or token in self.model.eog:
            return token, False
        return token, constraint.advance(token)

    def _sample(self, request: Request, index: int) -> Event | None:
        """Take the next token of `request` from the logits at batch position `index`."""
        if request.params.n_predict == 0:
            request.stop_type = "limit"
            request.first_token = request.last_token = time.perf_counter()
            return self._finish(request)
        before = request.last_token
        try:
            chosen = self._choose(request, index)
        except (ConstraintError, NoTokenError) as error:
            return self._fail_one(request, ErrorInfo("invalid_request_error", str(error)))
        except BackendError as error:
            return self._fail_one(request, ErrorInfo("server_error", str(error)))
        if chosen is None:
            request.stop_type = "eos"
            request.last_token = time.perf_counter()
            request.first_token = request.first_token or request.last_token
            return self._finish(request)
        token, ends = chosen
        request.last_token = time.perf_counter()
        if not request.n_decoded:
            request.first_token = request.last_token
        if self._stats is not None:
            self._stats.n_predicted += 1
            if request.n_decoded:
                self._stats.inter_token.observe(request.last_token - before)
            else:
                self._stats.first_token.observe(request.last_token - request.arrived)
        request.n_decoded += 1
        sequence = request.sequence
        sequence.generating = True
        sequence.tokens.append(token)

        text = request.feed(self._piece(token, request.shown))
        if new_line := "\n" in text:
            request.has_new_line = True
        if request.stream.stopping_word:
            request.stop_type = "word"
        elif ends or token in self.model.eog:
            request.stop_type = "eos"
        elif (full := len(sequence.tokens) >= self._scheduler.n_ctx) and not self._shifts:
            request.stop_type, request.truncated = "limit", True
        elif (
            request.n_decoded == request.params.n_predict
            or (request.indent is not None and request.indent.reached)
            or (new_line and self._out_of_time(request))
            or (full and not self._shift(request))
        ):
            request.stop_type = "limit"
        else:
            return self._delta(request) if text and request.params.stream else None
        return self._finish(request)

    @staticmethod
    def _out_of_time(request: Request) -> bool:
        limit = request.params.t_max_predict_ms
        return 0 < limit < 1e3 * (request.last_token - request.first_token)

    def _shift(self, request: Request) -> bool:
        """Drop a part of a text that fills its context. False if the memory refuses."""
        request.truncated = True
        sequence, params = request.sequence, request.params
        n_keep = sequence.n_prompt
        if params.n_keep >= 0:
            begins = self.model.add_bos and sequence.tokens.view(0, 1)[0] == self.model.bos
            n_keep = params.n_keep + int(begins)
        n_keep, n_discard = context_shift(
            sequence.n_past, self._scheduler.n_ctx, n_keep, params.n_discard
        )
        request.spill()
        n_behind = max(0, request.n_prompt_kept - n_keep - n_discard)
        request.n_prompt_kept = min(request.n_prompt_kept, n_keep) + n_behind
        return self._scheduler.shift(sequence, n_keep, n_discard)

    def _delta(self, request: Request) -> Delta:
        text, tokens = request.take_text(), request.unsent_tokens()
        probs = request.probs.take() if request.probs is not None else []
        return Delta(request.id, text, tokens, request.slot, request.timings, probs)

    def _progress(self, request: Request) -> Delta:
        timings, progress = request.timings, request.progress
        return Delta(request.id, "", [], request.slot, timings, progress=progress)

    def _all_progress(self, chunks: list[Chunk]) -> list[Event]:
        """What the chunks of this step, which are in the KV cache now, mean for those prompts
        whose progress is to be told."""
        events: list[Event] = []
        for chunk in chunks:
            if chunk.sequence.id in self._telling_progress:
                events.append(self._progress(self._requests[chunk.sequence.id]))
                if chunk.is_last:
                    self._telling_progress.discard(chunk.sequence.id)
        return events

    def _finish(self, request: Request) -> Finished:
        del self._requests[request.id]
        request.flush()
        if request.stream.stopping_word:
            request.stop_type = "word"
        sequence = request.sequence
        finished = Finished(
            id=request.id,
            text=request.take_text(),
            tokens=request.unsent_tokens(),
            stop_type=request.stop_type,
            stopping_word=request.stream.stopping_word,
            truncated=request.truncated,
            has_new_line=request.has_new_line,
            id_slot=sequence.slot,
            prompt=request.prompt,
            n_prompt=sequence.n_prompt,
            n_decoded=request.n_decoded,
            timings=request.timings,
            params=request.params,
            probs=request.probs.take(all=not request.is_cut) if request.probs is not None else [],
        )
        if sequence.slot >= 0:
            self._remember_slot(request)
            self._scheduler.finish(sequence)
        request.close()
        return finished

    # ---- looking inside ------------------------------------------------------------------

    def _remember_slot(self, request: Request) -> None:
        if request.slot >= 0:
            self._last_in_slot[request.slot] = request

    def slots(self) -> list[SlotState]:
        return [self._slot_state(slot) for slot in range(self._scheduler.n_slots)]

    def _slot_state(self, slot: int) -> SlotState:
        sequence = self._scheduler.in_slot(slot)
        active = self._requests.get(sequence.id) if sequence else None
        request = active or self._last_in_slot.get(slot)
        if request is None:
            return SlotState(id=slot, n_ctx=self._scheduler.n_ctx)
        n_ctx, is_processing = self._scheduler.n_ctx, active is not None
        return request.slot_state(slot, n_ctx, is_processing=is_processing, text=self._text)

    def stats(self) -> Stats:
        """What has been counted since the start, and how much there is to do now."""
        stats = self._stats or Stats()
        scheduler, context = self._scheduler, self.context
        stats.n_processing = len(scheduler.active)
        stats.n_deferred = scheduler.n_waiting
        stats.n_cells_used = scheduler.n_cells_used
        stats.n_cells = context.n_ctx
        return stats

    def close(self) -> None:
        """Ends all requests; the model stays. What `--cache-disk` is to have is written."""
        if self._tier is not None:
            self._tier.close(self._scheduler.finished(), SAVING_SECONDS)
        for request in self._requests.values():
            request.close()
        self._requests.clear()
        self.compiler.close()
        self._pool.close()
        self.context.close()
