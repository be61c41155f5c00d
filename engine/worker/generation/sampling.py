"""Chooses the next token of every request whose logits a step has computed."""

import os
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from specllama.engine import system
from specllama.engine.grammars.compiling import ConstraintError
from specllama.engine.worker.backend import (
    BackendError,
    Context,
    Model,
    Offload,
    RowScan,
    Sampler,
)
from specllama.engine.worker.backend.row_scan import NOTHING, Top
from specllama.engine.worker.backend.sampler import choose_found, choose_together
from specllama.engine.worker.generation.request import Request
from specllama.engine.worker.scheduling.sequences import FORCED, Chunk

# ---- Choosing the tokens of several requests at the same time.


MAX_THREADS = 8
NOT_FINITE = "the model computed numbers that are not finite; is its file damaged?"


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


class RowSearch(NamedTuple):
    """What to find in a block of rows of logits: the `wanted` of each row, as for `RowScan.tops`;
    `rows` has the row of each index. `summed` are the indices whose `log_sum_exp` is needed, in the
    order of their rows. With `only_found`, no other logits of these rows are needed."""

    wanted: list[float]
    rows: dict[int, int]
    summed: list[int]
    only_found: bool


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
        # Only with a device are the host's processors idle.
        self._scan = RowScan(context.model.n_vocab, None if context.is_asynchronous else 1)
        self._search: RowSearch | None = None  # for the outputs; None: few rows
        self._free: list[tuple[Sampler, int]] = []  # `Request.free_sampler` of the outputs
        self._simple: list[tuple[Request, Sampler, int]] = []  # `Request.simple_sampler` of these
        self._offloaded: dict[int, int] = {}  # rows of outputs whose candidates the device finds
        self._is_prepared = False  # for `sample_ahead`
        self.are_free = False
        """True if all prepared outputs have a `Request.free_sampler`."""
        self._ahead: dict[int, int] = {}  # tokens that are already chosen, by index
        self._found: dict[int, Top | None] = {}  # the likeliest tokens, by index
        self._sums: dict[int, float] = {}  # log_sum_exp, by index
        self._postponed: list[Request] = []

    def arrange(self, chunks: Sequence[Chunk], requests: Sequence[Request]) -> None:
        """Determine what the device finds in the decode that follows. Raises BackendError."""
        if self._offload is not None:
            self._offload.arrange(
                {
                    request.sequence.seq_id: request.sampler.is_offloaded
                    for chunk, request in zip(chunks, requests, strict=True)
                    if chunk.is_last
                }
            )

    def prepare(self, outputs: Sequence[Output]) -> None:
        """Determine what to find in the logits of the `outputs`, which a device may still be
        computing."""
        self._ahead.clear()
        self._found.clear()
        self._sums.clear()
        self._free = [
            (sampler, index)
            for request, index in outputs
            if (sampler := request.free_sampler) is not None
        ]
        offloaded = [index for sampler, index in self._free if sampler.is_offloaded]
        rows = self._context.batch.rows(offloaded).tolist() if offloaded else []
        self._offloaded = dict(zip(offloaded, rows, strict=True))
        self.are_free = len(self._free) == len(outputs)
        self._simple = [
            (request, sampler, index)
            for request, index in outputs
            if (sampler := request.simple_sampler) is not None
        ]
        self._search = self._search_of(outputs)
        self._is_prepared = True

    def _search_of(self, outputs: Sequence[Output]) -> RowSearch | None:
        n_batch = self._context.n_batch  # from there on, indices are those of kept logits
        wanted = {
            index: number
            for request, index in outputs
            if FORCED < index < n_batch and (number := request.wanted) is not None
        }
        if len(wanted) < 2:
            return None
        numbers = self._context.batch.rows([*wanted])
        numbers -= numbers.min()
        of_rows = [NOTHING] * (int(numbers.max()) + 1)
        if len(of_rows) > 2 * len(wanted):  # mostly rows of proposed tokens
            return None
        rows = dict(zip(wanted, numbers.tolist(), strict=True))
        for index, number in wanted.items():
            of_rows[rows[index]] = number
        summed = [
            index
            for request, index in outputs
            if request.probs is not None and not request.probs.post_sampling and index in rows
        ]
        summed.sort(key=rows.__getitem__)
        only_found = len(self._simple) == len(outputs) and not summed
        return RowSearch(of_rows, rows, summed, only_found=only_found)

    def sample_ahead(self, outputs: Sequence[Output]) -> None:
        """Do the work that is faster for all the prepared `outputs` together, if it isn't done yet:
        find the likeliest tokens, and choose the tokens of simple and of slow samplers."""
        if not self._is_prepared:
            return
        self._is_prepared = False
        self._look_through()
        self._choose_simple()
        self._choose_offloaded()
        slow = [
            (sampler, index)
            for request, index in outputs
            if request.probs is None and (sampler := request.free_sampler) and sampler.slow
        ]
        if len(slow) > 1:
            tokens = self._pool.choose(slow)
            self._ahead.update(zip((index for _, index in slow), tokens, strict=True))

    def _look_through(self) -> None:
        """Find the likeliest tokens of all outputs in one pass over the logits."""
        search = self._search
        if search is None:
            return
        rows = self._context.block(search.rows, len(search.wanted), views=not search.only_found)
        places = [search.rows[index] for index in search.summed]
        tops, sums = self._scan.tops(rows, search.wanted, places)
        self._found.update((index, tops[number]) for index, number in search.rows.items())
        self._sums.update(zip(search.summed, sums, strict=True))

    def _choose_simple(self) -> None:
        """Choose the tokens of all simple samplers whose likeliest tokens are found."""
        jobs: list[tuple[int, Sampler, Top]] = []
        for request, sampler, index in self._simple:
            if (found := self._found.get(index)) is None:
                continue
            if request.guide is not None:
                try:
                    if request.guide.ended:
                        continue
                    allowed = request.guide.allowed
                except ConstraintError:  # `sample` raises it again
                    continue
                if allowed is not None:
                    if not allowed.has_many:
                        continue
                    found = found.among(allowed)
            jobs.append((index, sampler, found))
        if len(jobs) > 1:
            indices, samplers, rows = zip(*jobs, strict=True)
            tokens = choose_together(samplers, rows)
            self._ahead.update(
                (index, token)
                for index, token in zip(indices, tokens, strict=True)
                if token is not None
            )

    def _choose_offloaded(self) -> None:
        """Choose the tokens whose candidates the device has found."""
        if self._offload is None or not self._offloaded:
            return
        found = self._offload.found(self._offloaded)
        if found is None:
            return
        samplers = [sampler for sampler, index in self._free if index in self._offloaded]
        tokens = choose_found(samplers, *found, self._context.candidates)
        self._ahead.update(
            (index, token)
            for index, token in zip(self._offloaded, tokens, strict=True)
            if token is not None
        )

    def tokens(self, outputs: Sequence[Output]) -> list[int] | None:
        """Choose the tokens of the prepared `outputs`, which must be free. Returns None if one of
        them ends its text, or an error occurs: then `sample` returns the same tokens, and raises
        the error."""
        self.sample_ahead(outputs)
        tokens: list[int] = []
        for sampler, index in self._free:
            token, found = self._ahead.get(index), self._found.get(index)
            try:
                if token is None:
                    if sampler.is_offloaded:
                        return None
                    token = sampler.sample(self._context, index, None, found)
                    self._ahead[index] = token
                if found is None and not sampler.is_offloaded:
                    self._check(index, token)
            except BackendError:
                return None
            tokens.append(token)
        if not self._model.eog.isdisjoint(tokens):
            return None
        for request, index in outputs:
            if request.probs is not None:
                self._sample(request, index)
        return tokens

    def _check(self, index: int, token: int) -> None:
        """Raises BackendError if the logits at `index`, from which `token` was chosen, aren't
        numbers. Where likeliest tokens were found, they are."""
        logit = self._context.logits(index)[token]
        if logit != logit:  # NaN: usually all of them are, and any choice is random
            raise BackendError(NOT_FINITE)

    def sample(self, request: Request, index: int) -> tuple[int, bool] | None:
        """The next token, and whether it is the last one that the guide allows; None if the guide
        doesn't allow any. Raises ConstraintError, NoTokenError and BackendError."""
        sampled = self._sample(request, index)
        is_checked = index == FORCED or request.sampler.is_offloaded
        if sampled is not None and not is_checked and self._found.get(index) is None:
            self._check(index, sampled[0])
        return sampled

    def _sample(self, request: Request, index: int) -> tuple[int, bool] | None:
        chosen, probs, found = self._ahead.get(index), request.probs, self._found.get(index)
        sampler, guide, allowed = request.sampler, request.guide, None
        if chosen is not None and guide is None and probs is None:
            return chosen, False
        if sampler.is_offloaded:
            raise BackendError(NOT_FINITE)
        if guide is not None and chosen is None:
            if guide.ended:
                return None
            allowed = guide.allowed
        if index == FORCED:
            assert allowed is not None
            assert len(allowed) == 1
            token = allowed.ids.item(0)
            sampler.take(token)
        elif probs is None:
            if chosen is None:
                chosen = sampler.sample(self._context, index, allowed, found)
            token = chosen
        else:
            total = self._sums.get(index)
            token = probs.sample(sampler, self._context, index, allowed, found, total, chosen)
        if guide is None or token in self._model.eog:
            return token, False
        return token, guide.advance(token)

    # ---- masks that are still being computed --------------------------------------------------

    def look_ahead(self, requests: Iterable[Request]) -> None:
        """Determine the allowed tokens of the `requests`, whose logits a device computes."""
        for request in requests:
            if request.guide is not None:
                request.guide.look()

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
        left = {index for _, index in ready}
        self._simple = [each for each in self._simple if each[2] in left]
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
        self._scan.close()
        if self._offload is not None:
            self._offload.close()


def _awaited(requests: Iterable[Request]) -> list[system.Future[Any]]:
    return [mask for request in requests if (mask := _mask(request)) is not None]


def _mask(request: Request) -> system.Future[Any] | None:
    """The pending mask of the next token of `request`; None if it waits for none."""
    if request.guide is None or request.params.n_predict == 0:
        return None
    return request.guide.awaited
