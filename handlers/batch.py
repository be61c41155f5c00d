"""The generations of one call: submitted together, read together, cancelled together."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Self

from engine.client import EngineClient, Generation
from engine.params import GenerationParams
from engine.protocol import Delta, Finished
from handlers.choices import variants
from handlers.generation import Prompt

_Queue = asyncio.Queue[tuple[int, Delta | Finished | Exception]]


class Batch:
    """A context around `n` generations per prompt, those of the first prompt first. Leaving
    it cancels what still runs."""

    def __init__(
        self,
        engine: EngineClient,
        prompts: Sequence[Prompt],
        params: GenerationParams,
        *,
        n: int = 1,
        echo_prompt: bool = False,
    ) -> None:
        self._tasks: Sequence[asyncio.Task[Any]] = ()
        self._generations = [
            engine.generate(prompt, variant, echo_prompt=echo_prompt)
            for prompt in prompts
            for variant in variants(params, n)
        ]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for generation in self._generations:
            generation.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def results(self) -> list[Finished]:
        """All results, in order. Raises the first EngineError of any."""
        if len(self._generations) == 1:
            return [await self._generations[0].result()]
        tasks = [asyncio.create_task(g.result()) for g in self._generations]
        self._tasks = tasks
        return await asyncio.gather(*tasks)

    async def events(self) -> AsyncIterator[tuple[int, Delta | Finished]]:
        """(index of the generation, event) of all of them, as they come. Raises the first
        EngineError of any."""
        if len(self._generations) == 1:
            async for event in self._generations[0]:
                yield 0, event
            return
        queue: _Queue = asyncio.Queue()
        tasks = [
            asyncio.create_task(_pump(index, generation, queue))
            for index, generation in enumerate(self._generations)
        ]
        self._tasks = tasks
        unfinished = len(tasks)
        while unfinished:
            index, item = await queue.get()
            if isinstance(item, Exception):
                raise item
            unfinished -= isinstance(item, Finished)
            yield index, item


async def _pump(index: int, generation: Generation, queue: _Queue) -> None:
    """Puts every event into `queue`, or the exception that ends them."""
    try:
        async for event in generation:
            queue.put_nowait((index, event))
    except Exception as error:
        queue.put_nowait((index, error))
