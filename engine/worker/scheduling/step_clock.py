"""The step clock: estimates the seconds of a step from its generating sequences, its further
tokens, and the length of the texts.

A sweep before the first request (`engine.worker.scheduling.sweep`) measures steps of some sizes;
between them the clock interpolates, since kernels take different paths at different sizes
(llama.cpp's flash attention on a CPU is several times faster from 64 rows of a sequence on; a GPU
takes as long for 1 row as for 64). Every step corrects the estimates: by one factor for all sizes,
by the growth of the cost with the length, and by a factor for its own size. No step is made only to
measure.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

from specllama.engine.worker.scheduling.sweep import Sweep

FEW_ROWS = 64
"""Up to so many prompt tokens, the other sequences of a step can change the path of a kernel. Flash
attention on a CPU needs 64 rows for its fast path. In a unified cache, the rows of all sequences
count. With separate caches, llama.cpp evaluates one row of the prompt together with the single
tokens of the others, so that the rest is one row less."""
RECENT = 5
"""Number of measurements whose median is used: a change has an effect after three."""
OF_SIZE = 9
"""The same for the factor of a size, which changes little."""
SWEPT = 3
"""The weight of the sweep for a prompt size, in measurements."""
LONG = 512
"""Minimum text length for measuring the growth of the cost with the length. Steps after shorter
texts measure the cost at the start of a text."""
LEAST_SHARE = 0.02
"""Minimum part of a step's time attributed to its prompts, even if it takes no longer than a step
without."""
WRONG = 1.5
"""Limit of the factor of a size with a sweep, and of its inverse: larger deviations are
disturbances by the machine."""
NEAR = 0.75
"""A step with fewer tokens than this part of its size is not used to measure that size."""
FORGET = 512
"""Number of steps with prompts (or with proposed tokens) after which the clock forgets the factor
of a size without new measurements."""
FORGET_FEW, FORGET_MANY = 64, 12
"""The same for the growth on the kernel paths for few and for many rows. The estimate of a
forgotten path is low, so that the next steps may try it again."""
ROWS_ALONE = (0, 0)
"""The key of the factor for decodes of rows alone: one factor for all sizes."""
GUESSED_TOKEN = 1e-3
"""Estimated seconds of a prompt token without a sweep. The first step corrects them."""
GUESSED_ROW = 1 / 16
"""Estimated part of a step's time that one more row takes, without a sweep."""


def sizes(n_most: int) -> list[int]:
    """The sizes, up to `n_most`, that represent all others: half an octave apart where batches are
    small, a quarter or less where prompts are cut."""
    small = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, FEW_ROWS, 72)
    found = [n for n in (*small, *range(96, 257, 32)) if n < n_most]
    octave = 256
    while octave < n_most:
        found += [n for n in range(octave + octave // 4, 2 * octave + 1, octave // 4) if n < n_most]
        octave *= 2
    return [*found, n_most]


def low_median(values: Iterable[float]) -> float:
    """The median, or the smaller of the two middle values: disturbances make steps longer."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


class _Factors:
    """The ratios of measured to expected step times, for each number of generating sequences and
    each size."""

    def __init__(self, n_swept: int, most: float) -> None:
        """The sweep counts as `n_swept` measurements of each factor. Factors are limited to `1 /
        most` up to `most`."""
        self._first = [1.0] * n_swept
        self._most = most
        self._recent: dict[tuple[int, int], deque[float]] = {}
        self._found: dict[tuple[int, int], float] = {}  # median of `_recent`
        self._seen: dict[tuple[int, int], int] = {}
        self._now = 0

    def of(self, key: tuple[int, int]) -> float:
        return self._found.get(key, 1.0)

    def put(self, key: tuple[int, int], factor: float) -> None:
        recent = self._recent.setdefault(key, deque(self._first, maxlen=OF_SIZE))
        recent.append(factor)
        self._found[key] = min(self._most, max(1 / self._most, low_median(recent)))
        self._seen[key] = self._now

    def age(self) -> None:
        """Count a step, and forget old factors."""
        self._now += 1
        for old in [each for each, seen in self._seen.items() if self._now - seen > FORGET]:
            del self._seen[old], self._recent[old], self._found[old]


class _Growth:
    """The growth of a token's cost with the text before it, on one kernel path: after `length`
    tokens it costs `1 + each * length` times as much as at the start of a text."""

    def __init__(self, forget: int) -> None:
        """Measurements are forgotten after `forget` steps with prompts."""
        self._forget = forget
        self._samples: deque[tuple[int, float]] = deque(maxlen=RECENT)  # steps and growths

    @property
    def each(self) -> float | None:
        """The growth per token; None if unknown."""
        return low_median(growth for _, growth in self._samples) if self._samples else None

    def put(self, length: float, longer: float, now: int) -> None:
        """Record that a token after `length` tokens cost `longer` times as much as at the start."""
        self._samples.append((now, (longer - 1) / length))

    def fade(self, now: int) -> None:
        while self._samples and now - self._samples[0][0] > self._forget:
            self._samples.popleft()


class StepClock:
    """Estimates the duration of steps, from a `sweep` and from all steps since. A step has at most
    `n_batch` tokens.

    `length` is always the number of cached tokens before a prompt chunk, which its attention reads.
    """

    def __init__(self, n_batch: int, sweep: Sweep | None = None) -> None:
        self.sizes: Final = sizes(n_batch)
        self.learn(sweep or Sweep())
        self._decode: dict[int, deque[float]] = {}  # seconds, by generating sequences
        self._factor: deque[float] = deque(maxlen=RECENT)  # of prompts
        self._in_front: deque[float] = deque(maxlen=RECENT)  # the same, after short texts
        self._few, self._many = _Growth(FORGET_FEW), _Growth(FORGET_MANY)
        self._of_proposals = _Factors(0, float("inf"))
        self._now = 0  # steps with prompts

    def learn(self, sweep: Sweep) -> None:
        """Estimate by `sweep`. To be called before the first step."""
        self._rows = sweep.rows
        self._prompts = _smoothed(sweep.prompts)
        self._bases: dict[int, float] = {}  # cached results of `_base`, by prompt tokens
        self._alone = sweep.alone
        is_swept = bool(sweep.prompts)
        self._of_prompts = _Factors(SWEPT * is_swept, WRONG if is_swept else float("inf"))

    # ---- generating sequences ------------------------------------------------------------

    def decode_seconds(self, n_generating: int) -> float:
        """Seconds of a step without prompts, if necessary from the nearest measured number of
        sequences; 0 if nothing is measured or `n_generating` is 0."""
        if not n_generating:
            return 0.0
        if (measured := self._decode.get(n_generating)) is not None:
            return low_median(measured)
        if not self._decode:
            return _between(self._rows, n_generating) if self._rows else 0.0
        nearest = min(self._decode, key=lambda n: abs(n - n_generating))
        scale = self._width(n_generating) / self._width(nearest) if self._rows else 1.0
        return scale * low_median(self._decode[nearest])

    def n_decoded(self, n_generating: int) -> int:
        """The number of measured steps with `n_generating` sequences, at most 5."""
        return len(self._decode.get(n_generating, ()))

    def proposal_seconds(self, n_generating: int, n_proposed: int) -> float:
        """Seconds of a step without prompts, in which the generating sequences have `n_proposed`
        further tokens; 0 if unknown."""
        factor = self._of_proposals.of((n_generating, self.size_of(n_proposed)))
        return self.decode_seconds(n_generating) * factor * self._widened(n_generating, n_proposed)

    def rows_seconds(self, n: int) -> float:
        """Seconds of a decode of `n` rows alone; 0 if unknown."""
        usual = self.decode_seconds(1)
        return usual * self._of_proposals.of(ROWS_ALONE) * self._widened(1, n - 1)

    def _widened(self, n_generating: int, n: int) -> float:
        """The cost of a step with `n` more rows, as a multiple of the step without."""
        return self._width(n_generating + n) / self._width(n_generating)

    def _width(self, n_rows: int) -> float:
        """The relative cost of a step with `n_rows` rows. Beyond the swept sizes, it continues with
        their last slope."""
        if not self._rows:
            return 1 + GUESSED_ROW * (n_rows - 1)
        last = max(self._rows)
        if n_rows <= last or last == 1:
            return _between(self._rows, n_rows)
        before = max(n for n in self._rows if 2 * n <= last)
        slope = (self._rows[last] - self._rows[before]) / (last - before)
        return self._rows[last] + max(0.0, slope) * (n_rows - last)

    # ---- prompts -------------------------------------------------------------------------

    def seconds(self, n_generating: int, n_prompt: int, length: float) -> float | None:
        """Seconds of a step in which `n_generating` sequences have one token each, and prompts
        `n_prompt`; None if unknown."""
        if not n_prompt:
            return self.decode_seconds(n_generating) or None
        return self.by_size(n_generating, [n_prompt], length).get(n_prompt)

    def by_size(self, n_generating: int, sizes: Iterable[int], length: float) -> dict[int, float]:
        """As `seconds`, for each of `sizes` (numbers of prompt tokens); empty if unknown."""
        if not (self._prompts or self._factor):
            return {}
        speed = self._speed
        rest = self.decode_seconds(n_generating) if n_generating else speed * self._alone
        few, many = (1 + self._growth_of(n) * length for n in (1, FEW_ROWS + 1))
        of_size = self._of_prompts.of
        return {
            n: rest
            + speed
            * of_size((0, self.size_of(n)))
            * self._base(n)
            * (few if n <= FEW_ROWS else many)
            for n in sizes
        }

    @property
    def _speed(self) -> float:
        """The time of prompts now, as a multiple of the sweep's."""
        return low_median(self._factor) if self._factor else 1.0

    def _growth_of(self, n: int) -> float:
        """The growth for chunks of `n` tokens. If unknown, few tokens are assumed to grow like
        many, and many not at all, so that the next steps try a path that may be better."""
        many = self._many.each or 0.0
        few = self._few.each
        return few if n <= FEW_ROWS and few is not None else many

    def _base(self, n: int) -> float:
        """Seconds of `n` prompt tokens at the start of a text, as in the sweep."""
        if n not in self._bases:
            base = _between(self._prompts, n) if self._prompts else GUESSED_TOKEN * n
            self._bases[n] = base
        return self._bases[n]

    def size_of(self, n: int) -> int:
        """The size that represents `n` tokens."""
        return self.sizes[min(bisect_left(self.sizes, n), len(self.sizes) - 1)]

    # ---- learning ------------------------------------------------------------------------

    def observe(self, n_generating: int, n_prompt: int, length: float, seconds: float) -> None:
        """Record that a step without proposed tokens took `seconds`, from its planning to the end
        of the device's work."""
        if n_prompt:
            self._observe_prompt(n_generating, n_prompt, length, seconds)
        elif n_generating:
            self._of_proposals.age()
            self._decode.setdefault(n_generating, deque(maxlen=RECENT)).append(seconds)

    def observe_proposals(self, n_generating: int, n_proposed: int, seconds: float) -> None:
        """Record that a step without prompts, with `n_proposed` tokens in addition to those of its
        generating sequences, took `seconds`."""
        size = self.size_of(n_proposed)
        usual = self.decode_seconds(n_generating)
        self._of_proposals.age()
        if usual and n_proposed >= NEAR * size:
            expected = usual * self._widened(n_generating, n_proposed)
            self._of_proposals.put((n_generating, size), seconds / expected)

    def observe_rows(self, n: int, seconds: float) -> None:
        """Record that a decode of `n` rows alone took `seconds`."""
        if usual := self.decode_seconds(1):
            self._of_proposals.put(ROWS_ALONE, seconds / (usual * self._widened(1, n - 1)))

    def _observe_prompt(self, n_generating: int, n: int, length: float, seconds: float) -> None:
        size = self.size_of(n)
        if n < NEAR * size:
            return
        self._now += 1
        self._of_prompts.age()
        beside = self.decode_seconds(n_generating) if n_generating else self._speed * self._alone
        level = max(LEAST_SHARE * seconds, seconds - beside) / self._base(n)
        own = self._of_prompts.of((0, size))
        for growth in (self._few, self._many):
            growth.fade(self._now)
        front = low_median(self._in_front) if self._in_front else 1.0
        if length < LONG or level < own * front:  # tokens at the start of a text never cost more
            self._in_front.append(level / own)
        elif size != FEW_ROWS:  # this size may be on either path
            growth = self._few if n <= FEW_ROWS else self._many
            growth.put(length, level / own / front, self._now)
        longer = 1 + self._growth_of(n) * length
        self._factor.append(level / (own * longer))
        self._of_prompts.put((0, size), level / (self._speed * longer))


def _smoothed(prompts: dict[int, float]) -> dict[int, float]:
    """`prompts` (seconds by number of tokens) without outliers: above `FEW_ROWS`, a size whose
    tokens cost more than both those of a smaller and of a larger size was disturbed, and is
    lowered. The first steps correct too low an estimate; too high a one would keep steps from ever
    having that size."""
    each = {n: seconds / n for n, seconds in prompts.items()}
    many = [n for n in each if n > FEW_ROWS]
    return prompts | {
        n: n * max(min(each[m] for m in many if m <= n), min(each[m] for m in many if m >= n))
        for n in many
    }


def _between(points: Mapping[int, float], n: int) -> float:
    """The value at `n`: interpolated linearly between two points, proportional outside of all
    points."""
    below = max((at for at in points if at <= n), default=0)
    above = min((at for at in points if at >= n), default=0)
    if not (below and above) or below == above:
        nearest = below or above
        return points[nearest] * n / nearest
    return points[below] + (points[above] - points[below]) * (n - below) / (above - below)
