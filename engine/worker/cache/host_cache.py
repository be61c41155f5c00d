"""Texts whose cells are copied to host memory: decides which ones are kept, and finds them.

Pure accounting: this module never reads the bytes of the copies.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specllama.engine.worker.cache.block_hashes import BlockHashes
from specllama.engine.worker.cache.checkpoints import Checkpoint, Cuts, thinned
from specllama.engine.worker.cache.radix import KeyedIndex
from specllama.engine.worker.cache.texts import Key, Near
from specllama.engine.worker.tokens import TokenArray

StateArray = npt.NDArray[np.uint8]

LOSS = 8
"""A text that can't be cut anywhere replaces a shorter one if going back to a checkpoint loses at
most one in `LOSS` of the shorter one's tokens."""


class _Indexed(NamedTuple):
    key: Key
    length: int
    cuts: Cuts


class TextIndex:
    """Numbered texts, found by their key, their beginning and where they can be cut."""

    def __init__(self) -> None:
        self._index: KeyedIndex[Key] = KeyedIndex()
        self._texts: dict[int, _Indexed] = {}

    def __len__(self) -> int:
        return len(self._texts)

    def __contains__(self, id: int) -> bool:
        return id in self._texts

    def add(self, id: int, tokens: TokenArray, key: Key, cuts: Cuts) -> None:
        """Add a text of at least one token, under an unused number."""
        self._texts[id] = _Indexed(key, len(tokens), cuts)
        self._index.insert(key, id, tokens)

    def recut(self, id: int, cuts: Cuts) -> None:
        """Change where a text can be cut."""
        self._texts[id] = self._texts[id]._replace(cuts=cuts)

    def remove(self, id: int) -> None:
        self._index.remove(self._texts.pop(id).key, id)

    def longest(self, tokens: TokenArray, key: Key) -> tuple[int, int]:
        """The number of the text that can be cut to the longest prefix of `tokens` (the shortest of
        equal ones), and the length of the prefix; (-1, 0) if there is none."""
        best, found = -1, (0, 0)
        for id, n_same in self._matches(tokens, key).items():
            text = self._texts[id]
            n = text.cuts.reachable(n_same)
            if n and (n, -text.length) > found:
                best, found = id, (n, -text.length)
        return best, found[0]

    def common_prefix(self, tokens: TokenArray, key: Key) -> int:
        """The length of the longest common prefix with any text, even if it can't be cut there."""
        return max(self._matches(tokens, key).values(), default=0)

    def covering(self, tokens: TokenArray, key: Key, n_checkpoints: int = 0) -> list[int]:
        """The texts that make `tokens` with that many checkpoints redundant, sorted by number. A
        text with exactly the same tokens does so only if it has at least as many checkpoints."""
        found = []
        for id, n in self._matches(tokens, key).items():
            text = self._texts[id]
            is_richer = n < text.length or len(text.cuts.at) >= n_checkpoints
            if n == len(tokens) and is_richer and _replaces(text.cuts, n):
                found.append(id)
        return sorted(found)

    def covered(self, tokens: TokenArray, key: Key, cuts: Cuts) -> list[int]:
        """The texts that `tokens`, which can be cut at `cuts`, make redundant."""
        return [
            id
            for id, n in self._matches(tokens, key).items()
            if n == self._texts[id].length and _replaces(cuts, n)
        ]

    def keys(self) -> Iterator[Key]:
        """The keys of all texts, the newest key first."""
        return iter(self._index)

    def near(self, tokens: TokenArray, key: Key, n_rest: int) -> Near:
        """The texts that are the most similar to `tokens`."""
        at = self._index.divergence(tokens, key, n_rest)
        return Near(at, self.longest(tokens, key)[1])

    def _matches(self, tokens: TokenArray, key: Key) -> dict[int, int]:
        return self._index.matches(tokens, key)


def _replaces(cuts: Cuts, n: int) -> bool:
    """True if a text with these `cuts` can replace its first `n` tokens."""
    return cuts.reachable(n) >= n - n // LOSS


@dataclass(frozen=True, eq=False, slots=True)
class KeptText:
    """An exact text, evaluated under `key`, with the copy of its cells. These can be cut from
    number `first_cut` on, and at `checkpoints`, the shortest first. It counts towards the limit of
    its `owner` (0: of no one)."""

    tokens: TokenArray
    key: Key
    state: StateArray
    first_cut: int = 0
    checkpoints: tuple[Checkpoint, ...] = ()
    owner: int = 0
    hashes: BlockHashes = field(default_factory=BlockHashes)

    @property
    def cuts(self) -> Cuts:
        return Cuts(self.first_cut, tuple(each.n for each in self.checkpoints))

    @property
    def n_bytes(self) -> int:
        n_states = sum(each.state.nbytes for each in self.checkpoints)
        return int(self.tokens.nbytes + self.state.nbytes + n_states)

    def within(self, limit: int) -> "KeptText":
        """The text with as many of its checkpoints as fit into `limit` bytes."""
        text = self
        while text.checkpoints and text.n_bytes > limit:
            text = text.thinned()
        return text

    def thinned(self) -> "KeptText":
        """The text without its least useful checkpoint."""
        return replace(self, checkpoints=tuple(thinned(self.checkpoints)))


class HostCache:
    """Kept texts of at most `limit` bytes in total (None: no limit), in the order of their last
    use. A checkpoint that texts share counts once."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self._index = TextIndex()
        self._texts: dict[int, KeptText] = {}  # the least recently used first
        self._holders: Counter[int] = (
            Counter()
        )  # number of texts, by the id of a checkpoint's state
        self._last_id = 0
        self.n_bytes = 0

    def __iter__(self) -> Iterator[KeptText]:
        """Iterates from the least recently used text on."""
        return iter(self._texts.values())

    def __reversed__(self) -> Iterator[KeptText]:
        """Iterates from the most recently used text on."""
        return reversed(self._texts.values())

    def __len__(self) -> int:
        return len(self._texts)

    def covers(self, tokens: TokenArray, key: Key, n_checkpoints: int = 0) -> bool:
        """True if kept texts make `tokens` with that many checkpoints redundant. Marks those texts
        as used."""
        covering = self._index.covering(tokens, key, n_checkpoints)
        for id in covering:
            self._touch(id)
        return bool(covering)

    def find(self, tokens: TokenArray, key: Key) -> tuple[KeptText, int] | None:
        """The text with the longest common prefix with `tokens`, and the length of the prefix."""
        id, n = self._index.longest(tokens, key)
        return (self._texts[id], n) if n else None

    def common_prefix(self, tokens: TokenArray, key: Key) -> int:
        """As in `TextIndex`."""
        return self._index.common_prefix(tokens, key)

    def keys(self) -> Iterator[Key]:
        """As in `TextIndex`."""
        return self._index.keys()

    def near(self, tokens: TokenArray, key: Key, n_rest: int) -> Near:
        """As in `TextIndex`."""
        return self._index.near(tokens, key, n_rest)

    def n_bytes_of(self, owner: int) -> int:
        """The size of the texts of `owner`; checkpoints that they share count for each."""
        return sum(text.n_bytes for text in self._texts.values() if text.owner == owner)

    def drop_oldest_of(self, owner: int) -> bool:
        """Drop the least recently used text of `owner`. False if there is none."""
        oldest = next((id for id, text in self._texts.items() if text.owner == owner), None)
        if oldest is not None:
            self._remove(oldest)
        return oldest is not None

    def put(self, text: KeptText) -> list[KeptText]:
        """Keep `text`, as the most recently used one. Returns the texts that were dropped for it or
        lost checkpoints, as they were before; `text` itself, if it exceeds the limit. Texts that it
        makes redundant are dropped and not returned."""
        if self.covers(text.tokens, text.key, len(text.checkpoints)):
            return []
        kept = text if self.limit is None else text.within(self.limit)
        if self.limit is not None and kept.n_bytes > self.limit:
            return [text]
        for id in self._index.covered(text.tokens, text.key, kept.cuts):
            self._remove(id)
        self._last_id += 1
        self._texts[self._last_id] = kept
        self._index.add(self._last_id, kept.tokens, kept.key, kept.cuts)
        self._count(kept, 1)
        lessened = [] if kept is text else [text]
        while self.limit is not None and self.n_bytes > self.limit:
            lessened.append(self._lessen(next(iter(self._texts)), self.limit))
        return lessened

    def _lessen(self, id: int, limit: int) -> KeptText:
        """Drop checkpoints of a text, and if that isn't enough, the text. Returns it as it was
        before."""
        text = before = self._texts[id]
        while self.n_bytes > limit and text.checkpoints:
            self._count(text, -1)
            text = text.thinned()
            self._count(text, 1)
        self._texts[id] = text
        self._index.recut(id, text.cuts)
        if self.n_bytes > limit:
            self._remove(id)
        return before

    def use(self, text: KeptText) -> None:
        """Mark `text` as used, if it is kept here."""
        for id in self._index.covering(text.tokens, text.key):
            if self._texts[id] is text:
                self._touch(id)

    def drop(self, text: KeptText) -> None:
        """Drop `text`, if it is kept here."""
        for id in self._index.covering(text.tokens, text.key):
            if self._texts[id] is text:
                self._remove(id)

    def _touch(self, id: int) -> None:
        self._texts[id] = self._texts.pop(id)

    def _remove(self, id: int) -> None:
        self._count(self._texts.pop(id), -1)
        self._index.remove(id)

    def _count(self, text: KeptText, n: int) -> None:
        """Count the bytes of a text that is added (`n` = 1) or removed (-1)."""
        self.n_bytes += n * int(text.tokens.nbytes + text.state.nbytes)
        for each in text.checkpoints:
            before = self._holders[id(each.state)]
            self._holders[id(each.state)] += n
            if 0 in (before, before + n):  # the first holder was added, or the last one removed
                self.n_bytes += n * each.state.nbytes
        self._holders = +self._holders  # without zeros
