"""Finds the tokens with the largest logits, in all rows of a step at the same time.

Most sampler chains choose among a few dozen tokens (`engine.worker.backend.sampler_chain`). A fast
device waits until they are found, and a row of 152,000 logits is larger than most caches of a
processor, so each row is read only once: for the maxima of groups of logits. The n-th largest of
them is a threshold that at least n logits reach, and few more; and only groups whose maximum
reaches it contain such logits.

With a device, several threads scan the rows, as the host's processors are idle. numpy releases the
GIL while it reads. Reacquiring it costs as much as reading a row, so each thread reads its block of
rows in one call; and it searches them itself, as they are in the cache of its processor.
"""

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specllama.engine import system
from specllama.engine.worker.tokens import TokenArray, TokenSet

MAX_THREADS = 8
LEAST = 1 << 19
"""Minimum logits in all rows for using threads: below, a pass takes 0.1 ms."""
N_PARTS, N_COLUMNS = 4, 1024
"""A row is cut into parts, each part into lines of `N_COLUMNS` logits. A group is a column of a
part. Wide lines are fast to read, and small groups are fast to search."""
N_GROUPS = N_PARTS * N_COLUMNS
N_FOLDED = 512
"""For low ranks, groups are merged to so many, which are faster to sort."""
MAX_RANK = N_GROUPS // 2
"""For a higher rank, the n-th largest maximum is no good threshold."""
LARGE = 2 * N_GROUPS
"""A smaller row has no groups."""
MAX_HITS = N_GROUPS // 4
"""A row has no shortlist if more groups reach its threshold, such as in a row of equal logits."""
EXCESS, PART = 4, 8
"""Other limits of the same kind: `EXCESS` times the wanted tokens, and one in `PART` tokens."""
SLACK = 1e-3
"""Of a threshold relative to the largest logit; far larger than rounding errors."""
NOTHING = float("inf")
"""Wanted of a row that isn't needed."""

Logits = npt.NDArray[np.float32]


class Top(NamedTuple):
    """All tokens of a row whose logits are at least `least`, in ascending order; or only the
    likeliest token, if no more were wanted."""

    ids: TokenArray
    logits: Logits
    least: float

    @property
    def likeliest(self) -> int:
        """The token with the largest logit; of equal ones, the first."""
        return int(self.ids[self.logits.argmax()])

    def among(self, allowed: TokenSet) -> "Top":
        """Only the tokens that are `allowed`."""
        kept = allowed.among(self.ids)
        return Top(self.ids[kept], self.logits[kept], self.least)

    def largest(self, n: int) -> TokenArray:
        """The `n` tokens with the largest logits, the largest first; equal ones in their order."""
        return self.ids[np.argsort(-self.logits, kind="stable")[:n]]


def log_sum_exp(logits: Logits) -> float:
    """log(sum(exp(logits))). Subtracting it turns logits into log probabilities."""
    highest = logits.max()
    scaled = logits - highest
    np.exp(scaled, out=scaled)
    return float(highest) + float(np.log(scaled.sum()))


def top(logits: Logits, wanted: float) -> Top | None:
    """As `RowScan.tops`, for one row: comparing all its logits takes fewer calls than searching
    groups, which matters where nothing is in the processor's caches."""
    if wanted > len(logits):
        return None
    if wanted <= 0:
        highest = float(logits.max())
        least = highest + wanted - SLACK * (1 + abs(highest))
    else:
        values, n = logits, int(wanted)
        if len(logits) >= LARGE and n <= N_COLUMNS // 2:
            n_lines = len(logits) // N_COLUMNS
            values = logits[: n_lines * N_COLUMNS].reshape(n_lines, N_COLUMNS).max(axis=0)
        least = float(np.partition(values, -n)[-n])
    if not least > -np.inf:
        return None
    ids = np.flatnonzero(logits >= least).astype(np.int32)
    too_many = len(ids) > max(EXCESS * wanted, len(logits) // PART)
    return None if too_many or len(ids) < wanted else Top(ids, logits[ids], least)


class RowScan:
    """Scans rows of `n_vocab` logits, on up to `n_threads` threads. Belongs to the thread that
    steps."""

    def __init__(self, n_vocab: int, n_threads: int | None = None, least: int = LEAST) -> None:
        """`least`: the minimum logits in all rows for using threads."""
        self._n_vocab = n_vocab
        self._least = least
        self._n_threads = n_threads or min(MAX_THREADS, os.cpu_count() or 1)
        self._executor: system.Executor | None = None

    def tops(
        self, rows: Logits, wanted: Sequence[float], sums: Sequence[int] = ()
    ) -> tuple[list[Top | None], list[float]]:
        """The likeliest tokens of each of `rows` (n, n_vocab), and the `log_sum_exp` of the rows
        with the numbers `sums`.

        `wanted` of a row is the number of tokens with the largest logits: the result has all of
        them, and few others. 1: the likeliest token; of equal ones, the first. 0 or less: all
        tokens whose logits are at most that much less than the largest one. `NOTHING`: no tokens.
        The result is None for a row where too many tokens are equal, or that has NaN.
        """
        n = len(rows)
        n_parts = min(self._n_threads, n) if n * self._n_vocab >= self._least else 1
        edges = [n * part // n_parts for part in range(n_parts + 1)]

        def look(part: int) -> tuple[list[Top | None], list[float]]:
            first, stop = edges[part], edges[part + 1]
            found = _tops(rows[first:stop], wanted[first:stop])
            return found, [log_sum_exp(rows[i]) for i in sums if first <= i < stop]

        if n_parts == 1:
            return look(0)
        if self._executor is None:
            self._executor = system.pool(self._n_threads, "rows")
        others = [self._executor.submit(look, part) for part in range(1, n_parts)]
        found, found_sums = look(0)
        for other in others:
            more, more_sums = other.result()
            found += more
            found_sums += more_sums
        return found, found_sums

    def close(self) -> None:
        if self._executor is not None:
            self._executor.shutdown()


def _tops(rows: Logits, wanted: Sequence[float]) -> list[Top | None]:
    if all(each == 1 for each in wanted):
        return _argmax_tops(rows)
    n, n_vocab = rows.shape
    if n_vocab < LARGE:
        return [top(*each) for each in zip(rows, wanted, strict=True)]
    n_lines = n_vocab // N_GROUPS
    body = rows[:, : n_lines * N_GROUPS].reshape(n, N_PARTS, n_lines, N_COLUMNS)
    rest = rows[:, n_lines * N_GROUPS :]
    maxima = body.max(axis=2).reshape(n, N_GROUPS)
    least = _thresholds(maxima, rest, wanted)
    hits = maxima >= least[:, None]
    # `flatnonzero` and `divmod` take a fraction of the time of `nonzero`.
    found = np.flatnonzero(hits)
    if len(found) > MAX_HITS:
        equal = np.count_nonzero(hits, axis=1) > MAX_HITS
        hits[equal], least[equal] = False, np.inf
        found = np.flatnonzero(hits)
    row, group = np.divmod(found, N_GROUPS)
    part, column = np.divmod(group, N_COLUMNS)
    inside = body[row, part, :, column]  # (groups, lines)
    reach = np.flatnonzero(inside >= least[row, None])
    which, line = np.divmod(reach, n_lines)
    places = row[which] * n_vocab + (part[which] * n_lines + line) * N_COLUMNS + column[which]
    logits = inside.reshape(-1)[reach]
    if rest.shape[1]:
        row, at = np.divmod(np.flatnonzero(rest >= least[:, None]), rest.shape[1])
        places = np.concatenate((places, row * n_vocab + n_lines * N_GROUPS + at))
        logits = np.concatenate((logits, rest[row, at]))
    order = places.argsort()
    places, logits = places[order], logits[order]
    edges = places.searchsorted(np.arange(n + 1) * n_vocab).tolist()
    ids = (places % n_vocab).astype(np.int32)
    return [
        Top(ids[first:stop], logits[first:stop], bound)
        if stop - first >= max(1, each) and -np.inf < bound
        else None
        for first, stop, bound, each in zip(edges, edges[1:], least.tolist(), wanted, strict=False)
    ]


def _argmax_tops(rows: Logits) -> list[Top | None]:
    likeliest = rows.argmax(axis=1)
    logits = rows[np.arange(len(rows)), likeliest]
    ids = likeliest.astype(np.int32)
    return [
        Top(ids[i : i + 1], logits[i : i + 1], least) if least == least else None  # None for NaN
        for i, least in enumerate(logits.tolist())
    ]


def _thresholds(maxima: Logits, rest: Logits, wanted: Sequence[float]) -> Logits:
    numbers = np.array(wanted)
    ranks = np.where((numbers > 0) & (numbers <= MAX_RANK), numbers, 1).astype(np.intp)
    n_merged = N_FOLDED if ranks.max() <= N_FOLDED // 2 else N_GROUPS
    merged = maxima.reshape(len(ranks), -1, n_merged).max(axis=1)
    at = n_merged - ranks
    least: Logits = np.partition(merged, sorted({*at.tolist()}), axis=1)[np.arange(len(at)), at]
    least[numbers > MAX_RANK] = np.inf
    for row in np.flatnonzero(numbers <= 0):
        highest = merged[row].max()
        if rest.shape[1]:
            highest = max(highest, rest[row].max())
        least[row] = highest + numbers[row] - SLACK * (1 + abs(highest))
    return least
