"""Chooses the next tokens of the texts that a decode has evaluated, and adds them.

While a device computes, everything is prepared that doesn't depend on the tokens. Usually all texts
go on by one token each: then the step after is planned before its tokens are known. It is launched
as soon as they are chosen, and they are recorded while the device computes.
"""

from collections.abc import Sequence

from specllama.engine import system
from specllama.engine.errors import BackendError, ErrorInfo
from specllama.engine.grammars.compiling import ConstraintError
from specllama.engine.wire.replies import Event
from specllama.engine.worker.backend import Context, NoTokenError
from specllama.engine.worker.generation.answering import Answering, progress
from specllama.engine.worker.generation.launch import Counting, StepBatch
from specllama.engine.worker.generation.request import Request
from specllama.engine.worker.generation.requests import Requests
from specllama.engine.worker.generation.sampling import Sampling
from specllama.engine.worker.generation.verifying import Speculation
from specllama.engine.worker.scheduling.scheduler import Scheduler

PATIENCE, LEAST_PATIENCE = 0.25, 0.001
"""A step waits for the masks of its requests for `PATIENCE` of its own time, at least for
`LEAST_PATIENCE` seconds. A request without a mask by then gets its next token in a later step."""


class Choosing:
    """The choice of tokens of one engine. Belongs to the thread that steps."""

    def __init__(
        self,
        context: Context,
        scheduler: Scheduler,
        sampling: Sampling,
        speculation: Speculation,
        requests: Requests,
        answering: Answering,
        counting: Counting,
    ) -> None:
        self._context = context
        self._scheduler = scheduler
        self._sampling = sampling
        self._speculation = speculation
        self._requests = requests
        self._answering = answering
        self._counting = counting

    def prepare(self, batch: StepBatch) -> StepBatch | None:
        """Record that the chunks of `batch`, which the device may still evaluate, are in the KV
        cache, and prepare the choice of the next tokens. Returns the step after it, whose tokens
        aren't known yet; None if it can't be planned so early."""
        self._scheduler.advance(batch.chunks)
        self._counting.decoded(batch.chunks, len(self._scheduler.active))
        batch.outputs = self._speculation.begin(batch.chunks, batch.requests, batch.indices)
        self._sampling.prepare(batch.outputs)
        goes_on = (
            self._answering.overlaps
            and not self._speculation.has_sources
            and len(batch.outputs) == len(batch.chunks)
            and self._sampling.are_free
            and all(self._answering.continues(request) for request in batch.requests)
        )
        chunks = self._scheduler.plan_next(batch.chunks) if goes_on else []
        return StepBatch(chunks, batch.requests) if chunks else None

    def tokens(self, batch: StepBatch) -> list[int] | None:
        """Choose the tokens of all outputs of `batch` at once. Returns None if that isn't possible,
        or if a token ends its text: then `choose` takes the tokens that are chosen already."""
        return self._sampling.tokens(batch.outputs)

    def record(self, batch: StepBatch, tokens: Sequence[int], now: float) -> None:
        """Add the result of `tokens`, chosen at `now`, to the texts; their events are made
        later."""
        for request, token in zip(batch.requests, tokens, strict=True):
            self._counting.sampled(request, now)
            request.append(token, now)
            self._requests.postpone(request, token)

    def choose(self, batch: StepBatch) -> list[Event]:
        """Choose the next token of each request that has logits. Where it is the proposed token,
        choose the one after it as well, and so on. Returns the events."""
        events: list[Event] = [progress(each) for each in batch.requests if each.reports_progress]
        batch.note_prompts(self._context)  # sampling may overwrite logits
        now, outputs = system.now(), batch.outputs
        until = now + max(LEAST_PATIENCE, PATIENCE * (now - batch.started))
        while outputs:
            outputs = self._sampling.put_off(outputs, until)
            self._sampling.sample_ahead(outputs)
            for request, index in outputs:
                events += self._answer(request, index)
            if outputs := self._speculation.confirmed(outputs):
                self._sampling.prepare(outputs)
        self._speculation.end()
        return events

    def choose_postponed(self) -> list[Event]:
        """Choose the tokens of postponed requests whose masks are ready by now."""
        events: list[Event] = []
        for request, index in self._sampling.due():
            events += self._answer(request, index)
            self._context.release(index)
        return events

    def _answer(self, request: Request, index: int) -> list[Event]:
        """Choose the next token of `request` from the logits at `index` of the batch. Returns its
        events."""
        if not request.n_decoded:
            self._counting.read(request)
            if request.params.n_predict == 0:
                return self._requests.stop(request, "limit")
        try:
            sampled = self._sampling.sample(request, index)
        except (ConstraintError, NoTokenError) as error:
            return [self._requests.fail(request, ErrorInfo("invalid_request_error", str(error)))]
        except BackendError as error:
            return [self._requests.fail(request, ErrorInfo("server_error", str(error)))]
        if sampled is None:
            return self._requests.stop(request, "eos")
        now = system.now()
        token, is_final = sampled
        goes_on = False
        if request.run is not None:
            token = self._speculation.chosen(request, token)
            goes_on = self._speculation.goes_on(request)
        self._counting.sampled(request, now)
        request.append(token, now)
        if not goes_on and self._requests.defer(request, token, is_final=is_final):
            return []
        event = self._answering.accept(request, token, is_final=is_final)
        if request.has_ended:
            return self._requests.finish(request)
        return [event] if event is not None else []
