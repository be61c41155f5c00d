"""The hashes of the beginnings of texts, by which two processes compare their texts without sending
them.

A text has one hash for each whole block of `BLOCK` tokens. The hash of a block covers all tokens up
to its end, and the namespace of the text: its key (`engine.worker.cache.texts.Key`), with the
scales of the adapters and, where caches are separate, the owner. So a text's hashes are a chain,
and two texts have exactly the hashes of their common blocks in common. Every process with the same
model and the same list of adapters computes the same hashes.

The format. `hash` is BLAKE2b with a digest of `SIZE` bytes, which are read as a little-endian
number. All numbers are little-endian.

    seed         hash(SEED, then for each pair of the key: the id as i64, the value as f64)
    block i      hash(hash of block i - 1, or the seed; then the contents of block i)
    contents     each token as i32; -1 for each token of a medium; then, for each chunk of media
                 with tokens in the block, in their order: `MediaChunk.name`
    medium       hash(MEDIUM, then `MediaChunk.name`), of an encoded chunk

The chain uses the names of media, as the ids of their tokens differ between processes.

The hashes are too short to be secret, or to be safe from a client that searches for two texts with
the same hash. They only serve to choose a process: a wrong choice costs time, and no text is shared
because of an equal hash.
"""

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

import numpy as np

from specllama.engine.wire.stats import BLOCK
from specllama.engine.worker.tokens import TokenArray

SIZE: Final = 8
"""Bytes of a hash. A fleet with a million blocks finds a hash that belongs to another text once in
10^13 lookups."""
SEED: Final = b"specllama block hashes 1"
"""The number changes with the format."""
MEDIUM: Final = b"specllama medium 1"
MOST_MEDIA: Final = 1024
"""Encoded chunks of media that one digest hashes at most, which takes about a millisecond."""
MOST_NEW: Final = 1024
"""Blocks that one digest hashes at most, of 32,768 tokens: that takes less than a millisecond."""

_MEDIUM: Final = -1

Namespace = tuple[tuple[int, float], ...]
"""A key, see `engine.worker.cache.texts.Key`."""
MediaName = Callable[[int], bytes]
"""Returns `engine.worker.media.registry.MediaChunk.name` of the chunk with this id."""


class BlockHashes:
    """The hashes of the first blocks of one text, as far as they are computed. Belongs to the text:
    the owner of the text cuts them when the text is cut."""

    __slots__ = ("_chain",)

    def __init__(self, chain: bytes = b"") -> None:
        self._chain = chain

    def __len__(self) -> int:
        """The number of computed hashes."""
        return len(self._chain) // SIZE

    def cut(self, n_tokens: int) -> None:
        """Forget the blocks that aren't completely in the first `n_tokens` tokens."""
        self._chain = self._chain[: SIZE * (n_tokens // BLOCK)]

    def beginning(self, n_tokens: int) -> "BlockHashes":
        """A copy for another text, which has the first `n_tokens` tokens in common."""
        return BlockHashes(self._chain[: SIZE * (n_tokens // BLOCK)])

    def of(
        self, tokens: TokenArray, key: Namespace, name: MediaName, n_new: int = MOST_NEW
    ) -> bytes:
        """The hashes of `tokens`, a beginning of the text. Computes at most `n_new` hashes that are
        missing; further ones are left out."""
        last = len(tokens) // BLOCK
        first = min(last, len(self))
        new = tokens[BLOCK * first : BLOCK * min(last, first + n_new)]
        if len(new):
            before = self._chain[-SIZE:] or _seed(key)
            self._chain += _chained(before, _contents(new, name))
        return self._chain[: SIZE * last]


class HashedText(NamedTuple):
    """The first `tokens` of a cached text, evaluated under `key`, with the hashes of the text."""

    tokens: TokenArray
    key: Namespace
    hashes: BlockHashes


def hashes_of(tokens: TokenArray, key: Namespace, name: MediaName) -> bytes:
    """The hashes of all whole blocks of a text."""
    return BlockHashes().of(tokens, key, name, n_new=len(tokens))


def medium_hash(name: bytes) -> bytes:
    """The hash of an encoded chunk of a medium, by `MediaChunk.name`."""
    return blake2b(MEDIUM + name, digest_size=SIZE).digest()


def media_hashes(ids: Sequence[int], name: MediaName, most: int) -> bytes:
    """The hashes of the last chunks of `ids`, at most `most` of them and `MOST_MEDIA`."""
    n = min(most, MOST_MEDIA, len(ids))
    return b"".join(medium_hash(name(id)) for id in ids[len(ids) - n :])


def digest(
    texts: Iterable[HashedText], name: MediaName, max_blocks: int, n_new: int = MOST_NEW
) -> bytes:
    """The hashes of the blocks of `texts`, in the order of the texts, without duplicates; at most
    `max_blocks`. Computes at most `n_new` hashes that are missing; the next digest computes further
    ones, in the order of the texts."""
    found: list[bytes] = []
    seen: set[int] = set()
    for text in texts:
        if len(seen) >= max_blocks:
            break
        n_before = len(text.hashes)
        chain = np.frombuffer(text.hashes.of(text.tokens, text.key, name, n_new), "<u8")
        n_new -= len(text.hashes) - n_before
        n_seen = _n_seen(chain, seen)
        fresh = chain[n_seen : n_seen + max_blocks - len(seen)]
        seen.update(fresh.tolist())
        found.append(fresh.tobytes())
    return b"".join(found)


def _n_seen(chain: "np.ndarray[tuple[int], np.dtype[np.uint64]]", seen: set[int]) -> int:
    """The number of hashes of `chain` that are in `seen`, which contains whole beginnings of
    chains: so these are the first ones."""
    return bisect_left(range(len(chain)), True, key=lambda i: chain.item(i) not in seen)


def _seed(key: Namespace) -> bytes:
    pairs = b"".join(struct.pack("<qd", id, value) for id, value in key)
    return blake2b(SEED + pairs, digest_size=SIZE).digest()


def _chained(before: bytes, contents: Iterable[bytes]) -> bytes:
    found: list[bytes] = []
    for each in contents:
        before = blake2b(before + each, digest_size=SIZE).digest()
        found.append(before)
    return b"".join(found)


def _contents(tokens: TokenArray, name: MediaName) -> list[bytes]:
    """The contents of each block of `tokens`, which are whole blocks."""
    data = np.maximum(tokens, _MEDIUM).astype("<i4").tobytes()
    size = len(data) * BLOCK // len(tokens)
    blocks = [data[at : at + size] for at in range(0, len(data), size)]
    places = np.flatnonzero(tokens < 0)
    for i in np.unique(places // BLOCK).tolist():
        block = tokens[BLOCK * i : BLOCK * (i + 1)]
        ids = dict.fromkeys(block[block < 0].tolist())
        blocks[i] += b"".join(map(name, ids))
    return blocks
