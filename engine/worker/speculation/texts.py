"""Finished texts, as what other texts that begin alike may go on with."""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice

from specllama.engine.worker.cache.prefix_cache import Key
from specllama.engine.worker.cache.radix import RadixIndex
from specllama.engine.worker.tokens import TokenArray

MAX_TEXTS = 512
MAX_TOKENS = 1 << 21
"""Of all texts; each takes 8 bytes."""
MAX_FOUND = 16


class Texts:
    """Texts by key, in the order of their use: the least recently used ones go first.

    They are kept apart from the cells of the KV cache: who begins as another text did takes over
    its cells, and drops those that are of no use, just when the text is of use here.
    """

    def __init__(self, max_texts: int = MAX_TEXTS, max_tokens: int = MAX_TOKENS) -> None:
        self._max_texts, self._max_tokens = max_texts, max_tokens
        self._indices: dict[Key, RadixIndex] = {}
        self._texts: OrderedDict[int, tuple[Key, TokenArray]] = OrderedDict()
        self._versions: dict[Key, int] = {}
        self._last_id = 0
        self.n_tokens = 0

    def __len__(self) -> int:
        return len(self._texts)

    def __iter__(self) -> Iterator[tuple[Key, TokenArray]]:
        """The least recently used first."""
        return iter(self._texts.values())

    def add(self, tokens: TokenArray, key: Key) -> None:
        """Keep a copy of `tokens`, if it isn't the beginning of another text; those that are a
        beginning of it go."""
        if not 0 < len(tokens) <= self._max_tokens:
            return
        for id, n in self._matches(tokens, key).items():
            if n == len(tokens):
                self._texts.move_to_end(id)
                return
            if n == len(self._texts[id][1]):
                self._remove(id)
        self._last_id += 1
        self._texts[self._last_id] = key, tokens.copy()
        self._indices.setdefault(key, RadixIndex()).insert(self._last_id, tokens)
        self._versions[key] = self._last_id
        self.n_tokens += len(tokens)
        while len(self._texts) > self._max_texts or self.n_tokens > self._max_tokens:
            self._remove(next(iter(self._texts)))

    def version(self, key: Key) -> int:
        """A number that grows with each text that is added under `key`."""
        return self._versions.get(key, 0)

    def beginning(self, tokens: TokenArray, key: Key) -> list[TokenArray]:
        """The texts that begin with `tokens`, at least one, and go on: `MAX_FOUND` at most, the one
        used last in front. That one counts as used."""
        n_tokens = len(tokens)
        matches = self._matches(tokens, key)
        found = (id for id in reversed(self._texts) if matches.get(id) == n_tokens)
        texts = {id: self._texts[id][1] for id in islice(found, MAX_FOUND)}
        texts = {id: text for id, text in texts.items() if len(text) > n_tokens}
        if texts:
            self._texts.move_to_end(next(iter(texts)))
        return list(texts.values())

    def clear(self) -> None:
        self._indices.clear()
        self._versions.clear()
        self._texts.clear()
        self.n_tokens = 0

    def _matches(self, tokens: TokenArray, key: Key) -> dict[int, int]:
        index = self._indices.get(key)
        return index.matches(tokens) if index is not None else {}

    def _remove(self, id: int) -> None:
        key, tokens = self._texts.pop(id)
        self.n_tokens -= len(tokens)
        index = self._indices[key]
        index.remove(id)
        if not index:
            del self._indices[key], self._versions[key]
