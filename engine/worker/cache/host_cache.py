"""Texts whose cells have been copied to host memory: which of them are kept, and who is found.

Pure accounting: the copies are arrays of bytes that nothing here looks into.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.worker.cache.prefix_cache import Key
from engine.worker.cache.radix import RadixIndex
from engine.worker.tokens import TokenArray

StateArray = npt.NDArray[np.uint8]


class TextIndex:
    """Texts, each known by a number, by their key and their beginning.

    `whole`: a text is of use only to those that begin with all of it, for its cells can't be cut
    (recurrent states, sliding windows).
    """

    def __init__(self, whole: bool) -> None:
        self._whole = whole
        self._indices: dict[Key, RadixIndex] = {}
        self._texts: dict[int, tuple[Key, int]] = {}  # key and length

    def __len__(self) -> int:
        return len(self._texts)

    def __contains__(self, id: int) -> bool:
        return id in self._texts

    def add(self, id: int, tokens: TokenArray, key: Key) -> None:
        """At least one token, under a number that is not in use."""
        self._texts[id] = key, len(tokens)
        self._indices.setdefault(key, RadixIndex()).insert(id, tokens)

    def remove(self, id: int) -> None:
        key, _ = self._texts.pop(id)
        index = self._indices[key]
        index.remove(id)
        if not index:
            del self._indices[key]

    def longest(self, tokens: TokenArray, key: Key) -> tuple[int, int]:
        """The text with the longest common prefix with `tokens`, the shortest of several, and the
        length of the prefix; (-1, 0) if there is none."""
        best, found = -1, (0, 0)
        for id, n in self._matches(tokens, key).items():
            length = self._texts[id][1]
            if (n == length or not self._whole) and (n, -length) > found:
                best, found = id, (n, -length)
        return best, found[0]

    def covering(self, tokens: TokenArray, key: Key) -> list[int]:
        """The texts beside which `tokens` would be of no use, in the order of their numbers."""
        return sorted(
            id
            for id, n in self._matches(tokens, key).items()
            if n == len(tokens) and (not self._whole or self._texts[id][1] == n)
        )

    def covered(self, tokens: TokenArray, key: Key) -> list[int]:
        """The texts that are of no use beside `tokens`."""
        return [
            id
            for id, n in self._matches(tokens, key).items()
            if n == self._texts[id][1] and (not self._whole or n == len(tokens))
        ]

    def _matches(self, tokens: TokenArray, key: Key) -> dict[int, int]:
        index = self._indices.get(key)
        return index.matches(tokens) if index is not None else {}


@dataclass(frozen=True, eq=False, slots=True)
class KeptText:
    """A text, evaluated under `key` without an approximation, and the copy of its cells."""

    tokens: TokenArray
    key: Key
    state: StateArray

    @property
    def n_bytes(self) -> int:
        return int(self.tokens.nbytes + self.state.nbytes)


class HostCache:
    """Kept texts of at most `limit` bytes in all (None: no limit), in the order of their use."""

    def __init__(self, limit: int | None, whole: bool = False) -> None:
        self.limit = limit
        self._index = TextIndex(whole)
        self._texts: dict[int, KeptText] = {}  # the least recently used first
        self._last_id = 0
        self.n_bytes = 0

    def __iter__(self) -> Iterator[KeptText]:
        """The least recently used first."""
        return iter(self._texts.values())

    def __len__(self) -> int:
        return len(self._texts)

    def covers(self, tokens: TokenArray, key: Key) -> bool:
        """True if there is a kept text beside which `tokens` would be of no use. Those that are
        count as used."""
        covering = self._index.covering(tokens, key)
        for id in covering:
            self._touch(id)
        return bool(covering)

    def find(self, tokens: TokenArray, key: Key) -> tuple[KeptText, int] | None:
        """The text with the longest common prefix with `tokens`, and the length of the prefix."""
        id, n = self._index.longest(tokens, key)
        return (self._texts[id], n) if n else None

    def put(self, text: KeptText) -> list[KeptText]:
        """Keep `text`, the most recently used one from now on; those that have to go for it, it
        itself if it is larger than all that may be kept. Texts of no use beside it just go."""
        if self.covers(text.tokens, text.key):
            return []
        if self.limit is not None and text.n_bytes > self.limit:
            return [text]
        for id in self._index.covered(text.tokens, text.key):
            self._remove(id)
        gone = []
        while self.limit is not None and self.n_bytes + text.n_bytes > self.limit:
            gone.append(self._remove(next(iter(self._texts))))
        self._last_id += 1
        self._texts[self._last_id] = text
        self._index.add(self._last_id, text.tokens, text.key)
        self.n_bytes += text.n_bytes
        return gone

    def use(self, text: KeptText) -> None:
        """`text`, if it is here, counts as used."""
        for id in self._index.covering(text.tokens, text.key):
            if self._texts[id] is text:
                self._touch(id)

    def drop(self, text: KeptText) -> None:
        """Forget `text`, if it is here."""
        for id in self._index.covering(text.tokens, text.key):
            if self._texts[id] is text:
                self._remove(id)

    def _touch(self, id: int) -> None:
        self._texts[id] = self._texts.pop(id)

    def _remove(self, id: int) -> KeptText:
        text = self._texts.pop(id)
        self._index.remove(id)
        self.n_bytes -= text.n_bytes
        return text
