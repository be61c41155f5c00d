"""Arrays and sets of token ids."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

TokenArray = npt.NDArray[np.int32]


class TokenBuffer:
    """Tokens of one text: a prompt, then the generated tokens, appended one by one.

    Uses a numpy array, so that comparing prefixes and filling batches needs no Python loop over
    tokens.
    """

    __slots__ = ("_array", "_length")

    def __init__(self, tokens: TokenArray) -> None:
        self._array = tokens
        self._length = len(tokens)

    def __len__(self) -> int:
        return self._length

    def append(self, token: int) -> None:
        if self._length == len(self._array):
            grown = np.empty(max(64, 2 * self._length), np.int32)
            grown[: self._length] = self._array
            self._array = grown
        self._array[self._length] = token
        self._length += 1

    def extend(self, tokens: TokenArray) -> None:
        length = self._length + len(tokens)
        if length > len(self._array):
            grown = np.empty(max(64, 2 * length), np.int32)
            grown[: self._length] = self._array[: self._length]
            self._array = grown
        self._array[self._length : length] = tokens
        self._length = length

    def item(self, index: int) -> int:
        """The token at `index`, counted from the start."""
        return self._array.item(index)

    def remove(self, start: int, stop: int) -> None:
        """Remove the tokens from `start` up to `stop` (exclusive)."""
        length = self._length - (stop - start)
        self._array[start:length] = self._array[stop : self._length]
        self._length = length

    def view(self, start: int = 0, stop: int | None = None) -> TokenArray:
        """The tokens from `start` up to `stop`, without a copy; invalid after the next change."""
        return self._array[start : self._length if stop is None else stop]


DENSE = 16
"""If more than one in `DENSE` bytes of a set has bits set, all bytes are unpacked."""

MANY = 4
"""A set has many tokens if it has more than one in `MANY`."""


class TokenSet:
    """The tokens below `n_vocab` whose bits are set. The lowest bit of a byte is its first token.

    Testing some tokens takes a fraction of the time of making the array of all.
    """

    def __init__(self, bits: bytes, n_vocab: int) -> None:
        self._bytes: npt.NDArray[np.uint8] = np.frombuffer(bits, np.uint8)
        self._n_vocab = n_vocab

    @classmethod
    def of(cls, tokens: npt.NDArray[np.integer] | Sequence[int], n_vocab: int) -> "TokenSet":
        flags: npt.NDArray[np.bool_] = np.zeros(n_vocab, np.bool_)
        flags[np.asarray(tokens, np.int32)] = True
        return cls.where(flags)

    @classmethod
    def where(cls, flags: npt.NDArray[np.bool_]) -> "TokenSet":
        """The tokens whose `flags` are true."""
        return cls(np.packbits(flags, bitorder="little").tobytes(), len(flags))

    @cached_property
    def _n(self) -> int:
        flags = np.unpackbits(self._bytes, count=self._n_vocab, bitorder="little")
        return int(np.count_nonzero(flags))

    def __len__(self) -> int:
        return self._n

    @property
    def has_many(self) -> bool:
        """True if the likeliest tokens are probably among these (see `MANY`)."""
        return MANY * self._n > self._n_vocab

    def __contains__(self, token: int) -> bool:
        return bool(self._bytes[token >> 3] >> (token & 7) & 1)

    def among(self, tokens: TokenArray) -> npt.NDArray[np.bool_]:
        """For each of `tokens`, True if it is in the set."""
        found: npt.NDArray[np.bool_] = (self._bytes[tokens >> 3] >> (tokens & 7)) & 1 != 0
        return found

    @cached_property
    def ids(self) -> TokenArray:
        """The tokens in ascending order."""
        some = self._bytes.nonzero()[0]
        if len(some) > len(self._bytes) // DENSE:
            flags = np.unpackbits(self._bytes, count=self._n_vocab, bitorder="little")
            return np.flatnonzero(flags.view(np.bool_)).astype(np.int32)
        row, bit = np.unpackbits(self._bytes[some][:, None], axis=1, bitorder="little").nonzero()
        tokens: TokenArray = (8 * some[row] + bit).astype(np.int32)
        return tokens[: tokens.searchsorted(self._n_vocab)]


def common_prefix(a: TokenArray, b: TokenArray) -> int:
    """The length of the longest common prefix of `a` and `b`."""
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n


def find_run(text: bytes, run: bytes, start: int) -> int:
    """The first index, from `start` on, of the tokens `run` in the tokens `text`, both as bytes of
    a `TokenArray`; -1 if they aren't there."""
    width = np.dtype(np.int32).itemsize
    at = text.find(run, start * width)
    while at % width and at >= 0:
        at = text.find(run, at + width - at % width)
    return at // width if at >= 0 else -1
