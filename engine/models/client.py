"""The server's side of one engine process: submits requests, streams their events, cancels them."""

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from specllama.engine.errors import EngineError, ErrorInfo, not_supported
from specllama.engine.models.generation import Generation
from specllama.engine.params import GenerationParams
from specllama.engine.wire.framing import Outbox, frame
from specllama.engine.wire.media import Media
from specllama.engine.wire.replies import (
    Adapter,
    Adapters,
    Event,
    Failed,
    Finished,
    ModelInfo,
    Reply,
    SlotDone,
    Slots,
    SlotState,
    StatsReply,
    Step,
    Text,
    Tokens,
    Vectors,
)
from specllama.engine.wire.requests import (
    Cancel,
    Detokenize,
    Embed,
    EndThoughts,
    FormatChat,
    GetAdapters,
    GetSlots,
    GetStats,
    Pause,
    Prompt,
    PromptParts,
    Rerank,
    Resume,
    SetAdapters,
    SlotAction,
    Submit,
    ToEngine,
    Tokenize,
    joined,
)
from specllama.engine.wire.stats import Stats

Question = (
    Tokenize
    | Detokenize
    | FormatChat
    | GetSlots
    | SlotAction
    | GetAdapters
    | SetAdapters
    | GetStats
)
R = TypeVar("R", Tokens, Text, Slots, SlotDone, Adapters, StatsReply)
T = TypeVar("T")

SLICE = 64
"""Number of inputs in one message. The inputs of an embedding request are sent in slices, so that
neither process is ever busy with a long message, and other requests get their turns."""
SLICES_AHEAD = 2  # in flight: while one is evaluated, the next is tokenized
_LAST = (Finished, Failed)  # events that end a generation; a tuple is faster than a union


@dataclass
class _Asked:
    """A question to the engine and its pending answer."""

    message: Question | Embed | Rerank
    answer: asyncio.Future[Reply | Vectors]


class EngineClient:
    """Requests to one ready engine process. The supervisor dispatches the answers.

    If the process ends and is replaced, `detach` and `adopt_from` hand the generations that it had
    not begun to the next process. Each generation is handed on only once, as it may be the one that
    crashes the process.
    """

    def __init__(self, sink: asyncio.WriteTransport, info: ModelInfo) -> None:
        self.info = info
        self.has_served = False  # it has completed a request
        self._outbox = Outbox(sink)
        self._ids = itertools.count(1)
        self._generations: dict[int, Generation] = {}
        self._asked: dict[int, _Asked] = {}
        self._dead: ErrorInfo | None = None
        self._successor: EngineClient | None = None
        self._waits = False  # for a successor

    @property
    def n_running(self) -> int:
        """The number of waiting and running requests."""
        return len(self._generations) + len(self._asked)

    def generate(
        self,
        prompt: Prompt,
        params: GenerationParams,
        *,
        echo_prompt: bool = False,
        confirm: bool = False,
        group: int = 0,
        owner: int = 0,
        private: bool = False,
    ) -> Generation:
        """Starts one generation, see `generate_all`."""
        [generation] = self.generate_all(
            prompt,
            [params],
            echo_prompt=echo_prompt,
            confirm=confirm,
            group=group,
            owner=owner,
            private=private,
        )
        return generation

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
    ) -> list[Generation]:
        """Starts a generation for each of `variants`. These are equal except for their seeds, and
        for `id_slot`, which only the first one may set. `engine.wire.requests.Submit` describes the
        other arguments. The prompt is sent once. If `group` is 0, the first id becomes the group of
        all.

        Raises `EngineError` (not_supported) if the engine embeds.
        """
        if self.info.pooling is not None:
            raise not_supported(
                "This server does not support completions. Start it without `--embeddings`"
            )
        client = self._living
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
                )
            )
        for message in joined(requests):
            client._send(message)
        started = [Generation(request, client) for request in requests]
        client._generations |= {each.request.id: each for each in started}
        return started

    def embed(
        self, inputs: Sequence[PromptParts], *, normalize: int, dimensions: int = 0
    ) -> AsyncGenerator[Vectors, None]:
        """Returns the vectors of all inputs, in their order, in slices.
        `engine.wire.requests.Embed` describes the arguments.

        Raises `EngineError` (not_supported) at once. Closing the iterator cancels the work.
        """
        self.check_embeds()
        return self._in_slices(lambda id, part: Embed(id, part, normalize, dimensions), inputs)

    def rerank(self, query: str, documents: Sequence[str]) -> AsyncGenerator[Vectors, None]:
        """Returns the scores of all documents, in their order, in slices, like `embed`."""
        self.check_reranks()
        return self._in_slices(lambda id, part: Rerank(id, query, part), documents)

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

    async def tokenize(
        self,
        content: Sequence[int | str | Media],
        *,
        add_special: bool,
        parse_special: bool,
        with_pieces: bool,
    ) -> Tokens:
        """Returns the tokens of `content`; `engine.wire.requests.Tokenize` describes the arguments.

        Raises `EngineError` if a token id is not in the vocabulary.
        """
        message = Tokenize(self._new_id(), [*content], add_special, parse_special, with_pieces)
        return await self._ask(message, Tokens)

    async def detokenize(self, tokens: list[int]) -> str:
        """Returns the text of `tokens`. Raises `EngineError` if one is not in the vocabulary."""
        return (await self._ask(Detokenize(self._new_id(), tokens), Text)).text

    async def format_chat(
        self, template: str, messages: list[tuple[str, str]], add_generation_prompt: bool
    ) -> str:
        """Returns the prompt that llama.cpp's own formatting makes of `messages`. Raises
        `EngineError` if llama.cpp has no format for `template`."""
        message = FormatChat(self._new_id(), template, messages, add_generation_prompt)
        return (await self._ask(message, Text)).text

    async def slots(self) -> list[SlotState]:
        return (await self._ask(GetSlots(self._new_id()), Slots)).slots

    async def slot_action(
        self, slot: int, action: Literal["save", "restore", "erase"], filename: str = ""
    ) -> SlotDone:
        """Waits until the slot is idle. Cancelling the wait withdraws the action.

        Raises `EngineError` if the slot doesn't exist, or if the file can't be used.
        """
        return await self._ask(SlotAction(self._new_id(), slot, action, filename), SlotDone)

    async def adapters(self) -> list[Adapter]:
        return (await self._ask(GetAdapters(self._new_id()), Adapters)).adapters

    async def set_adapters(self, scales: list[tuple[int, float]]) -> list[Adapter]:
        return (await self._ask(SetAdapters(self._new_id(), scales), Adapters)).adapters

    async def stats(self) -> Stats:
        return (await self._ask(GetStats(self._new_id()), StatsReply)).stats

    # ---- internal methods, and those for the supervisor ------------------------------------

    def dispatch(self, message: Step | Failed | Reply) -> None:
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
        else:
            self._answer(message)

    def _answer(self, message: Reply | Vectors) -> None:
        if isinstance(message, Vectors):
            self.has_served = True
        if (asked := self._asked.pop(message.id, None)) and not asked.answer.done():
            asked.answer.set_result(message)

    def close(self, error: ErrorInfo) -> None:
        """Fails every open request, and all later ones, with `error`: the process ends."""
        self._dead, self._waits = error, False
        for id in [*self._generations, *self._asked]:
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
        lost = [id for id, each in self._generations.items() if each.has_begun or each.has_moved]
        for id in (*lost, *self._asked):
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

    def _put(self, event: Event) -> None:
        if generation := self._generations.get(event.id):
            if isinstance(event, _LAST):
                del self._generations[event.id]
                self.has_served |= isinstance(event, Finished)
            generation.put(event)
        elif isinstance(event, Failed):
            asked = self._asked.pop(event.id, None)
            if asked is not None and not asked.answer.done():
                asked.answer.set_exception(EngineError(event.error))

    def forget(self, id: int) -> None:
        """Cancels the generation `id`, whose events are no longer needed."""
        if self._generations.pop(id, None) is not None and self._dead is None:
            self._send(Cancel(id))

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

    def _ask_for(self, message: Question | Embed | Rerank) -> _Asked:
        self._send(message)
        asked = _Asked(message, asyncio.get_running_loop().create_future())
        self._asked[message.id] = asked
        return asked

    async def _in_slices(
        self, make: Callable[[int, list[T]], Embed | Rerank], items: Sequence[T]
    ) -> AsyncGenerator[Vectors, None]:
        """Yields the answers to `make(id, part)` for all parts of `items`."""
        starts = iter(range(0, len(items), SLICE))
        waiting: deque[_Asked] = deque()
        try:
            while True:
                while len(waiting) < SLICES_AHEAD and (start := next(starts, None)) is not None:
                    part = list(items[start : start + SLICE])
                    waiting.append(self._living._ask_for(make(self._new_id(), part)))
                if not waiting:
                    return
                reply = await waiting[0].answer
                waiting.popleft()
                if not isinstance(reply, Vectors):
                    raise RuntimeError(f"the engine answered with {type(reply)}")
                yield reply
        finally:
            client = self._living
            for asked in waiting:
                id = asked.message.id
                if client._asked.pop(id, None) is not None and client._dead is None:
                    client._send(Cancel(id))
                if not asked.answer.cancel() and not asked.answer.cancelled():
                    asked.answer.exception()  # retrieved, or asyncio would log a warning

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
        self._outbox.write(frame(message))
