"""The generations of one call: submitted together, read together, cancelled together."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from typing import Any, Self

import msgspec

from specllama.engine.models.client import EngineClient
from specllama.engine.models.generation import Generation
from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import Begun, Delta, Finished, Timings
from specllama.engine.wire.requests import Prompt
from specllama.handlers.http.api_keys import current_key, current_owner
from specllama.handlers.http.notes import notes
from specllama.handlers.running.bounds import bound_probabilities, check_repeated
from specllama.handlers.running.choices import variants
from specllama.handlers.running.runtime import runtime
from specllama.handlers.running.usage import note_texts

_Queue = asyncio.Queue[tuple[int, Begun | Delta | Finished | Exception]]


_AHEAD = 100  # events of several generations on their way to one reader; the others wait apart


class TextEvent(msgspec.Struct, frozen=True, gc=False):
    """An event of the engine for text number `index` of a batch."""

    index: int
    source: Delta | Finished


class Batch:
    """A context around `n` generations per prompt, those of the first prompt first. Leaving
    it cancels what still runs. Raises EngineError for what is more than one answer can have."""

    def __init__(
        self,
        engine: EngineClient,
        prompts: Sequence[Prompt],
        params: GenerationParams,
        *,
        n: int = 1,
        echo_prompt: bool = False,
        prompt_probs: bool = False,
        id: str | None = None,
    ) -> None:
        """By `id`, that of the answer, a client can end the thoughts of all texts."""
        self._tasks: Sequence[asyncio.Task[Any]] = ()
        n_texts, n_ctx = len(prompts) * n, engine.info.n_ctx
        self._several = n_texts > 1
        check_repeated(prompts, params, n, n_ctx, echo_prompt=echo_prompt)
        if not params.stream:
            params = bound_probabilities(params, n_texts, n_ctx)
        self._queue: _Queue = asyncio.Queue(_AHEAD)
        confirm = params.stream and self._several
        self._generations: list[Generation] = []
        group = 0
        owner, private = current_owner(), runtime().options.http.cache_per_key
        for prompt in prompts:
            self._generations += engine.generate_all(
                prompt,
                variants(params, n),
                echo_prompt=echo_prompt,
                confirm=confirm,
                group=group,
                owner=owner,
                private=private,
                prompt_probs=prompt_probs,
            )
            group = self._generations[0].request.id
        self._n = n
        self._id = id
        self._may_end = params.thinking is not None and params.thinking.control
        self._context = ExitStack()
        self._notes = notes()
        self._timings: list[Timings | None] = [None] * len(self._generations)

    async def __aenter__(self) -> Self:
        if self._id is not None:
            key = (current_key(), self._id)
            running = runtime().steerable.running(key, self._generations, may_end=self._may_end)
            self._context.enter_context(running)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._context.close()
        for generation in self._generations:
            generation.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        note_texts(self._notes, self._timings, self._n)

    async def results(self) -> list[Finished]:
        """All results, in order. Raises the first EngineError of any."""
        if not self._several:
            results = [await self._generations[0].result()]
        else:
            tasks = [asyncio.create_task(g.result()) for g in self._generations]
            self._tasks = tasks
            results = await asyncio.gather(*tasks)
        self._note_relaxed()
        self._timings = [result.timings for result in results]
        return results

    async def begun(self) -> Begun:
        """Waits until the first of the generations has a slot; to be called before `events`.
        Raises the first EngineError of any."""
        if not self._several:
            begun = await self._generations[0].begun()
            self._note_relaxed()
            return begun
        for generation in self._generations:
            await generation.accepted()  # a fault in any of them is an answer of its own
        self._note_relaxed()
        self._tasks = [
            asyncio.create_task(_pump(index, generation, self._queue))
            for index, generation in enumerate(self._generations)
        ]
        _, first = await self._queue.get()
        if isinstance(first, Exception):
            raise first
        if isinstance(first, Begun):
            return first
        raise RuntimeError("a generation that has not begun")

    async def events(self) -> AsyncIterator[TextEvent]:
        """The events of all generations as they come. Raises the first EngineError of any."""
        if not self._several:
            async for event in self._generations[0]:
                self._timings[0] = event.timings
                yield TextEvent(0, event)
            return
        unfinished = len(self._generations)
        while unfinished:
            index, item = await self._queue.get()
            if isinstance(item, Exception):
                raise item
            if isinstance(item, Begun):
                continue
            unfinished -= isinstance(item, Finished)
            self._timings[index] = item.timings
            yield TextEvent(index, item)

    def _note_relaxed(self) -> None:
        """Before the answer begins, whose head tells it; the same for all generations."""
        self._notes.relaxed = self._generations[0].relaxed


async def _pump(index: int, generation: Generation, queue: _Queue) -> None:
    """Puts every event into `queue`, or the exception that ends them."""
    try:
        await queue.put((index, await generation.begun()))
        async for event in generation:
            await queue.put((index, event))
    except Exception as error:
        await queue.put((index, error))
