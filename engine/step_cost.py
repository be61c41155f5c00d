"""What a step costs: seconds by generating sequences, prompt tokens and length of the texts.

Nothing is assumed about the form of the cost but that it changes little within a size class:
kernels take other paths at other sizes (llama.cpp's flash attention on a CPU is several times
faster from 64 rows of a sequence on; a GPU takes as long for 1 row as for 64), so a line through
measurements at some sizes says nothing about others. Prompts beside generating sequences and prompts
alone are kept apart, as the tokens of a step share the reading of the weights.

Within a class, a token costs `base + slope * length` seconds: attention reads the cached text.
"""

from collections import deque
from collections.abc import Iterable
from enum import Enum

KEPT = 12
"""Measurements of a class that its slope is found from."""
RECENT = 5
"""Those of them that the level comes from: a change shows after three."""
MIN_SPREAD = 512
"""Tokens between the shortest and the longest text that tell how cost grows with length."""
CLEARLY = 1.2
"""A token costs clearly more behind longer texts if it costs so many times as much; less is chance."""
MIN_BASE = 0.02
"""Without a text before it, a token costs at least this part of what it cost lately."""
NEAR = 0.75
"""A step with fewer tokens than this part of its class's size says little about it."""
ODD = 1.5
"""A step that takes so many times as long as expected, or as little, is odd."""
SLOWER, FASTER = 3, 2
"""So many odd ones in a row are a change: what was measured before does not hold any more. Chance
makes steps longer, never shorter."""
FORGET = 256
"""Steps with prompts after which a class that no step belonged to is forgotten."""


class Finding(Enum):
    """What a measurement says: as expected, odd, or that the costs have changed."""

    USUAL = 0
    ODD = 1
    CHANGED = 2


def sizes(n_most: int) -> list[int]:
    """The sizes that stand for their classes, up to `n_most`: half an octave apart where batches
    are small, a fourth or less where prompts are cut."""
    found = [n for n in (1, 2, 3, 4, 6, 8, 12, 16, 24) if n < n_most]
    found += range(32, min(257, n_most), 32)
    octave = 256
    while octave < n_most:
        found += [n for n in range(octave + octave // 4, 2 * octave + 1, octave // 4) if n < n_most]
        octave *= 2
    return [*found, n_most]


def low_median(values: Iterable[float]) -> float:
    """The median, or the smaller of the two in the middle: what disturbs a step makes it longer."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


class _Class:
    """The steps of about one size: pairs of length (tokens) and seconds per prompt token."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=KEPT)
        self.slope: float | None = None  # seconds per token and token of text; None: not known
        self._base = 0.0
        self._odd: list[float] = []  # what the last ones were of the expected time, all odd alike
        self.seen = 0  # when the last one was

    @property
    def growth(self) -> float | None:
        """By what part of its cost without text a token costs more for each token of text; None
        if it is not known."""
        if self.slope is None or not self._base:
            return None
        return self.slope / self._base

    def each(self, length: float, growth: float) -> float:
        """Seconds per prompt token; with `growth` unless its own slope is known."""
        if self.slope is not None:
            return self._base + self.slope * length
        recent = list(self._samples)[-RECENT:]
        factor = 1 + growth * length
        return low_median(each * factor / (1 + growth * at) for at, each in recent)

    def add(self, length: float, each: float, ratio: float) -> float:
        """Another measurement, `ratio` times the expected one (of the whole step). What the costs
        have changed by, as far as it can tell; else 1."""
        # Longer and shorter texts than ever are no surprise: they tell the slope.
        shortest = min(at for at, _ in self._samples) - MIN_SPREAD
        longest = max(at for at, _ in self._samples) + MIN_SPREAD
        if 1 / ODD <= ratio <= ODD or not shortest <= length <= longest:
            self._odd.clear()
        elif self._odd and (self._odd[-1] > 1) != (ratio > 1):
            self._odd = [ratio]
        else:
            self._odd.append(ratio)
        changed = 1.0
        if len(self._odd) >= (SLOWER if ratio > 1 else FASTER):
            changed = low_median(self._odd)
            last = list(self._samples)[1 - len(self._odd) :]
            self._samples.clear()
            self._samples.extend(last)
            self._odd.clear()
            if self.slope is not None:
                self.slope *= changed
        self.put(length, each)
        return changed

    def put(self, length: float, each: float) -> None:
        self._samples.append((length, each))
        self._find_slope()
        self._level()

    def _find_slope(self) -> None:
        """Tukey's resistant line: through the medians of the third with the shortest texts and of
        that with the longest."""
        third = len(self._samples) // 3
        if third < 3:
            return
        ordered = sorted(self._samples)
        short, long = ordered[:third], ordered[-third:]
        spread = low_median(at for at, _ in long) - low_median(at for at, _ in short)
        if spread < MIN_SPREAD:
            return
        low, high = (low_median(each for _, each in part) for part in (short, long))
        self.slope = (high - low) / spread if high > CLEARLY * low else 0.0

    def _level(self) -> None:
        if self.slope is not None:
            recent = list(self._samples)[-RECENT:]
            base = low_median(each - self.slope * at for at, each in recent)
            self._base = max(base, MIN_BASE * low_median(each for _, each in recent))

    def doubt(self, ratio: float) -> None:
        """The costs have changed elsewhere by `ratio`; here probably, too. One measurement is
        left, which the next ones outvote."""
        length, _ = self._samples[-1]
        each = self.each(length, 0.0) * ratio
        self._samples.clear()
        self._samples.append((length, each))
        self._odd.clear()
        if self.slope is not None:
            self.slope *= ratio
        self._level()


class _Table:
    """Prompt tokens by size class: the seconds that they add to a step."""

    def __init__(self, sizes: list[int]) -> None:
        self._sizes = sizes
        self._classes: dict[int, _Class] = {}  # by size, in order

    def __bool__(self) -> bool:
        return bool(self._classes)

    def seconds(self, n: int, length: float) -> float:
        """Of `n` tokens: between measured classes on a line, beyond them in proportion."""
        below = above = 0
        for size in self._classes:
            if size <= n:
                below = size
            else:
                above = size
                break
        if not (below and above):
            size = below or above
            return n * self._each(size, length)
        at_below, at_above = (size * self._each(size, length) for size in (below, above))
        return at_below + (at_above - at_below) * (n - below) / (above - below)

    def _each(self, size: int, length: float) -> float:
        found = self._classes[size]
        growth = 0.0
        if found.slope is None:
            known = [g for other in self._classes.values() if (g := other.growth) is not None]
            growth = min(known, default=0.0)  # of all paths the flattest
        return max(1e-9, found.each(length, growth))

    def size_of(self, n: int) -> int | None:
        """The class that a step with `n` tokens belongs to, if any."""
        size = next((size for size in self._sizes if size >= n), self._sizes[-1])
        return size if n >= NEAR * size else None

    def add(self, n: int, length: float, seconds: float, ratio: float, now: int) -> Finding:
        """`n` tokens took so long, the whole step `ratio` times what was expected."""
        for size in [s for s, found in self._classes.items() if now - found.seen > FORGET]:
            del self._classes[size]
        size = self.size_of(n)
        if size is None:
            return Finding.USUAL
        if size not in self._classes:
            found = _Class()
            found.put(length, seconds / n)
            self._classes[size] = found
            self._classes = dict(sorted(self._classes.items()))
            changed = 1.0
        else:
            found = self._classes[size]
            changed = found.add(length, seconds / n, ratio)
        found.seen = now
        if changed != 1:
            for other in self._classes.values():
                if other is not found:
                    other.doubt(changed)
            return Finding.CHANGED
        return Finding.USUAL if 1 / ODD <= ratio <= ODD else Finding.ODD


class StepCost:
    """Learns from the steps. `n_batch` tokens are the most that a step may have.

    `length` is everywhere how many tokens of cached text the attention of the prompts reads.
    """

    def __init__(self, n_batch: int) -> None:
        self.sizes = sizes(n_batch)
        self._decode: dict[int, deque[float]] = {}  # seconds, by generating sequences
        self._alone, self._beside = _Table(self.sizes), _Table(self.sizes)
        self._now = 0  # steps with prompts

    def decode_seconds(self, n_generating: int) -> float:
        """Of a step without prompts; as for the nearest number of sequences that was measured,
        0 if none was or there are none."""
        if not self._decode or not n_generating:
            return 0.0
        nearest = min(self._decode, key=lambda n: abs(n - n_generating))
        return low_median(self._decode[nearest])

    def seconds(self, n_generating: int, n_prompt: int, length: float) -> float | None:
        """Of a step in which `n_generating` sequences have one token each, and prompts `n_prompt`;
        None if nothing is known. What `k` more tokens cost, whether of prompts or proposed ones,
        is the difference to 0."""
        decode = self.decode_seconds(n_generating)
        if not n_prompt:
            return decode or None
        table = (self._beside or self._alone) if n_generating else (self._alone or self._beside)
        return decode + table.seconds(n_prompt, length) if table else None

    def size_of(self, n_prompt: int) -> int | None:
        """The size that stands for steps with `n_prompt` tokens; None if none does."""
        return self._alone.size_of(n_prompt)

    def observe(self, n_generating: int, n_prompt: int, length: float, seconds: float) -> Finding:
        """A step took so long, from its planning to the end of the device's work."""
        if not n_prompt:
            recent = self._decode.setdefault(n_generating, deque(maxlen=RECENT))
            recent.append(seconds)
            return Finding.USUAL
        self._now += 1
        expected = self.seconds(n_generating, n_prompt, length)
        ratio = seconds / expected if expected else 1.0
        table = self._beside if n_generating else self._alone
        rest = max(1e-9, seconds - self.decode_seconds(n_generating))
        return table.add(n_prompt, length, rest, ratio, self._now)
