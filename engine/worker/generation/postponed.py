"""Requests whose next token waits for the mask of their constraint, while the others go on."""

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from specllama.engine.worker.backend import Context
from specllama.engine.worker.generation.request import Request
from specllama.engine.worker.generation.sampling import FORCED, Output


class Postponed:
    """The logits of these requests outlive their step, so nothing is evaluated again, and their
    texts are those that they would have been."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._waiting: dict[int, Output] = {}  # by id

    def put_off(self, outputs: Sequence[Output], until: float) -> list[Output]:
        """Those of the `outputs` of a step whose tokens can be chosen, after waiting `until` then
        at the most. The others are due later."""
        awaited = _awaited(request for request, index in outputs if index != FORCED)
        if not awaited:
            return [*outputs]
        wait(awaited, max(0.0, until - time.perf_counter()))
        ready: list[Output] = []
        for request, index in outputs:
            if index == FORCED or _mask(request) is None:
                ready.append((request, index))
            else:
                self._forget(request.id)
                self._waiting[request.id] = request, self._context.keep(index)
        return ready

    def due(self) -> list[Output]:
        """Those that can be chosen now, from logits that the caller releases. What has left its
        slot is forgotten: it gets others."""
        due: list[Output] = []
        for id, (request, index) in [*self._waiting.items()]:
            sequence = request.sequence
            if sequence.slot < 0 or sequence.n_pending:
                self._forget(id)
            elif _mask(request) is None:
                due.append((request, index))
                del self._waiting[id]
        return due

    def _forget(self, id: int) -> None:
        if (output := self._waiting.pop(id, None)) is not None:
            self._context.release(output[1])

    def wait(self, seconds: float) -> None:
        """Until one of them is due, `seconds` at the most."""
        if awaited := _awaited(request for request, _ in self._waiting.values()):
            wait(awaited, seconds, FIRST_COMPLETED)


def _awaited(requests: Iterable[Request]) -> list[Future[Any]]:
    return [mask for request in requests if (mask := _mask(request)) is not None]


def _mask(request: Request) -> Future[Any] | None:
    """The mask that the next token of `request` waits for."""
    if request.guide is None or request.params.n_predict == 0:
        return None
    return request.guide.awaited
