"""Which tokens the KV cache holds, by sequence."""

import numpy as np

from engine.tokens import TokenArray, common_prefix

Key = tuple[tuple[int, float], ...]
"""What tokens are evaluated under: (id, scale) of each LoRA adapter, by id, without scales 0."""

_EMPTY: TokenArray = np.empty(0, np.int32)


class PrefixCache:
    """The tokens of finished texts, still in the KV cache under their sequence id.

    An entry never claims more than the KV cache holds: whoever changes the one tells the
    other. Entries are ordered by their last use. Equal tokens mean equal cells only under the
    same key.
    """

    def __init__(self) -> None:
        self._entries: dict[int, TokenArray] = {}
        self._keys: dict[int, Key] = {}

    def put(self, sequence: int, tokens: TokenArray, key: Key = ()) -> None:
        """`sequence` is done and holds `tokens`; it is the most recently used entry."""
        self._entries.pop(sequence, None)
        if len(tokens):
            self._entries[sequence] = tokens.copy()
            self._keys[sequence] = key

    def take(self, sequence: int) -> TokenArray:
        """The tokens of `sequence`, which leaves the cache: somebody goes on with it."""
        return self._entries.pop(sequence, _EMPTY)

    def tokens(self, sequence: int) -> TokenArray:
        return self._entries.get(sequence, _EMPTY)

    def key(self, sequence: int) -> Key:
        """What the tokens of `sequence` were evaluated under."""
        return self._keys.get(sequence, ())

    def common_prefix(self, sequence: int, tokens: TokenArray, key: Key = ()) -> int:
        """How many of the first tokens of `tokens` are held by `sequence`, under `key`."""
        if self.key(sequence) != key:
            return 0
        return common_prefix(self.tokens(sequence), tokens)

    def least_recently_used(self) -> int | None:
        return next(iter(self._entries), None)

    @property
    def n_tokens(self) -> int:
        """How many cells all entries occupy."""
        return sum(map(len, self._entries.values()))
