"""An incremental index of the n-grams of one text."""

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from specllama.engine.worker.tokens import TokenArray, TokenBuffer

# ---- Hashes of all n-grams of a text: polynomials of its tokens, modulo 2**64.
#
# They can be rolled forward by one token, and computed for a whole text at once. Matches are always
# compared, since the author of a text can make hashes collide.


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
        """The hash of an n-gram after removing its `first` token and appending `next`."""
        return ((hash - first - 1) * _INVERSE + (next + 1) * self._top) & MASK

    def windows(self, tokens: TokenArray) -> HashArray:
        """The hashes of all n-grams of `tokens`, in order; there must be at least `n` tokens."""
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
    """`mixed` of each hash."""
    found: HashArray = (hashes ^ (hashes >> np.uint64(32))) * np.uint64(_MIX)
    return found


MAX_STRANGERS = 64
"""Maximum number of other n-grams in the same bucket that a search skips."""
MAX_NEW = 4096
"""Maximum number of tokens indexed per call, so that a long prompt delays no step."""
_MIN_BUCKETS = 1 << 10
_FEW = 16
"""Up to so many new n-grams are indexed faster one by one than as an array."""
_TAIL = 8
"""Number of last tokens that are compared to detect a changed text."""


class NgramIndex:
    """The end positions of the n-grams of a text.

    `update` adds the new tokens of a text that grows; a text that has changed otherwise is indexed
    from its start again. An n-gram that ends at position p is followed by token p of the text. The
    n-grams of a bucket form a chain: each refers to the one before. The index takes 12 to 24 bytes
    per token.
    """

    def __init__(self, n: int) -> None:
        self._hashing = Hashing(n)
        self._reset()

    def _reset(self) -> None:
        self._n_seen = 0  # tokens
        self._hash = 0  # of the last n-gram
        self._tail = b""
        self._heads = np.zeros(_MIN_BUCKETS, np.int32)  # the last end of each bucket; 0: none
        self._shift = 64 - _MIN_BUCKETS.bit_length() + 1
        self._before = np.zeros(_MIN_BUCKETS, np.int32)  # by end, the previous end in the bucket

    @property
    def n(self) -> int:
        return self._hashing.n

    @property
    def n_bytes(self) -> int:
        return self._heads.nbytes + self._before.nbytes

    def update(self, tokens: TokenBuffer, most: int = MAX_NEW) -> bool:
        """Index the new tokens of a text, at most `most`. Returns True if that was all of them:
        only then may the index be searched."""
        n_tokens, seen = len(tokens), self._n_seen
        if seen > n_tokens or tokens.view(max(0, seen - _TAIL), seen).tobytes() != self._tail:
            self._reset()
            seen = 0
        if n_tokens == seen:
            return True
        if n_tokens >= len(self._before):
            self._grow(n_tokens)
            seen = self._n_seen
        stop = min(n_tokens, seen + most)
        if seen < self.n or stop - seen > _FEW:
            self._add_all(tokens.view(0, stop), seen)
        else:
            for end in range(seen + 1, stop + 1):
                first = tokens.item(end - 1 - self.n)
                self._hash = self._hashing.rolled(self._hash, first, tokens.item(end - 1))
                bucket = mixed(self._hash) >> self._shift
                self._before[end] = self._heads[bucket]
                self._heads[bucket] = end
        self._n_seen = stop
        self._tail = tokens.view(max(0, stop - _TAIL), stop).tobytes()
        return stop == n_tokens

    def _grow(self, n_tokens: int) -> None:
        """Make an empty index with room for twice the text."""
        self._reset()
        size = 1 << (2 * n_tokens - 1).bit_length()
        self._heads = np.zeros(size // 2, np.int32)
        self._shift = 64 - size.bit_length() + 2
        self._before = np.zeros(size, np.int32)

    def _add_all(self, text: TokenArray, seen: int) -> None:
        """Add the n-grams that end after position `seen`."""
        start = max(0, seen - self.n + 1)
        if len(text) - start < self.n:
            return
        hashes = self._hashing.windows(text[start:])
        self._hash = int(hashes[-1])
        buckets = (mixed_all(hashes) >> np.uint64(self._shift)).astype(np.int32)
        ends = np.arange(start + self.n, len(text) + 1, dtype=np.int32)
        order = np.argsort(buckets, kind="stable")
        sorted_buckets, sorted_ends = buckets[order], ends[order]
        before = self._heads[sorted_buckets]
        same = sorted_buckets[1:] == sorted_buckets[:-1]
        before[1:][same] = sorted_ends[:-1][same]
        self._before[sorted_ends] = before
        last = np.append(~same, True)
        self._heads[sorted_buckets[last]] = sorted_ends[last]

    def earlier(self, tokens: TokenBuffer) -> Iterator[int]:
        """The ends of earlier occurrences of the last n-gram of the text, the last one first."""
        end = len(tokens)
        if end < self.n:
            return iter(())
        return self._chain(tokens, int(self._before[end]), tokens.view(end - self.n).tobytes())

    def before_more(self, tokens: TokenBuffer, ngram: TokenArray) -> Iterator[int]:
        """The ends of the occurrences of `ngram` that are followed by a token, the last one
        first."""
        bucket = mixed(self._hashing.of(ngram)) >> self._shift
        end = int(self._heads[bucket])
        if end == len(tokens):
            end = int(self._before[end])
        return self._chain(tokens, end, ngram.tobytes())

    def _chain(self, tokens: TokenBuffer, end: int, wanted: bytes) -> Iterator[int]:
        view, n, before = tokens.view(), self.n, self._before
        strangers = 0
        while end and strangers < MAX_STRANGERS:
            if view[end - n : end].tobytes() == wanted:
                yield end
            else:
                strangers += 1
            end = int(before[end])
