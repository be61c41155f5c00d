"""Does a series of measurements grow? A robust slope with a confidence interval.

The slope is that of Theil and Sen: the median of the slopes between all pairs of points, which a
third of outliers doesn't move. Its interval comes from a bootstrap of blocks of residuals: what
follows each other is alike, and blocks keep that.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

REPLICATES = 400
CONFIDENCE = 0.99
"""Some dozens of series are looked at."""
MOST = 240
"""Points that are fitted: of more, neighbours are put together."""
LEAST = 12

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Slope:
    """Growth per second, `low` to `high` with `CONFIDENCE`; `level` is the median, `seconds` how
    long the whole run takes, warm-up included."""

    value: float
    low: float
    high: float
    level: float
    seconds: float

    @property
    def growth(self) -> float:
        """What the series would grow by over the run."""
        return self.value * self.seconds

    def grows(self, margin: float) -> bool:
        """The whole interval is above zero, and the growth is more than the `margin`."""
        return self.low > 0 and self.growth > margin


def theil_sen(times: Array, values: Array) -> float:
    first, second = np.triu_indices(len(times), 1)
    slopes = (values[second] - values[first]) / (times[second] - times[first])
    return float(np.median(slopes))


def fit(
    times: Sequence[float], values: Sequence[float], seconds: float, seed: int = 0
) -> Slope | None:
    """The slope of the `values` at `times`; None where there are too few of them."""
    if len(times) < LEAST:
        return None
    t, y = _thinned(np.asarray(times, float)), _thinned(np.asarray(values, float))
    slope = theil_sen(t, y)
    line = slope * t
    residuals = y - line
    residuals -= np.median(residuals)
    dice = np.random.default_rng(seed)
    found = [theil_sen(t, line + _resampled(residuals, dice)) for _ in range(REPLICATES)]
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(found, (tail, 100 - tail))
    return Slope(slope, float(low), float(high), float(np.median(y)), seconds)


def _thinned(values: Array) -> Array:
    size = -(-len(values) // MOST)
    whole = len(values) // size * size
    return np.asarray(np.median(values[:whole].reshape(-1, size), axis=1))


def _resampled(residuals: Array, dice: np.random.Generator) -> Array:
    n = len(residuals)
    length = max(1, round(n**0.5))
    starts = dice.integers(0, n - length + 1, -(-n // length))
    places = (starts[:, None] + np.arange(length)).ravel()[:n]
    return np.asarray(residuals[places])
