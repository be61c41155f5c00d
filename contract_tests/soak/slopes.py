"""Decides whether a series of measurements grows, by a robust slope with a confidence interval.

The slope is Theil and Sen's: the median of the slopes between all pairs of points, which stays
bounded with up to 29 % of outliers. Its interval comes from a bootstrap of blocks of residuals,
because neighbouring residuals are correlated, and blocks keep the correlation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

REPLICATES = 400
CONFIDENCE = 0.99
"""High, because some dozens of series are judged."""
MOST = 240
"""The number of fitted points. If there are more, neighbours are averaged."""
LEAST = 12

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Slope:
    """The growth per second, `low` to `high` with `CONFIDENCE`. `level` is the median, `seconds`
    the duration of the whole run, warm-up included."""

    value: float
    low: float
    high: float
    level: float
    seconds: float

    @property
    def growth(self) -> float:
        """The growth over the whole run."""
        return self.value * self.seconds

    def grows(self, margin: float) -> bool:
        """True if the whole interval is above zero, and the growth is more than the `margin`."""
        return self.low > 0 and self.growth > margin


def theil_sen(times: Array, values: Array) -> float:
    first, second = np.triu_indices(len(times), 1)
    slopes = (values[second] - values[first]) / (times[second] - times[first])
    return float(np.median(slopes))


def fit(
    times: Sequence[float], values: Sequence[float], seconds: float, seed: int = 0
) -> Slope | None:
    """Returns the slope of the `values` at `times`; None if there are too few."""
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
