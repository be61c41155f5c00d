"""The ids of images and sounds in arrays of tokens: negative numbers, repeated.

A medium becomes one or more chunks, each with a length in tokens. In a text, each of these tokens
is the chunk's id. So texts with media are compared, searched and stored like any others, and two
texts can diverge before or after a chunk, but never inside one.
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
    """A part of a medium that is evaluated as one: the whole medium, or one of its slices.

    `digest` is that of the medium; `index` is the number of the chunk in it, from 0. The chunk
    takes `n_pos` positions; with M-RoPE these are fewer than its tokens. `is_whole`: all its tokens
    attend to each other, so they must be in one micro-batch.
    """

    id: int
    digest: bytes
    index: int
    n_tokens: int
    n_pos: int
    is_whole: bool
    kind: MediaKind

    @property
    def name(self) -> bytes:
        """Identifies the chunk in every process: the digest of the medium, and its index."""
        return self.digest + self.index.to_bytes(4, "little")

    def tokens(self) -> TokenArray:
        """The chunk's tokens in a text."""
        return np.full(self.n_tokens, self.id, np.int32)


LEAST = 4096
"""Number of chunks below which unused ones aren't worth removing."""
GRACE = 3600.0
"""Seconds that a chunk stays after its last use. This is longer than a text takes from its
preparation to a slot or a file."""


class MediaRegistry:
    """The chunks in texts of this process, by id. Safe to use from several threads."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or system.now
        self._lock = system.Lock()
        self._asked: dict[int, float] = {}  # time of the last use, by id
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
        """The chunk `index` of the medium `digest`; registered if it is new."""
        with self._lock:
            known = self._ids.get((digest, index))
            id = self._next if known is None else known
            chunk = MediaChunk(id, digest, index, n_tokens, n_pos, is_whole, kind)
            if known is None:
                self._next -= 1
                self._by_id[id] = chunk
                self._ids[digest, index] = id
            elif self._by_id[id] != chunk:
                raise ValueError(f"a medium has changed: it was {self._by_id[id]}, and is {chunk}")
            self._asked[id] = self._clock()
            return self._by_id[id]

    def of(self, id: int) -> MediaChunk:
        """The chunk with the id. Raises KeyError if it is unknown or forgotten."""
        with self._lock:
            chunk = self._by_id[id]
            self._asked[id] = self._clock()
            return chunk

    def name_of(self, id: int) -> bytes:
        """The name of the chunk with the id. Raises KeyError, as `of` does."""
        return self.of(id).name

    @property
    def is_full(self) -> bool:
        """True if `keep` should be called."""
        return len(self._by_id) > self._limit and self._clock() - self._tidied >= GRACE

    def keep(self, ids: Iterable[int]) -> None:
        """Forget all chunks, except for `ids` and chunks used within `GRACE`. Their ids aren't
        reused."""
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
    """The chunks in a text, in order. Raises ValueError if a chunk is incomplete, and KeyError if
    it is unknown."""
    negative = np.flatnonzero(tokens < 0)
    if not len(negative):
        return []
    ids = tokens[negative]
    # A run ends where the next negative number differs or isn't adjacent.
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
    """The position of the token `index` of a text with these `spans`. Tokens inside of a span have
    the position of its first one."""
    saved = 0
    for span in spans:
        if span.start >= index:
            break
        if index < span.stop:
            return span.start - saved
        saved += span.chunk.n_tokens - span.chunk.n_pos
    return index - saved
