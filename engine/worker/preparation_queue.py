"""Threads that prepare requests. Requests with long texts don't delay others."""

from collections.abc import Callable, Iterable

from specllama.engine import system
from specllama.engine.wire.media import Media
from specllama.engine.wire.requests import (
    Detokenize,
    Embed,
    FormatChat,
    GetBlocks,
    Infill,
    Prompt,
    Rerank,
    Submit,
    Tokenize,
)

SHORT_THREADS = 2
LONG_THREADS = 4
LONG = 64 << 10
"""Minimum size of a long request, in characters and tokens. llama.cpp's time for a text may grow
with the square of its length; below this size, it is a fraction of a second."""
CALL = 64
"""The cost of tokenizing a short text separately, in characters."""

Prepared = Submit | Embed | Rerank | Tokenize | Detokenize | FormatChat | GetBlocks


class PreparationQueue:
    """A lane for short requests, and one for long ones; each is first in, first out."""

    def __init__(self) -> None:
        self._short = system.pool(SHORT_THREADS, "prepare")
        self._long = system.pool(LONG_THREADS, "prepare-long")
        self._waiting: dict[int, system.Future[None]] = {}  # by id; may also be running

    def start(self, id: int, size: int, work: Callable[[], None]) -> None:
        """Run `work` for the request `id` in its lane. `work` must not raise."""
        lane = self._short if size < LONG else self._long
        future = lane.submit(work)
        self._waiting[id] = future
        future.add_done_callback(lambda done: self._forget(id, done))

    def _forget(self, id: int, done: system.Future[None]) -> None:
        if self._waiting.get(id) is done:  # otherwise a second part of the request waits
            self._waiting.pop(id, None)

    def drop(self, id: int) -> bool:
        """Cancel the waiting work of `id`. Returns False if there is none, as it has begun or is
        done."""
        future = self._waiting.get(id)
        return future is not None and future.cancel()


def size(message: Prepared) -> int:
    """The size of a request in characters and tokens, for comparison with `LONG`."""
    match message:
        case Submit(prompt=prompt, params=params):
            biased = (token for token, _ in params.logit_bias if isinstance(token, str))
            return _prompt_size(prompt) + sum(CALL + len(text) for text in biased)
        case GetBlocks(prompt=prompt):
            return _prompt_size(prompt)
        case Embed(inputs=inputs):
            return sum(map(_size, inputs))
        case Rerank(query=query, documents=documents):
            return sum(len(query) + len(document) for document in documents)
        case Tokenize(content=content):
            return _size(content)
        case Detokenize(tokens=tokens):
            return len(tokens)
        case FormatChat(messages=messages):
            return sum(len(content) for _, content in messages)


def _prompt_size(prompt: Prompt) -> int:
    return _gap_size(prompt) if isinstance(prompt, Infill) else _size(prompt)


def _size(prompt: Iterable[int | str | Media]) -> int:
    return sum(map(_part_size, prompt))


def _part_size(part: int | str | Media) -> int:
    match part:
        case str():
            return len(part)
        case Media(kind="audio"):
            return LONG  # computing its spectrum takes long
        case Media():
            return CALL
    return 1


def _gap_size(gap: Infill) -> int:
    snippets = sum(len(name) + len(text) for name, text in gap.extra)
    return _size(gap.prefix) + _size(gap.suffix) + len(gap.middle) + snippets
