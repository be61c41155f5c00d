"""From the chunks of a step to what the device computes."""

import time
from collections.abc import Sequence

from specllama.engine.worker.backend import Context
from specllama.engine.worker.cache.prefix_cache import Key
from specllama.engine.worker.generation.counting import Counting
from specllama.engine.worker.generation.embeddings import Embeddings
from specllama.engine.worker.generation.filling import fill, fill_early
from specllama.engine.worker.generation.request import Request
from specllama.engine.worker.generation.sampling import Sampling
from specllama.engine.worker.generation.speculation import Speculation
from specllama.engine.worker.scheduling.sequences import Chunk


class Decoding:
    """Gives the device its work: adapters, samplers, the batch. Belongs to the thread that
    steps."""

    def __init__(
        self,
        context: Context,
        sampling: Sampling,
        speculation: Speculation,
        embeddings: Embeddings,
        counting: Counting,
    ) -> None:
        self._context = context
        self._sampling = sampling
        self._speculation = speculation
        self._embeddings = embeddings
        self._counting = counting
        self._applied: Key = ()  # the adapters of the last step

    def apply(self, key: Key) -> None:
        """Let the adapters `key`, which all chunks of a step share, be in force."""
        if key != self._applied:
            self._applied = key
            self._context.set_adapters(key)

    def launch(self, chunks: Sequence[Chunk], requests: Sequence[Request]) -> list[int]:
        """Let the device evaluate the chunks, which are texts, or one of a medium. The indices of
        the last tokens' outputs. Raises what `Context.decode` does."""
        if chunks[0].span is not None:
            (chunk,), (request,) = chunks, requests
            self._counting.begins(time.perf_counter())
            return [self._embeddings.decode(self._context, chunk, request.media)]
        self._evaluate_early(chunks)
        indices = fill(self._context.batch, chunks)
        self._sampling.attach(chunks, requests)
        self._counting.begins(time.perf_counter())
        self._context.decode()
        return indices

    def wait(self) -> None:
        """Until all is computed: progress, patience and timings are of work that is done."""
        self._context.synchronize()
        self._counting.computed(time.perf_counter())

    def _evaluate_early(self, chunks: Sequence[Chunk]) -> None:
        if any(chunk.n_early for chunk in chunks):
            fill_early(self._context.batch, chunks)
            started = time.perf_counter()
            self._counting.begins(started)
            self._context.decode()
            self._context.synchronize()
            now = time.perf_counter()
            self._counting.computed(now)
            self._speculation.evaluated_early(chunks, now - started)
