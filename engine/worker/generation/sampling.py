"""Chooses the next token of every request whose logits a step has computed."""

import os
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from specllama.engine import system
from specllama.engine.worker.backend import (
    BackendError,
    Context,
    Model,
    Offload,
    OffloadedSampler,
    RowScan,
    Sampler,
)
from specllama.engine.worker.generation.request import Request
from specllama.engine.worker.scheduling.sequences import FORCED, Chunk
from specllama.engine.worker.tokens import TokenArray

# ---- Choosing the tokens of several requests at the same time.


MAX_THREADS = 8


class SamplingPool:
    """Threads for samplers that read the whole of a large vocabulary, which takes milliseconds and
    runs outside the GIL. Any other sampler is faster than waking up a thread."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._n_threads = min(MAX_THREADS, os.cpu_count() or 1) - 1  # besides the calling one
        self._executor: system.Executor | None = None

    def choose(self, jobs: Sequence[tuple[Sampler, int]]) -> list[int]:
        """The next token for each sampler, from the logits of its batch position. All of the
        samplers are `slow`."""
        todo, chosen = deque(enumerate(jobs)), [-1] * len(jobs)

        def work() -> None:
            while todo:
                try:
                    i, (sampler, index) = todo.popleft()
                except IndexError:  # another thread was faster
                    return
                chosen[i] = sampler.sample(self._context, index)

        helpers = min(self._n_threads, len(jobs) - 1)
        if helpers > 0:
            # The first read makes llama.cpp reorder the rows, so it must not run in parallel with
            # others.
            self._context.logits(jobs[0][1])
            if self._executor is None:
                self._executor = system.pool(self._n_threads, "sample")
            futures = [self._executor.submit(work) for _ in range(helpers)]
            work()
            for future in futures:
                future.result()
        else:
            work()
        return chosen

    def close(self) -> None:
        if self._executor is not None:
            self._executor.shutdown()


Output = tuple[Request, int]
"""A request, and the index in the batch of the token whose logits give its next one."""

ALL = float(np.finfo(np.float32).max)
"""The bound of a row that isn't needed: no logit reaches it."""


class Sampling:
    """Chooses tokens: on the device, on several threads, or one after the other.

    A request whose next token waits for the mask of its constraint is postponed, while the others
    advance. Its logits are kept beyond their step, so nothing is evaluated again and its text is
    the same as without the wait."""

    def __init__(self, context: Context, offload: Offload | None) -> None:
        self._model: Model = context.model
        self._context = context
        self._offload = offload
        self._pool = SamplingPool(context)
        self._scan = RowScan(context.model.n_vocab) if context.is_asynchronous else None
        self._ahead: dict[int, int] = {}  # tokens that are already chosen, by index
        self._found: dict[int, TokenArray] = {}  # token ids that reach a sampler's bound, by index
        self._postponed: list[Request] = []

    def attach(self, chunks: Sequence[Chunk], requests: Sequence[Request]) -> None:
        """Hands the device the samplers that run there, before the decode. Raises BackendError."""
        if self._offload is None:
            return
        samplers: dict[int, OffloadedSampler | None] = {}
        for chunk, request in zip(chunks, requests, strict=True):
            if not chunk.is_last:
                continue
            sampler = request.sampler
            offloaded = sampler if isinstance(sampler, OffloadedSampler) else None
            samplers[request.sequence.seq_id] = offloaded
        self._offload.arrange(samplers)

    def sample_ahead(self, outputs: Sequence[Output]) -> None:
        """Do the slow work of all outputs in parallel: choose the tokens of slow samplers, and scan
        the logits for the others."""
        self._ahead.clear()
        self._look_through(outputs)
        slow = [
            (sampler, index)
            for request, index in outputs
            if request.params.n_predict != 0 and (sampler := request.slow_sampler)
        ]
        if len(slow) > 1:
            tokens = self._pool.choose(slow)
            self._ahead.update(zip((index for _, index in slow), tokens, strict=True))

    def _look_through(self, outputs: Sequence[Output]) -> None:
        """Scan the logits of all outputs in parallel. Only with a device: then the host's
        processors are idle."""
        self._found.clear()
        if self._scan is None or not self._scan.is_worth_it(len(outputs)):
            return
        bounds = {
            index: bound
            for request, index in outputs
            if FORCED < index < self._context.n_batch and (bound := request.bound) is not None
        }
        if self._scan.is_worth_it(len(bounds)):
            logits, numbers = self._context.block([*bounds])
            if len(logits) > 2 * len(
                bounds
            ):  # mostly rows of proposed tokens, which aren't in `bounds`
                return
            of_rows = [ALL] * len(logits)
            for number, bound in zip(numbers, bounds.values(), strict=True):
                of_rows[number] = bound
            found = self._scan.reaching(logits, of_rows)
            self._found.update(zip(bounds, (found[number] for number in numbers), strict=True))

    def sample(self, request: Request, index: int) -> tuple[int, bool] | None:
        """The next token, and whether it is the last one that the guide allows; None if the guide
        doesn't allow any. Raises ConstraintError, NoTokenError and BackendError."""
        sampled = self._sample(request, index)
        if index == FORCED or sampled is None:
            return sampled
        if not isinstance(request.sampler, OffloadedSampler):
            logit = self._context.logits(index)[sampled[0]]
            if logit != logit:  # NaN: usually all of them are, and any choice is random
                raise BackendError(
                    "the model computed numbers that are not finite; is its file damaged?"
                )
        return sampled

    def _sample(self, request: Request, index: int) -> tuple[int, bool] | None:
        if (token := self._ahead.get(index)) is not None:
            return token, False
        sampler = request.sampler
        if isinstance(sampler, OffloadedSampler):
            return sampler.sample(index), False
        guide, allowed = request.guide, None
        if guide is not None:
            if guide.ended:
                return None
            allowed = guide.allowed
        if index == FORCED:
            assert allowed is not None
            assert len(allowed) == 1
            token = int(allowed[0])
            sampler.take(token)
        elif request.probs is None:
            token = sampler.sample(self._context, index, allowed, self._found.get(index))
        else:
            token = request.probs.sample(sampler, self._context, index, allowed)
        if guide is None or token in self._model.eog:
            return token, False
        return token, guide.advance(token)

    # ---- masks that are still being computed --------------------------------------------------

    def put_off(self, outputs: Sequence[Output], until: float) -> list[Output]:
        """Returns the `outputs` whose tokens can be chosen, after waiting for their masks until the
        time `until` at most. Postpones the others: `due` returns them later."""
        awaited = _awaited(request for request, index in outputs if index != FORCED)
        if not awaited:
            return [*outputs]
        system.wait(awaited, max(0.0, until - system.now()))
        ready: list[Output] = []
        for request, index in outputs:
            if index == FORCED or _mask(request) is None:
                ready.append((request, index))
            else:
                if request.kept is None:
                    self._postponed.append(request)
                else:
                    self._context.release(request.kept)
                request.kept = self._context.keep(index)
        return ready

    def due(self) -> list[Output]:
        """The postponed outputs whose tokens can be chosen now; the caller releases their logits. A
        request that has left its slot is dropped: its logits will be computed again."""
        due: list[Output] = []
        for request in self._postponed:
            sequence, kept = request.sequence, request.kept
            assert kept is not None
            if sequence.slot < 0 or sequence.n_pending:
                request.kept = None
                self._context.release(kept)
            elif _mask(request) is None:
                request.kept = None
                due.append((request, kept))
        self._postponed = [request for request in self._postponed if request.kept is not None]
        return due

    def wait(self, seconds: float) -> None:
        """Wait until a postponed request is due, `seconds` at most."""
        if awaited := _awaited(self._postponed):
            system.wait(awaited, seconds, system.ANY)

    def close(self) -> None:
        self._pool.close()
        if self._scan is not None:
            self._scan.close()


def _awaited(requests: Iterable[Request]) -> list[system.Future[Any]]:
    return [mask for request in requests if (mask := _mask(request)) is not None]


def _mask(request: Request) -> system.Future[Any] | None:
    """The pending mask of the next token of `request`; None if it waits for none."""
    if request.guide is None or request.params.n_predict == 0:
        return None
    return request.guide.awaited
