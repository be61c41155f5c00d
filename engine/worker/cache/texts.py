"""Cached texts, and the interfaces of the places that contain them: the KV cache, and the second
tier for evicted texts."""

import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from specllama.engine.worker.cache.block_hashes import HashedText
from specllama.engine.worker.cache.checkpoints import Checkpoint, State
from specllama.engine.worker.cache.radix import Divergence
from specllama.engine.worker.tokens import TokenArray

ALL = sys.maxsize
"""The value of `n_exact` of a text without moved cells."""

Key = tuple[tuple[int, float], ...]
"""The conditions of a text's cells, apart from its tokens: (id, scale) of each LoRA adapter with a
scale other than 0, sorted by id. If only the owner may reuse the text, (OWNER, number) follows."""

OWNER = -1
"""Stands for an adapter's id."""


def adapters_of(key: Key) -> Key:
    return tuple(pair for pair in key if pair[0] != OWNER)


def is_owned(key: Key) -> bool:
    return key != adapters_of(key)


def owner_of(key: Key) -> Key:
    """The part of the key that names the owner; empty if anyone may reuse the text."""
    return key[len(adapters_of(key)) :]


class KVCache(Protocol):
    is_cuttable: bool
    """True if `remove` can cut any text anywhere. False if layers keep a state of all tokens so
    far, or a window of the last ones: going back needs checkpoints then."""

    def first_cut(self, sequence: int) -> int:
        """The first position at which `remove` can cut `sequence`; at most its end."""

    def save(self, sequence: int) -> State | None:
        """A copy of the part of the state of `sequence` that can't be cut, as of its last token;
        None if there is no memory for it."""

    def rewind(self, sequence: int, n: int, state: State) -> bool:
        """Keep only the first `n` tokens of `sequence`; `state` was saved after these. If that
        fails, `sequence` is empty, and the result is False."""

    def remove(self, sequence: int, start: int) -> bool:
        """Remove the cells of `sequence` from position `start` on; False if it can't be cut
        there."""

    def cut_out(self, sequence: int, start: int, stop: int) -> bool:
        """Remove the cells of `sequence` from position `start` up to `stop` (exclusive), and move
        the cells after them to `start`; False, without any change, if that is impossible. Cells
        from `stop` on must not be shared."""

    def copy(self, source: int, target: int, n: int, state: State | None = None) -> bool:
        """Share or copy the first `n` cells of `source` to the empty sequence `target`; False, with
        an empty `target`, if that is impossible. If `source` can't be cut at `n`, `state` is the
        state of this text that was saved there."""

    def state_size(self, sequence: int) -> int:
        """The size in bytes of the cells of `sequence`."""


class Found(NamedTuple):
    """A text in the second tier that can be cut to `n` tokens, a prefix of the requested text.
    `length` is the length of the whole text; `text` is the tier's handle, None while it is being
    fetched. `is_file`: it comes from a file."""

    n: int
    length: int
    text: object | None
    is_file: bool = False


class Near(NamedTuple):
    """The texts in a tier that are the most similar to another text, which diverges from them `at`
    some place. `n_usable` of the tokens before that could be restored."""

    at: Divergence
    n_usable: int


class Tier(Protocol):
    """The second tier, which stores evicted texts and restores them."""

    def offer(
        self,
        sequence: int,
        tokens: TokenArray,
        key: Key,
        checkpoints: Sequence[Checkpoint] = (),
        owner: int = 0,
    ) -> bool:
        """Offer `sequence`, which may be evicted then, to the tier. Its cells are exactly those of
        `tokens` under `key`. If it can't be cut, `checkpoints` are its checkpoints, the shortest
        first. True if the tier has the text now."""

    def is_worth(self, n_tokens: int, n_bytes: int, n_passed: float) -> bool:
        """True if an idle text of `n_tokens` and `n_bytes` should be offered now, to remove it from
        the KV cache: the attention of other texts has passed over its cells, counted once for each
        row (`n_passed` rows x cells), for as long as it takes to copy the text and to restore it.
        The step must have time for the copy."""

    def find(self, tokens: TokenArray, key: Key, n_held: int) -> Found | None:
        """A text with a longer prefix of `tokens` than the `n_held` tokens in the KV cache, if
        restoring it takes less time than computing it."""

    def common_prefix(self, tokens: TokenArray, key: Key) -> int:
        """The length of the longest common prefix of `tokens` with any text, even if that can't be
        cut there."""

    def near(self, tokens: TokenArray, key: Key, n_rest: int) -> Near:
        """The texts that are the most similar to `tokens`, with at most `n_rest` tokens of their
        rest."""

    def keys(self) -> Iterator[Key]:
        """The keys of all texts."""

    def restorable(self) -> Iterator[HashedText]:
        """The texts in host memory that are restored faster than they are computed, the most
        recently used one first."""

    def n_bytes_of(self, owner: int) -> int:
        """The size in host memory of the texts of `owner`."""

    def drop_oldest_of(self, owner: int) -> bool:
        """Drop the least recently used text of `owner` from host memory; False if there is
        none."""

    def restore(self, sequence: int, found: Found) -> Sequence[Checkpoint] | None:
        """Restore all cells of the text of `found` to the empty `sequence`, and return its
        checkpoints. None, with an empty `sequence`, if that is impossible."""


class CachedText(NamedTuple):
    """The tokens of a finished text, evaluated under `key`. It is the last text of slot `slot` (-1:
    the slot has served another one since). `used_at`: the value of `PrefixCache.n_rows` when it
    was last used. The first `n_exact` tokens were computed from exactly
    the tokens before them; later ones were moved, or computed from moved ones
    (`engine.worker.scheduling.placement`).

    All cached texts of `owner` together may have `limit` bytes (0: no limit). `n_bytes` is the size
    of this one; 0: not measured."""

    tokens: TokenArray
    slot: int = -1
    n_exact: int = ALL
    key: Key = ()
    owner: int = 0
    limit: int = 0
    n_bytes: int = 0
    used_at: int = 0


EMPTY = CachedText(np.empty(0, np.int32))
