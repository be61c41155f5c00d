"""Choosing the tokens of several requests at the same time."""

import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from specllama.engine.worker.backend import Context, Sampler

MAX_THREADS = 8


class SamplingPool:
    """Threads for the samplers that look at the whole of a large vocabulary, which takes
    milliseconds and runs outside the GIL. The others choose faster than a thread is woken."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._n_threads = min(MAX_THREADS, os.cpu_count() or 1) - 1  # beside the caller
        self._executor: ThreadPoolExecutor | None = None

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
            # llama.cpp puts the rows in order when the first one is read.
            self._context.logits(jobs[0][1])
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self._n_threads, thread_name_prefix="sample")
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
