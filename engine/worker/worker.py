"""The loop of the engine process: receive, step, emit.

There are three kinds of threads. The main thread loads the model and steps. The reader reads frames
from stdin. A few worker threads (`engine.worker.preparation_queue`) tokenize and prepare requests,
so that tokenizing a long prompt delays no step (llama.cpp runs outside the GIL). The end of stdin
ends the process.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from queue import Empty
from typing import TypeVar

from specllama.engine import system
from specllama.engine.errors import EngineError, ErrorInfo, invalid_request, not_supported
from specllama.engine.options import EngineOptions
from specllama.engine.wire.link import Link
from specllama.engine.wire.replies import (
    Adapters,
    Digest,
    Ended,
    Event,
    Failed,
    Reply,
    Slots,
    StatsReply,
    Step,
    Text,
    Timings,
    Tokens,
    ToServer,
    Vectors,
)
from specllama.engine.wire.requests import (
    Cancel,
    Detokenize,
    Embed,
    EndThoughts,
    FormatChat,
    GetAdapters,
    GetBlocks,
    GetDigest,
    GetSlots,
    GetStats,
    Load,
    Pause,
    Prompt,
    Rerank,
    Resume,
    SetAdapters,
    SlotAction,
    Submit,
    ToEngine,
    Tokenize,
    apart,
    ids,
)
from specllama.engine.worker.arrivals import Arrival, Arrivals
from specllama.engine.worker.backend import BackendError, Model
from specllama.engine.worker.backend.watch import stepping
from specllama.engine.worker.embedding.embedder import Embedder
from specllama.engine.worker.embedding.jobs import EmbeddingJob
from specllama.engine.worker.generation.engine import Engine
from specllama.engine.worker.generation.preparation import Preparing
from specllama.engine.worker.generation.prompts import check_tokens, tokenize_prompt
from specllama.engine.worker.generation.request import Request
from specllama.engine.worker.preparation_queue import PreparationQueue, Prepared, size
from specllama.engine.worker.scheduling.limits import NEVER
from specllama.engine.worker.slot_actions import SlotActions, SlotTask

M = TypeVar("M")
P = TypeVar("P", bound=Prepared)

ServerLink = Link[ToEngine, ToServer]

Incoming = (
    Request
    | Preparing
    | EmbeddingJob
    | Cancel
    | EndThoughts
    | Pause
    | Resume
    | GetSlots
    | SlotTask
    | GetStats
    | GetDigest
)
"""Messages that the main thread handles between two steps."""

log = logging.getLogger("specllama.engine.worker")

SHORT = 1024
"""Number of characters or tokens up to which converting them inline is faster than passing them to
another thread, which may have to wait for the CPU."""
QUIET_SECONDS = 0.5
"""Seconds without a request before a sweep, which would delay a client that has waited."""
GATHER_SECONDS = 0.01
"""The longest wait of arrived requests for others that are being prepared."""
NOTHING_USED = Timings(0, 0, 0.0, 0, 0.0)
LAST_STEP_SECONDS = 5.0  # grace for a running step after the server has closed the pipe


class Worker:
    """Serves one loaded engine until the server closes the pipe."""

    def __init__(self, engine: Engine | Embedder, link: ServerLink, options: EngineOptions) -> None:
        self._engine = engine
        self._link = link
        self._slot_actions = SlotActions(engine, options, link.send)
        self._inbox: system.SimpleQueue[Incoming | None] = system.SimpleQueue()
        self._arriving = Arrivals()
        self._lanes = PreparationQueue()

    def run(self) -> None:
        system.start_thread(self._read, "reader")
        self._sweep()
        while self._take_messages():
            if self._arriving.next_deadline <= system.now():
                self._expire()
            if self._slot_actions.pending:
                stepping.begin("an action on a slot")
                self._slot_actions.run()
            if not self._slot_actions.pending:
                self._engine.tidy()
            if self._engine.has_work:
                if not self._gather():
                    break
                self._step()
        stepping.rest()

    @property
    def _generator(self) -> Engine:
        """The engine that generates. Raises `EngineError` if this process embeds."""
        if not isinstance(self._engine, Engine):
            raise not_supported("this engine process does not generate")
        return self._engine

    @property
    def _embedder(self) -> Embedder:
        """The engine that embeds. Raises `EngineError` if this process generates."""
        if not isinstance(self._engine, Embedder):
            raise not_supported("this engine process does not embed")
        return self._engine

    # ---- the main thread -----------------------------------------------------------------

    def _sweep(self) -> None:
        """Let the engine measure steps until there is something else to do."""

        def stop(patience: float = 0.0) -> bool:
            if not self._take_messages(patience):
                self._inbox.put(None)  # the end of the messages, for `run`
                return True
            return bool(self._arriving) or self._is_busy

        if isinstance(self._engine, Engine) and self._engine.is_sweeping():
            stop(QUIET_SECONDS)
            self._engine.sweep(stop)

    @property
    def _is_busy(self) -> bool:
        return self._engine.has_work or bool(self._slot_actions.pending)

    def _take_messages(self, most: float = NEVER) -> bool:
        """Handle all messages; if there is nothing else to do, wait `most` seconds for one, or for
        the next deadline. Returns False at the end of the messages."""
        block = most > 0 and not self._is_busy
        while True:
            if block:
                stepping.rest()
            try:
                message = self._inbox.get(block, self._patience(most) if block else None)
            except Empty:
                return True
            if message is None:
                return False
            if block:
                stepping.begin("a message")
            self._handle(message)
            block = block and not self._is_busy

    def _patience(self, most: float) -> float | None:
        """Seconds until the next deadline, at most `most`; None if there is no limit."""
        following = min(self._arriving.next_deadline, system.now() + most)
        if isinstance(self._engine, Engine):
            following = min(following, self._engine.next_deadline)
        return max(0.0, following - system.now()) if following < NEVER else None

    def _gather(self) -> bool:
        """Before a step that only has new requests: wait a little for further requests that are
        being prepared, to evaluate them together. Returns False at the end of the messages."""
        if not (isinstance(self._engine, Engine) and self._arriving):
            return True
        deadline = system.now() + min(GATHER_SECONDS, self._engine.gather_seconds)
        while not self._arriving.are_compiling:
            seconds = deadline - system.now()
            try:
                message = self._inbox.get(seconds > 0, max(0.0, seconds))
            except Empty:
                break
            if message is None:
                return False
            self._handle(message)
        return True

    def _handle(self, message: Incoming) -> None:
        match message:
            case Request(id=id):
                if not self._arrive(id):
                    message.close()
                else:
                    self._send(self._generator.submit(message))
            case EmbeddingJob(id=id):
                if self._arrive(id):
                    self._send(self._embedder.submit(message))
            case Cancel(id=id):
                if (ended := self._cancel(id)) is not None:
                    self._send([Ended(id, ended)])
            case Preparing():
                self._arriving.compiles(message)
            case EndThoughts(id=id):
                self._generator.end_thoughts(id)
            case Pause(id=id):
                self._generator.pause(id)
            case Resume(id=id):
                self._generator.resume(id)
            case GetSlots(id=id):
                self._link.send(Slots(id, self._engine.slots(), *self._engine.waiting()))
            case SlotTask():
                self._slot_actions.add(message)
            case GetStats(id=id):
                self._link.send(StatsReply(id, self._engine.stats()))
            case GetDigest(id=id, max_blocks=n):
                self._link.send(Digest(id, self._engine.digest(n), self._engine.load))

    def _arrive(self, id: int) -> bool:
        """Record that a request is prepared. Returns False if it was cancelled meanwhile."""
        arrival = self._arriving.pop(id)
        return arrival is None or not arrival.is_cancelled

    def _cancel(self, id: int) -> Timings | None:
        """Cancel a request of any kind. Returns what a metered one has used, if it hasn't ended
        before."""
        arrival = self._arriving.get(id)
        if arrival is None:
            self._slot_actions.cancel(id)
            return self._engine.cancel(id)
        if self._lanes.drop(id):
            self._arriving.pop(id)
        else:
            arrival.is_cancelled = True
            self._drop(arrival)
        return NOTHING_USED if arrival.is_metered else None

    def _expire(self) -> None:
        """End the requests whose deadlines pass while their constraints are compiled."""
        for arrival, preparing, passed in self._arriving.expire(system.now()):
            self._send(preparing.expired(passed))
            self._drop(arrival)

    def _step(self) -> None:
        stepping.begin("a step")
        if isinstance(self._engine, Engine):
            self._engine.step(self._send, self._may_go_on)
        else:
            self._engine.step(self._send)

    def _may_go_on(self) -> bool:
        """True if the main thread has nothing else to do than the next step."""
        is_due = self._slot_actions.pending or self._arriving.next_deadline <= system.now()
        return not is_due and self._inbox.empty()

    def _send(self, events: Sequence[Event | Vectors]) -> None:
        if events:
            self._link.send(Step([*events]))

    # ---- the reader and its workers ------------------------------------------------------

    def _read(self) -> None:
        while messages := self._link.receive():
            if replies := [reply for reply in map(self._take, messages) if reply is not None]:
                self._link.send(*replies)
        self._inbox.put(None)
        system.call_later(LAST_STEP_SECONDS, system.leave)

    def _take(self, message: ToEngine) -> ToServer | None:
        """Return the reply of a message that is handled inline; pass any other message on."""
        match message:
            case Submit() | Embed() | Rerank():
                return self._receive(message)
            case Tokenize(id=id, content=[str(text)]) if len(text) <= SHORT:
                return self._outcome(id, self._tokenize, message)
            case Tokenize():
                self._start(message, self._tokenize)
            case Detokenize(id=id, tokens=tokens):
                if len(tokens) <= SHORT:
                    return self._outcome(id, self._detokenize, message)
                self._start(message, self._detokenize)
            case FormatChat():
                self._start(message, self._format_chat)
            case GetBlocks():
                self._start(message, lambda each: self._generator.preparation.blocks(each))
            case SlotAction():
                self._slot_actions.start(message, self._inbox.put)
            case GetAdapters() | SetAdapters():
                return self._outcome(message.id, self._adapters, message)
            case Cancel() | EndThoughts() | Pause() | Resume():
                self._inbox.put(message)
            case GetSlots() | GetStats() | GetDigest():
                self._inbox.put(message)
            case Load():
                log.error("a second load message was ignored: a process serves one model")
        return None

    def _receive(self, message: Submit | Embed | Rerank) -> Step | None:
        """Prepare the requests of a message, unless too many calls wait: then the call is refused
        before it costs time."""
        texts = ids(message) if isinstance(message, Submit) else [message.id]
        terms, is_first = message.terms, message.group in (0, message.id)
        if is_first and not (terms.is_accepted or terms.is_only):
            refused = self._engine.refuse_call(self._arriving.n_calls)
            if refused is not None:
                return Step([Failed(id, refused) for id in texts])
        self._arriving.add(texts, message.group, is_metered=terms.is_metered)
        if not isinstance(message, Submit):
            self._start(message, self._prepare_job)
        elif not message.others:
            self._start(message, self._prepare)
        else:
            # Not under the id of one text: cancelling it must not cancel the others.
            self._lanes.start(-message.id, size(message), partial(self._prepare_all, message))
        return None

    def _adapters(self, message: GetAdapters | SetAdapters) -> Adapters:
        """Handled inline, so that it applies to every later request."""
        if isinstance(message, SetAdapters):
            self._engine.lora.set(message.scales)
        return Adapters(message.id, self._engine.lora.adapters)

    def _start(self, message: P, work: Callable[[P], Reply | None]) -> None:
        self._start_for(message, partial(self._outcome, message.id, work, message))

    def _start_for(self, message: Prepared, work: Callable[[], Reply | Failed | None]) -> None:
        """Run `work` in the lane of `message`, and send its reply."""

        def run() -> None:
            if (reply := work()) is not None:
                self._link.send(reply)

        self._lanes.start(message.id, size(message), run)

    def _outcome(
        self, id: int, work: Callable[[M], Reply | None], message: M
    ) -> Reply | Failed | None:
        """The result of `work`, or a `Failed`."""
        try:
            return work(message)
        except EngineError as error:
            failure = error.info
        except Exception as error:
            log.exception("request %d failed", id)
            failure = ErrorInfo("server_error", f"{type(error).__name__}: {error}")
        arrival = self._arriving.pop(id)
        has_ended = arrival is not None and arrival.has_ended
        return None if has_ended else Failed(id, failure)

    def _prepare(self, message: Submit) -> None:
        """Prepare a request, up to the wait for its constraint: the thread must not wait, as it
        prepares other requests."""
        arrival = self._arriving[message.id]
        preparing = self._generator.preparation.begin(message, arrival.received)
        if preparing.order.is_ready:
            self._complete(preparing)
            return
        arrival.compiling = preparing
        if preparing.deadlines.first < NEVER:
            self._inbox.put(preparing)  # the main thread waits for its deadline
        if arrival.is_cancelled:  # in the meantime
            self._drop(arrival)
        preparing.order.when_ready(partial(self._continue, preparing))

    def _continue(self, preparing: Preparing) -> None:
        submit = preparing.submit
        self._arriving[submit.id].compiling = None
        self._start_for(submit, partial(self._outcome, submit.id, self._complete, preparing))

    def _complete(self, preparing: Preparing) -> None:
        self._inbox.put(self._generator.preparation.finish(preparing))

    def _drop(self, arrival: Arrival) -> None:
        """Withdraw the compilation of a cancelled request."""
        if (preparing := arrival.compiling) is not None:
            self._generator.preparation.drop(preparing)

    def _prepare_all(self, message: Submit) -> None:
        """Prepare several texts from one prompt, which is checked and tokenized once."""

        def tokenize(submit: Submit) -> None:
            found = self._generator.preparation.tokenize(submit)
            prompt: Prompt = found.tokens.tolist()
            self._prepare_next(apart(submit, submit.prompt if found.media else prompt))

        failed = self._outcome(message.id, tokenize, message)
        if isinstance(failed, Failed):
            everyone = ids(message)
            for id in everyone:
                self._arriving.pop(id)
            self._link.send(Step([Failed(id, failed.error) for id in everyone]))

    def _prepare_next(self, texts: Iterator[Submit]) -> None:
        """Prepare the next one of `texts`, and queue the others after requests that have arrived
        meanwhile."""
        for text in texts:
            if self._arriving[text.id].is_cancelled:
                self._arriving.pop(text.id)
                continue
            if (failed := self._outcome(text.id, self._prepare, text)) is not None:
                self._link.send(failed)
            self._lanes.start(-text.id, size(text), partial(self._prepare_next, texts))
            return

    def _prepare_job(self, message: Embed | Rerank) -> None:
        self._inbox.put(self._embedder.prepare(message, self._arriving[message.id].received))

    def _tokenize(self, message: Tokenize) -> Tokens:
        model = self._engine.model
        ids = tokenize_prompt(
            model,
            message.content,
            add_special=message.add_special,
            parse_special=message.parse_special,
            media_tokens=self._engine.media_prompts.reader().tokens,
        ).tolist()
        if not message.with_pieces:
            return Tokens(message.id, ids)
        texts = {id for id in ids if id >= 0}
        return Tokens(message.id, ids, {id: _piece_text(model, id) for id in texts})

    def _detokenize(self, message: Detokenize) -> Text:
        tokens = check_tokens(self._engine.model, message.tokens).tolist()
        return Text(message.id, self._engine.model.detokenize(tokens).decode("utf-8", "replace"))

    def _format_chat(self, message: FormatChat) -> Text:
        try:
            text = self._engine.model.format_chat(
                message.template, message.messages, message.add_generation_prompt
            )
        except BackendError as error:
            raise invalid_request(str(error)) from error
        return Text(message.id, text)


def _piece_text(model: Model, token: int) -> str | list[int]:
    piece = model.piece(token, special=True)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
