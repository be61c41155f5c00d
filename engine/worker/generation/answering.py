"""Turns sampled tokens into text and events: stop conditions, the context shift, unsent text."""

from specllama.engine.options.tables.context import ContextOptions
from specllama.engine.wire.replies import Delta, Event, Finished, StopType
from specllama.engine.worker.backend import Model
from specllama.engine.worker.generation.request import Request
from specllama.engine.worker.scheduling.placement import context_shift
from specllama.engine.worker.scheduling.scheduler import Scheduler

CONTEXTS = 4
"""Default of `--max-predict`, in contexts: the longest text of a request without a limit of its
own."""


class Answering:
    """The text of all requests. Belongs to the thread that steps.

    With `--context-shift`, a text that fills its context loses a part of its tokens; otherwise it
    ends. Unless the request sets a limit, a text ends after `--max-predict` tokens.

    If a step `overlaps` with making the texts of the step before, the next step evaluates a token
    before its text is made. If the text turns out to end with this token, the rows evaluated after
    it are taken back. Where the memory isn't `cuttable`, that is impossible: a token that may end
    the text is never deferred.
    """

    def __init__(
        self,
        model: Model,
        scheduler: Scheduler,
        options: ContextOptions,
        *,
        overlaps: bool,
        cuttable: bool,
    ) -> None:
        self.overlaps = overlaps
        self._cuttable = cuttable
        self._model = model
        self._scheduler = scheduler
        self._shifts = options.context_shift
        self._most = options.max_predict or CONTEXTS * scheduler.n_ctx  # -1: no limit

    def accept(self, request: Request, token: int, *, is_final: bool) -> Delta | None:
        """Show the text of `token`, the newest one of `request`, and set `request.stop_type` if the
        text ends here; `is_final`: the guide allows no further token. Returns the event of a stream
        that continues; None if the token shows nothing because it ends inside a character."""
        text = request.feed(request.piece(token))
        if new_line := "\n" in text:
            request.has_new_line = True
        request.stop_type = self._stop_type(request, token, new_line=new_line, is_final=is_final)
        if not request.has_ended and request.params.stream:
            return delta(request) if text or request.stream.is_whole else None
        return None

    def defer(self, request: Request, token: int, *, is_final: bool) -> bool:
        """Returns True if `token`, the newest one, is late: `answer` makes its text. A token that
        ends the text whatever it shows isn't late: the next step must not evaluate it. `is_final`
        is as in `accept`."""
        if not self.overlaps or self._decides(request, token, is_final=is_final):
            return False
        if not self._cuttable and request.may_end_with_text:
            return False
        request.late = token
        return True

    def continues(self, request: Request) -> bool:
        """True if `defer` will defer the next token of `request`, unless that ends the text."""
        n_decoded, n_tokens = request.n_decoded, len(request.sequence.tokens)
        return (
            n_decoded > 0
            and n_decoded + 1 != self._limit(request)
            and n_tokens + 1 < self._scheduler.n_ctx
            and (self._cuttable or not request.may_end_with_text)
        )

    def answer(self, request: Request) -> list[Event]:
        """The events of the request's late token, if it has one. Even if the text ends with it
        (`Request.has_ended`), the request keeps its slot: the device may be evaluating a row after
        it."""
        token, request.late = request.late, None
        if token is None:
            return []
        event = self.accept(request, token, is_final=False)
        if request.has_ended:
            return finish(request)
        return [event] if event is not None else []

    def _decides(self, request: Request, token: int, *, is_final: bool) -> bool:
        """True if `token`, the newest one, ends the text or drops a part of it, whatever text it
        shows. `Request.may_end_with_text` covers the other reasons, which depend on that text."""
        return (
            is_final
            or token in self._model.eog
            or request.n_decoded == self._limit(request)
            or len(request.sequence.tokens) >= self._scheduler.n_ctx
        )

    def _limit(self, request: Request) -> int:
        limit = request.params.n_predict
        return limit if limit >= 0 else self._most

    def _stop_type(
        self, request: Request, token: int, *, new_line: bool, is_final: bool
    ) -> StopType:
        if request.stream.stopping_word:
            return "word"
        if is_final or token in self._model.eog:
            return "eos"
        is_full = len(request.sequence.tokens) >= self._scheduler.n_ctx
        if is_full and (not self._shifts or request.sequence.spans):
            request.truncated = True
            return "limit"
        if (
            request.n_decoded == self._limit(request)
            or (request.indent is not None and request.indent.reached)
            or (new_line and request.is_out_of_time)
            or (is_full and not self._shift(request))
        ):
            return "limit"
        return "none"

    def _shift(self, request: Request) -> bool:
        """Drop a part of a text that fills its context. Returns False if the memory can't drop
        it."""
        request.truncated = True
        sequence, params = request.sequence, request.params
        n_keep = sequence.n_prompt
        if params.n_keep >= 0:
            begins = self._model.add_bos and sequence.tokens.view(0, 1)[0] == self._model.bos
            n_keep = params.n_keep + int(begins)
        n_keep, n_discard = context_shift(
            sequence.n_past, self._scheduler.n_ctx, n_keep, params.n_discard
        )
        request.spill()
        n_behind = max(0, request.n_prompt_kept - n_keep - n_discard)
        request.n_prompt_kept = min(request.n_prompt_kept, n_keep) + n_behind
        return self._scheduler.shift(sequence, n_keep, n_discard)


def delta(request: Request, *, last: bool = False) -> Delta:
    """The event with all unsent text and tokens; `last`: no more will follow."""
    text, tokens = request.take_text(), request.unsent_tokens()
    probs = []
    if request.probs is not None:
        probs = request.probs.take(all=last and not request.is_cut)
    prompt_probs = request.take_prompt_probs()
    timings = request.timings
    return Delta(request.id, text, tokens, request.slot, timings, probs, prompt_probs=prompt_probs)


def progress(request: Request) -> Delta:
    """The progress of evaluating the prompt, with the timings of what is evaluated so far."""
    timings, progress = request.used, request.progress
    return Delta(request.id, "", [], request.slot, timings, progress=progress)


def finish(request: Request) -> list[Event]:
    """The final event of a text. In a stream, an event with the unsent rest of the text precedes
    it."""
    request.flush()
    if request.stream.stopping_word:
        request.stop_type = "word"
    if request.params.stream and (request.pending_text or request.n_sent < request.n_decoded):
        return [delta(request, last=True), _finished(request)]
    return [_finished(request)]


def _finished(request: Request) -> Finished:
    sequence = request.sequence
    return Finished(
        id=request.id,
        text=request.take_text(),
        tokens=request.unsent_tokens(),
        stop_type=request.stop_type,
        stopping_word=request.stream.stopping_word,
        truncated=request.truncated,
        has_new_line=request.has_new_line,
        id_slot=request.slot,
        prompt=request.prompt,
        n_prompt=sequence.n_prompt,
        n_decoded=request.n_decoded,
        timings=request.timings,
        params=request.params,
        probs=request.probs.take(all=not request.is_cut) if request.probs is not None else [],
        prompt_probs=request.take_prompt_probs(),
        deadline=request.deadline if request.stop_type == "limit" else "",
    )
