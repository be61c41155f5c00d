"""Placement finds the longest cached prefix of a text, in another sequence or in the second tier,
and decides whether it is taken over, shared, copied or restored.

Uses only plain data and the `KVCache` protocol, as `engine.worker.scheduling.scheduler` does, which
decides which sequence gets a slot.
"""

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from typing import NamedTuple

from specllama.engine.worker.cache.block_hashes import HashedText
from specllama.engine.worker.cache.checkpoints import Checkpoint
from specllama.engine.worker.cache.prefix_cache import PrefixCache
from specllama.engine.worker.cache.texts import ALL, CachedText, Found, Key, Tier
from specllama.engine.worker.scheduling.memory import CacheLayout, Cutting, PrefixOrigin
from specllama.engine.worker.scheduling.misses import Misses
from specllama.engine.worker.scheduling.sequences import Sequence, uncut
from specllama.engine.worker.tokens import TokenArray, common_prefix, find_run

# ---- The last text of each idle slot, for the slot actions save, restore and erase.


class IdleTexts:
    """The last texts of idle slots. They stay cached until they are evicted."""

    def __init__(self, cache: PrefixCache, layout: CacheLayout) -> None:
        self._cache = cache
        self._layout = layout

    def erase(self, slot: int) -> int:
        """Forget the cached text of an idle slot. Returns its number of tokens."""
        id = self._cache.of_slot(slot)
        if id is None:
            return 0
        n_tokens = len(self._cache.entries[id].tokens)
        self._cache.forget(id)
        return n_tokens

    def cached(self, slot: int) -> tuple[int, CachedText] | None:
        """The sequence id and the last text of an idle slot; None if it isn't cached any more."""
        id = self._cache.of_slot(slot)
        return None if id is None else (id, self._cache.entries[id])

    def adopt(
        self,
        slot: int,
        tokens: TokenArray,
        n_exact: int,
        key: Key,
        checkpoints: SequenceOf[Checkpoint] = (),
    ) -> int | None:
        """Replace the text of an idle slot by a text that is to be restored. Returns the sequence
        id with the cells for it; None if there is no room. If the restore fails, the caller calls
        `erase`."""
        self.erase(slot)
        if self._cache.make_room(len(tokens)) < len(tokens) or not self._cache.make_id():
            return None
        id = self._cache.open(self._layout.id_of(slot), tokens, key)
        self._cache.grow(id, len(tokens))
        self._cache.adopt(id, checkpoints)
        self._cache.close(id, CachedText(tokens, slot, n_exact, key))
        return id

    def forget_moved(self, slot: int) -> None:
        """Cut the text of an idle slot to its exact tokens."""
        found = self.cached(slot)
        if found is not None:
            id, entry = found
            if entry.n_exact < len(entry.tokens):
                self._cache.shorten(id, entry.n_exact)


# ---- Context shift and chunk reuse: which KV cells to drop, so that the cells after them are used
# at new positions.
#
# llama.cpp rotates the keys of moved cells to their new positions, but the contents of the cells
# were computed with the dropped tokens still in place. A text that continues from moved cells
# therefore only approximates the model's output for the remaining tokens.


MIN_FREE = 4  # minimum of cells after the kept tokens, including one for the next token


class CachedSpan(NamedTuple):
    """`length` tokens, cached at `source` and needed at `target` <= `source`."""

    source: int
    target: int
    length: int


def context_shift(n_past: int, n_ctx: int, n_keep: int, n_discard: int) -> tuple[int, int]:
    """The number of tokens to keep at the beginning of a full context, and the number to drop after
    them.

    `n_past` (n_ctx - 1) tokens are cached. `n_discard` 0 means half of the tokens that aren't kept.
    At least one token is dropped, and at least one remains after the kept ones.
    """
    n_keep = min(n_keep, n_ctx - MIN_FREE)
    n_left = n_past - n_keep
    return n_keep, min(n_discard or n_left // 2, n_left - 1)


def reusable_chunks(
    cached: TokenArray, prompt: TokenArray, start: int, n_min: int
) -> list[CachedSpan]:
    """Chunks of at least `n_min` tokens of `cached` that continue `prompt` from `start` on.

    Both are equal before `start`. As in llama-server: each chunk is the first match after the
    previous one, and the chunks follow each other in `prompt` without a gap.
    """
    chunks: list[CachedSpan] = []
    source = target = start
    haystack = cached.tobytes()
    while target + n_min <= len(prompt):
        needle = prompt[target : target + n_min].tobytes()
        source = find_run(haystack, needle, source)
        if source < 0:
            break
        length = common_prefix(cached[source:], prompt[target:])
        chunks.append(CachedSpan(source, target, length))
        source += length
        target += length
    return chunks


MIN_KEEP = 0.5
"""Part of a finished text. If a sequence takes the text over and keeps less than this part, the
text is offered to the second tier before it is cut."""


class Placement:
    """Gives sequences the cells with cached beginnings of their texts.

    `running` are the sequences in slots, by sequence id; the scheduler updates it.
    """

    def __init__(
        self,
        cache: PrefixCache,
        layout: CacheLayout,
        cutting: Cutting,
        tier: Tier | None,
        running: Mapping[int, Sequence],
        *,
        n_ctx: int,
    ) -> None:
        self._cache = cache
        self._layout = layout
        self._cutting = cutting
        self._tier = tier
        self._running = running
        self._misses = Misses(cache, tier, running)
        self._n_ctx = n_ctx

    def find(self, sequence: Sequence) -> PrefixOrigin:
        """The longest prefix that is cached now, and how many more tokens of it soon will be."""
        if not sequence.cache_prompt:
            return PrefixOrigin()
        longest, soon, best, most = 0, 0, -1, 0
        limit = len(sequence.tokens) - 1  # the last token is evaluated, for its logits
        entries = self._cache.entries
        for id, n_same in self._cache.matches(sequence.tokens.view(), sequence.key).items():
            n_same = uncut(sequence.spans, min(n_same, limit))
            most = max(most, n_same)
            running = self._running.get(id)
            if running is None:
                n = self._cache.reachable(id, min(n_same, entries[id].n_exact))
            else:
                n = self._cache.reachable(id, min(n_same, running.n_given))
                if not running.generating and n < n_same <= running.n_exact:
                    soon = max(soon, self._cutting.n_soon(running, n, n_same))
            # At equal length, prefer a finished text: it may be taken over.
            if n > longest or (n == longest and best in self._running):
                longest, best = n, id
        return PrefixOrigin(best, longest, max(0, soon - longest), most)

    def usable(self) -> Iterator[HashedText]:
        """The beginnings of cached texts that a new sequence could use, the most recently used ones
        first: of running texts, finished ones, and those in the second tier. Memory that can't be
        cut may have to go back to a checkpoint before the end of the common tokens."""
        cache = self._cache
        for id, sequence in reversed([*self._running.items()]):
            n = cache.reachable(id, min(sequence.n_given, cache.n_indexed(id)))
            yield HashedText(sequence.tokens.view(0, n), sequence.key, cache.hashes(id))
        for id, entry in reversed(cache.entries.items()):
            n = cache.reachable(id, min(len(entry.tokens), entry.n_exact))
            yield HashedText(entry.tokens[:n], entry.key, cache.hashes(id))
        if self._tier is not None:
            yield from self._tier.restorable()

    def find_in_second_tier(self, sequence: Sequence, source: PrefixOrigin) -> Found | None:
        """A longer prefix in the second tier, if there is room to restore it."""
        if self._tier is None or not sequence.cache_prompt:
            return None
        # The last token is always evaluated, for its logits.
        text = sequence.tokens.view(0, uncut(sequence.spans, len(sequence.tokens) - 1))
        found = self._tier.find(text, sequence.key, source.n) if len(text) else None
        if found is None or found.length > self._n_ctx:
            return None
        has_room = self._layout.has_room(self._cache, self._running, found.length)
        return found if has_room else None

    def place(
        self, sequence: Sequence, source: PrefixOrigin, found: Found | None, slot: int
    ) -> None:
        """Give `sequence`, which will be in `slot`, a sequence id and its prefix: from the second
        tier if `found` is set, else from `source`."""
        nearest = None
        if not sequence.generating:
            nearest = self._misses.look(sequence, source.n if found is None else found.n)
            sequence.n_shared = sequence.n_restored = sequence.n_from_files = 0
        if found is not None:
            self._restore(sequence, found, slot)
        elif (
            sequence.cache_prompt
            and (taken := self._layout.to_take(self._cache, sequence, source, slot)) is not None
        ):
            self._take(sequence, taken)
        else:
            self._share(sequence, source, slot)
        if not sequence.generating:
            n_cached = min(sequence.n_past, sequence.n_prompt)
            sequence.n_cached = max(0, n_cached - sequence.n_own)
            if not sequence.n_own:
                sequence.miss_reason = self._misses.reason(sequence, nearest)
            sequence.limit_origins()
            self._cutting.begin(
                sequence, lambda: max(source.n_same, self._n_same_in_second_tier(sequence))
            )

    def _n_same_in_second_tier(self, sequence: Sequence) -> int:
        """The length of the longest common prefix with any text in the second tier."""
        if self._tier is None or not sequence.cache_prompt:
            return 0
        n = self._tier.common_prefix(sequence.tokens.view(), sequence.key)
        return uncut(sequence.spans, min(n, len(sequence.tokens) - 1))

    def _take(self, sequence: Sequence, id: int) -> None:
        text, key = sequence.tokens.view(), sequence.key
        n_same = min(self._cache.common_prefix(id, text, key), len(text) - 1)
        n_kept = self._cache.reachable(id, uncut(sequence.spans, n_same))
        if n_kept < MIN_KEEP * len(self._cache.entries[id].tokens):
            self._cache.offer(id)
        entry = self._cache.reopen(id, text, key)
        n_held = n_exact = min(common_prefix(entry.tokens, text), entry.n_exact)
        if sequence.n_reuse and not _has_media(text) and not _has_media(entry.tokens):
            n_held = common_prefix(entry.tokens, text)
            n_held = self._reuse(id, entry.tokens, text, n_held, sequence.n_reuse)
        # The last token must be evaluated again, since its logits aren't kept.
        n_held = self._cache.reachable(id, uncut(sequence.spans, min(n_held, len(text) - 1)))
        sequence.seq_id = id
        sequence.n_past = n_held if self._cache.cut(id, n_held) else 0
        sequence.n_exact = n_exact if n_exact < sequence.n_past else ALL

    def _reuse(self, id: int, cached: TokenArray, text: TokenArray, n_held: int, n_min: int) -> int:
        """Move cached chunks to their positions in `text`. Returns the length of the cached prefix
        after that."""
        moved = 0
        for source, target, length in reusable_chunks(cached, text, n_held, n_min):
            if not self._cache.cut_out(id, target, source - moved):
                break
            moved = source - target
            n_held = target + length
        return n_held

    def _open(self, sequence: Sequence, slot: int, keep: int | None = None) -> int:
        """Open a sequence id without cells, if necessary by evicting another text than `keep`."""
        self._layout.make_id(self._cache, slot, keep)
        wanted = self._layout.id_of(slot)
        return self._cache.open(wanted, sequence.tokens.view(), sequence.key)

    def _restore(self, sequence: Sequence, found: Found, slot: int) -> None:
        assert self._tier is not None
        id = self._open(sequence, slot)
        self._cache.make_room(found.length)
        sequence.seq_id, sequence.n_exact = id, ALL
        checkpoints = self._tier.restore(id, found)
        restored = checkpoints is not None and self._cache.restored(
            id, found.length, found.n, checkpoints
        )
        sequence.n_past = found.n if restored else 0
        if not sequence.generating:
            sequence.n_restored = sequence.n_past
            sequence.n_from_files = sequence.n_past if found.is_file else 0

    def _share(self, sequence: Sequence, source: PrefixOrigin, slot: int) -> None:
        id = self._open(sequence, slot, keep=source.seq_id)
        n = source.n if source.n >= self._layout.least_copy else 0
        sequence.n_past = n if n and self._cache.copy(source.seq_id, id, n) else 0
        sequence.seq_id, sequence.n_exact = id, ALL
        if not sequence.generating:
            sequence.n_shared = sequence.n_past


def _has_media(tokens: TokenArray) -> bool:
    return bool((tokens < 0).any())
