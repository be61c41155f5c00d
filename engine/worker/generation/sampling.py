"""The next token of every request whose logits a step has computed."""

from collections.abc import Sequence

import numpy as np

from specllama.engine.worker.backend import (
    BackendError,
    Context,
    Model,
    Offload,
    OffloadedSampler,
    RowScan,
)
from specllama.engine.worker.generation.request import Request
from specllama.engine.worker.generation.sampling_pool import SamplingPool
from specllama.engine.worker.scheduling.sequences import Chunk
from specllama.engine.worker.tokens import TokenArray

Output = tuple[Request, int]
"""A request, and the index in the batch of the token whose logits give its next one."""

ALL = float(np.finfo(np.float32).max)
"""The bound of a row that nobody looks at."""
FORCED = -1
"""In the place of the index: there are no logits, as only one token can come."""


class Sampling:
    """Chooses tokens: on the device, on several threads, or one after the other."""

    def __init__(self, context: Context, offload: Offload | None) -> None:
        self._model: Model = context.model
        self._context = context
        self._offload = offload
        self._pool = SamplingPool(context)
        self._scan = RowScan(context.model.n_vocab) if context.is_asynchronous else None
        self._ahead: dict[int, int] = {}  # by index, tokens that are chosen already
        self._found: dict[int, TokenArray] = {}  # by index, what reaches a sampler's bound

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
        """Do for all outputs at the same time what takes long for each: choose the tokens of slow
        samplers, and look through the logits for all others."""
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
        """Where the host has its processors for itself, as a device computes."""
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
            if len(logits) > 2 * len(bounds):  # most rows are those of proposed tokens
                return
            of_rows = [ALL] * len(logits)
            for number, bound in zip(numbers, bounds.values(), strict=True):
                of_rows[number] = bound
            found = self._scan.reaching(logits, of_rows)
            self._found.update(zip(bounds, (found[number] for number in numbers), strict=True))

    def sample(self, request: Request, index: int) -> tuple[int, bool] | None:
        """The next token, and whether the guide lets nothing follow it; None if it lets nothing
        follow what there is. Raises ConstraintError, NoTokenError and BackendError."""
        sampled = self._sample(request, index)
        if index == FORCED or sampled is None:
            return sampled
        if not isinstance(request.sampler, OffloadedSampler):
            logit = self._context.logits(index)[sampled[0]]
            if logit != logit:  # then so are all, as a rule, and any choice is by chance
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

    def close(self) -> None:
        self._pool.close()
        if self._scan is not None:
            self._scan.close()
