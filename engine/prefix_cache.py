"""Which tokens the KV cache holds, by sequence."""

import sys
from typing import NamedTuple

import numpy as np

from engine.tokens import TokenArray, common_prefix

ALL = sys.maxsize
"""How many tokens are exact where no cell was moved."""

Key = tuple[tuple[int, float], ...]
"""What tokens are evaluated under: (id, scale) of each LoRA adapter, by id, without scales 0."""


class Entry(NamedTuple):
    """Tokens held by a sequence, evaluated under `key`. The first `n_exact` were computed from
    nothing but the tokens before them; those behind were moved, or computed from moved ones
    (`engine.shifting`)."""

    tokens: TokenArray
    n_exact: int = ALL
    key: Key = ()


_EMPTY = Entry(np.empty(0, np.int32))


class PrefixCache:
    """The tokens of finished texts, still in the KV cache under their sequence id.

    An entry never claims more than the KV cache holds: whoever changes the one tells the
    other. Entries are ordered by their last use. Equal tokens mean equal cells only under the
    same key.
    """

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}

    def put(self, sequence: int, tokens: TokenArray, *, n_exact: int = ALL, key: Key = ()) -> None:
        """`sequence` is done and holds `tokens`; it is the most recently used entry."""
        self._entries.pop(sequence, None)
        if len(tokens):
            self._entries[sequence] = Entry(tokens.copy(), n_exact, key)

    def take(self, sequence: int) -> Entry:
        """What `sequence` holds; it leaves the cache: somebody goes on with it."""
        return self._entries.pop(sequence, _EMPTY)

    def entry(self, sequence: int) -> Entry:
        return self._entries.get(sequence, _EMPTY)

    def common_prefix(
        self, sequence: int, tokens: TokenArray, key: Key = (), *, approximate: bool = False
    ) -> int:
        """How many of the first tokens of `tokens` are held by `sequence` under `key`; exact
        ones only, unless they may be `approximate`."""
        entry = self.entry(sequence)
        if entry.key != key:
            return 0
        n = common_prefix(entry.tokens, tokens)
        return n if approximate else min(n, entry.n_exact)

    def least_recently_used(self) -> int | None:
        return next(iter(self._entries), None)

    @property
    def n_tokens(self) -> int:
        """How many cells all entries occupy."""
        return sum(len(entry.tokens) for entry in self._entries.values())
