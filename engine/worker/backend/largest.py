"""The largest of many values, without sorting them."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

MIN_GROUPS = 1024


def floor(values: Floats, n: int) -> float:
    """A value that at least `n` of `values` (1 <= n <= their number) reach, and few more than
    that: no larger than the n-th largest, and -inf where only all of them are enough.

    It is the n-th largest of the maxima of disjoint groups. Finding these and looking for what
    reaches it takes a tenth of the time of a partition of all values.
    """
    n_groups = max(4 * n, MIN_GROUPS)
    rows = len(values) // n_groups
    if rows > 1:
        values = values[: rows * n_groups].reshape(rows, n_groups).max(axis=0)
    return float(np.partition(values, -n)[-n]) if n < len(values) else -np.inf


def largest(values: Floats, n: int) -> npt.NDArray[np.intp]:
    """The indices of the `n` (at least 1) largest of `values`, the largest first; of equal ones,
    the first comes first."""
    if n == 1:
        return np.array([values.argmax()])
    least = floor(values, n)
    # A comparison would lose those that are not numbers.
    where = np.flatnonzero(values >= least) if least > -np.inf else np.arange(len(values))
    return where[np.argsort(-values[where], kind="stable")[:n]]
