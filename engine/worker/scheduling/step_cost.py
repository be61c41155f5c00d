"""The cost of a step: seconds by generating sequences, prompt tokens and length of the texts.

Nothing is assumed about the form of the cost but that it changes little within a size class:
kernels take other paths at other sizes (llama.cpp's flash attention on a CPU is several times
faster from 64 rows of a sequence on; a GPU takes as long for 1 row as for 64), so a line through
measurements at some sizes says nothing about others. Prompts beside generating sequences and
prompts alone are kept apart, as the tokens of a step share the reading of the weights.

Within a class, a token costs `base * (1 + growth * length)` seconds: attention reads the text.
"""

from collections import deque
from collections.abc import Iterable
from enum import Enum

KEPT = 12
"""Measurements of a class from which its growth is found."""
RECENT = 5
"""Of these, the measurements that give the level: a change shows after three."""
MIN_SPREAD = 512
"""Least difference in tokens between texts from which the growth of cost with length is taken."""
CLEARLY = 1.2
"""A token costs clearly more behind longer texts if it costs this many times as much."""
MIN_BASE = 0.02
"""Without a text before it, a token costs at least this part of what it cost lately."""
NEAR = 0.75
"""A step with fewer tokens than this part of its class's size says little about it."""
ODD = 1.5
"""A step that takes more than this many times as long as expected, or as little, is odd."""
SLOWER, FASTER = 3, 2
"""Odd steps in a row that are a change: what was measured before does not hold any more. Chance
makes steps longer, never shorter, and seldom FAR off."""
FAR = 4.0
FORGET = 512
"""Steps with prompts after which a class that no step belonged to is forgotten."""
FEW_ROWS = 64
"""With up to so many tokens of prompts, other sequences beside them decide which path a kernel
takes: flash attention on a CPU wants 64 rows, of all sequences in a unified cache; of separate
caches, which llama.cpp evaluates in batches of as many tokens of each, one row less is together."""


class CostVerdict(Enum):
    """The verdict on a measurement: as expected, odd, or that the costs have changed."""

    USUAL = 0
    ODD = 1
    CHANGED = 2


def sizes(n_most: int) -> list[int]:
    """The sizes that stand for their classes, up to `n_most`: half an octave apart where batches
    are small, a fourth or less where prompts are cut."""
    small = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, FEW_ROWS, 72)
    found = [n for n in (*small, *range(96, 257, 32)) if n < n_most]
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
        self.growth: float | None = None  # None: not known
        self.is_guess = False  # whether the measurements are from before a change
        self.seen = 0  # when the last measurement was

    def each(self, length: float, growth: float) -> float:
        """Seconds per prompt token; `growth` unless an own one is known."""
        growth = growth if self.growth is None else self.growth
        recent = list(self._samples)[-RECENT:]
        base = low_median(each / (1 + growth * at) for at, each in recent)
        return base * (1 + growth * length)

    def knows(self, length: float) -> bool:
        """True if what is expected behind such a text is known well enough for another time to be a
        surprise: it was measured near there, or on both sides."""
        if self.is_guess:
            return False
        lengths = [at for at, _ in self._samples]
        if self.growth is None:
            return min(abs(at - length) for at in lengths) <= MIN_SPREAD
        return min(lengths) - MIN_SPREAD <= length <= max(lengths) + MIN_SPREAD

    def put(self, length: float, each: float) -> None:
        """Another measurement. It replaces a guess."""
        if self.is_guess:
            self._samples.clear()
            self.is_guess = False
        self._samples.append((length, each))
        self._find_growth()

    def cut(self, n: int, ratio: float) -> None:
        """The costs have changed by `ratio` before the last `n` measurements; only they hold. If
        there are none, what was before is a guess."""
        if n:
            last = list(self._samples)[-n:]
        else:
            length, _ = self._samples[-1]
            last = [(length, ratio * self.each(length, 0.0))]
            self.is_guess = True
        self.growth = None
        self._samples.clear()
        self._samples.extend(last)

    def _find_growth(self) -> None:
        """Tukey's resistant line: through the medians of the third with the shortest texts and of
        that with the longest."""
        third = len(self._samples) // 3
        if third < 3:
            return
        ordered = sorted(self._samples)
        short, long = ordered[:third], ordered[-third:]
        at = low_median(at for at, _ in short)
        spread = low_median(at for at, _ in long) - at
        if spread < MIN_SPREAD:
            return
        low, high = (low_median(each for _, each in part) for part in (short, long))
        if high < CLEARLY * low:
            self.growth = 0.0
            return
        slope = (high - low) / spread
        self.growth = slope / max(MIN_BASE * low, low - slope * at)


class _Table:
    """Prompt tokens by size class: the seconds that they add to a step."""

    def __init__(self, sizes: list[int]) -> None:
        self._sizes = sizes
        self._classes: dict[int, _Class] = {}  # by size, in order
        self._odd: list[tuple[int, float]] = []
        """The last steps, if all were odd alike: class and multiple of the expected time."""
        self.change = 1.0
        """The costs as a multiple of those before the last change."""

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
            nearest = below or above
            return n * self._each(nearest, length)
        at_below, at_above = (size * self._each(size, length) for size in (below, above))
        return at_below + (at_above - at_below) * (n - below) / (above - below)

    def _each(self, size: int, length: float) -> float:
        found = self._classes[size]
        growth = 0.0
        if found.growth is None:
            known = [c.growth for c in self._classes.values() if c.growth is not None]
            growth = low_median(known) if known else 0.0
        return max(1e-9, found.each(length, growth))

    def size_of(self, n: int) -> int | None:
        """The class that a step with `n` tokens belongs to, if any."""
        size = next((size for size in self._sizes if size >= n), self._sizes[-1])
        return size if n >= NEAR * size else None

    def is_measured(self, size: int) -> bool:
        """True if there are measurements of the class that hold."""
        found = self._classes.get(size)
        return found is not None and not found.is_guess

    def add(self, n: int, length: float, seconds: float, ratio: float, now: int) -> CostVerdict:
        """`n` tokens took so long, the whole step `ratio` times what was expected."""
        for old in [s for s, found in self._classes.items() if now - found.seen > FORGET]:
            del self._classes[old]
        size = self.size_of(n)
        if size is None:
            return CostVerdict.USUAL
        is_odd = not 1 / ODD <= ratio <= ODD
        found = self._classes.get(size)
        is_known = found is not None and found.knows(length)
        if found is None:
            found = self._classes[size] = _Class()
            self._classes = dict(sorted(self._classes.items()))
        found.put(length, seconds / n)
        found.seen = now
        if is_known and self._has_changed(size, ratio):
            return CostVerdict.CHANGED
        return CostVerdict.ODD if is_odd else CostVerdict.USUAL

    def _has_changed(self, size: int, ratio: float) -> bool:
        """True if too many steps in a row were odd; then what was measured before is doubted."""
        if 1 / ODD <= ratio <= ODD:
            self._odd.clear()
            return False
        if self._odd and (self._odd[-1][1] > 1) != (ratio > 1):
            self._odd.clear()
        self._odd.append((size, ratio))
        ratios = [ratio for _, ratio in self._odd]
        if len(ratios) < (SLOWER if 1 < min(ratios) < FAR else FASTER):
            return False
        self.change = low_median(ratios)
        for other, found in self._classes.items():
            found.cut(sum(size == other for size, _ in self._odd), self.change)
        self._odd.clear()
        return True


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

    def is_measured(self, size: int) -> bool:
        """True if steps with such a prompt beside generating sequences were measured, and nothing
        has said since that they cost something else now."""
        return self._beside.is_measured(size)

    def observe(
        self, n_generating: int, n_prompt: int, length: float, seconds: float
    ) -> CostVerdict:
        """A step took so long, from its planning to the end of the device's work."""
        if not n_prompt:
            recent = self._decode.setdefault(n_generating, deque(maxlen=RECENT))
            recent.append(seconds)
            return CostVerdict.USUAL
        self._now += 1
        expected = self.seconds(n_generating, n_prompt, length)
        ratio = seconds / expected if expected else 1.0
        table = self._beside if n_generating else self._alone
        rest = max(1e-9, seconds - self.decode_seconds(n_generating))
        finding = table.add(n_prompt, length, rest, ratio, self._now)
        if finding is CostVerdict.CHANGED:
            for steps in self._decode.values():
                steps.append(table.change * low_median(steps))
                while len(steps) > 1:
                    steps.popleft()
        return finding
