"""What an image or a sound is in an array of tokens: one negative number again and again.

A medium becomes one or more chunks, each of some tokens' length. In a text, each of these tokens
is the chunk's id. So texts with media are compared, searched and stored as any others, and two of
them differ in front of a chunk or behind it, but never inside.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from specllama.engine import system
from specllama.engine.wire.media import MediaKind
from specllama.engine.worker.tokens import TokenArray

_FIRST_ID = -2  # -1 is "no token" in llama.cpp


@dataclass(frozen=True, slots=True)
class MediaChunk:
    """A part of a medium that is evaluated as one: all of it, or one of its slices.

    `digest` is the medium's, `index` counts its chunks from 0. It takes `n_pos` positions, which
    are fewer than its tokens with M-RoPE. `is_whole` says that all its tokens attend to each
    other, and have to be in one micro-batch.
    """

    id: int
    digest: bytes
    index: int
    n_tokens: int
    n_pos: int
    is_whole: bool
    kind: MediaKind

    def tokens(self) -> TokenArray:
        """The chunk as it stands in a text."""
        return np.full(self.n_tokens, self.id, np.int32)


LEAST = 4096
"""Chunks that don't take enough memory to look for those that nobody has any more."""
GRACE = 3600.0
"""Seconds for which a chunk stays that somebody has asked for: that is longer than texts are on
their way, from their preparation to a slot, or to a file."""


class MediaRegistry:
    """The chunks that texts of this process have, by id. Safe to use from several threads."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or system.now
        self._lock = system.Lock()
        self._asked: dict[int, float] = {}  # when for each id, the last time
        self._tidied = self._clock()
        self._limit = LEAST
        self._by_id: dict[int, MediaChunk] = {}
        self._ids: dict[tuple[bytes, int], int] = {}
        self._next = _FIRST_ID

    def __len__(self) -> int:
        return len(self._by_id)

    def intern(
        self,
        digest: bytes,
        index: int,
        *,
        n_tokens: int,
        n_pos: int,
        is_whole: bool,
        kind: MediaKind,
    ) -> MediaChunk:
        """The chunk `index` of the medium `digest`: the one that is known, or a new one."""
        with self._lock:
            known = self._ids.get((digest, index))
            id = self._next if known is None else known
            chunk = MediaChunk(id, digest, index, n_tokens, n_pos, is_whole, kind)
            if known is None:
                self._next -= 1
                self._by_id[id] = chunk
                self._ids[digest, index] = id
            elif self._by_id[id] != chunk:
                raise ValueError(f"a medium has changed: {self._by_id[id]} is {chunk}")
            self._asked[id] = self._clock()
            return self._by_id[id]

    def of(self, id: int) -> MediaChunk:
        """The chunk with that id. Raises KeyError for one that is unknown or forgotten."""
        with self._lock:
            chunk = self._by_id[id]
            self._asked[id] = self._clock()
            return chunk

    @property
    def is_full(self) -> bool:
        """True if it is time for `keep`."""
        return len(self._by_id) > self._limit and self._clock() - self._tidied >= GRACE

    def keep(self, ids: Iterable[int]) -> None:
        """Forget all chunks but those with `ids`, and those that were asked for within GRACE. Ids
        aren't used again."""
        with self._lock:
            kept = frozenset(ids)
            self._tidied = self._clock()
            since = self._tidied - GRACE
            self._by_id = {
                id: chunk
                for id, chunk in self._by_id.items()
                if id in kept or self._asked[id] > since
            }
            self._asked = {id: self._asked[id] for id in self._by_id}
            self._ids = {(c.digest, c.index): id for id, c in self._by_id.items()}
            self._limit = max(LEAST, 2 * len(self._by_id))


def ids_in(tokens: TokenArray) -> list[int]:
    """The ids of the chunks in a text."""
    is_media = tokens < 0
    return np.unique(tokens[is_media]).tolist() if is_media.any() else []


@dataclass(frozen=True, slots=True)
class ChunkSpan:
    """The place of a chunk in a text: tokens `start` up to `stop`."""

    start: int
    stop: int
    chunk: MediaChunk


def spans(tokens: TokenArray, registry: MediaRegistry) -> list[ChunkSpan]:
    """The chunks in a text, in order. Raises ValueError if one of them isn't there as a whole,
    and KeyError for an unknown one."""
    negative = np.flatnonzero(tokens < 0)
    if not len(negative):
        return []
    ids = tokens[negative]
    # A run ends where the next negative number is another one, or stands further on.
    ends = np.flatnonzero((np.diff(ids) != 0) | (np.diff(negative) != 1))
    firsts = negative[np.concatenate(([0], ends + 1))]
    lasts = negative[np.concatenate((ends, [len(negative) - 1]))]
    found: list[ChunkSpan] = []
    for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
        chunk = registry.of(tokens.item(first))
        n = chunk.n_tokens
        if (last + 1 - first) % n:
            raise ValueError(f"a medium of {n} tokens is cut in the tokens {first} to {last}")
        found += [ChunkSpan(start, start + n, chunk) for start in range(first, last + 1, n)]
    return found


def position(spans: Sequence[ChunkSpan], index: int) -> int:
    """The position of the token `index` of a text with these `spans`. A token inside of a span
    counts as the span's first one."""
    saved = 0
    for span in spans:
        if span.start >= index:
            break
        if index < span.stop:
            return span.start - saved
        saved += span.chunk.n_tokens - span.chunk.n_pos
    return index - saved
