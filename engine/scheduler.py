"""Which tokens go into the next step.

Pure Python over plain data: the KV cache is behind the small `KVCache` protocol, so that
tests can drive thousands of histories against a fake that checks as strictly as llama.cpp.

A sequence is a text and how much of it is in the KV cache (`n_past`). There is one rule for
prompts, for generation and for a preempted sequence that starts again: what is not in the
cache yet has to be evaluated, and the last token's logits give the next token.
"""

from bisect import insort
from dataclasses import dataclass
from typing import Protocol

from engine.prefix_cache import ALL, Key, PrefixCache
from engine.shifting import reusable_chunks
from engine.tokens import TokenArray, TokenBuffer

KEY_STEPS = 4
"""How many steps in a row a key may have while another one waits. Changing the LoRA adapters of
a context costs up to a few milliseconds, so every single step would be too often."""


class KVCache(Protocol):
    def remove(self, sequence: int, start: int) -> bool:
        """Forget the cells of `sequence` from position `start`; False if it can't be cut."""

    def cut_out(self, sequence: int, start: int, stop: int) -> bool:
        """Forget the cells of `sequence` from position `start` up to `stop`, and move those
        behind them to `start`; False if this can't be done, and nothing was."""


@dataclass(eq=False, kw_only=True)
class Sequence:
    """A request's text on its way. `id` also gives its place in the queue.

    `n_past` tokens are in the KV cache of slot `slot` (-1: waiting). `n_cached` of the prompt
    were there already when it was admitted. It is `generating` once its first token is
    sampled. `n_reuse`, if not 0, is the length from which on cached chunks may be moved to
    where the prompt has them; `n_exact` is that of `prefix_cache.Entry`. Only sequences with the
    same `key` share a step or cells.
    """

    id: int
    tokens: TokenBuffer
    n_prompt: int
    id_slot: int = -1
    cache_prompt: bool = True
    n_reuse: int = 0
    n_exact: int = ALL
    key: Key = ()
    n_past: int = 0
    n_cached: int = 0
    slot: int = -1
    generating: bool = False

    @property
    def n_pending(self) -> int:
        """Tokens still to be evaluated; 1 for a sequence that just generates."""
        return len(self.tokens) - self.n_past


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens `start` up to `stop` of `sequence`, to be evaluated in the next step."""

    sequence: Sequence
    start: int
    stop: int

    @property
    def is_last(self) -> bool:
        """Whether the logits of the last token are wanted."""
        return self.stop == len(self.sequence.tokens)


class Scheduler:
    """Slots, the waiting line, and the cells of the KV cache.

    `n_cells` is what all sequences share (unified), or None if each has `n_ctx` of its own.
    `similarity` is the part of a prompt that a slot's old text has to share to be preferred
    over the least recently used slot.
    """

    def __init__(
        self,
        kv: KVCache,
        *,
        n_slots: int,
        n_ctx: int,
        n_cells: int | None,
        n_batch: int,
        similarity: float = 0.1,
        continuous: bool = True,
    ) -> None:
        self.n_slots = n_slots
        self.n_ctx = n_ctx
        self.cache = PrefixCache()
        self._kv = kv
        self._n_cells = n_cells
        self._n_batch = n_batch
        self._similarity = similarity
        self._continuous = continuous
        self._waiting: list[Sequence] = []  # by id
        self._active: dict[int, Sequence] = {}  # by slot, those admitted first in front
        self._idle = list(range(n_slots))  # least recently used first
        self._turns: list[Key] = []  # keys of the active sequences, whose turn it is in front
        self._steps = 0  # that it has had in a row

    # ---- what comes and goes -------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._active)

    @property
    def active(self) -> list[Sequence]:
        """The sequences in slots, those admitted first in front."""
        return list(self._active.values())

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    @property
    def n_cells_used(self) -> int:
        """Tokens in the KV cache, of running and of cached texts."""
        return self.cache.n_tokens + sum(s.n_past for s in self._active.values())

    def in_slot(self, slot: int) -> Sequence | None:
        return self._active.get(slot)

    def submit(self, sequence: Sequence) -> None:
        """Put `sequence` (1 <= tokens < n_ctx) into the waiting line."""
        insort(self._waiting, sequence, key=lambda waiting: waiting.id)

    def cancel(self, id: int) -> Sequence | None:
        """Take the sequence out, wherever it is; its cells stay as cache."""
        for sequence in self._waiting:
            if sequence.id == id:
                self._waiting.remove(sequence)
                return sequence
        for sequence in self._active.values():
            if sequence.id == id:
                self.finish(sequence)
                return sequence
        return None

    def finish(self, sequence: Sequence) -> None:
        """Free the slot of `sequence`; what it has in the KV cache stays as cache."""
        held = sequence.tokens.view(0, sequence.n_past)
        self.cache.put(sequence.slot, held, n_exact=sequence.n_exact, key=sequence.key)
        self._free_slot(sequence)

    def discard(self, sequence: Sequence) -> None:
        """Free the slot of `sequence` and its cells, whose state is not to be trusted."""
        self._kv.remove(sequence.slot, 0)
        self._free_slot(sequence)

    def shift(self, sequence: Sequence, n_keep: int, n_discard: int) -> bool:
        """Drop the `n_discard` tokens of an active sequence that follow its first `n_keep`, from
        its text and from the KV cache, which must hold them. False if the memory can't do it."""
        stop = n_keep + n_discard
        if not self._kv.cut_out(sequence.slot, n_keep, stop):
            return False
        sequence.tokens.remove(n_keep, stop)
        sequence.n_past -= n_discard
        sequence.n_exact = min(sequence.n_exact, n_keep)
        return True

    def _free_slot(self, sequence: Sequence) -> None:
        del self._active[sequence.slot]
        self._idle.append(sequence.slot)
        sequence.slot = -1

    # ---- idle slots ------------------------------------------------------------------------

    def erase(self, slot: int) -> int:
        """Forget the cached text of an idle slot; how many tokens it had."""
        n_tokens = len(self.cache.take(slot).tokens)
        self._kv.remove(slot, 0)
        return n_tokens

    def make_room_for(self, slot: int, n_tokens: int) -> bool:
        """Empty an idle slot, and make sure that `n_tokens` cells are free for it."""
        self.erase(slot)
        return self._make_room(n_tokens) >= n_tokens

    def adopt(self, slot: int, tokens: TokenArray, n_exact: int, key: Key) -> None:
        """An idle slot, empty before, holds `tokens` now; see `prefix_cache.Entry`."""
        self.cache.put(slot, tokens, n_exact=n_exact, key=key)

    def forget_moved(self, slot: int) -> None:
        """Keep of the text in an idle slot only the tokens that are exact."""
        entry = self.cache.take(slot)
        n_kept = min(entry.n_exact, len(entry.tokens))
        if not self._kv.remove(slot, n_kept):
            self._kv.remove(slot, 0)
            n_kept = 0
        self.cache.put(slot, entry.tokens[:n_kept], key=entry.key)

    # ---- the step ------------------------------------------------------------------------

    def plan(self) -> list[Chunk]:
        """Admit who can be admitted, and say what to evaluate.

        At most `n_batch` tokens, at most the free cells, all with the same key; one token of
        every generating sequence first. The caller evaluates the chunks and reports with
        `advance`, or calls `relieve` if the KV cache had no room after all.
        """
        self._admit()
        for key in self._take_turns():
            if chunks := self._plan_key(key):
                return chunks
        if self._active:
            # Unfinished prompts hold every cell and none can go on: the youngest gives way.
            self._preempt_youngest()
            return self.plan()
        return []

    def _take_turns(self) -> list[Key]:
        """The keys of all active sequences in the order of their turns."""
        keys = dict.fromkeys(s.key for s in self._active.values())
        if len(keys) < 2:
            self._turns, self._steps = list(keys), 0
            return self._turns
        last = self._turns[:1]
        known = [key for key in self._turns if key in keys]
        self._turns = known + [key for key in keys if key not in known]
        self._steps = self._steps + 1 if self._turns[:1] == last else 1
        if self._steps > KEY_STEPS:
            self._turns.append(self._turns.pop(0))
            self._steps = 1
        return self._turns

    def _plan_key(self, key: Key) -> list[Chunk]:
        """What to evaluate of the sequences with `key`; nothing if none of them can go on."""
        ready = [
            s for s in self._active.values() if s.generating and s.n_pending == 1 and s.key == key
        ]
        while self._make_room(len(ready)) < len(ready):
            preempted = self._preempt_youngest()
            if preempted in ready:
                ready.remove(preempted)
        chunks = [Chunk(s, s.n_past, s.n_past + 1) for s in ready]
        if chunks and not self._continuous:
            return chunks
        n_planned = len(chunks)
        for sequence in self._active.values():
            if sequence.key != key or sequence in ready:
                continue
            wanted = min(sequence.n_pending, self._n_batch - n_planned)
            n_tokens = self._make_room(n_planned + wanted) - n_planned
            if n_tokens <= 0:
                break
            chunks.append(Chunk(sequence, sequence.n_past, sequence.n_past + n_tokens))
            n_planned += n_tokens
        return chunks

    def advance(self, chunks: list[Chunk]) -> None:
        """The chunks are in the KV cache now."""
        for chunk in chunks:
            chunk.sequence.n_past = chunk.stop

    def relieve(self) -> bool:
        """Make room after llama.cpp found none where the accounts saw some.

        False if nothing is left to give up but the only running sequence.
        """
        if self._evict_one():
            return True
        if len(self._active) > 1:
            self._preempt_youngest()
            return True
        return False

    # ---- admission -----------------------------------------------------------------------

    def _admit(self) -> None:
        for sequence in list(self._waiting):
            if not self._idle:
                break
            slot = self._choose_slot(sequence)
            if slot is None:  # waits for its own slot; others may pass
                continue
            if not self._fits(sequence):
                break
            self._waiting.remove(sequence)
            self._place(sequence, slot)

    def _choose_slot(self, sequence: Sequence) -> int | None:
        if sequence.id_slot >= 0:
            return sequence.id_slot if sequence.id_slot in self._idle else None
        prompt = sequence.tokens.view()
        best, longest = self._idle[0], 0
        if self._similarity > 0:
            for slot in self._idle:
                n = self.cache.common_prefix(slot, prompt, sequence.key)
                if n > longest and n > self._similarity * len(prompt):
                    best, longest = slot, n
        return best

    def _place(self, sequence: Sequence, slot: int) -> None:
        n_shared, n_exact = 0, ALL
        text, moving = sequence.tokens.view(), sequence.n_reuse > 0
        if sequence.cache_prompt:
            n_shared = self.cache.common_prefix(slot, text, sequence.key, approximate=moving)
        cached = self.cache.take(slot)
        if sequence.cache_prompt and moving and cached.key == sequence.key:
            n_exact = min(cached.n_exact, n_shared)
            n_shared = self._reuse(slot, cached.tokens, text, n_shared, sequence.n_reuse)
        # The last token is evaluated again: its logits are not kept.
        n_shared = min(n_shared, len(text) - 1)
        if not self._kv.remove(slot, n_shared):
            self._kv.remove(slot, 0)
            n_shared = 0
        self._idle.remove(slot)
        self._active[slot] = sequence
        sequence.slot = slot
        sequence.n_past = n_shared
        sequence.n_exact = n_exact if n_exact < n_shared else ALL
        if not sequence.generating:
            sequence.n_cached = min(n_shared, sequence.n_prompt)

    def _reuse(
        self, slot: int, cached: TokenArray, text: TokenArray, n_shared: int, n_min: int
    ) -> int:
        """Move cached chunks to where `text` has them; how much of it the slot holds then."""
        moved = 0
        for source, target, length in reusable_chunks(cached, text, n_shared, n_min):
            if not self._kv.cut_out(slot, target, source - moved):
                break
            moved = source - target
            n_shared = target + length
        return n_shared

    # ---- cells ---------------------------------------------------------------------------

    def _fits(self, sequence: Sequence) -> bool:
        """Whether the whole text fits beside what the running ones already need."""
        if self._n_cells is None:
            return True
        needed = sum(len(running.tokens) for running in self._active.values())
        return needed + len(sequence.tokens) <= self._n_cells or not self._active

    def _make_room(self, n_tokens: int) -> int:
        """Evict cached texts until `n_tokens` cells are free; how many of them are."""
        if self._n_cells is None:
            return n_tokens
        held = sum(s.n_past for s in self._active.values())
        while held + self.cache.n_tokens + n_tokens > self._n_cells:
            if not self._evict_one():
                return self._n_cells - held
        return n_tokens

    def _evict_one(self) -> bool:
        """Forget the cached text that was used longest ago."""
        slot = self.cache.least_recently_used()
        if slot is None:
            return False
        self.cache.take(slot)
        self._kv.remove(slot, 0)
        return True

    def _preempt_youngest(self) -> Sequence:
        """Send the sequence admitted last back to the waiting line; it keeps its text."""
        sequence = next(reversed(self._active.values()))
        self.discard(sequence)
        sequence.n_past = 0
        self.submit(sequence)
        return sequence
