"""Media in saved texts: media ids are only valid in one process, so a file has its own table."""

from collections.abc import Sequence

import msgspec
import numpy as np

from specllama.engine.wire.media import MediaKind
from specllama.engine.worker.media.registry import MediaRegistry, spans
from specllama.engine.worker.tokens import TokenArray

_FIRST = -2
"""The id of the first chunk in a file's table; the next one is -3, and so on."""


class SavedChunk(msgspec.Struct, frozen=True, array_like=True):
    """An `engine.worker.media.registry.MediaChunk` without its id."""

    digest: bytes
    index: int
    n_tokens: int
    n_pos: int
    is_whole: bool
    kind: MediaKind


def to_file(tokens: TokenArray, registry: MediaRegistry) -> tuple[TokenArray, list[SavedChunk]]:
    """The tokens with a file's media ids, and its table: the chunks in the order of their first
    occurrence."""
    is_media = tokens < 0
    if not is_media.any():
        return tokens, []
    ids, firsts, places = np.unique(tokens[is_media], return_index=True, return_inverse=True)
    order = np.argsort(firsts)
    numbers = np.empty(len(ids), np.int32)
    numbers[order] = _FIRST - np.arange(len(ids), dtype=np.int32)
    written = tokens.copy()
    written[is_media] = numbers[places]
    chunks = [registry.of(id) for id in ids[order].tolist()]
    table = [SavedChunk(c.digest, c.index, c.n_tokens, c.n_pos, c.is_whole, c.kind) for c in chunks]
    return written, table


def from_file(
    tokens: TokenArray, table: Sequence[SavedChunk], registry: MediaRegistry
) -> TokenArray:
    """The tokens with this process's media ids. Raises ValueError if they aren't whole chunks of
    the table."""
    is_media = tokens < 0
    if not is_media.any():
        return tokens
    numbers = _FIRST - tokens[is_media]
    if numbers.min() < 0 or numbers.max() >= len(table):
        raise ValueError("a medium is not in the table")
    if any(not 1 <= saved.n_pos <= saved.n_tokens for saved in table):
        raise ValueError("a medium has no size")
    ids = [
        registry.intern(
            saved.digest,
            saved.index,
            n_tokens=saved.n_tokens,
            n_pos=saved.n_pos,
            is_whole=saved.is_whole,
            kind=saved.kind,
        ).id
        for saved in table
    ]
    found = tokens.copy()
    found[is_media] = np.array(ids, np.int32)[numbers]
    spans(found, registry)
    return found
