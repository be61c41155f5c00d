"""The sweep: steps of some sizes, measured at the start, and remembered.

The user's cache has a file for each model, device and options. A file that is damaged, or a cache
that can't be written, costs another sweep and nothing more.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from specllama.engine.host import recall, write_whole

log = logging.getLogger("specllama.engine.worker.scheduling.sweep")

SECONDS = 2.0
"""The longest sweep."""
REPEATS = 8
"""A size is measured until two measurements agree, at most so many times."""
LONG, USUAL = 0.1, 1.5
"""A step is measured once if it takes longer than these seconds, but not more than so many times as
long as smaller ones say: what disturbs it is a small part of it."""
AGREE = 1.25
"""Measurements agree if the longer one takes at most this many times as long."""
BESIDE = 2
"""Generating sequences beside which prompts are measured."""
FEW = 4
"""Rows that may take as long as one."""
ROWS = (2, 4, 8, 16, 32, 3, 6, 12, 24)
PROMPTS = (8, 72, 32, 128, 512, 256, 96, 192, 64, 384, 48, 1024, 2048, 16)
"""Sizes in the order of their worth: a slow machine measures the first ones only."""
ALONE = 128
"""The largest size that is measured alone as well."""
FIRST = 3
"""Sizes of prompts that come before those of rows."""
REMEMBERED = 200
"""Files in the cache; older ones are removed."""

Evaluate = Callable[[Sequence[int], bool], float]
"""Evaluates so many tokens of each of the first sequences from their beginning, and forgets them;
the seconds that it took. If the flag is set, with the logits of all tokens, else with those of the
last one of each sequence."""


class Sweep(msgspec.Struct, frozen=True):
    """Measured seconds. What isn't measured is missing."""

    rows: dict[int, float] = {}
    """Of a step, by its rows with logits, whether of one sequence or of several."""
    prompts: dict[int, float] = {}
    """What the tokens of a prompt add to a step of generating sequences, by their number."""
    alone: float = 0.0
    """What a step takes beside that if no sequence generates."""


class _Meter:
    """Measures for `SECONDS`."""

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate
        self._spent = 0.0  # seconds
        self._known: dict[int, float] = {}  # seconds, by tokens

    def seconds(self, lengths: Sequence[int], *, every: bool = False) -> float | None:
        """Of a step with these; None if there is no time for it, or measurements disagree."""
        n = sum(lengths)
        found: list[float] = []
        while len(found) < REPEATS:
            expected = self._expected(n)
            if self._spent + (found[0] if found else expected) > SECONDS:
                return None
            found.append(self._evaluate(lengths, every))
            self._spent += found[-1]
            self._known[n] = min(found)
            if LONG < found[0] <= USUAL * expected or (len(found) > 1 and _agree(found)):
                return min(found)
        return None

    def least(self, n: int) -> float:
        """Of a step with one token each of `n` sequences: the least of all measurements, whether
        any agree or not."""
        self.seconds([1] * n)
        return self._known[n] if n in self._known else self._expected(n)

    def _expected(self, n: int) -> float:
        """Seconds of `n` tokens: some rows take little longer than one, more in proportion."""
        below = max((at for at in self._known if at <= n), default=0)
        if not below:
            return min(self._known.values(), default=0.0)
        return self._known[below] * (1 + (n - below) / max(below, FEW))


def _agree(found: Sequence[float]) -> bool:
    first, second = sorted(found)[:2]
    return second <= AGREE * first


def measure(evaluate: Evaluate, *, n_most: int, n_sequences: int, n_rows: int) -> Sweep:
    """Measures steps of up to `n_most` tokens of `n_sequences` sequences; `n_rows` is the most
    logits of one sequence in a batch."""
    meter = _Meter(evaluate)
    n_beside = min(BESIDE, n_sequences - 1)
    one = meter.least(1)
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
    """What is measured, in the order of its worth."""
    rows = [("rows", n) for n in ROWS if n <= n_rows]
    prompts = [("prompt", n) for n in PROMPTS if n <= n_prompt]
    yield from prompts[:FIRST]
    for at in range(max(len(rows), len(prompts))):
        yield from rows[at : at + 1]
        yield from prompts[FIRST + at : FIRST + at + 1]


# ---- memory ------------------------------------------------------------------------------


def remembered(place: Path) -> Sweep | None:
    """The sweep in the file; None if there is none that can be used."""
    return recall(place, Sweep, log)


def remember(place: Path, sweep: Sweep) -> None:
    """Writes the file, for the next start."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, msgspec.json.encode(sweep))
        files = sorted(place.parent.glob("*.json"), key=lambda path: path.stat().st_mtime)
        for old in files[:-REMEMBERED]:
            old.unlink(missing_ok=True)
    except OSError as error:
        log.info("the times of steps can't be remembered: %s", error)
