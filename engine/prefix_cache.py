"""Which tokens the KV cache holds, by sequence."""

import sys
from typing import NamedTuple

import numpy as np

from engine.tokens import TokenArray, common_prefix

ALL = sys.maxsize
"""How many tokens are exact where no cell was moved."""


class Entry(NamedTuple):
    """Tokens held by a sequence. The first `n_exact` were computed from nothing but the tokens
    before them; those behind were moved, or computed from moved ones (`engine.shifting`)."""

    tokens: TokenArray
    n_exact: int


_EMPTY = Entry(np.empty(0, np.int32), ALL)


class PrefixCache:
    """The tokens of finished texts, still in the KV cache under their sequence id.

    An entry never claims more than the KV cache holds: whoever changes the one tells the
    other. Entries are ordered by their last use.
    """

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}

    def put(self, sequence: int, tokens: TokenArray, n_exact: int = ALL) -> None:
        """`sequence` is done and holds `tokens`; it is the most recently used entry."""
        self._entries.pop(sequence, None)
        if len(tokens):
            self._entries[sequence] = Entry(tokens.copy(), n_exact)

    def take(self, sequence: int) -> Entry:
        """What `sequence` holds; it leaves the cache: somebody goes on with it."""
        return self._entries.pop(sequence, _EMPTY)

    def tokens(self, sequence: int) -> TokenArray:
        return self._entries.get(sequence, _EMPTY).tokens

    def common_prefix(self, sequence: int, tokens: TokenArray, *, approximate: bool = False) -> int:
        """How many of the first tokens of `tokens` are held by `sequence`; exact ones only,
        unless they may be `approximate`."""
        entry = self._entries.get(sequence, _EMPTY)
        n = common_prefix(entry.tokens, tokens)
        return n if approximate else min(n, entry.n_exact)

    def least_recently_used(self) -> int | None:
        return next(iter(self._entries), None)

    @property
    def n_tokens(self) -> int:
        """How many cells all entries occupy."""
        return sum(len(entry.tokens) for entry in self._entries.values())
