"""A growing array of token ids."""

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
