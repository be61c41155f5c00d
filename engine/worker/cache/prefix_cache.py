"""The tokens that the KV cache holds, by sequence: of running texts, and of finished ones, which
stay as cache until they are evicted for their cells or their sequence ids.

A *sequence id* is llama.cpp's: the tokens under one id are one text. With a unified KV cache
several ids may own a cell together, so a prefix is shared without being copied or computed
again, and there are more ids than slots. Without one each slot has a cache and an id of its own,
and sharing copies.
"""

import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from specllama.engine.worker.cache.cells import Cells
from specllama.engine.worker.cache.checkpoints import Checkpoint, Checkpoints, State
from specllama.engine.worker.cache.radix import RadixIndex
from specllama.engine.worker.tokens import TokenArray, common_prefix

ALL = sys.maxsize
"""The number of tokens that are exact where no cell was moved."""

Key = tuple[tuple[int, float], ...]
"""What the cells of a text depend on beside its tokens: the LoRA adapters, (id, scale) of each,
by id, without scales 0. Behind them (OWNER, number), if the text may be shared with none but its
owner's."""

OWNER = -1
"""In the place of an adapter's id."""


def adapters_of(key: Key) -> Key:
    return tuple(pair for pair in key if pair[0] != OWNER)


def is_owned(key: Key) -> bool:
    return key != adapters_of(key)


class KVCache(Protocol):
    is_cuttable: bool
    """True if `remove` can cut any text anywhere. It can't where layers keep a state of all tokens
    so far, or a window of the last ones: going back takes checkpoints there."""

    def first_cut(self, sequence: int) -> int:
        """The position from which on `remove` can cut `sequence`, at its end in any case."""

    def save(self, sequence: int) -> State | None:
        """A copy of what can't be cut of `sequence`, as of its last token; None if there is no
        memory for it."""

    def rewind(self, sequence: int, n: int, state: State) -> bool:
        """Keep only the first `n` tokens of `sequence`; `state` was saved behind these. False if
        it can't be done, and `sequence` is empty."""

    def remove(self, sequence: int, start: int) -> bool:
        """Forget the cells of `sequence` from position `start`; False if it can't be cut."""

    def cut_out(self, sequence: int, start: int, stop: int) -> bool:
        """Forget the cells of `sequence` from position `start` up to `stop`, and move those
        behind them to `start`; False if this can't be done, and nothing was. Cells from `stop`
        on must be its own."""

    def copy(self, source: int, target: int, n: int, state: State | None = None) -> bool:
        """Let `target`, which is empty, have the first `n` cells of `source`, too; False if it
        can't be done, and `target` is empty still. If `source` can't be cut at `n`, `state` is
        what was saved there of this text."""


class Found(NamedTuple):
    """A text in the second tier that has a prefix of `n` tokens in common with another one, to
    which it can be cut; its length, and the tier's handle of it, None while it is being fetched."""

    n: int
    length: int
    text: object | None


class Tier(Protocol):
    """The second tier: where evicted texts go, and are restored from."""

    def offer(
        self, sequence: int, tokens: TokenArray, key: Key, checkpoints: Sequence[Checkpoint] = ()
    ) -> None:
        """`sequence`, whose cells are exactly those of `tokens` under `key`, is evicted next. If it
        can't be cut, it has these checkpoints, the shortest in front."""

    def find(self, tokens: TokenArray, key: Key, n_held: int) -> Found | None:
        """A text with a longer prefix of `tokens` than the `n_held` in the KV cache, if restoring
        it takes less time than computing it."""

    def common_prefix(self, tokens: TokenArray, key: Key) -> int:
        """The longest common prefix of `tokens` with any text, whether that can be cut there or
        not."""

    def restore(self, sequence: int, found: Found) -> Sequence[Checkpoint] | None:
        """Let `sequence`, which is empty, have all cells of what was found; its checkpoints. None
        if it can't be done, and `sequence` is empty still."""


class CachedText(NamedTuple):
    """The tokens of a finished text, evaluated under `key`, the last one that slot `slot` served
    (-1: the slot has served another since). The first `n_exact` were computed from nothing but
    the tokens before them; those behind were moved, or computed from moved ones
    (`engine.worker.scheduling.placement`)."""

    tokens: TokenArray
    slot: int = -1
    n_exact: int = ALL
    key: Key = ()


EMPTY = CachedText(np.empty(0, np.int32))


class PrefixCache:
    """Sequence ids, what they hold, and who shares it.

    It never claims more than the KV cache holds: all that changes that goes through here.
    Entries are ordered by their last use. Equal tokens mean equal cells only under the same key.
    `n_cells` is None for separate caches, where the ids are those of the slots. Of a text that
    can't be cut, `n_checkpoints` are kept at most. Evicted texts are offered to `tier`.
    """

    def __init__(
        self,
        kv: KVCache,
        n_sequences: int,
        n_cells: int | None,
        n_checkpoints: int = 0,
        tier: Tier | None = None,
    ) -> None:
        self._kv = kv
        self._tier = tier
        self._entries: dict[int, CachedText] = {}
        self._unused = list(range(n_sequences - 1, -1, -1))
        self._indices: dict[Key, RadixIndex] = {}
        self._keys: dict[int, Key] = {}  # of those in an index
        self._cells = None if n_cells is None else Cells(n_cells)
        self._checkpoints = Checkpoints(n_checkpoints)

    # ---- looking -------------------------------------------------------------------------

    @property
    def entries(self) -> dict[int, CachedText]:
        """The finished texts by sequence id, the least recently used first."""
        return self._entries

    @property
    def n_bytes_checkpoints(self) -> int:
        return self._checkpoints.n_bytes

    @property
    def checkpoints(self) -> dict[int, list[Checkpoint]]:
        """The checkpoints of each text that has some, by sequence id; the shortest in front."""
        return self._checkpoints.of

    def matches(self, tokens: TokenArray, key: Key) -> dict[int, int]:
        """The longest common prefix of `tokens` with each text, in tokens; running texts included,
        whether their prompt is evaluated that far or not."""
        index = self._indices.get(key)
        return index.matches(tokens) if index is not None else {}

    def common_prefix(self, sequence: int, tokens: TokenArray, key: Key) -> int:
        """The longest common prefix of `tokens` with a finished text, moved tokens included."""
        entry = self._entries.get(sequence)
        return 0 if entry is None or entry.key != key else common_prefix(entry.tokens, tokens)

    @property
    def has_unused(self) -> bool:
        return bool(self._unused)

    @property
    def n_free(self) -> int | None:
        """Cells that nobody holds; None without a common cache."""
        return self._cells.n_free if self._cells is not None else None

    def n_cells_of(self, ids: Iterable[int]) -> int:
        """Cells that these texts hold, shared ones counted once; 0 without a common cache."""
        return self._cells.n_of(ids) if self._cells is not None else 0

    def reachable(self, id: int, n: int) -> int:
        """The number of a text's first `n` tokens that it can be cut to, or shared up to."""
        if self._kv.is_cuttable or n >= self._kv.first_cut(id):
            return n
        return self._checkpoints.last(id, n)

    # ---- running texts -------------------------------------------------------------------

    def open(self, wanted: int | None, tokens: TokenArray, key: Key) -> int:
        """A sequence id that holds nothing, for a text that begins with `tokens`. It is `wanted`,
        if given. There must be an unused one."""
        id = self._unused.pop() if wanted is None else wanted
        if wanted is not None:
            self._unused.remove(wanted)
        self._index(id, tokens, key)
        return id

    def reopen(self, id: int, tokens: TokenArray, key: Key) -> CachedText:
        """Make a finished text the beginning of the running text `tokens`; the finished one."""
        entry = self._entries.pop(id)
        self._index(id, tokens, key)
        return entry

    def copy(self, source: int, target: int, n: int) -> bool:
        """Let `target`, just opened, have the first `n` tokens of `source`, too. False if it
        can't be done."""
        if not self._kv.copy(source, target, n, self._checkpoints.at(source, n)):
            return False
        self._checkpoints.inherit(source, target, n)
        if self._cells is not None:
            self._cells.share(source, target, n)
        if source in self._entries:
            self._entries[source] = self._entries.pop(source)
        return True

    def cut(self, id: int, start: int) -> bool:
        """Remove all tokens of a running text from number `start` on. False if this kind of memory
        can only remove all of them; then it did."""
        done = self._kv.remove(id, start)
        if not done and (state := self._checkpoints.at(id, start)) is not None:
            done = self._kv.rewind(id, start, state)
        if not done:
            self._kv.remove(id, 0)
        self._checkpoints.cut(id, start if done else 0)
        if self._cells is not None:
            self._cells.cut(id, start if done else 0)
        return done

    def cut_out(self, id: int, start: int, stop: int) -> bool:
        """Drop a part of a running text; what is behind it moves. False if it can't be done:
        the memory can't move cells, or another running text shares them."""
        if not self.is_alone(id, stop) or not self._kv.cut_out(id, start, stop):
            return False
        if self._cells is not None:
            self._cells.cut(id, start, stop)
        self._checkpoints.cut(id, start)
        return True

    def save(self, id: int, n: int) -> None:
        """Make a checkpoint of a running text, which has `n` tokens, unless there is one."""
        if self._checkpoints.at(id, n) is not None:
            return
        state = self._kv.save(id)
        if state is not None:
            self._checkpoints.add(id, n, state)

    def restored(self, id: int, length: int, n: int, checkpoints: Sequence[Checkpoint]) -> bool:
        """Keep the first `n` tokens of a running text, which has all `length` cells of one that was
        saved with these checkpoints. False if it can't be cut there, and nothing is left."""
        self.grow(id, length)
        self._checkpoints.of[id] = [*checkpoints]  # all of them, as one may be needed now
        return self.cut(id, n)

    def adopt(self, id: int, checkpoints: Sequence[Checkpoint]) -> None:
        """A text that is restored as a whole has these checkpoints."""
        self._checkpoints.put(id, checkpoints)

    def is_alone(self, id: int, start: int) -> bool:
        """True if no other text shares the cells of a running one from `start` on. Finished texts
        that share them are evicted for that."""
        cells = self._cells
        if cells is None:
            return True
        wanted = cells.held(id) - start
        for other in [o for o in self._entries if o != id]:
            if cells.n_alone(id, start) == wanted:
                return True
            if cells.are_shared(id, start, other):
                self.give_up(other)
        return cells.n_alone(id, start) == wanted

    def retext(self, id: int, tokens: TokenArray) -> None:
        """Replace a running text by `tokens`: a context shift has dropped some."""
        self._index(id, tokens, self._keys[id])

    def grow(self, id: int, n: int) -> None:
        """`n` more tokens of a running text are in the KV cache."""
        if self._cells is not None:
            self._cells.grow(id, n)

    def close(self, id: int, entry: CachedText) -> None:
        """Make a running text a finished one, the most recently used of all."""
        if not len(entry.tokens):
            self.drop(id)
            return
        for other in list(self._entries):
            if self._is_superseded(other, entry):
                self.drop(other)
        self._entries[id] = entry._replace(tokens=entry.tokens.copy())
        self._index(id, entry.tokens, entry.key)

    def _is_superseded(self, id: int, by: CachedText) -> bool:
        """True if a finished text is of no use beside a longer one."""
        old = self._entries[id]
        n = len(old.tokens)
        return (
            old.slot in (-1, by.slot)
            and old.key == by.key
            and n <= min(len(by.tokens), by.n_exact)
            and common_prefix(old.tokens, by.tokens) == n
        )

    def drop(self, id: int) -> None:
        """Forget a text, finished or not."""
        self._kv.remove(id, 0)
        if self._cells is not None:
            self._cells.cut(id, 0)
        self._checkpoints.cut(id, 0)
        self._entries.pop(id, None)
        key = self._keys.pop(id)
        index = self._indices[key]
        index.remove(id)
        if not index:
            del self._indices[key]
        self._unused.append(id)

    def give_up(self, id: int) -> None:
        """Evict a finished text; the second tier is offered what is exact of it."""
        entry = self._entries[id]
        if self._tier is not None and entry.n_exact < len(entry.tokens):
            self.shorten(id, entry.n_exact)
        if id in self._entries:
            self.offer(id)
            self.drop(id)

    def offer(self, id: int) -> None:
        """Offer a finished text, which is about to be cut, to the second tier, if all of it is
        exact."""
        entry = self._entries[id]
        if self._tier is not None and entry.n_exact >= len(entry.tokens):
            self._tier.offer(id, entry.tokens, entry.key, self.checkpoints.get(id, ()))

    def _index(self, id: int, tokens: TokenArray, key: Key) -> None:
        old = self._keys.get(id)
        if old is not None and old != key:
            self._indices[old].remove(id)
        self._keys[id] = key
        self._indices.setdefault(key, RadixIndex()).insert(id, tokens)

    # ---- finished texts ------------------------------------------------------------------

    def of_slot(self, slot: int) -> int | None:
        """The sequence id of the last text that an idle slot has served, if it is still held."""
        return next((id for id, entry in self._entries.items() if entry.slot == slot), None)

    def unlabel(self, slot: int) -> None:
        """The slot serves another text from now on."""
        id = self.of_slot(slot)
        if id is not None:
            # In its place: dict order is the order of use.
            self._entries[id] = self._entries[id]._replace(slot=-1)

    def shorten(self, id: int, n: int) -> None:
        """Keep only the first `n` tokens of a finished text."""
        entry = self._entries[id]
        if n and self.cut(id, n):
            self._entries[id] = entry._replace(tokens=entry.tokens[:n], n_exact=ALL)
            self._index(id, entry.tokens[:n], entry.key)
        else:
            self.drop(id)

    # ---- room ----------------------------------------------------------------------------

    def make_room(self, n_tokens: int) -> int:
        """Evict finished texts until `n_tokens` cells are free; how many of these are."""
        cells = self._cells
        if cells is None:
            return n_tokens
        while cells.n_free < n_tokens:
            if not self.evict():
                return cells.n_free
        return n_tokens

    def make_id(self, keep: int | None = None) -> bool:
        """Have an unused sequence id, by eviction if need be, but never of `keep`. False if there
        is none."""
        if self._unused:
            return True
        victim = next((id for id in self._entries if id != keep), None)
        if victim is None:
            return False
        self.give_up(victim)
        return True

    def evict(self) -> bool:
        """Evict the least recently used text that frees cells; cells that it shares with others
        stay as long as these do. False if there is none."""
        cells = self._cells
        victim = next(
            (id for id in self._entries if cells is None or cells.n_alone(id)),
            next(iter(self._entries), None),
        )
        if victim is None:
            return False
        self.give_up(victim)
        return True
