"""Makes batches in several processes, because a GPU needs them faster than one process makes
them."""

import multiprocessing
import random
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice

from tools.models.training.batches import Batch, batches

STRIDE = 1 << 16
"""The number of lessons in the stream that each pool owns, more than it uses."""
RECENT = 128
"""The number of recent pools that may be repeated."""


@dataclass(frozen=True, kw_only=True)
class Pool:
    """The arguments of `batches` for one pool."""

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
    """Yields the pools and their batches in order, made by `processes` processes. While the next
    one isn't ready, one of the last `RECENT` is repeated: an idle GPU learns nothing."""
    recent: deque[tuple[Pool, list[Batch]]] = deque(maxlen=RECENT)
    # Not forked, because a CUDA context doesn't survive a fork.
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
