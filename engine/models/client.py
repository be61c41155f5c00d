"""The server's side of one engine process: submits requests, streams their events, cancels them."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from specllama.engine.errors import EngineError, ErrorInfo, not_supported
from specllama.engine.models.generation import Generation, Meter
from specllama.engine.models.questions import Question, Questions, R
from specllama.engine.models.slices import PendingAnswer, SliceMeter, in_slices
from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import (
    Accepted,
    Ended,
    Event,
    Failed,
    Finished,
    Lost,
    ModelInfo,
    Reply,
    Resized,
    Slots,
    SlotState,
    StatsReply,
    Step,
    Timings,
    Vectors,
)
from specllama.engine.wire.requests import (
    NO_TERMS,
    Cancel,
    Embed,
    EndThoughts,
    GetSlots,
    GetStats,
    Pause,
    Prompt,
    PromptParts,
    Rerank,
    Resume,
    Submit,
    Terms,
    ToEngine,
    joined,
)
from specllama.engine.wire.stats import Stats

T = TypeVar("T")

_LAST = (Finished, Failed)  # events that end a generation; a tuple is faster than a union
_ENDS = (*_LAST, Ended)


class EngineClient(Questions):
    """Requests to one ready engine process. The supervisor dispatches the answers.

    If the process ends and is replaced, `detach` and `adopt_from` hand the generations that it had
    not begun to the next process. Each generation is handed on only once, as it may be the one that
    crashes the process.
    """

    def __init__(
        self, send: Callable[[ToEngine], None], info: ModelInfo, *, first_id: int = 1
    ) -> None:
        """`send` sends a message to the process; `first_id` is the id of the first request."""
        self.info = info
        self.n_private = 0  # bytes of the process's memory, see `engine.wire.replies.Heartbeat`
        self.has_served = False  # it has completed a request
        self._write = send
        self._ids = itertools.count(first_id)
        self._generations: dict[int, Generation] = {}
        self._asked: dict[int, PendingAnswer] = {}
        self._leaving: dict[int, Callable[[Timings | None], None]] = {}
        """Receivers of the timings of cancelled requests that are metered, until these end."""
        self._dead: ErrorInfo | None = None
        self._successor: EngineClient | None = None
        self._waits = False  # for a successor

    @property
    def n_running(self) -> int:
        """The number of waiting and running requests."""
        return len(self._generations) + len(self._asked)

    def generate_all(
        self,
        prompt: Prompt,
        variants: Sequence[GenerationParams],
        *,
        echo_prompt: bool = False,
        confirm: bool = False,
        group: int = 0,
        owner: int = 0,
        private: bool = False,
        prompt_probs: bool = False,
        terms: Terms = NO_TERMS,
        meter: Meter | None = None,
        on_begun: Callable[[], None] | None = None,
    ) -> list[Generation]:
        """Starts a generation for each of `variants`. These are equal except for their seeds, and
        for `id_slot`, which only the first one may set. `engine.wire.requests.Submit` describes the
        other arguments. The prompt is sent once. If `group` is 0, the first id becomes the group of
        all. The `meter` receives what each generation uses. `on_begun` is called when one begins.

        Raises `EngineError` (not_supported) if the engine embeds, and the error of an engine that
        has ended; then `meter` isn't called.
        """
        if self.info.pooling is not None:
            raise not_supported(
                "This server does not support completions. Start it without `--embeddings`"
            )
        client = self._living
        if meter is not None:
            terms = msgspec.structs.replace(terms, is_metered=True)
        requests = []
        for params in variants:
            id = client._new_id()
            group = group or id
            requests.append(
                Submit(
                    id,
                    prompt,
                    params,
                    echo_prompt,
                    confirm,
                    group,
                    owner=owner,
                    private=private,
                    prompt_probs=prompt_probs,
                    terms=terms,
                )
            )
        for message in joined(requests):
            client._send(message)
        started = [Generation(request, client, meter, on_begun) for request in requests]
        client._generations |= {each.request.id: each for each in started}
        return started

    def embed(
        self,
        inputs: Sequence[PromptParts],
        *,
        normalize: int,
        dimensions: int = 0,
        owner: int = 0,
        terms: Terms = NO_TERMS,
        meter: Meter | None = None,
    ) -> AsyncGenerator[Vectors, None]:
        """Returns the vectors of all inputs, in their order, in slices.
        `engine.wire.requests.Embed` describes the arguments. The `meter` receives what the call
        uses, unless the iterator is closed before its first step.

        Raises `EngineError` (not_supported) at once. Closing the iterator cancels the work.
        """
        self.check_embeds()
        call = SliceMeter(terms, meter)

        def make(id: int, part: list[PromptParts]) -> Embed:
            terms = call.terms(id)
            return Embed(id, part, normalize, dimensions, owner, call.group, terms)

        return in_slices(self, make, inputs, call)

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        owner: int = 0,
        terms: Terms = NO_TERMS,
        meter: Meter | None = None,
    ) -> AsyncGenerator[Vectors, None]:
        """Returns the scores of all documents, in their order, in slices, like `embed`."""
        self.check_reranks()
        call = SliceMeter(terms, meter)

        def make(id: int, part: list[str]) -> Rerank:
            terms = call.terms(id)
            return Rerank(id, query, part, owner, call.group, terms)

        return in_slices(self, make, documents, call)

    def check_embeds(self) -> None:
        """Raises `EngineError` (not_supported) if the engine generates."""
        if self.info.pooling is None:
            raise not_supported(
                "This server does not support embeddings. Start it with `--embeddings`"
            )

    def check_reranks(self) -> None:
        """Raises `EngineError` (not_supported) if the engine's model is not a reranker."""
        if self.info.pooling != "rank":
            raise not_supported(
                "This server does not support reranking. Start it with `--reranking`"
            )

    # ---- internal methods, and those for the supervisor ------------------------------------

    def dispatch(self, message: Step | Failed | Lost | Resized | Reply) -> None:
        """Passes a message of the engine to the request that it answers. A message for a request
        that is no longer open is dropped."""
        if isinstance(message, Step):
            for event in message.events:
                if isinstance(event, Vectors):
                    self._answer(event)
                else:
                    self._put(event)
        elif isinstance(message, Failed):
            self._put(message)
        elif isinstance(message, Lost):
            self._lose(message.ids, message.error)
        elif isinstance(message, Resized):
            self.info = msgspec.structs.replace(self.info, n_slots=message.n_slots)
        else:
            self._answer(message)

    def _answer(self, message: Reply | Vectors) -> None:
        asked = self._asked.pop(message.id, None)
        if isinstance(message, Vectors):
            self.has_served = True
            used = Timings(0, message.n_tokens, message.ms, 0, 0.0)
            if asked is None:
                self._settle(message.id, used)
            elif asked.call is not None:
                asked.call.settle(used)
        if asked is not None and not asked.answer.done():
            asked.answer.set_result(message)

    def close(self, error: ErrorInfo) -> None:
        """Fails every open request, and all later ones, with `error`: the process ends."""
        self._dead, self._waits = error, False
        for id in [*self._generations, *self._asked, *self._leaving]:
            self._put(Failed(id, error))

    def answer_from_snapshot(self, stats: Stats, slots: list[SlotState]) -> None:
        """Answers pending status questions with the last snapshot: the idle process was stopped."""
        for id, asked in list(self._asked.items()):
            if isinstance(asked.message, GetStats):
                self._answer(StatsReply(id, stats))
            elif isinstance(asked.message, GetSlots):
                self._answer(Slots(id, slots))

    def detach(self, error: ErrorInfo) -> None:
        """Fails the requests that the next process can't take over with `error`: the process has
        ended. The others, and new ones, wait for `adopt_from` of its successor, or for `close`."""
        self._dead, self._waits = error, True
        lost = [id for id, each in self._generations.items() if not each.may_move]
        for id in (*lost, *self._asked, *self._leaving):
            self._put(Failed(id, error))

    def adopt_from(self, predecessor: "EngineClient") -> None:
        """Takes over the requests of `predecessor`, and sends them to its own process."""
        self._ids = predecessor._ids
        self._generations, predecessor._generations = predecessor._generations, {}
        self._asked, predecessor._asked = predecessor._asked, {}
        predecessor._successor, predecessor._waits = self, False
        for generation in self._generations.values():
            generation.move(self)
        for message in joined(each.request for each in self._generations.values()):
            self._send(message)
        for asked in self._asked.values():
            self._send(asked.message)

    def _lose(self, ids: Iterable[int], error: ErrorInfo) -> None:
        """Sends those of the requests again that have not begun and were not moved before. The
        others fail with `error`."""
        again: list[Submit] = []
        for id in ids:
            if (generation := self._generations.get(id)) and generation.may_move:
                generation.move(self)
                again.append(generation.request)
            elif (asked := self._asked.get(id)) is not None and asked.may_move:
                asked.may_move = False
                self._send(asked.message)
            else:
                self._put(Failed(id, error))
        for message in joined(again):
            self._send(message)

    def _put(self, event: Event) -> None:
        if generation := self._generations.get(event.id):
            if isinstance(event, _LAST):
                del self._generations[event.id]
                self.has_served |= isinstance(event, Finished)
                generation.settle(event.timings)
            generation.put(event)
        elif (asked := self._asked.get(event.id)) is not None:
            self._put_asked(event, asked)
        elif isinstance(event, _ENDS):
            self._settle(event.id, event.timings)

    def _put_asked(self, event: Event, asked: PendingAnswer) -> None:
        if isinstance(event, Accepted) and asked.call is not None:
            asked.call.accepted(event.n_tokens)
        elif isinstance(event, Failed):
            del self._asked[event.id]
            if asked.call is not None:
                asked.call.settle(event.timings)
            if not asked.answer.done():
                asked.answer.set_exception(EngineError(event.error))

    def _settle(self, id: int, timings: Timings | None) -> None:
        """A cancelled request has ended."""
        if (settle := self._leaving.pop(id, None)) is not None:
            settle(timings)

    def forget(self, id: int) -> None:
        """Cancels the generation `id`, whose events are no longer needed."""
        if (generation := self._generations.pop(id, None)) is not None:
            self._cancel(id, generation.settle if generation.is_metered else None)

    def _cancel(self, id: int, settle: Callable[[Timings | None], None] | None) -> None:
        """Cancels a request. `settle` receives its timings when it has ended."""
        if self._dead is None:
            self._send(Cancel(id))
            if settle is not None:
                self._leaving[id] = settle
        elif settle is not None:
            settle(None)

    def end_thoughts(self, id: int) -> None:
        """Ends the reasoning of the generation `id`."""
        if id in self._generations and self._dead is None:
            self._send(EndThoughts(id))

    def pause(self, id: int) -> None:
        """Pauses the generation `id`, whose events aren't read: other requests get its slot until
        `resume`."""
        if id in self._generations and self._dead is None:
            self._send(Pause(id))

    def resume(self, id: int) -> None:
        """Continues the paused generation `id`, as soon as it has a slot again."""
        if id in self._generations and self._dead is None:
            self._send(Resume(id))

    async def _ask(self, message: Question, kind: type[R]) -> R:
        """Returns the answer, of the type `kind`. Cancelling the wait withdraws the question."""
        client = self._living
        asked = client._ask_for(message)
        try:
            reply = await asked.answer
        except asyncio.CancelledError:
            if client._living._dead is None:
                client._living._send(Cancel(message.id))
            raise
        finally:
            client._living._asked.pop(message.id, None)
        if not isinstance(reply, kind):
            raise RuntimeError(f"the engine answered {type(message)} with {type(reply)}")
        return reply

    def _ask_for(
        self, message: Question | Embed | Rerank, call: SliceMeter | None = None
    ) -> PendingAnswer:
        self._send(message)
        asked = PendingAnswer(message, asyncio.get_running_loop().create_future(), call)
        self._asked[message.id] = asked
        return asked

    def send_slice(
        self, make: Callable[[int, list[T]], Embed | Rerank], part: list[T], call: SliceMeter
    ) -> PendingAnswer:
        """Sends a slice of a call, for `in_slices`."""
        return self._living._ask_for(make(self._new_id(), part), call)

    def withdraw(self, asked: PendingAnswer) -> None:
        """Cancels a slice, unless it has been answered."""
        client, id = self._living, asked.message.id
        if client._asked.pop(id, None) is not None:
            client._cancel(id, asked.settle)

    @property
    def _living(self) -> "EngineClient":
        """The client of the process that replaces this one's, directly or through other ones."""
        client = self
        while client._successor is not None:
            client = client._successor
        return client

    def _new_id(self) -> int:
        return next(self._ids)  # a successor continues the numbering

    def _send(self, message: ToEngine) -> None:
        if self._waits:
            return  # the successor sends it
        if self._dead is not None:
            raise EngineError(self._dead)
        self._write(message)
