"""The contents of the KV cache by sequence: running texts, and finished ones. Finished texts stay
cached until they are evicted to free cells or sequence ids.

A *sequence id* is llama.cpp's: the tokens under one id are one text. With a unified KV cache,
several ids may own the same cell, so a prefix is shared without copying or computing it, and there
are more ids than slots. Without one, each slot has its own cache and id, and sharing means copying.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from specllama.engine.worker.cache.block_hashes import BlockHashes
from specllama.engine.worker.cache.cells import Cells
from specllama.engine.worker.cache.checkpoints import Checkpoint, Checkpoints
from specllama.engine.worker.cache.evicted import EvictedTexts
from specllama.engine.worker.cache.radix import Divergence, KeyedIndex
from specllama.engine.worker.cache.texts import ALL, CachedText, Key, KVCache, Tier
from specllama.engine.worker.tokens import TokenArray, common_prefix


class _IndexedText(NamedTuple):
    """A running or finished text in the index: its key, the number of its tokens there, and the
    hashes of its tokens in the KV cache."""

    key: Key
    length: int
    hashes: BlockHashes


class PrefixCache:
    """The sequence ids, the texts under them, and the sharing of their cells.

    Every change of the KV cache goes through this class, so both always agree. Entries are ordered
    by their last use. Equal tokens mean equal cells only under the same key. `n_cells` is None for
    separate caches, in which the ids are the slots' numbers. A text that can't be cut keeps at most
    `n_checkpoints`. Evicted texts are offered to `tier`, and their beginnings remembered.
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
        self._index: KeyedIndex[Key] = KeyedIndex()
        self._texts: dict[int, _IndexedText] = {}  # by sequence id
        self._cells = None if n_cells is None else Cells(n_cells)
        self._checkpoints = Checkpoints(n_checkpoints)
        self.n_rows = 0
        """The number of rows that were evaluated so far; `evaluated` counts them."""
        self.evicted = EvictedTexts()
        """The beginnings of texts that are no longer in the KV cache."""

    # ---- looking -------------------------------------------------------------------------

    @property
    def entries(self) -> dict[int, CachedText]:
        """The finished texts by sequence id, the least recently used one first."""
        return self._entries

    @property
    def n_bytes_checkpoints(self) -> int:
        return self._checkpoints.n_bytes

    @property
    def checkpoints(self) -> dict[int, list[Checkpoint]]:
        """The checkpoints of each text that has any, by sequence id; the shortest first."""
        return self._checkpoints.of

    def matches(self, tokens: TokenArray, key: Key) -> dict[int, int]:
        """The length of the longest common prefix of `tokens` with each text. Includes running
        texts, even if their prompts aren't evaluated that far."""
        return self._index.matches(tokens, key)

    def divergence(self, tokens: TokenArray, key: Key, n_rest: int) -> Divergence:
        """Where `tokens` diverges from all texts with `key`; as in `RadixIndex`."""
        return self._index.divergence(tokens, key, n_rest)

    def n_indexed(self, id: int) -> int:
        """The number of tokens of a text that `matches` compares: of a running text, the tokens
        that it had when it got its slot."""
        return self._texts[id].length

    def hashes(self, id: int) -> BlockHashes:
        """The hashes of a running or finished text."""
        return self._texts[id].hashes

    def keys(self) -> Iterator[Key]:
        """The keys of all texts, the newest key first."""
        return iter(self._index)

    def common_prefix(self, sequence: int, tokens: TokenArray, key: Key) -> int:
        """The length of the longest common prefix of `tokens` with a finished text, including moved
        tokens."""
        entry = self._entries.get(sequence)
        return 0 if entry is None or entry.key != key else common_prefix(entry.tokens, tokens)

    @property
    def has_unused(self) -> bool:
        return bool(self._unused)

    @property
    def n_free(self) -> int | None:
        """The number of free cells; None for separate caches."""
        return self._cells.n_free if self._cells is not None else None

    def n_cells_of(self, ids: Iterable[int]) -> int:
        """The number of cells of these texts, shared ones counted once; 0 for separate caches."""
        return self._cells.n_of(ids) if self._cells is not None else 0

    def n_covered(self, n_more: int) -> int:
        """As `Cells.n_covered`; 0 for separate caches."""
        return self._cells.n_covered(n_more) if self._cells is not None else 0

    def idle_shares(self, running: Iterable[int]) -> dict[int, float]:
        """As `Cells.shares`, for each finished text beside the running ones, the least recently
        used one first."""
        return {} if self._cells is None else self._cells.shares(self._entries, running)

    def reachable(self, id: int, n: int) -> int:
        """The largest length, at most `n`, to which a text can be cut or shared."""
        if self._kv.is_cuttable or n >= self._kv.first_cut(id):
            return n
        return self._checkpoints.last(id, n)

    # ---- running texts -------------------------------------------------------------------

    def open(self, wanted: int | None, tokens: TokenArray, key: Key) -> int:
        """Take an unused sequence id (`wanted`, if given) for a text that begins with `tokens`. An
        unused id must exist."""
        id = self._unused.pop() if wanted is None else wanted
        if wanted is not None:
            self._unused.remove(wanted)
        self._reindex(id, tokens, key)
        return id

    def reopen(self, id: int, tokens: TokenArray, key: Key) -> CachedText:
        """Make a finished text the beginning of the running text `tokens`. Returns the finished
        text."""
        entry = self._entries.pop(id)
        if common_prefix(entry.tokens, tokens) < len(entry.tokens):
            self._remember(entry)
        self._reindex(id, tokens, key)
        return entry

    def copy(self, source: int, target: int, n: int) -> bool:
        """Share or copy the first `n` tokens of `source` to `target`, which was just opened. False
        if that is impossible."""
        if not self._kv.copy(source, target, n, self._checkpoints.at(source, n)):
            return False
        self._checkpoints.inherit(source, target, n)
        inherited = self._texts[source].hashes.beginning(n)
        self._texts[target] = self._texts[target]._replace(hashes=inherited)
        if self._cells is not None:
            self._cells.share(source, target, n)
        if source in self._entries:
            self._entries[source] = self._entries.pop(source)._replace(used_at=self.n_rows)
        return True

    def cut(self, id: int, start: int) -> bool:
        """Remove the tokens of a running text from number `start` on. If the memory can't be cut
        there, removes all tokens of the text and returns False."""
        done = self._kv.remove(id, start)
        if not done and (state := self._checkpoints.at(id, start)) is not None:
            done = self._kv.rewind(id, start, state)
        if not done:
            self._kv.remove(id, 0)
        self._checkpoints.cut(id, start if done else 0)
        self._texts[id].hashes.cut(start if done else 0)
        if self._cells is not None:
            self._cells.cut(id, start if done else 0)
        return done

    def cut_out(self, id: int, start: int, stop: int) -> bool:
        """Remove tokens `start` up to `stop` (exclusive) of a running text, and move the tokens
        after them. False if the memory can't move cells, or another running text shares them."""
        if not self.is_alone(id, stop) or not self._kv.cut_out(id, start, stop):
            return False
        if self._cells is not None:
            self._cells.cut(id, start, stop)
        self._checkpoints.cut(id, start)
        self._texts[id].hashes.cut(start)
        return True

    def save(self, id: int, n: int) -> None:
        """Make a checkpoint of a running text at its end, `n`, unless it has one there."""
        if self._checkpoints.at(id, n) is not None:
            return
        state = self._kv.save(id)
        if state is not None:
            self._checkpoints.add(id, n, state)

    def restored(self, id: int, length: int, n: int, checkpoints: Sequence[Checkpoint]) -> bool:
        """Register a restored text with `length` cells and these checkpoints, and cut it to its
        first `n` tokens. If it can't be cut there, all its tokens are removed, and the result is
        False."""
        self.grow(id, length)
        self._checkpoints.of[id] = [*checkpoints]  # without the limit: `cut` may need any of them
        return self.cut(id, n)

    def adopt(self, id: int, checkpoints: Sequence[Checkpoint]) -> None:
        """Set the checkpoints of a text that was restored as a whole."""
        self._checkpoints.put(id, checkpoints)

    def is_alone(self, id: int, start: int) -> bool:
        """True if no other text shares the cells of a running text from `start` on. First evicts
        finished texts that share them."""
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
        """Replace the tokens of a running text by `tokens`, after a context shift."""
        self._reindex(id, tokens, self._texts[id].key)

    def grow(self, id: int, n: int) -> None:
        """Record that `n` more tokens of a running text are in the KV cache."""
        if self._cells is not None:
            self._cells.grow(id, n)

    def close(self, id: int, entry: CachedText) -> None:
        """Turn a running text into a finished one, the most recently used of all."""
        if not len(entry.tokens):
            self.drop(id)
            return
        for other in list(self._entries):
            if self._is_superseded(other, entry):
                self.drop(other)
        self._entries[id] = entry._replace(tokens=entry.tokens.copy(), used_at=self.n_rows)
        self._reindex(id, entry.tokens, entry.key)
        if entry.limit:
            self._enforce_limit(id)

    def _is_superseded(self, id: int, by: CachedText) -> bool:
        """True if a finished text is redundant because of the longer text `by`."""
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
        self._index.remove(self._texts.pop(id).key, id)
        self._unused.append(id)

    def give_up(self, id: int) -> None:
        """Evict a finished text, after offering its exact tokens to the second tier."""
        entry = self._entries[id]
        if self._tier is not None and entry.n_exact < len(entry.tokens):
            self.shorten(id, entry.n_exact)
        if id in self._entries:
            self.offer(id)
            self.forget(id)

    def forget(self, id: int) -> None:
        """Drop a finished text, and remember that it was cached."""
        self._remember(self._entries[id])
        self.drop(id)

    def _remember(self, entry: CachedText) -> None:
        self.evicted.add(entry.tokens[: entry.n_exact], entry.key)

    def offer(self, id: int) -> bool:
        """Offer a finished text that is about to be cut to the second tier, if all of it is exact.
        True if the tier has the text now."""
        entry = self._entries[id]
        if self._tier is None or entry.n_exact < len(entry.tokens):
            return False
        kept = self.checkpoints.get(id, ())
        is_kept = self._tier.offer(id, entry.tokens, entry.key, kept, entry.owner)
        if entry.limit:
            self._trim_tier(entry, self._n_bytes_of_owner(entry.owner, without=id))
        return is_kept

    def _reindex(self, id: int, tokens: TokenArray, key: Key) -> None:
        old = self._texts.get(id)
        hashes = BlockHashes() if old is None else old.hashes
        if old is not None and old.key != key:
            self._index.remove(old.key, id)
            hashes = BlockHashes()
        self._texts[id] = _IndexedText(key, len(tokens), hashes)
        self._index.insert(key, id, tokens)

    # ---- finished texts ------------------------------------------------------------------

    def of_slot(self, slot: int) -> int | None:
        """The sequence id of the last text of an idle slot, if it is still cached."""
        return next((id for id, entry in self._entries.items() if entry.slot == slot), None)

    def unlabel(self, slot: int) -> None:
        """Record that the slot serves another text from now on."""
        id = self.of_slot(slot)
        if id is not None:
            # Assigned in place: dict order is the order of use.
            self._entries[id] = self._entries[id]._replace(slot=-1)

    def shorten(self, id: int, n: int) -> None:
        """Keep only the first `n` tokens of a finished text."""
        entry = self._entries[id]
        if n and self.cut(id, n):
            shorter = entry._replace(tokens=entry.tokens[:n], n_exact=ALL, n_bytes=0)
            self._entries[id] = shorter
            self._reindex(id, entry.tokens[:n], entry.key)
        else:
            self.drop(id)

    # ---- limits of owners ----------------------------------------------------------------

    def _enforce_limit(self, newest: int) -> None:
        """Drop the least recently used texts of the owner of `newest` until all of them together
        are within its limit: first those of the second tier. `newest` itself stays."""
        entry = self._entries[newest]
        n_bytes = self._n_bytes_of_owner(entry.owner)
        in_tier = self._trim_tier(entry, n_bytes)
        for id, each in list(self._entries.items()):
            if n_bytes + in_tier <= entry.limit:
                break
            if each.owner == entry.owner and id != newest:
                n_bytes -= each.n_bytes
                self.forget(id)

    def _trim_tier(self, entry: CachedText, n_bytes: int) -> int:
        """Drop texts of an owner from the second tier until they and the `n_bytes` of its other
        texts are within its limit. Returns the size of the remaining ones."""
        tier = self._tier
        if tier is None:
            return 0
        while (size := tier.n_bytes_of(entry.owner)) and n_bytes + size > entry.limit:
            if not tier.drop_oldest_of(entry.owner):
                break
        return size

    def _n_bytes_of_owner(self, owner: int, without: int | None = None) -> int:
        """The size of the finished texts of `owner` here, with their checkpoints, and without the
        text `without`. Shared cells count for each text."""
        owned = [id for id, entry in self._entries.items() if entry.owner == owner]
        return sum(self.n_bytes_of(id) for id in owned if id != without)

    def n_bytes_of(self, id: int) -> int:
        """The size of a finished text with its checkpoints."""
        entry = self._entries[id]
        if not entry.n_bytes:
            states = sum(each.state.nbytes for each in self.checkpoints.get(id, ()))
            entry = self._entries[id] = entry._replace(n_bytes=self._kv.state_size(id) + states)
        return entry.n_bytes

    # ---- room ----------------------------------------------------------------------------

    def make_room(self, n_tokens: int) -> int:
        """Evict finished texts until `n_tokens` cells are free. Returns how many are free, at most
        `n_tokens`."""
        cells = self._cells
        if cells is None:
            return n_tokens
        while cells.n_free < n_tokens:
            if not self.evict():
                return cells.n_free
        return n_tokens

    def make_id(self, keep: int | None = None) -> bool:
        """Make sure that a sequence id is unused, if necessary by evicting another text than
        `keep`. False if that is impossible."""
        if self._unused:
            return True
        victim = next((id for id in self._entries if id != keep), None)
        if victim is None:
            return False
        self.give_up(victim)
        return True

    def evict(self) -> bool:
        """Evict the least recently used text that frees cells (cells shared with other texts aren't
        freed), or else the least recently used one. False if there is no finished text."""
        cells = self._cells
        victim = next(
            (id for id in self._entries if cells is None or cells.n_alone(id)),
            next(iter(self._entries), None),
        )
        if victim is None:
            return False
        self.give_up(victim)
        return True
