"""The sweep: times steps of some sizes until there is a request, and stores the times.

The user's cache directory has a file for each combination of model, device and options. If a file
is damaged, or can't be written, the sweep is repeated at the next start.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from specllama.engine import host

log = logging.getLogger("specllama.engine.worker.scheduling.sweep")

SECONDS = 2.0
"""Time limit of a sweep."""
REPEATS = 8
"""Maximum number of measurements of a size; two that agree are enough."""
LONG, USUAL = 0.1, 1.5
"""One measurement is enough for a step that takes longer than `LONG` seconds, but at most `USUAL`
times the estimate from smaller sizes: disturbances are a small part of it."""
AGREE = 1.25
"""Measurements agree if the longer one is at most this many times the shorter one."""
BESIDE = 2
"""Number of generating sequences in the steps in which prompts are measured."""
FEW = 4
"""Number of rows that may take as long as one."""
ROWS = (2, 4, 8, 16, 32, 3, 6, 12, 24)
PROMPTS = (8, 72, 32, 128, 512, 256, 96, 192, 64, 384, 48, 1024, 2048, 16)
"""Sizes, the most important ones first: a slow machine measures only the first ones."""
ALONE = 128
"""The largest prompt size that is also measured without generating sequences."""
FIRST = 3
"""Number of prompt sizes that are measured before the first size of rows."""
REMEMBERED = 200
"""Maximum number of files in the cache; older ones are removed."""

Evaluate = Callable[[Sequence[int], bool], float]
"""Evaluates the given numbers of tokens of the first sequences, from their beginning, and erases
them. Returns the seconds that it took. If the flag is set, it computes the logits of all tokens,
else those of the last token of each sequence."""


class Sweep(msgspec.Struct, frozen=True):
    """Measured seconds. Sizes without a measurement are missing."""

    rows: dict[int, float] = {}
    """Seconds of a step, by its number of rows with logits, of one or several sequences."""
    prompts: dict[int, float] = {}
    """Seconds that prompt tokens add to a step of generating sequences, by their number."""
    alone: float = 0.0
    """Fixed seconds of a step with prompts if no sequence generates."""


class _Meter:
    """Measures sizes until `SECONDS` are spent, or `stop` returns True."""

    def __init__(self, evaluate: Evaluate, stop: Callable[[], bool]) -> None:
        self._evaluate = evaluate
        self._stop = stop
        self._spent = 0.0  # seconds
        self._known: dict[int, float] = {}  # seconds, by tokens

    def seconds(self, lengths: Sequence[int], *, every: bool = False) -> float | None:
        """Seconds of a step with `lengths` tokens of the first sequences; None if the time is over,
        or the measurements disagree."""
        n = sum(lengths)
        found: list[float] = []
        while len(found) < REPEATS:
            expected = self._expected(n)
            if self._spent + (found[0] if found else expected) > SECONDS or self._stop():
                return None
            found.append(self._evaluate(lengths, every))
            self._spent += found[-1]
            self._known[n] = min(found)
            if LONG < found[0] <= USUAL * expected or (len(found) > 1 and _agree(found)):
                return min(found)
        return None

    def least(self, n: int) -> float:
        """Seconds of a step with one token each of `n` sequences: the minimum of all measurements,
        even if they disagree."""
        self.seconds([1] * n)
        return self._known[n] if n in self._known else self._expected(n)

    def _expected(self, n: int) -> float:
        """Estimated seconds of `n` tokens: a few rows take little longer than one, more rows in
        proportion."""
        below = max((at for at in self._known if at <= n), default=0)
        if not below:
            return min(self._known.values(), default=0.0)
        return self._known[below] * (1 + (n - below) / max(below, FEW))


def _agree(found: Sequence[float]) -> bool:
    first, second = sorted(found)[:2]
    return second <= AGREE * first


def measure(
    evaluate: Evaluate,
    *,
    n_most: int,
    n_sequences: int,
    n_rows: int,
    stop: Callable[[], bool] = lambda: False,
) -> Sweep:
    """Measures steps of up to `n_most` tokens of `n_sequences` sequences; `n_rows` is the maximum
    number of logits of one sequence in a batch. Begins no measurement after `stop` has returned
    True."""
    meter = _Meter(evaluate, stop)
    n_beside = min(BESIDE, n_sequences - 1)
    if not (one := meter.least(1)):
        return Sweep()
    beside = meter.least(n_beside) if n_beside else 0.0
    rows, prompts, alone = {1: one}, {}, one if n_beside else 0.0
    for kind, n in _in_turns(n_rows, n_most - n_beside):
        if kind == "rows" and (seconds := meter.seconds([n], every=True)):
            rows[n] = max(one, seconds)
        elif kind == "prompt" and (seconds := meter.seconds([*[1] * n_beside, n])):
            prompts[n] = max(1e-6, seconds - beside)
    if prompts and n_beside:
        size = max(n for n in prompts if n <= ALONE or n == min(prompts))
        whole = meter.seconds([size])
        alone = one if whole is None else max(0.0, whole - prompts[size])
    return Sweep(dict(sorted(rows.items())), dict(sorted(prompts.items())), alone)


def _in_turns(n_rows: int, n_prompt: int) -> Iterator[tuple[str, int]]:
    """The sizes to measure, the most important ones first."""
    rows = [("rows", n) for n in ROWS if n <= n_rows]
    prompts = [("prompt", n) for n in PROMPTS if n <= n_prompt]
    yield from prompts[:FIRST]
    for at in range(max(len(rows), len(prompts))):
        yield from rows[at : at + 1]
        yield from prompts[FIRST + at : FIRST + at + 1]


# ---- files ------------------------------------------------------------------------------


def remembered(place: Path) -> Sweep | None:
    """The sweep in the file; None if there is no usable one."""
    return host.recall(place, Sweep, log)


def remember(place: Path, sweep: Sweep) -> None:
    """Writes the sweep to the file, for the next start."""
    host.remember(place, sweep, REMEMBERED, log)
