"""The engine proper: from prepared requests to events, one step at a time.

`prepare`, or `begin` and `complete`, may run in any thread; everything else belongs to the thread
that calls `step`.
"""

import logging
import time
from collections.abc import Callable, Sequence
from itertools import chain

from engine.errors import ErrorInfo
from engine.options import EngineOptions
from engine.processes.resident import resident
from engine.protocol.messages import (
    Accepted,
    Begun,
    Event,
    Failed,
    ModelInfo,
    Relaxed,
    SlotState,
    Submit,
)
from engine.protocol.stats import Stats
from engine.worker.backend import (
    BackendError,
    Context,
    Model,
    NoTokenError,
    Offload,
    OutOfCellsError,
    OutOfMemoryError,
    Projector,
    device_memory,
    warm_up,
)
from engine.worker.backend.exactness import depends_on_batch
from engine.worker.backend.model_info import model_info, projector_info
from engine.worker.backend.threads import has_cores_for
from engine.worker.cache.prefix_cache import Key
from engine.worker.constraints.compiler import Compiler
from engine.worker.constraints.matching import ConstraintError
from engine.worker.constraints.thinking import ThinkingLimit
from engine.worker.generation.adapters import LoraScales
from engine.worker.generation.answering import Answering, finish, progress
from engine.worker.generation.counting import Counting
from engine.worker.generation.embeddings import Embeddings
from engine.worker.generation.filling import fill, fill_early
from engine.worker.generation.overlap import Overlap
from engine.worker.generation.planning import Planner, sequence_ids
from engine.worker.generation.postponed import Postponed
from engine.worker.generation.preparation import Preparation, Preparing, Prompt
from engine.worker.generation.request import Request
from engine.worker.generation.sampling import Sampling
from engine.worker.generation.speculation import speculation
from engine.worker.media.prompts import MediaPrompts
from engine.worker.media.registry import MediaRegistry, ids_in
from engine.worker.media.turns import Turns
from engine.worker.scheduling.scheduler import Scheduler
from engine.worker.scheduling.sequences import Chunk

log = logging.getLogger("engine.worker.generation.engine")

GATHER_SHARE = 0.25
"""Of a step that requests may wait for the others who come with them: without these, they would
wait for it all."""
MASK_SECONDS = 0.01
"""The longest wait of a step without work for a mask: messages are taken in between."""
PATIENCE, LEAST_PATIENCE = 0.25, 0.001
"""A step waits for the masks of its requests for this part of its own time, or so many seconds. Who
has none then gets its next token later, and the others go on."""


class Engine:
    """One model, its KV cache, and the requests being served. `projector` is what the model sees
    and hears with, if it can; the engine closes it."""

    def __init__(
        self, model: Model, options: EngineOptions, projector: Projector | None = None
    ) -> None:
        self.model = model
        self.projector = projector
        self.lora = LoraScales(model, options)
        n_sequences = sequence_ids(model, options)
        self.context = Context(model, options, n_sequences, options.unified_kv_cache())
        self.registry = MediaRegistry()
        """The media in the texts that are cached, saved and restored."""
        self.media_prompts = MediaPrompts(projector, self.registry, n_ubatch=self.context.n_ubatch)
        turns = None if has_cores_for(options, times=2) else Turns()
        self._embeddings = Embeddings(projector, options.media.media_cache << 20, turns)
        self._planner = Planner(self.context, options, self.registry)
        self.scheduler: Scheduler = self._planner.scheduler
        """The scheduler, for actions on idle slots between steps."""
        self.compiler = Compiler(model)
        if options.model.warmup:
            warm_up(self.context)
            _check_exactness(self.context, options)
        offload = Offload(self.context) if options.sampling.backend_sampling else None
        n_slots, n_ctx = self.scheduler.n_slots, self.scheduler.n_ctx
        self._preparation = Preparation(
            self.context,
            options,
            self.lora,
            self.compiler,
            offload,
            self.media_prompts,
            self.registry,
            n_slots=n_slots,
            n_ctx=n_ctx,
        )
        self._sampling = Sampling(self.context, offload)
        self._speculation = speculation(
            self.context, options, self.scheduler, has_offload=offload is not None
        )
        self._postponed = Postponed(self.context)
        self._answering = Answering(model, self.scheduler, options.context)
        self._overlap = Overlap(
            self._answering,
            pays=self.context.is_asynchronous,
            is_cuttable=self.context.is_cuttable,
        )
        self._unsent: list[Event] = []  # of the last step, if they wait for the next one
        self._counting = Counting()
        self._requests: dict[int, Request] = {}
        self._last_in_slot: dict[int, Request] = {}
        self._applied: Key = ()  # the adapters of the last step
        self._step_seconds = 0.0  # of the last one

    @property
    def info(self) -> ModelInfo:
        return model_info(
            self.model,
            n_slots=self.scheduler.n_slots,
            n_ctx=self.scheduler.n_ctx,
            **projector_info(self.projector),
        )

    # ---- requests ------------------------------------------------------------------------

    def tokenize(self, submit: Submit) -> Prompt:
        """The tokens of a prompt that fits. Raises `EngineError`."""
        return self._preparation.tokenize(submit)

    def prepare(self, submit: Submit) -> Request:
        """Tokenize, check and build what the steps need. Raises `EngineError`."""
        return self._preparation.prepare(submit)

    def begin(self, submit: Submit) -> Preparing:
        """As much of `prepare` as doesn't wait for a constraint. Raises `EngineError`."""
        return self._preparation.begin(submit)

    def complete(self, preparing: Preparing) -> Request:
        """The rest of `prepare`. Raises `EngineError`."""
        return self._preparation.finish(preparing)

    def drop(self, preparing: Preparing) -> None:
        """Nobody waits for the request any more; `complete` may fail."""
        self._preparation.drop(preparing)

    def submit(self, request: Request) -> list[Event]:
        """Queue a prepared request. An empty prompt is answered at once."""
        events: list[Event] = [Accepted(request.id)] if request.confirm else []
        if request.relaxed:
            events.insert(0, Relaxed(request.id, list(request.relaxed)))
        self._requests[request.id] = request
        if not request.sequence.n_prompt:
            return [*events, Begun(request.id), *self._finish(request)]
        self.scheduler.submit(request.sequence)
        return events

    def cancel(self, id: int) -> None:
        """Nothing more is said of the request."""
        self._unsent = [event for event in self._unsent if event.id != id]
        if request := self._requests.get(id):
            self.scheduler.cancel(id)
            self._release(request)

    def end_thoughts(self, id: int) -> None:
        """End the thoughts of a running request that allows it; else nothing happens."""
        request = self._requests.get(id)
        if request is not None and isinstance(request.guide, ThinkingLimit):
            request.guide.end()
            self.scheduler.ahead.drop_proposed(request.sequence)

    def pause(self, id: int) -> None:
        """Give the slot of the request to others; it keeps its text."""
        self._unsent += self._overlap.answer_one(id)
        self._let_go()
        self.scheduler.pause(id)
        self._speculation.forget(id)

    def resume(self, id: int) -> None:
        """Let the request, if it was paused, go on as soon as it gets a slot again."""
        self.scheduler.resume(id)

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work or bool(self._unsent)

    @property
    def gather_seconds(self) -> float:
        """The time that the next step may wait for requests that are being prepared: a part of its
        own time if it is the first one of all that there are; else none."""
        return GATHER_SHARE * self._planner.pending_seconds if self.scheduler.is_fresh else 0.0

    # ---- the step ------------------------------------------------------------------------

    def step(self, send: Callable[[list[Event]], None] | None = None) -> list[Event]:
        """Plan, fill, decode, sample, answer; the events of all requests that have any.

        On a device that computes beside the host, the next step is launched before anything is
        done that it doesn't need, so that texts and events are those of the step before. `send`
        gets these while the device computes; without, they are returned."""
        due: list[Event] = []
        events, self._unsent = self._unsent, []
        events += self._answer_postponed()
        events += self._look_for_embeddings()
        with self._embeddings.turn(self._planner.seconds_left(self._step_seconds)):
            started = time.perf_counter()
            is_idle = not self._compute(events, send or due.extend)
            self._step_seconds = time.perf_counter() - started
        if not self.scheduler.has_work:
            self._counting.rests()
        if self._overlap.pays and not is_idle and self.scheduler.active:
            self._unsent = events
            return due
        if is_idle and not events:
            self._wait()
        return due + events

    def _compute(self, events: list[Event], send: Callable[[list[Event]], None]) -> bool:
        """All of a step that uses the device; what comes of it is added to `events`, but for what
        `send` gets. False if nobody can go on."""
        self._speculation.propose(self._requests)
        chunks = self._planner.plan()
        events += self._look_for_embeddings()  # of those who have just got a slot
        if not chunks:
            events += self._overlap.answer()
            self._let_go()
            return False
        now = time.perf_counter()
        events += self._enter([self._requests[chunk.sequence.id] for chunk in chunks], now)
        self._apply(chunks[0].sequence.adapters)
        # Embeddings and tokens can't be in one batch.
        media = [chunk for chunk in chunks if chunk.span is not None]
        texts = [chunk for chunk in chunks if chunk.span is None]
        if media and not self._evaluate(media, events, send, n_waiting=len(texts)):
            return True
        texts = [chunk for chunk in texts if chunk.sequence.id in self._requests]
        if texts:
            self._evaluate(texts, events, send)
        return True

    def _evaluate(
        self,
        chunks: Sequence[Chunk],
        events: list[Event],
        send: Callable[[list[Event]], None],
        *,
        n_waiting: int = 0,
    ) -> bool:
        """Evaluate what fits into one decode, and answer: what comes of it is added to `events`,
        and while the device computes, `send` gets what is there. `n_waiting` others of the same
        step wait for it. False if it can't be done; what else was planned may be wrong then."""
        started = time.perf_counter()
        requests = [self._requests[chunk.sequence.id] for chunk in chunks]
        try:
            indices = self._decode(chunks, requests)
        except OutOfCellsError:
            if not self.scheduler.relieve():
                events += self._fail_all(requests, "the KV cache is full")
            return False
        except OutOfMemoryError as error:
            largest = self.scheduler.do_without_largest(chunks)
            events += self._fail_all([self._requests[largest.id]], str(error))
            return False
        except BackendError as error:
            events += self._fail_all(requests, str(error))
            return False
        if self._overlap.pays:
            events += self._overlap.answer()
            send([*events])
            events.clear()
        self.context.synchronize()  # progress, patience and timings are of work that is done
        self._counting.computed(time.perf_counter())
        evaluated = chunks
        if self._overlap.ended:
            self._let_go(chunks)
            rows = zip(chunks, indices, strict=True)
            kept = [row for row in rows if row[0].sequence.id in self._requests]
            chunks, indices = [chunk for chunk, _ in kept], [index for _, index in kept]
            requests = [self._requests[chunk.sequence.id] for chunk in chunks]
        self.scheduler.advance(chunks)
        self._counting.decoded(chunks, len(self.scheduler.active))
        events += [progress(request) for request in requests if request.reports_progress]
        outputs = self._speculation.begin(chunks, requests, indices)
        now = time.perf_counter()
        until = now + max(LEAST_PATIENCE, PATIENCE * (now - started))
        while outputs:  # the next token of each; then the one behind it, where it was proposed
            outputs = self._postponed.put_off(outputs, until)
            self._sampling.sample_ahead(outputs)
            for request, index in outputs:
                events += self._answer(request, index)
            outputs = self._speculation.confirmed(outputs)
        self._speculation.end()
        seconds = self._planner.measure(evaluated, started, n_waiting)
        self._speculation.stepped(evaluated, seconds)
        self._counting.stepped(seconds)
        return True

    def _decode(self, chunks: Sequence[Chunk], requests: Sequence[Request]) -> list[int]:
        """The indices of the last tokens' outputs. Raises what `Context.decode` does."""
        if chunks[0].span is not None:
            (chunk,), (request,) = chunks, requests
            self._counting.begins(time.perf_counter())
            return [self._embeddings.decode(self.context, chunk, request.media)]
        self._evaluate_early(chunks)
        indices = fill(self.context.batch, chunks)
        self._sampling.attach(chunks, requests)
        self._counting.begins(time.perf_counter())
        self.context.decode()
        return indices

    def _look_for_embeddings(self) -> list[Event]:
        """The failures of requests with media that can't be encoded."""
        failed = self._embeddings.update(self.scheduler.active, self._requests)
        for request, _ in failed:
            self.scheduler.cancel(request.id)
            self._release(request)
        return [
            Failed(request.id, ErrorInfo("invalid_request_error", str(error)))
            for request, error in failed
        ]

    def _wait(self) -> None:
        """Until somebody can go on, a little at the most."""
        if self.scheduler.n_waiting_for_media:
            self._embeddings.wait(MASK_SECONDS)
        else:
            self._postponed.wait(MASK_SECONDS)

    def _evaluate_early(self, chunks: Sequence[Chunk]) -> None:
        if any(chunk.n_early for chunk in chunks):
            fill_early(self.context.batch, chunks)
            started = time.perf_counter()
            self._counting.begins(started)
            self.context.decode()
            self.context.synchronize()
            now = time.perf_counter()
            self._counting.computed(now)
            self._speculation.evaluated_early(chunks, now - started)

    def _answer_postponed(self) -> list[Event]:
        """The tokens whose masks the last steps haven't waited for."""
        events: list[Event] = []
        for request, index in self._postponed.due():
            events += self._answer(request, index)
            self.context.release(index)
        return events

    def _enter(self, requests: Sequence[Request], now: float) -> list[Event]:
        """Note the slots; the first events of the requests that have just got one."""
        events: list[Event] = []
        for request in requests:
            if request.enter(now):
                self._counting.admitted(request, now)
                events.append(Begun(request.id))
                if request.reports_progress:
                    events.append(progress(request))
        return events

    def _apply(self, key: Key) -> None:
        """Let the adapters `key`, which all chunks of a step share, be in force."""
        if key != self._applied:
            self._applied = key
            self.context.set_adapters(key)

    def _answer(self, request: Request, index: int) -> list[Event]:
        """Take the next token of `request` from the logits at `index` of the batch."""
        if request.params.n_predict == 0:
            request.stop("limit", time.perf_counter())
            return self._finish(request)
        try:
            sampled = self._sampling.sample(request, index)
        except (ConstraintError, NoTokenError) as error:
            return [self._fail(request, ErrorInfo("invalid_request_error", str(error)))]
        except BackendError as error:
            return [self._fail(request, ErrorInfo("server_error", str(error)))]
        now = time.perf_counter()
        if sampled is None:
            request.stop("eos", now)
            return self._finish(request)
        token, is_final = sampled
        token = self._speculation.chosen(request, token)
        self._counting.sampled(request, now)
        request.append(token, now)
        if not self._speculation.goes_on(request) and self._overlap.takes(
            request, token, is_final=is_final
        ):
            return []
        event = self._answering.accept(request, token, is_final=is_final)
        if request.stop_type != "none":
            return self._finish(request)
        return [event] if event is not None else []

    def _finish(self, request: Request) -> list[Event]:
        events = finish(request)
        if request.sequence.slot >= 0:
            self.scheduler.finish(request.sequence)
        self._release(request)
        return events

    def _fail(self, request: Request, error: ErrorInfo) -> Failed:
        self.scheduler.discard(request.sequence)
        self._release(request)
        return Failed(request.id, error)

    def _fail_all(self, requests: Sequence[Request], message: str) -> list[Event]:
        events = self._overlap.answer()
        for request in requests:
            if request in self._overlap.ended:  # it is said, but its cells are not to be trusted
                self._overlap.ended.remove(request)
                self.scheduler.discard(request.sequence)
                self._release(request)
            else:
                events.append(self._fail(request, ErrorInfo("server_error", message)))
        self._let_go()
        return events

    def _let_go(self, chunks: Sequence[Chunk] = ()) -> None:
        """Free the slots of those whose texts have ended with a token that was put off. What was
        evaluated of them meanwhile, the `chunks`, is taken back as what was proposed is."""
        ended, self._overlap.ended = self._overlap.ended, []
        ids = {request.id for request in ended}
        for chunk in chunks:
            if chunk.sequence.id in ids:
                self.scheduler.finish_before(chunk)
        for request in ended:
            self.scheduler.cancel(request.id)  # if it has no chunk: it may have had to give way
            self._release(request)

    def _release(self, request: Request) -> None:
        del self._requests[request.id]
        self._overlap.drop(request.id)
        self._speculation.forget(request.id)
        self._embeddings.forget(request.id)
        if request.slot >= 0:
            self._last_in_slot[request.slot] = request
        request.close()

    def tidy(self) -> None:
        """Forget media that are in no text any more, if there are many. No text may be on its way
        into a slot from a file."""
        if self.registry.is_full:
            requests = chain(self._requests.values(), self._last_in_slot.values())
            running = (ids_in(request.sequence.tokens.view()) for request in requests)
            kept = chain(self._planner.media(), self._embeddings.ids(), *running)
            self.registry.keep(kept)

    # ---- looking inside ------------------------------------------------------------------

    def slots(self) -> list[SlotState]:
        return [self._slot_state(slot) for slot in range(self.scheduler.n_slots)]

    def _slot_state(self, slot: int) -> SlotState:
        sequence = self.scheduler.in_slot(slot)
        active = self._requests.get(sequence.id) if sequence else None
        request = active or self._last_in_slot.get(slot)
        n_ctx = self.scheduler.n_ctx
        if request is None:
            return SlotState(id=slot, n_ctx=n_ctx)
        return request.slot_state(
            slot,
            n_ctx,
            is_processing=active is not None,
            text=self._preparation.text,
        )

    def stats(self) -> Stats:
        """The counters since the start, and the amount of present work."""
        stats = self._counting.stats(self.scheduler, self.context.n_ctx)
        stats.n_drafts_accepted = self._speculation.n_accepted
        stats.n_bytes_cache_ram = self._planner.n_bytes_cache_ram
        stats.n_bytes_checkpoints = self.scheduler.cache.n_bytes_checkpoints
        stats.n_bytes_constraints = self.compiler.n_bytes
        stats.n_bytes_resident = resident()
        stats.devices = device_memory()
        return stats

    def close(self) -> None:
        """Ends all requests; the model stays. What `--cache-disk` is to have is written."""
        self._planner.close()
        self._speculation.close()
        for request in self._requests.values():
            request.close()
        self._requests.clear()
        self._embeddings.close()
        self.compiler.close()
        self._sampling.close()
        self.context.close()
        if self.projector is not None:
            self.projector.close()


def _check_exactness(context: Context, options: EngineOptions) -> None:
    if options.is_reproducible() and depends_on_batch(context):
        log.warning(
            "--reproducible is not possible here: what this model's kernels compute for a token "
            "depends on what else is in the batch (docs/reproducibility.md lists those that work)"
        )
