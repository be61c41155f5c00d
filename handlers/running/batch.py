"""The generations of one call: submitted together, read together, cancelled together."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import ExitStack, aclosing
from typing import Any, Self

import msgspec

from specllama.engine import system
from specllama.engine.errors import EngineError, invalid_request
from specllama.engine.models.client import EngineClient
from specllama.engine.models.generation import Generation
from specllama.engine.params import GenerationParams
from specllama.engine.wire.media import Media
from specllama.engine.wire.replies import Begun, Delta, Finished, Queued, Timings, Vectors
from specllama.engine.wire.requests import NO_TERMS, Infill, Prompt, Terms
from specllama.handlers.http.api_keys import ApiKey, current_key, current_owner
from specllama.handlers.http.log_fields import LogFields, log_fields
from specllama.handlers.http.request_trace import FINISH_REASONS, GenerationTimes, RequestTrace
from specllama.handlers.running.admission import admitted_call
from specllama.handlers.running.choices import variants
from specllama.handlers.running.runtime import runtime
from specllama.handlers.running.usage import Usage

log = logging.getLogger(__name__)

# ---- token counts for the log -----------------------------------------------------------


def log_token_counts(fields: LogFields, timings: Sequence[Timings | None], n: int) -> None:
    """Adds the token counts of a call's generations, from their last `timings`, to the log fields.
    The `n` generations of one prompt share it, so it counts once."""
    steps, ms = 0, 0.0
    for index, each in enumerate(timings):
        if each is None:
            continue
        if index % n == 0:
            fields.n_prompt += each.cache_n + each.prompt_n
            fields.n_cached += each.cache_n
            fields.missed = fields.missed or each.cache_miss_reason or ""
        fields.n_predicted += each.predicted_n
        # The step of the prompt also gives the first token; the generations run concurrently.
        steps += max(each.predicted_n - 1, 0)
        ms = max(ms, each.predicted_ms)
    if ms > 0:
        fields.predicted_per_second = 1000 * steps / ms


async def counted(work: AsyncGenerator[Vectors, None]) -> AsyncGenerator[Vectors, None]:
    """Yields the vectors of `work`, which is closed at the end. Counts their tokens in the log
    fields, and as usage. Raises EngineError (rate_limit_error) if the API key doesn't have the
    tokens of the next ones."""
    fields, call = log_fields(), admitted_call()
    try:
        async with aclosing(work):
            async for vectors in work:
                call.begun()
                fields.n_prompt += vectors.n_tokens
                call.count_unmetered([Timings(0, vectors.n_tokens, vectors.ms, 0, 0.0)])
                yield vectors
                await call.reserved()
    except EngineError as error:
        raise call.explained(error) from error


# ---- bounds of one answer, whose fields may be valid one by one, but too large together ---


MAX_PROBABILITIES = 1 << 18
"""The limit for the probabilities in memory for one answer. At its end, each takes about 400
bytes."""
MAX_REPEATED = 64 << 20
"""The limit for the bytes of parameters, and of prompts in the answer, summed over all texts of one
request."""
BYTES_PER_TOKEN = 4  # of a prompt, approximately
CONTEXTS = 4  # limit of a text without n_predict, unless --max-predict sets another one


def bound_probabilities(params: GenerationParams, n_texts: int, n_ctx: int) -> GenerationParams:
    """Returns `params` for `n_texts` texts whose probabilities are in memory until the end of the
    answer. A text without `n_predict` gets a limit that bounds the probabilities.

    Raises EngineError (invalid_request_error) if the requested texts, tokens and probabilities per
    token would have too many probabilities.
    """
    n_probs, n_predict = params.n_probs, params.n_predict
    if not n_probs:
        return params
    room = MAX_PROBABILITIES // (n_texts * n_probs)
    if room < (1 if n_predict < 0 else min(n_predict, n_ctx)):
        tokens = f"{n_predict} tokens (n_predict)" if n_predict >= 0 else "a token"
        raise invalid_request(
            f"n_probs: {n_probs} probabilities for {tokens} of each of {n_texts} texts "
            f"(n_cmpl) are more than the {MAX_PROBABILITIES} that an answer can have: request "
            "fewer, or a stream"
        )
    if n_predict > room or (n_predict < 0 and room < CONTEXTS * n_ctx):
        log.info("n_probs: texts end after %d tokens, to bound the probabilities", room)
        return msgspec.structs.replace(params, n_predict=room)
    return params


def check_prompt_probabilities(
    lengths: Sequence[int], params: GenerationParams, n: int, n_ctx: int
) -> None:
    """Raises EngineError (invalid_request_error) if prompts of `lengths` tokens, with `n` texts
    each, have more probabilities than one answer can have."""
    n_tokens = n * sum(min(length, n_ctx) for length in lengths)  # longer ones are refused later
    if n_tokens * params.n_probs > MAX_PROBABILITIES:
        raise invalid_request(
            f"logprobs: {params.n_probs} probabilities for each of {n_tokens} tokens of prompts "
            f"(echo) are more than the {MAX_PROBABILITIES} that an answer can have: request "
            "fewer, or send several requests"
        )


def check_repeated(
    prompts: Sequence[Prompt], params: GenerationParams, n: int, n_ctx: int, *, echo_prompt: bool
) -> None:
    """Raises EngineError (invalid_request_error) if parameters and prompts are too large for `n`
    texts for each of `prompts`: each text has a copy of them, and they may be as large as a
    body."""
    n_texts = n * len(prompts)
    if n_texts == 1:
        return
    size = n_texts * len(msgspec.msgpack.encode(params))
    if echo_prompt:
        longest = BYTES_PER_TOKEN * n_ctx  # a longer prompt is refused later
        size += n * sum(min(_length(prompt), longest) for prompt in prompts)
    if size > MAX_REPEATED:
        raise invalid_request(
            f"n_cmpl: {n_texts} texts have {size} bytes of prompts, grammars, biases, "
            f"stop strings and other parameters, more than {MAX_REPEATED}: request fewer texts"
        )


def n_media(prompt: Prompt) -> int:
    """Returns the number of images and sounds in a prompt."""
    if isinstance(prompt, Infill):
        return 0
    return sum(isinstance(part, Media) for part in prompt)


def _length(prompt: Prompt) -> int:
    if isinstance(prompt, Infill):
        return BYTES_PER_TOKEN * (len(prompt.prefix) + len(prompt.suffix)) + sum(
            len(part) for part in (*prompt.prefix, *prompt.suffix) if isinstance(part, str)
        )
    return sum(len(part) if isinstance(part, str) else BYTES_PER_TOKEN for part in prompt)


def keeps_to_itself(key: ApiKey | None) -> bool:
    """True if the cached texts of a key serve only its own requests: by its `cache`, otherwise by
    `--cache-per-key`.

    Of two keys that share their texts, each can find out by the time of an answer what the other
    one has sent. A key that keeps to itself can't, and its own texts reveal nothing.
    """
    if key is None or key.cache is None:
        return runtime().options.http.cache_per_key
    return key.cache == "own"


_Queue = asyncio.Queue[tuple[int, Begun | Delta | Finished | Exception]]


_AHEAD = 100  # events in the common queue; further events wait in the generations' own queues


class TextEvent(msgspec.Struct, frozen=True, gc=False):
    """An event of the engine for text number `index` of a batch."""

    index: int
    source: Delta | Finished


class AnswerBatch:
    """A context manager for `n` generations per prompt, in the order of the prompts. Its exit
    cancels unfinished generations. Raises EngineError if one answer can't have so many texts or
    probabilities."""

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
        terms: Terms = NO_TERMS,
    ) -> None:
        """`id` is the answer's id, with which a client can end the thoughts of all texts."""
        self._tasks: Sequence[asyncio.Task[Any]] = ()
        n_texts, n_ctx = len(prompts) * n, engine.info.n_ctx
        self._several = n_texts > 1
        check_repeated(prompts, params, n, n_ctx, echo_prompt=echo_prompt)
        if not params.stream:
            params = bound_probabilities(params, n_texts, n_ctx)
        self._queue: _Queue = asyncio.Queue(_AHEAD)
        self._confirms = params.stream and (self._several or terms.shows_queue)
        self._generations: list[Generation] = []
        group = 0
        private = keeps_to_itself(current_key())
        self._call = admitted_call()
        self._call.on_refusal = self._refuse
        self._call.expect(n * sum(map(_length, prompts)) // BYTES_PER_TOKEN)
        self._call.count(Usage(media=sum(n * n_media(prompt) for prompt in prompts)))
        for prompt in prompts:
            self._generations += engine.generate_all(
                prompt,
                variants(params, n),
                echo_prompt=echo_prompt,
                confirm=self._confirms,
                group=group,
                owner=self._call.owner,
                private=private,
                prompt_probs=prompt_probs,
                terms=self._call.limited(terms),
                meter=self._call.meter(n),
                on_begun=self._call.begun,
            )
            group = self._generations[0].request.id
        self._n_unfinished = len(self._generations)
        self._has_begun = False
        self._n = n
        self._id = id
        self._may_end = params.thinking is not None and params.thinking.control
        self._context = ExitStack()
        self._log_fields = log_fields()
        self._timings: list[Timings | None] = [None] * len(self._generations)
        self._submitted = system.now()

    async def __aenter__(self) -> Self:
        if self._id is not None:
            key = (current_owner(), self._id)
            running = runtime().control.running(key, self._generations, may_end=self._may_end)
            self._context.enter_context(running)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._context.close()
        self._call.on_refusal = None  # the call also lives longer than the texts
        for generation in self._generations:
            generation.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        log_token_counts(self._log_fields, self._timings, self._n)
        self._call.count_unmetered(self._timings)
        if (trace := self._log_fields.trace) is not None:
            self._add_stages(trace)

    def _add_stages(self, trace: RequestTrace) -> None:
        now = system.now()  # the end of generations that are cancelled
        trace.computed(
            [
                GenerationTimes(self._submitted, generation.ended or now, timings)
                for generation, timings in zip(self._generations, self._timings, strict=True)
                if timings is not None
            ]
        )
        if not any(generation.has_begun for generation in self._generations):
            trace.waited(self._submitted, now)
        trace.asked("text_completion", self._generations[0].request.params, self._n)
        trace.attributes[FINISH_REASONS] = [
            "stop" if end.stop_type in ("eos", "word") else "length" for end in self.ends()
        ]

    def ends(self) -> list[Finished]:
        """Returns the ends of the texts that are complete."""
        lasts = (generation.last for generation in self._generations)
        return [last for last in lasts if isinstance(last, Finished)]

    def _refuse(self, error: EngineError) -> None:
        """Ends all texts, because the API key doesn't have the tokens for them."""
        for generation in self._generations:
            generation.fail(error.info)

    async def results(self) -> list[Finished]:
        """Returns all results, in order. Raises the first EngineError of any generation."""
        try:
            results = await self._results()
        except EngineError as error:
            raise self._call.explained(error) from error
        self._log_relaxed()
        self._timings = [result.timings for result in results]
        return results

    async def accepted(self) -> None:
        """Waits until the engine has accepted all texts of a stream, if it has several or shows the
        queue. Raises the first EngineError of any generation."""
        if self._confirms:
            self._confirms = False
            try:
                for generation in self._generations:
                    await generation.accepted()  # before the response: any error replaces it
            except EngineError as error:
                raise self._call.explained(error) from error
            await self._call.reserved()
            self._log_relaxed()

    @property
    def queue(self) -> Queued | None:
        """The best place of its texts in the queue; None if no text waits, or if the terms don't
        show the queue."""
        places = [each.queue for each in self._generations if each.queue is not None]
        return min(places, key=lambda each: each.place, default=None)

    async def _results(self) -> list[Finished]:
        if not self._several:
            return [await self._generations[0].result()]
        tasks = [asyncio.create_task(g.result()) for g in self._generations]
        self._tasks = tasks
        return await asyncio.gather(*tasks)

    async def begun(self) -> Begun:
        """Waits until the first generation has a slot; to be called before `events`. Raises the
        first EngineError of any generation."""
        await self.accepted()
        try:
            begun = await self._begun()
        except EngineError as error:
            raise self._call.explained(error) from error
        await self._call.reserved()
        return begun

    async def _begun(self) -> Begun:
        if not self._several:
            begun = await self._generations[0].begun()
            self._log_relaxed()
            return begun
        self._tasks = [
            asyncio.create_task(self._pump(index, generation))
            for index, generation in enumerate(self._generations)
        ]
        _, first = await self._queue.get()
        if isinstance(first, Exception):
            raise first
        if isinstance(first, Begun):
            return first
        raise RuntimeError("an event before Begun")

    @property
    def ready(self) -> bool:
        """True if `events` has the next event already, or has ended."""
        if not self._several:
            return self._generations[0].ready
        return not self._n_unfinished or not self._queue.empty()

    async def events(self) -> AsyncIterator[TextEvent]:
        """Yields the events of all generations as they arrive. Raises the first EngineError of any
        generation."""
        if not self._several:
            async for event in self._generations[0]:
                self._timings[0] = event.timings
                yield TextEvent(0, event)
            return
        while self._n_unfinished:
            index, item = await self._queue.get()
            if isinstance(item, Exception):
                raise item
            if isinstance(item, Begun):
                raise RuntimeError("Begun is in the queue twice")
            self._n_unfinished -= isinstance(item, Finished)
            self._timings[index] = item.timings
            yield TextEvent(index, item)

    async def _pump(self, index: int, generation: Generation) -> None:
        """Puts the events of a generation into the queue, or the exception that ends them. The
        queue gets only the first `Begun` of all generations."""
        try:
            begun = await generation.begun()
            if not self._has_begun:
                self._has_begun = True
                await self._queue.put((index, begun))
            async for event in generation:
                await self._queue.put((index, event))
        except Exception as error:
            await self._queue.put((index, error))

    def _log_relaxed(self) -> None:
        """Sets the log field for relaxed schema keywords, which are the same for all generations.
        To be called before the answer begins, because its headers contain the field."""
        self._log_fields.relaxed = self._generations[0].relaxed
