"""A memory of texts that were cached, and are no longer: why a prompt had to be computed.

It contains no texts, only a hash of each beginning whose length is a multiple of `BLOCK` tokens. It
has a fixed size, and a newer hash replaces an older one at the same place, so the oldest texts are
forgotten bit by bit: the memory covers about the last million tokens.
"""

from collections.abc import Hashable
from typing import Final

import numpy as np
import numpy.typing as npt

from specllama.engine.worker.tokens import TokenArray

BLOCK = 16
"""Tokens from one hashed beginning of a text to the next."""
N_HASHES = 1 << 16
"""The number of places for hashes, a power of 2. Each takes 8 bytes: 512 KiB altogether."""

_Hashes = npt.NDArray[np.uint64]
_STEP: Final = np.uint64(0x9E3779B97F4A7C15)
_FACTORS: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS: Final = (np.uint64(30), np.uint64(27), np.uint64(31))


class EvictedTexts:
    """The beginnings of evicted texts, by key: a text that was cached under one key says nothing
    about another key."""

    def __init__(self) -> None:
        self._places = np.zeros(N_HASHES, np.uint64)

    def add(self, tokens: TokenArray, key: Hashable) -> None:
        """Remember the whole blocks of `tokens`, which is about to be evicted."""
        hashes = _of_beginnings(tokens, key)
        self._places[_place(hashes)] = hashes

    def has(self, tokens: TokenArray, key: Hashable, at: int) -> bool:
        """True if the token number `at`, with its whole block and all tokens before it, was in an
        evicted text. False if it isn't known, or `tokens` ends within the block."""
        stop = (at // BLOCK + 1) * BLOCK
        if stop > len(tokens):
            return False
        last = _of_beginnings(tokens[:stop], key)[-1:]
        return bool((self._places[_place(last)] == last).all())


def _place(hashes: _Hashes) -> npt.NDArray[np.intp]:
    return (hashes & np.uint64(N_HASHES - 1)).astype(np.intp)


def _of_beginnings(tokens: TokenArray, key: Hashable) -> _Hashes:
    """The hashes of the first `BLOCK`, 2 * `BLOCK`, ... tokens of a text under `key`."""
    n = len(tokens) // BLOCK
    numbers = np.arange(1, n * BLOCK + 1, dtype=np.uint64) * _STEP
    mixed = _mixed(numbers ^ tokens[: n * BLOCK].astype(np.uint64))
    sums = np.cumsum(mixed.reshape(n, BLOCK).sum(axis=1, dtype=np.uint64), dtype=np.uint64)
    return _mixed(sums ^ np.uint64(hash(key) & 0xFFFFFFFFFFFFFFFF))


def _mixed(values: _Hashes) -> _Hashes:
    """The finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): every bit of the result
    depends on every bit of the value."""
    for shift, factor in zip(_SHIFTS, _FACTORS, strict=False):
        values = (values ^ (values >> shift)) * factor
    mixed: _Hashes = values ^ (values >> _SHIFTS[-1])
    return mixed
