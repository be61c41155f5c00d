"""Hashes of all n-grams of a text: polynomials of its tokens, modulo 2**64.

They can be rolled on by one token, and those of a long text are made at once. What is found by a
hash is compared, for whoever writes a text can make hashes collide.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from specllama.engine.worker.tokens import TokenArray

HashArray = npt.NDArray[np.uint64]

MASK: Final = (1 << 64) - 1
_BASE: Final = 0x9E3779B97F4A7C15  # odd, so that it has an inverse
_INVERSE: Final = pow(_BASE, -1, 1 << 64)
_MIX: Final = 0xD6E8FEB86659FD93


class Hashing:
    """Hashes of n-grams of one length."""

    __slots__ = ("_top", "n")

    def __init__(self, n: int) -> None:
        self.n = n
        self._top = pow(_BASE, n - 1, 1 << 64)

    def of(self, tokens: TokenArray) -> int:
        """The hash of `n` tokens."""
        found = 0
        for token in reversed(tokens.tolist()):
            found = (found * _BASE + token + 1) & MASK
        return found

    def rolled(self, hash: int, first: int, next: int) -> int:
        """The hash of an n-gram without its `first` token and with one that comes `next`."""
        return ((hash - first - 1) * _INVERSE + (next + 1) * self._top) & MASK

    def windows(self, tokens: TokenArray) -> HashArray:
        """The hashes of all n-grams of at least `n` tokens, in order."""
        powers = np.full(len(tokens), _BASE, np.uint64)
        powers[0] = 1
        np.cumprod(powers, out=powers)
        sums = np.zeros(len(tokens) + 1, np.uint64)
        np.cumsum((tokens.astype(np.uint64) + np.uint64(1)) * powers, out=sums[1:])
        n_windows = len(tokens) - self.n + 1
        inverses = np.full(n_windows, _INVERSE, np.uint64)
        inverses[0] = 1
        np.cumprod(inverses, out=inverses)
        found: HashArray = (sums[self.n :] - sums[:n_windows]) * inverses
        return found


def mixed(hash: int) -> int:
    """A hash whose upper bits depend on all of its bits."""
    return (hash ^ (hash >> 32)) * _MIX & MASK


def mixed_all(hashes: HashArray) -> HashArray:
    """The same of each."""
    found: HashArray = (hashes ^ (hashes >> np.uint64(32))) * np.uint64(_MIX)
    return found
