"""The engine: turns prepared requests into events, one step at a time.

`Engine.preparation` may run in any thread; everything else belongs to the thread that calls `step`.
"""

import logging
from collections.abc import Callable, Sequence
from itertools import chain

from specllama.engine import system
from specllama.engine.errors import ErrorInfo
from specllama.engine.options import EngineOptions
from specllama.engine.wire.replies import (
    Begun,
    Delta,
    Event,
    Failed,
    Finished,
    ModelInfo,
    SlotState,
    Timings,
    WaitingState,
)
from specllama.engine.wire.startup import resident
from specllama.engine.wire.stats import ReplicaLoad, Stats
from specllama.engine.worker.backend import (
    Context,
    Model,
    Offload,
    OutOfCellsError,
    OutOfMemoryError,
    Projector,
    device_memory,
    sequence_ids,
    warm_up,
)
from specllama.engine.worker.backend.context_setup import has_cores_for
from specllama.engine.worker.backend.exactness import check_promise
from specllama.engine.worker.backend.model_info import model_info, projector_info
from specllama.engine.worker.cache.block_hashes import SIZE, media_hashes
from specllama.engine.worker.constraints.thinking import ThinkingLimit
from specllama.engine.worker.generation.adapters import LoraScales
from specllama.engine.worker.generation.answering import Answering, progress
from specllama.engine.worker.generation.choosing import Choosing
from specllama.engine.worker.generation.launch import Counting, Decoding, StepBatch
from specllama.engine.worker.generation.media_embeddings import Embeddings
from specllama.engine.worker.generation.planning import StepPlanner
from specllama.engine.worker.generation.preparation import Preparation
from specllama.engine.worker.generation.queueing import Queueing, first_events
from specllama.engine.worker.generation.request import Request
from specllama.engine.worker.generation.requests import Requests
from specllama.engine.worker.generation.sampling import Sampling
from specllama.engine.worker.generation.verifying import speculation
from specllama.engine.worker.media.encoder import DeviceSlices
from specllama.engine.worker.media.prompts import MediaPrompts
from specllama.engine.worker.media.registry import ids_in
from specllama.engine.worker.scheduling.scheduler import Scheduler

log = logging.getLogger("specllama.engine.worker.generation.engine")

GATHER_SHARE = 0.25
"""Part of a step's time that new requests wait for others that arrive with them: a request that
comes just after a step has begun would wait for the whole step."""
MASK_SECONDS = 0.01
"""The longest wait for a mask or an embedding when a step has no other work: messages are read
between two waits."""
TOGETHER, TOGETHER_SECONDS = 4, 0.005
"""Fewer than `TOGETHER` tokens wait for the next message, if their steps take less than
`TOGETHER_SECONDS` together: a message costs the server a tenth of a millisecond, and a small
model's step little more."""


_ENDS = (Finished, Failed)
Send = Callable[[list[Event]], None]


class Engine:
    """One model, its KV cache, and the requests being served. `projector` encodes images and sounds
    (None: the model has no such input); the engine closes it."""

    def __init__(
        self, model: Model, options: EngineOptions, projector: Projector | None = None
    ) -> None:
        self.model = model
        self.projector = projector
        self.lora = LoraScales(model, options)
        n_sequences = sequence_ids(model, options)
        self.context = Context(model, options, n_sequences, options.unified_kv_cache())
        self.media_prompts = MediaPrompts(projector, n_ubatch=self.context.n_ubatch)
        self.registry = self.media_prompts.registry
        """The media in the texts that are cached, saved and restored."""
        turns = None if has_cores_for(options, times=2) else DeviceSlices()
        self._embeddings = Embeddings(projector, options.media.media_cache << 20, turns)
        if options.model.warmup:
            warm_up(self.context)
            check_promise(self.context, options)
        self._planner = StepPlanner(self.context, options, self.registry)
        self.sweep, self.is_sweeping = self._planner.sweep, self._planner.is_sweeping
        self.scheduler: Scheduler = self._planner.scheduler
        """The scheduler, for actions on idle slots between steps."""
        offload = Offload(self.context) if options.sampling.backend_sampling else None
        n_ctx = self.scheduler.n_ctx
        self.preparation = Preparation(
            self.context, options, self.lora, self.media_prompts, offload, n_ctx=n_ctx
        )
        """Turns `Submit` messages into requests."""
        self._sampling = Sampling(self.context, offload)
        self._speculation = speculation(
            self.context,
            options,
            self.scheduler,
            self._planner.clock,
            has_offload=offload is not None,
        )
        self._answering = Answering(
            model,
            self.scheduler,
            options.context,
            overlaps=self.context.is_asynchronous,
            cuttable=self.context.is_cuttable,
        )
        self._events: list[Event] = []  # not sent yet
        self._sent = 0.0  # when events were last sent
        self._counting = Counting()
        self._decoding = Decoding(
            self.context, self._sampling, self._planner.clock, self._embeddings, self._counting
        )
        self._requests = Requests(self.scheduler, self._answering)
        self._choosing = Choosing(
            self.context,
            self.scheduler,
            self._sampling,
            self._speculation,
            self._requests,
            self._answering,
            self._counting,
        )
        self._queueing = Queueing(self._planner, options.context)
        self.refuse_call = self._queueing.refuse_call
        self._began = 0.0  # when the step began
        self._step_seconds = 0.0  # duration of the last step

    @property
    def info(self) -> ModelInfo:
        return model_info(
            self.model,
            n_slots=self.scheduler.n_slots,
            n_ctx=self.scheduler.n_ctx,
            **projector_info(self.projector),
        )

    # ---- requests ------------------------------------------------------------------------

    def submit(self, request: Request) -> list[Event]:
        """Queue a prepared request. A request with an empty prompt ends at once. Returns its first
        events."""
        if not request.sequence.n_prompt:
            self._requests.add(request)
            return [*first_events(request), Begun(request.id), *self._requests.finish(request)]
        events = self._queueing.submit(request, system.now())
        if isinstance(events, ErrorInfo):
            request.close()
            return [Failed(request.id, events)]
        self._requests.add(request)
        return events

    def cancel(self, id: int) -> Timings | None:
        """End a request without further events, and drop its unsent ones. Returns what a metered
        request has used, if its end hasn't been sent."""
        dropped = [event for event in self._events if event.id == id]
        self._events = [event for event in self._events if event.id != id]
        if request := self._requests.running.get(id):
            return self._requests.cancel(request)
        return next((each.timings for each in dropped if isinstance(each, _ENDS)), None)

    def end_thoughts(self, id: int) -> None:
        """End the thoughts of a running request that allows it. Any other request stays
        unchanged."""
        request = self._requests.running.get(id)
        if request is not None and isinstance(request.guide, ThinkingLimit):
            request.guide.end()
            self.scheduler.ahead.drop_proposed(request.sequence)

    def pause(self, id: int) -> None:
        """Give the slot of the request to others; it keeps its text."""
        if (request := self._requests.running.get(id)) is None:
            return
        self._events += self._answering.answer(request)
        self._requests.free_finished()
        self.scheduler.pause(request.sequence)
        request.proposals.detach()

    def resume(self, id: int) -> None:
        """Queue a paused request again. A request that isn't paused stays unchanged."""
        if request := self._requests.running.get(id):
            self.scheduler.resume(request.sequence)

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work or bool(self._events) or self._has_overdue

    @property
    def next_deadline(self) -> float:
        """A time of `system.now` at which `has_work` becomes true even without messages."""
        return self._requests.next_deadline

    @property
    def _has_overdue(self) -> bool:
        """True if the deadline of a request may have passed."""
        return system.now() >= self._requests.next_deadline

    @property
    def gather_seconds(self) -> float:
        """Seconds that the next step may wait for requests that are being prepared: a part of the
        step's own time if all requests are new (`Scheduler.is_fresh`), else 0."""
        return GATHER_SHARE * self._planner.pending_seconds if self.scheduler.is_fresh else 0.0

    # ---- the step ------------------------------------------------------------------------

    def step(self, send: Send, may_go_on: Callable[[], bool] = lambda: False) -> None:
        """Plan, launch, finish the last step, choose, measure. Passes the events of all requests to
        `send`.

        On a device that computes in parallel with the host, the next step is launched before the
        texts of the last one are made: `send` gets these events while the device computes. Steps in
        which all texts go on by one token follow each other without a pause, as long as `may_go_on`
        returns True."""
        if self._has_overdue:
            self._events += self._requests.expire(system.now())
        self._events += self._choosing.choose_postponed()
        self._look_for_embeddings()
        with self._embeddings.turn(self._planner.seconds_left(self._step_seconds)):
            self._began = system.now()
            batches = self._plan()
            for batch in batches:
                if self._events and not (self._answering.overlaps or batch.is_single):
                    self._send(send)
                if not self._evaluate(batch, send, may_go_on):
                    break  # the rest of the plan may be invalid
            self._step_seconds = system.now() - self._began
        if not self.scheduler.has_work:
            self._counting.rests()
        if not batches and not self._events:
            self._wait()
        goes_on = bool(batches and self.scheduler.active)
        if not (goes_on and (self._answering.overlaps or self._may_wait())):
            self._send(send)

    def _plan(self) -> list[StepBatch]:
        """The batches of the step, one for each decode; empty if no request can advance."""
        self._events += self._queueing.reports(self._requests.running, system.now())
        self._speculation.propose(self._requests.running)
        chunks = self._planner.plan()
        for request in self._requests.take_preempted():
            request.proposals.detach()
            self._counting.preempted()
        self._look_for_embeddings()  # for requests that have just got a slot
        if not chunks:
            self._events += self._requests.answer_late()
            self._requests.free_finished()
            return []
        self._enter(self._requests.of(chunks), system.now())
        self._decoding.apply(chunks[0].sequence.adapters)
        # Embeddings and tokens can't be in one batch.
        media = [chunk for chunk in chunks if chunk.span is not None]
        texts = [chunk for chunk in chunks if chunk.span is None]
        batches = [StepBatch(texts, self._requests.of(texts))] if texts else []
        if media:
            batches.insert(0, StepBatch(media, self._requests.of(media), n_waiting=len(texts)))
        return batches

    def _evaluate(self, batch: StepBatch, send: Send, may_go_on: Callable[[], bool]) -> bool:
        """Evaluate `batch`, and the steps that follow it without a pause. Returns False if there
        are no chunks, or if the device refuses them."""
        batch.keep(self._requests.running)
        if not batch.chunks:
            return False
        error = self._decoding.launch(batch)
        while error is None:
            following = self._finish_last(batch, send)
            tokens = None
            if following is not None and may_go_on() and not self._has_overdue:
                tokens = self._choosing.tokens(batch)
            if following is None or tokens is None:
                self._events += self._choosing.choose(batch)
                self._measure(batch, system.now())
                return True
            error = self._decoding.launch_planned(following, tokens)
            self._choosing.record(batch, tokens, following.started)
            self._measure(batch, following.started)
            self._step_seconds = following.started - self._began
            batch, self._began = following, following.started
        self._refuse(batch, error)
        return False

    def _refuse(self, batch: StepBatch, error: Exception) -> None:
        """The device can't evaluate `batch`: free memory, or end requests."""
        if isinstance(error, OutOfCellsError):
            if not self.scheduler.relieve():
                self._events += self._requests.fail_all(batch.requests, "the KV cache is full")
        elif isinstance(error, OutOfMemoryError):
            largest = self._requests.running[self.scheduler.do_without_largest(batch.chunks).id]
            self._events += self._requests.fail_all([largest], str(error))
        else:
            self._events += self._requests.fail_all(batch.requests, str(error))

    def _finish_last(self, batch: StepBatch, send: Send) -> StepBatch | None:
        """Make the texts of the last step while the device computes, then wait for the device.
        Requests whose texts have ended are removed from `batch`. Returns the step after `batch` if
        it can be planned before its tokens are known."""
        if self._answering.overlaps:
            self._events += self._requests.answer_late()
            if not (batch.is_single and self._may_wait()):
                self._send(send)
            self._sampling.look_ahead(batch.requests)
        if self._requests.free_finished(batch.chunks):
            batch.keep(self._requests.running)
        following = self._choosing.prepare(batch)
        if self._embeddings.takes_turns:
            following = None
        if following is not None:
            self._decoding.plan(following)
        self._decoding.wait()
        return following

    def _measure(self, batch: StepBatch, now: float) -> None:
        """Pass the duration of the step, which has ended `now`, to the step clock, the speculation
        and the counters."""
        seconds = now - batch.started
        self._planner.measure(batch.evaluated, seconds, batch.n_waiting)
        self._speculation.stepped(batch.evaluated, seconds)
        self._counting.stepped(seconds)

    def _send(self, send: Send) -> None:
        events, self._events = self._events, []
        if events:
            send(events)
            self._sent = system.now()

    def _may_wait(self) -> bool:
        """True if all unsent events are new text, and the next step can send them soon enough."""
        soon = system.now() + self._step_seconds < self._sent + TOGETHER_SECONDS
        is_short = len(self._events) < TOGETHER
        return is_short and soon and all(type(event) is Delta for event in self._events)

    def _look_for_embeddings(self) -> None:
        """Order the embeddings that sequences in slots need, and update how far each sequence can
        be evaluated. Requests whose media can't be encoded fail."""
        for request, error in self._embeddings.update(
            self.scheduler.active, self._requests.running
        ):
            used = self._requests.cancel(request)
            info = ErrorInfo("invalid_request_error", str(error))
            self._events.append(Failed(request.id, info, used))

    def _wait(self) -> None:
        """Wait until a request can advance, at most `MASK_SECONDS`."""
        if self.scheduler.n_in("encoding"):
            self._embeddings.wait(MASK_SECONDS)
        else:
            self._sampling.wait(MASK_SECONDS)

    def _enter(self, requests: Sequence[Request], now: float) -> None:
        """Record the slots of the requests. Appends the first events of requests that have just got
        one."""
        for request in requests:
            if request.enter(now):
                self._counting.admitted(request, now)
                self._events.append(Begun(request.id))
                if request.reports_progress:
                    self._events.append(progress(request))

    def tidy(self) -> None:
        """If the registry is full, forget media that no text contains any more. Must not run while
        a text is being restored into a slot from a file."""
        if self.registry.is_full:
            running = map(ids_in, self._requests.texts())
            kept = chain(self._planner.media(), self._embeddings.ids(), *running)
            self.registry.keep(kept)

    # ---- looking inside ------------------------------------------------------------------

    def slots(self) -> list[SlotState]:
        return self._requests.slots(self.preparation.text)

    def waiting(self) -> tuple[list[WaitingState], int]:
        """The first requests that wait, and the number of all."""
        first = self._queueing.states(self._requests.running, system.now())
        return first, self.scheduler.n_waiting

    def stats(self) -> Stats:
        """The counters since the start, and the current load."""
        stats = self._counting.stats(self.scheduler, self.context.n_ctx)
        stats.n_tokens_waiting = self.scheduler.slots.queue.n_tokens
        stats.wait_seconds = self._queueing.wait_seconds
        stats.n_refused = self._queueing.limits.n_refused
        stats.n_drafts_accepted = self._speculation.n_accepted
        stats.n_bytes_cache_ram = self._planner.n_bytes_cache_ram
        stats.n_bytes_checkpoints = self.scheduler.cache.n_bytes_checkpoints
        stats.n_bytes_constraints = self.preparation.compiler.n_bytes
        stats.n_bytes_resident = resident()
        stats.devices = device_memory()
        return stats

    def digest(self, max_blocks: int) -> bytes:
        """The hashes of encoded media and of cached blocks, see `engine.wire.replies.Digest`."""
        media = media_hashes(self._embeddings.ids(), self.registry.name_of, max_blocks)
        return media + self._planner.digest(max_blocks - len(media) // SIZE)

    @property
    def load(self) -> ReplicaLoad:
        return self._queueing.load

    def close(self) -> None:
        """Ends all requests, and writes the texts that `--cache-disk` keeps. The model stays
        loaded."""
        self._planner.close()
        self._requests.close()
        self._speculation.close()
        self._embeddings.close()
        self.preparation.compiler.close()
        self._sampling.close()
        self.context.close()
        if self.projector is not None:
            self.projector.close()
