"""Scans the logits of all rows of a step, on several threads.

A shortlist (`engine.worker.backend.sampler`) begins with a pass over the vocabulary. In one thread,
a fast device would wait for it: 32 rows of 128,000 logits are 16 MB, more than a CPU cache. numpy
releases the GIL while it reads. Reacquiring the GIL costs as much as a row, so each thread scans
its block of rows in two calls.
"""

import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from specllama.engine import system
from specllama.engine.worker.tokens import TokenArray

MAX_THREADS = 8
LEAST = 1 << 19
"""Minimum logits in all rows for using threads: below, a pass takes 0.1 ms."""
PART = 8
"""A row has no shortlist if more than one in `PART` of its tokens reach the bound."""

Logits = npt.NDArray[np.float32]
_NONE: TokenArray = np.empty(0, np.int32)


class RowScan:
    """Threads that scan rows of `n_vocab` logits. Belongs to the thread that steps."""

    def __init__(self, n_vocab: int, n_threads: int | None = None) -> None:
        self._n_vocab = n_vocab
        self._n_threads = n_threads or min(MAX_THREADS, os.cpu_count() or 1)
        self._executor: system.Executor | None = None
        self._marks = np.empty((0, n_vocab), np.bool_)

    def is_worth_it(self, n_rows: int) -> bool:
        """True if threads scan `n_rows` rows faster than the caller alone."""
        return self._n_threads > 1 and n_rows > 1 and n_rows * self._n_vocab >= LEAST

    def reaching(self, rows: Logits, bounds: Sequence[float]) -> list[TokenArray]:
        """For each of `rows` (n, n_vocab), the tokens whose logits are at least its bound, in
        ascending order. With an infinite bound: only the likeliest token (of equal ones, the
        first). Empty if too many tokens reach the bound."""
        n = len(rows)
        if len(self._marks) < n:
            self._marks = np.empty((n, self._n_vocab), np.bool_)
        n_parts = min(self._n_threads, n)
        edges = [n * part // n_parts for part in range(n_parts + 1)]
        least = np.array(bounds, np.float32)[:, None]

        def look(part: int) -> list[TokenArray]:
            at = slice(edges[part], edges[part + 1])
            return _reaching(rows[at], least[at], self._marks[at])

        if self._executor is None:
            self._executor = system.pool(self._n_threads, "rows")
        others = [self._executor.submit(look, part) for part in range(1, n_parts)]
        found = look(0)
        for other in others:
            found += other.result()
        return found

    def close(self) -> None:
        if self._executor is not None:
            self._executor.shutdown()


def _reaching(rows: Logits, least: Logits, marks: npt.NDArray[np.bool_]) -> list[TokenArray]:
    n, n_vocab = rows.shape
    is_likeliest = np.isinf(least[:, 0])
    if is_likeliest.all():
        return list(rows.argmax(axis=1).astype(np.int32)[:, None])
    np.greater_equal(rows, least, out=marks)
    where = np.flatnonzero(marks)
    edges = where.searchsorted(np.arange(n + 1) * n_vocab)
    found = []
    for i in range(n):
        if is_likeliest[i]:
            found.append(np.array([rows[i].argmax()], np.int32))
            continue
        ids = where[edges[i] : edges[i + 1]] - i * n_vocab
        found.append(ids.astype(np.int32) if len(ids) <= n_vocab // PART else _NONE)
    return found
