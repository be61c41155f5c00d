"""Batches for a GPU, which needs them faster than one process makes them."""

import multiprocessing
import random
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice

from tools.models.training.batches import Batch, batches

STRIDE = 1 << 16
"""Lessons of the stream that each pool has for itself: more than it takes."""
RECENT = 128
"""Pools that may come again."""


@dataclass(frozen=True, kw_only=True)
class Pool:
    """What `batches` is to make: the arguments are its own."""

    seed: int
    first: int
    size: int
    level: float
    n_ctx: int

    def made(self) -> list[Batch]:
        groups, after = batches(
            self.seed, self.first, size=self.size, level=self.level, n_ctx=self.n_ctx
        )
        assert after <= self.first + STRIDE
        return [batch for group in groups for batch in group]


def supply(pools: Iterator[Pool], processes: int) -> Generator[tuple[Pool, list[Batch]]]:
    """What that many processes make of them, in their order. While the next one isn't ready, one of
    the last `RECENT` comes again: a GPU that waits learns nothing."""
    recent: deque[tuple[Pool, list[Batch]]] = deque(maxlen=RECENT)
    # Not forked: a CUDA context doesn't survive it.
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(processes, mp_context=context)
    try:
        waiting = deque((pool, executor.submit(pool.made)) for pool in islice(pools, 2 * processes))
        while waiting:
            if recent and not waiting[0][1].done():
                yield random.choice(recent)
                continue
            pool, made = waiting.popleft()
            recent.append((pool, made.result()))
            waiting.extend((each, executor.submit(each.made)) for each in islice(pools, 1))
            yield recent[-1]
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
