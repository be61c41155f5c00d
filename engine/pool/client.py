"""The server's side of one engine process: submit, stream, cancel."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Literal, TypeVar

from engine.errors import EngineError, ErrorInfo, not_supported
from engine.params import GenerationParams
from engine.processes.framing import frame
from engine.processes.outbox import Outbox
from engine.protocol.messages import (
    Accepted,
    Adapter,
    Adapters,
    Begun,
    Cancel,
    Delta,
    Detokenize,
    Embed,
    EndThoughts,
    Event,
    Failed,
    Finished,
    FormatChat,
    GetAdapters,
    GetSlots,
    GetStats,
    ModelInfo,
    Prompt,
    Relaxed,
    Reply,
    Rerank,
    SetAdapters,
    SlotAction,
    SlotDone,
    Slots,
    SlotState,
    StatsReply,
    Step,
    Submit,
    Text,
    ToEngine,
    Tokenize,
    Tokens,
    Vectors,
)
from engine.protocol.stats import Stats

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
"""Inputs in one message: a request for the vectors of many is sent little by little, so that
neither process is ever busy with a long message, and no request gets more than its turn."""
SLICES_AHEAD = 2  # on their way: while one is evaluated, the next is tokenized
_LAST = (Finished, Failed)  # events that end a generation; made once, unlike a union of types


class Generation:
    """The events of one submitted request: `Begun`, which may be waited for, `Delta`s (if it
    streams), then one `Finished`.

    Iteration raises `EngineError` if the request fails. Whoever stops early calls `cancel`. From
    the first event on, `relaxed` are the keywords of its schemas that are not in force.
    """

    def __init__(self, id: int, client: "EngineClient") -> None:
        self._id = id
        self._client = client
        self._events: deque[Event] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._over = False
        self.relaxed: list[str] = []

    def __aiter__(self) -> "Generation":
        return self

    async def __anext__(self) -> Delta | Finished:
        if self._over:
            raise StopAsyncIteration
        event = await self._next()
        if isinstance(event, Begun):  # nobody had to know
            event = await self._next()
        if isinstance(event, Delta):
            return event
        self._over = True
        if isinstance(event, Finished):
            return event
        raise RuntimeError("a confirmation came that nobody waited for")

    async def accepted(self) -> None:
        """Wait until the engine accepts a request sent with `confirm`. Raises `EngineError` if
        it doesn't."""
        await self._next()

    async def begun(self) -> Begun:
        """Wait until the request has a slot: to be called before its other events are read."""
        event = await self._next()
        if isinstance(event, Begun):
            return event
        raise RuntimeError("this generation has begun before")

    async def _next(self) -> Accepted | Begun | Delta | Finished:
        while not self._events:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        event = self._events.popleft()
        if isinstance(event, Relaxed):
            self.relaxed = event.keywords
            return await self._next()
        if isinstance(event, Failed):
            self._over = True
            raise EngineError(event.error)
        return event

    async def result(self) -> Finished:
        """The end of a request that doesn't stream."""
        async for event in self:
            if isinstance(event, Finished):
                return event
        raise RuntimeError("this generation has been read to its end before")

    def cancel(self) -> None:
        """Stop, if it is still running. Safe to call at any time, any number of times."""
        self._over = True
        self._client._forget(self._id)

    def end_thoughts(self) -> None:
        """Let it come to its answer, if it is thinking and its parameters allow this."""
        self._client._end_thoughts(self._id)

    def _put(self, event: Event) -> None:
        self._events.append(event)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class EngineClient:
    """Requests to one ready engine process. The supervisor dispatches the answers."""

    def __init__(self, sink: asyncio.WriteTransport, info: ModelInfo) -> None:
        self.info = info
        self.has_served = False  # a request was evaluated to its end
        self._outbox = Outbox(sink)
        self._next_id = 0
        self._generations: dict[int, Generation] = {}
        self._replies: dict[int, asyncio.Future[Reply | Vectors]] = {}
        self._dead: ErrorInfo | None = None

    @property
    def n_running(self) -> int:
        """Requests that are waiting or running."""
        return len(self._generations) + len(self._replies)

    def generate(
        self,
        prompt: Prompt,
        params: GenerationParams,
        *,
        echo_prompt: bool = False,
        confirm: bool = False,
    ) -> Generation:
        """Start a generation; `engine.protocol.messages.Submit` says what the arguments mean.

        Raises `EngineError` (not_supported) if the engine embeds.
        """
        if self.info.pooling is not None:
            raise not_supported(
                "This server does not support completions. Start it without `--embeddings`"
            )
        id = self._new_id()
        self._send(Submit(id, prompt, params, echo_prompt, confirm))
        generation = self._generations[id] = Generation(id, self)
        return generation

    def embed(
        self, inputs: Sequence[list[int | str]], *, normalize: int, dimensions: int = 0
    ) -> AsyncGenerator[Vectors, None]:
        """The vectors of all inputs, in their order, some inputs at a time;
        `engine.protocol.messages.Embed` says what the arguments mean.

        Raises `EngineError`, not_supported at once. Closing the iterator ends the work.
        """
        self.check_embeds()
        return self._in_slices(lambda id, part: Embed(id, part, normalize, dimensions), inputs)

    def rerank(self, query: str, documents: Sequence[str]) -> AsyncGenerator[Vectors, None]:
        """The scores of all documents, in their order, some documents at a time. As `embed`."""
        self.check_reranks()
        return self._in_slices(lambda id, part: Rerank(id, query, part), documents)

    def check_embeds(self) -> None:
        """Raises `EngineError` (not_supported) if the engine generates."""
        if self.info.pooling is None:
            raise not_supported(
                "This server does not support embeddings. Start it with `--embeddings`"
            )

    def check_reranks(self) -> None:
        """Raises `EngineError` (not_supported) if the engine has no scores to give."""
        if self.info.pooling != "rank":
            raise not_supported(
                "This server does not support reranking. Start it with `--reranking`"
            )

    async def tokenize(
        self, content: list[int | str], *, add_special: bool, parse_special: bool, with_pieces: bool
    ) -> Tokens:
        """`engine.protocol.messages.Tokenize` says what the arguments mean.

        Raises `EngineError` if a token id is not in the vocabulary.
        """
        message = Tokenize(self._new_id(), content, add_special, parse_special, with_pieces)
        return await self._ask(message, Tokens)

    async def detokenize(self, tokens: list[int]) -> str:
        """Raises `EngineError` if a token is not in the vocabulary."""
        return (await self._ask(Detokenize(self._new_id(), tokens), Text)).text

    async def format_chat(
        self, template: str, messages: list[tuple[str, str]], add_generation_prompt: bool
    ) -> str:
        """Raises `EngineError` if llama.cpp has no format for `template`."""
        message = FormatChat(self._new_id(), template, messages, add_generation_prompt)
        return (await self._ask(message, Text)).text

    async def slots(self) -> list[SlotState]:
        return (await self._ask(GetSlots(self._new_id()), Slots)).slots

    async def slot_action(
        self, slot: int, action: Literal["save", "restore", "erase"], filename: str = ""
    ) -> SlotDone:
        """Waits until the slot is idle; cancelling the wait withdraws the action.

        Raises `EngineError` if there is no such slot, or if the file can't be used.
        """
        message = SlotAction(self._new_id(), slot, action, filename)
        try:
            return await self._ask(message, SlotDone)
        except asyncio.CancelledError:
            if self._dead is None:
                self._send(Cancel(message.id))
            raise

    async def adapters(self) -> list[Adapter]:
        return (await self._ask(GetAdapters(self._new_id()), Adapters)).adapters

    async def set_adapters(self, scales: list[tuple[int, float]]) -> list[Adapter]:
        return (await self._ask(SetAdapters(self._new_id(), scales), Adapters)).adapters

    async def stats(self) -> Stats:
        return (await self._ask(GetStats(self._new_id()), StatsReply)).stats

    # ---- below -----------------------------------------------------------------------------

    def dispatch(self, message: Step | Failed | Reply) -> None:
        """Give a message of the engine to the request that it answers. A late one is dropped."""
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
        if (future := self._replies.pop(message.id, None)) and not future.done():
            future.set_result(message)

    def close(self, error: ErrorInfo) -> None:
        """The process ends: every open request, and each one from now on, fails with `error`."""
        self._dead = error
        for id in list(self._generations):
            self._put(Failed(id, error))
        for future in self._replies.values():
            if not future.done():
                future.set_exception(EngineError(error))
        self._replies.clear()

    def _put(self, event: Event) -> None:
        if generation := self._generations.get(event.id):
            if isinstance(event, _LAST):
                del self._generations[event.id]
                self.has_served |= isinstance(event, Finished)
            generation._put(event)
        elif isinstance(event, Failed):
            future = self._replies.pop(event.id, None)
            if future is not None and not future.done():
                future.set_exception(EngineError(event.error))

    def _forget(self, id: int) -> None:
        if self._generations.pop(id, None) is not None and self._dead is None:
            self._send(Cancel(id))

    def _end_thoughts(self, id: int) -> None:
        if id in self._generations and self._dead is None:
            self._send(EndThoughts(id))

    async def _ask(self, message: Question, kind: type[R]) -> R:
        future: asyncio.Future[Reply | Vectors] = asyncio.get_running_loop().create_future()
        self._replies[message.id] = future
        try:
            self._send(message)
            reply = await future
        finally:
            self._replies.pop(message.id, None)
        if not isinstance(reply, kind):
            raise RuntimeError(f"the engine answered {type(message)} with {type(reply)}")
        return reply

    async def _in_slices(
        self, make: Callable[[int, list[T]], Embed | Rerank], items: Sequence[T]
    ) -> AsyncGenerator[Vectors, None]:
        """The answers to `make(id, part)` for all parts of `items`."""
        starts = iter(range(0, len(items), SLICE))
        waiting: deque[tuple[int, asyncio.Future[Reply | Vectors]]] = deque()
        try:
            while True:
                while len(waiting) < SLICES_AHEAD and (start := next(starts, None)) is not None:
                    id, future = self._new_id(), asyncio.get_running_loop().create_future()
                    self._replies[id] = future
                    waiting.append((id, future))
                    self._send(make(id, list(items[start : start + SLICE])))
                if not waiting:
                    return
                reply = await waiting[0][1]
                waiting.popleft()
                if not isinstance(reply, Vectors):
                    raise RuntimeError(f"the engine answered with {type(reply)}")
                yield reply
        finally:
            for id, future in waiting:
                if self._replies.pop(id, None) is not None and self._dead is None:
                    self._send(Cancel(id))
                if not future.cancel() and not future.cancelled():
                    future.exception()  # seen, or asyncio would complain that nobody looked

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def _send(self, message: ToEngine) -> None:
        if self._dead is not None:
            raise EngineError(self._dead)
        self._outbox.write(frame(message))
