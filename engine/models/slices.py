"""Embedding and reranking calls: their inputs are sent in slices, and metered together."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import msgspec

from specllama.engine.models.generation import Meter
from specllama.engine.models.questions import Question
from specllama.engine.wire.replies import Reply, Timings, Vectors
from specllama.engine.wire.requests import (
    Embed,
    Rerank,
    SlotAction,
    Terms,
)

T = TypeVar("T")

SLICE = 64
"""Number of inputs in one message. The inputs of an embedding request are sent in slices, so that
neither process is ever busy with a long message, and other requests get their turns."""
SLICES_AHEAD = 2  # in flight: while one is evaluated, the next is tokenized


class SliceMeter:
    """Adds up what the slices of one call use, and passes the sum to `meter`: once, when no further
    slice is sent and all slices have ended. Without a `meter`, the slices aren't metered."""

    def __init__(self, terms: Terms, meter: Meter | None) -> None:
        self.group = 0
        """The id of the first slice, which stands for the call."""
        self._terms = terms
        if meter is not None:
            self._terms = msgspec.structs.replace(terms, is_metered=True)
        self._meter = meter
        self._n_accepted = 0  # tokens
        self._n_used = 0
        self._ms = 0.0
        self._n_open = 1  # slices that haven't ended, and the call until it is closed

    @property
    def is_metered(self) -> bool:
        return self._terms.is_metered

    def terms(self, id: int) -> Terms:
        """Returns the terms of the slice that will be sent as `id`: it may use the tokens that the
        slices accepted before have left."""
        self.group = self.group or id
        if self._terms.allowance < 0:
            return self._terms
        left = max(0, self._terms.allowance - self._n_accepted)
        return msgspec.structs.replace(self._terms, allowance=left)

    def opened(self) -> None:
        """A slice was sent."""
        self._n_open += 1

    def accepted(self, n_tokens: int) -> None:
        """The engine has accepted a slice of `n_tokens`."""
        self._n_accepted += n_tokens
        if self._meter is not None:
            self._meter.accepted(n_tokens)

    def settle(self, timings: Timings | None) -> None:
        """A slice has ended, and has used the tokens of `timings`; None if that is unknown."""
        if timings is not None:
            self._n_used += timings.prompt_n
            self._ms += timings.prompt_ms
        self._close_one()

    def close(self) -> None:
        """No further slice will be sent."""
        self._close_one()

    def _close_one(self) -> None:
        self._n_open -= 1
        if not self._n_open and self._meter is not None:
            self._meter.ended(Timings(0, self._n_used, self._ms, 0, 0.0))


@dataclass
class PendingAnswer:
    """A question to the engine and its pending answer. A slice belongs to a `call`. It is asked
    once more if `may_move`, and the replica that has it ends; an action on a slot is not."""

    message: Question | Embed | Rerank
    answer: asyncio.Future[Reply | Vectors]
    call: SliceMeter | None = None
    may_move: bool = field(init=False)

    def __post_init__(self) -> None:
        self.may_move = not isinstance(self.message, SlotAction)

    @property
    def settle(self) -> Callable[[Timings | None], None] | None:
        """Receives what a metered slice has used."""
        return self.call.settle if self.call is not None and self.call.is_metered else None


class SliceClient(Protocol):
    """Sends slices to the engine process."""

    def send_slice(
        self, make: Callable[[int, list[T]], Embed | Rerank], part: list[T], call: SliceMeter
    ) -> PendingAnswer: ...

    def withdraw(self, asked: PendingAnswer) -> None: ...


async def in_slices(
    client: SliceClient,
    make: Callable[[int, list[T]], Embed | Rerank],
    items: Sequence[T],
    call: SliceMeter,
) -> AsyncGenerator[Vectors, None]:
    """Yields the answers to `make(id, part)` for all parts of the `items` of a call. Closing the
    iterator withdraws the parts without an answer."""
    starts = iter(range(0, len(items), SLICE))
    waiting: deque[PendingAnswer] = deque()
    try:
        while True:
            while len(waiting) < SLICES_AHEAD and (start := next(starts, None)) is not None:
                asked = client.send_slice(make, list(items[start : start + SLICE]), call)
                call.opened()
                waiting.append(asked)
            if not waiting:
                return
            reply = await waiting[0].answer
            waiting.popleft()
            if not isinstance(reply, Vectors):
                raise RuntimeError(f"the engine answered with {type(reply)}")
            yield reply
    finally:
        for asked in waiting:
            client.withdraw(asked)
            if not asked.answer.cancel() and not asked.answer.cancelled():
                asked.answer.exception()  # retrieved, or asyncio would log a warning
        call.close()
