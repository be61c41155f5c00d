"""The scheduler plans which tokens go into the next step.

Pure Python over plain data: it accesses the KV cache through the small `KVCache` protocol, so tests
can run thousands of histories against a fake that checks as strictly as llama.cpp.

A sequence is a text and how much of it is in the KV cache (`n_past`). One rule covers prompts,
generation and restarts after preemption: the tokens that are not in the cache are evaluated, and
the last token's logits give the next token.

A prefix that is cached in another sequence is shared, not evaluated
(`engine.worker.cache.prefix_cache`). If another sequence, the leader, is about to evaluate a common
prefix, a new sequence waits for it and then shares it. If the leader is cancelled, the next
sequence becomes the leader and continues from there.

Memory that can't be cut (`KVCache.is_cuttable`) can only go back to checkpoints. These are made
near the end of prompts and where two texts diverge, so chunks end there.

`engine.worker.scheduling.sequences` has the rules for chunks of media. A sequence waits for
embeddings in its slot, while the others advance.

After the token of a generating sequence, a chunk can have proposed tokens
(`engine.worker.scheduling.sharing`). They are taken back if the sequence leaves its slot or loses a
part of its text.
"""

from collections.abc import Sequence as SequenceOf

from specllama.engine.worker.cache.checkpoints import Checkpoint
from specllama.engine.worker.cache.prefix_cache import PrefixCache
from specllama.engine.worker.cache.texts import CachedText, Key, KVCache, Tier
from specllama.engine.worker.scheduling.idle import IdleMover
from specllama.engine.worker.scheduling.memory import (
    cutting_of,
    layout_of,
)
from specllama.engine.worker.scheduling.placement import (
    IdleTexts,
)
from specllama.engine.worker.scheduling.sequences import Chunk, Phase, Sequence, uncut
from specllama.engine.worker.scheduling.sharing import AdapterTurns, Ahead, PrefillPlanner, first_of
from specllama.engine.worker.scheduling.slots import SlotTable
from specllama.engine.worker.tokens import TokenArray


class Scheduler:
    """Slots, the queue of waiting requests, and the cells of the KV cache.

    `n_cells` is the number of cells that all sequences share (unified), or None if each slot has
    `n_ctx` of its own. `n_sequences` is the number of sequence ids for running and cached texts
    together; without a unified cache it is `n_slots`. A slot whose cached text shares more than
    `similarity` of a prompt is preferred over the least recently used slot. Each text that can't be
    cut keeps at most `n_checkpoints`, of which those in the middle of its prompt are at least
    `checkpoint_step` tokens apart. `saves_idle`: whether finished texts leave the cache for `tier`
    (`always` of `IdleMover`).
    """

    def __init__(
        self,
        kv: KVCache,
        *,
        n_slots: int,
        n_ctx: int,
        n_cells: int | None,
        n_batch: int,
        n_sequences: int | None = None,
        similarity: float = 0.1,
        n_checkpoints: int = 0,
        checkpoint_step: int = 0,
        saves_idle: bool | None = None,
        continuous: bool = True,
        tier: Tier | None = None,
    ) -> None:
        self.n_slots = n_slots
        self.n_ctx = n_ctx
        n_ids = n_slots if n_sequences is None or n_cells is None else n_sequences
        self.cache = PrefixCache(kv, n_ids, n_cells, n_checkpoints, tier)
        self._layout = layout_of(n_cells)
        self._cutting = cutting_of(kv, self.cache, n_checkpoints, checkpoint_step)
        self.ahead = Ahead(self.cache, self._layout, self._cutting, n_batch=n_batch, n_ctx=n_ctx)
        """The proposed tokens."""
        self.texts = IdleTexts(self.cache, self._layout)
        """The last texts of idle slots."""
        self._n_batch = n_batch
        self._continuous = continuous
        is_unified = n_cells is not None
        self._idle = IdleMover(self.cache, tier, is_unified=is_unified, always=saves_idle)
        self.n_paused = 0
        self.slots = SlotTable(
            self.cache,
            self._layout,
            self._cutting,
            tier,
            self.finish,
            n_slots=n_slots,
            n_ctx=n_ctx,
            similarity=similarity,
        )
        """The sequences in slots, and the waiting ones."""
        self._active = self.slots.active
        self._turns = AdapterTurns()
        self._prefill_planner = PrefillPlanner(self.cache, self._layout, n_batch=n_batch)
        self._is_full = False  # a sequence was preempted, as llama.cpp had no cells

    # ---- submit, cancel, finish -----------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return bool(self.slots.queue.n_waiting or self._active)

    @property
    def active(self) -> list[Sequence]:
        """The sequences in slots, in the order of their admission."""
        return list(self._active.values())

    @property
    def n_waiting(self) -> int:
        return self.slots.queue.n_waiting

    @property
    def n_cells_used(self) -> int:
        """The number of cells used by running and cached texts; shared cells count once."""
        return self._layout.n_used(self.cache, self._active.values())

    def in_slot(self, slot: int) -> Sequence | None:
        return self._active.get(slot)

    def submit(self, sequence: Sequence, n_uncached: int | None = None) -> None:
        """Put `sequence` (1 <= tokens < n_ctx) into the queue. `n_uncached` is as in
        `SlotTable.submit`."""
        self.slots.submit(sequence, n_uncached)

    def cancel(self, sequence: Sequence) -> None:
        """Remove the sequence from the queue or from its slot; its cells stay cached. Has no effect
        on a sequence that has ended."""
        if sequence.phase != "ended":
            self._withdraw(sequence, "ended")

    def pause(self, sequence: Sequence) -> None:
        """Take the sequence out of its slot or the queue until `resume`; it keeps its text. Its
        cells stay cached, and are used again unless they are evicted meanwhile. Has no effect on a
        sequence that is paused or has ended."""
        if sequence.phase not in ("paused", "ended"):
            self._withdraw(sequence, "paused")
            sequence.start_again(is_cached=True)
            self.n_paused += 1

    def resume(self, sequence: Sequence) -> None:
        """Queue the sequence again, if it is paused."""
        if sequence.phase == "paused":
            self._withdraw(sequence, "queued")
            self.slots.submit(sequence, 1)

    def _withdraw(self, sequence: Sequence, phase: Phase) -> None:
        """Remove the sequence from its slot, the queue or the paused ones; it enters `phase`."""
        if sequence.slot >= 0:
            self.finish(sequence, phase)
            return
        if sequence.phase == "queued":
            self.slots.withdraw(sequence)
        else:
            self.n_paused -= 1
        sequence.enter(phase)

    def finish(self, sequence: Sequence, phase: Phase = "ended") -> None:
        """Free the slot of `sequence`, which enters `phase`; its cells stay cached."""
        self.ahead.take_back(sequence)
        self._cut_to_whole_spans(sequence)
        held = sequence.tokens.view(0, sequence.n_past)
        owner, limit = sequence.owner, sequence.cache_bytes
        entry = CachedText(held, sequence.slot, sequence.n_exact, sequence.key, owner, limit)
        self.cache.close(sequence.seq_id, entry)
        self._free_slot(sequence, phase)

    def finish_before(self, chunk: Chunk) -> None:
        """Finish the sequence of an evaluated `chunk`, whose text had ended before the chunk: takes
        all tokens of the chunk back."""
        chunk.sequence.n_ahead = chunk.n_tokens
        self.finish(chunk.sequence)

    def _cut_to_whole_spans(self, sequence: Sequence) -> None:
        """If the cached text of an active sequence ends inside a span, drop that part of the
        span."""
        n, id = uncut(sequence.spans, sequence.n_past), sequence.seq_id
        if n < sequence.n_past:
            n = self.cache.reachable(id, n)
            sequence.n_past = n if self.cache.cut(id, n) else 0

    def discard(self, sequence: Sequence, phase: Phase = "ended") -> None:
        """Free the slot of `sequence`, which enters `phase`, and its cells."""
        self.cache.drop(sequence.seq_id)
        self._free_slot(sequence, phase)

    def shift(self, sequence: Sequence, n_keep: int, n_discard: int) -> bool:
        """Drop `n_discard` tokens of an active sequence after its first `n_keep`, from its text and
        from the KV cache, which must contain them. Returns False if the memory can't drop them.

        Cells shared with another running text can't be moved: then the tokens after the gap are
        evaluated again."""
        self.ahead.take_back(sequence)
        self.ahead.drop_proposed(sequence)
        self.slots.charge(sequence)
        stop, id = n_keep + n_discard, sequence.seq_id
        if not self.cache.is_alone(id, stop):
            sequence.n_past = n_keep if self.cache.cut(id, n_keep) else 0
        elif self.cache.cut_out(id, n_keep, stop):
            sequence.n_past -= n_discard
            sequence.n_exact = min(sequence.n_exact, n_keep)
        else:
            return False
        sequence.tokens.remove(n_keep, stop)
        sequence.n_charged = sequence.n_past
        sequence.settle()
        self.cache.retext(sequence.seq_id, sequence.tokens.view())
        return True

    def _free_slot(self, sequence: Sequence, phase: Phase) -> None:
        self.slots.free(sequence, phase)
        self.ahead.drop_proposed(sequence)

    def finished(self) -> list[tuple[int, TokenArray, Key, SequenceOf[Checkpoint]]]:
        """Finishes all running sequences. Returns sequence id, tokens, key and checkpoints of each
        cached text, cut to its exact tokens, the most recently used one first."""
        for sequence in self.active:
            self.finish(sequence)
        for id, entry in list(self.cache.entries.items()):
            if entry.n_exact < len(entry.tokens):
                self.cache.shorten(id, entry.n_exact)
        kept = self.cache.checkpoints
        return [
            (id, entry.tokens, entry.key, kept.get(id, []))
            for id, entry in reversed(self.cache.entries.items())
        ]

    # ---- the step ------------------------------------------------------------------------

    def plan(
        self, n_prompt: int | None = None, n_burst: int = 0, *, now: float = 0.0
    ) -> list[Chunk]:
        """Admit waiting sequences, and return the chunks of the next step.

        The chunks have at most `n_batch` tokens, need at most the free cells, and all have the same
        adapters. One token of every generating sequence comes first. Prompts get at most `n_prompt`
        tokens, or up to `n_burst` if that completes all of them and each one is new (not cut
        before). Proposed tokens get the rest of the batch and of the free cells. Sequences whose
        next token isn't chosen yet, or that wait for embeddings, are left out, so there may be no
        chunks. At most one chunk belongs to a span; a span that must be evaluated in one piece may
        exceed the limits of prompts. The caller evaluates the chunks and then calls `advance`, or
        `relieve` if llama.cpp found no cells.
        """
        may_admit = not (self._is_full and self._active)
        has_admitted = may_admit and self.slots.admit(now)
        self._idle.begin_step(self.slots.running, has_admitted=has_admitted)
        n_most = self._n_batch if n_prompt is None else n_prompt
        while self._active:
            n_active = len(self._active)
            for key in self._turns.next(self._active.values()):
                if chunks := self._plan_key(key, n_most, n_burst):
                    return chunks
            if self.n_in("choosing") or self.n_in("encoding"):
                break
            # Unfinished prompts hold all cells, so no sequence can advance. Preempt the youngest:
            # it frees its cells for the others. Not needed if `_plan_key` has just preempted one.
            if len(self._active) == n_active:
                self._preempt_youngest()
        return []

    def plan_next(self, chunks: SequenceOf[Chunk]) -> list[Chunk]:
        """The chunks of the step after one with `chunks`, which are recorded by `advance`, under
        the assumption that each of their texts goes on by one token, and nothing else changes.
        Empty if another sequence or text has to be considered."""
        n, n_free = len(chunks), self.cache.n_free
        is_alone = n == len(self._active) and not self.slots.queue.n_waiting
        if not is_alone or self._idle.has_more or (n_free is not None and n_free < n):
            return []
        if any(c.sequence.phase != "choosing" or c.sequence.n_ahead for c in chunks):
            return []
        return [Chunk(c.sequence, c.stop, c.stop + 1) for c in chunks]

    def n_in(self, phase: Phase) -> int:
        """The number of sequences in slots with this phase."""
        return sum(s.phase == phase for s in self._active.values())

    @property
    def n_generating(self) -> int:
        return self.n_in("ready")

    @property
    def has_prompts(self) -> bool:
        """True if the next step may evaluate prompt tokens."""
        return self.slots.may_admit or self.n_in("prefill") > 0

    @property
    def is_fresh(self) -> bool:
        """True if requests wait and no slot is in use: the next step is for new requests only."""
        return self.slots.queue.n_waiting > 0 and not self._active

    @property
    def n_pending(self) -> int:
        """The number of tokens that have to be evaluated, of all waiting and active sequences."""
        return self.slots.queue.n_tokens + sum(s.n_pending for s in self._active.values())

    @property
    def prompt_length(self) -> int:
        """The largest number of cached tokens before a prompt chunk of the next step."""
        return max((s.n_past for s in self._active.values() if s.phase == "prefill"), default=0)

    def _plan_key(self, key: Key, n_prompt: int, n_burst: int) -> list[Chunk]:
        """The chunks of the sequences with the adapters `key`; empty if no such sequence can
        advance."""
        ready: list[Sequence] = []
        prompts: list[Sequence] = []
        for sequence in self._active.values():
            if sequence.adapters != key:
                continue
            if sequence.phase == "ready":
                ready.append(sequence)
            elif sequence.phase == "prefill":
                prompts.append(sequence)
        while self.cache.make_room(len(ready)) < len(ready):
            preempted = self._preempt_youngest()
            for line in (ready, prompts):
                if preempted in line:
                    line.remove(preempted)
        parts: list[Chunk] = []
        if prompts and (self._continuous or not ready):
            prompts = first_of(prompts, n_prompt)
            parts = self._prefill_planner.plan(prompts, len(ready), n_prompt, n_burst)
        n_others = len(ready) + sum(part.n_tokens for part in parts)
        chunks = [*self.ahead.plan(ready, n_others), *parts]
        n_pad = 0
        if len(parts) > 1:
            n_pad = self._cutting.n_ahead(self._n_batch - sum(chunk.n_tokens for chunk in chunks))
        return self._layout.arranged(chunks, n_pad, self.n_ctx)

    def advance(self, chunks: SequenceOf[Chunk]) -> None:
        """Record that the chunks are in the KV cache. The caller confirms the proposed tokens next,
        or takes them back."""
        for chunk in chunks:
            self.cache.grow(chunk.sequence.seq_id, chunk.n_tokens)
            is_there = not chunk.n_pad or self.cache.cut(chunk.sequence.seq_id, chunk.stop)
            chunk.sequence.n_past = chunk.stop if is_there else 0
            chunk.sequence.settle()
        self._idle.evaluated(sum(chunk.n_tokens for chunk in chunks))
        self._cutting.evaluated(chunks)
        self.ahead.evaluated(chunks)
        self._prefill_planner.evaluated()
        self._is_full = False

    def relieve(self) -> bool:
        """Called when llama.cpp found no cells although the scheduler counted free ones (it doesn't
        count those of a sliding window). Drops the first possible of: the proposed tokens, a cached
        text, half of the prompt tokens of the next step. Otherwise preempts the youngest sequence,
        and admits no other one until a step has succeeded.

        Returns False if only one running sequence is left.
        """
        if self.ahead.relieve() or self.cache.evict() or self._prefill_planner.relieve():
            return True
        if len(self._active) > 1:
            self._preempt_youngest()
            self._is_full = True
            return True
        return False

    def do_without_largest(self, chunks: SequenceOf[Chunk]) -> Sequence:
        """Called when there was no memory to evaluate `chunks`. Returns the sequence with the
        largest chunk; of equal ones, the one in the highest slot. The others are cut back to the
        start of their chunks, parts of which may be in the KV cache already."""
        largest = max(chunks, key=lambda chunk: (chunk.n_tokens, chunk.sequence.slot)).sequence
        for sequence, start in ((chunk.sequence, chunk.start) for chunk in chunks):
            if sequence is not largest:
                self.ahead.drop_proposed(sequence)
                sequence.n_past = start if self.cache.cut(sequence.seq_id, start) else 0
                sequence.settle()
        return largest

    def _preempt_youngest(self) -> Sequence:
        """Preempt the sequence with the worst rank; of equals, the one admitted last. It goes back
        to the queue, with its text."""
        sequence = max(reversed(self._active.values()), key=lambda each: each.rank)
        self.discard(sequence, "queued")
        sequence.start_again()
        self.submit(sequence)
        return sequence
