"""The scheduler plans which tokens go into the next step.

Pure Python over plain data: the KV cache is behind the small `KVCache` protocol, so that
tests can drive thousands of histories against a fake that checks as strictly as llama.cpp.

A sequence is a text and how much of it is in the KV cache (`n_past`). One rule holds for
prompts, for generation and for a preempted sequence that starts again: the tokens that are not in
the cache are evaluated, and the last token's logits give the next token.

A prefix that any other sequence holds is shared, not evaluated
(`engine.worker.cache.prefix_cache`). A prefix that another sequence is about to evaluate is waited
for: the first sequence leads, the others follow. If the leader is cancelled, the next one leads on
from where it got to.

Memory that can't be cut (`KVCache.is_cuttable`) goes back to checkpoints only. They are made near
the end of prompts and where two texts were seen to diverge, so chunks end there.

`engine.worker.scheduling.sequences` says what media ask of chunks. A sequence waits for embeddings
in its slot, while the others go on.

Behind the token of a generating sequence, a chunk can have proposed ones
(`engine.worker.scheduling.sharing`). A sequence that leaves its slot or loses a part of its text
takes them back.
"""

from bisect import insort
from collections import Counter
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from operator import itemgetter

from specllama.engine.worker.cache.checkpoints import Checkpoint
from specllama.engine.worker.cache.prefix_cache import (
    ALL,
    CachedText,
    Found,
    Key,
    KVCache,
    PrefixCache,
    Tier,
)
from specllama.engine.worker.scheduling.memory import (
    MIN_FOLLOW,
    PrefixOrigin,
    cutting_of,
    layout_of,
)
from specllama.engine.worker.scheduling.placement import (
    IdleTexts,
    Placement,
)
from specllama.engine.worker.scheduling.sequences import Chunk, Phase, Sequence, next_start, uncut
from specllama.engine.worker.scheduling.sharing import Ahead, PrefillPlanner
from specllama.engine.worker.tokens import TokenArray

KEY_STEPS = 4
"""Steps in a row that a key may have while another one waits. Changing the LoRA adapters of
a context costs up to a few milliseconds, so every single step would be too often."""


class Scheduler:
    """Slots, the queue of waiting requests, and the cells of the KV cache.

    `n_cells` is what all sequences share (unified), or None if each slot has `n_ctx` of its own.
    `n_sequences` is the number of sequence ids for running and cached texts together; without a
    unified cache they are the slots. A slot whose cached text shares more than `similarity` of a
    prompt is preferred over the least recently used slot. `n_checkpoints` are kept of each text
    that can't be cut.
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
        continuous: bool = True,
        tier: Tier | None = None,
    ) -> None:
        self.n_slots = n_slots
        self.n_ctx = n_ctx
        n_ids = n_slots if n_sequences is None or n_cells is None else n_sequences
        self.cache = PrefixCache(kv, n_ids, n_cells, n_checkpoints, tier)
        self._layout = layout_of(n_cells)
        self._cutting = cutting_of(kv, self.cache, n_checkpoints)
        self.ahead = Ahead(self.cache, self._layout, self._cutting, n_batch=n_batch, n_ctx=n_ctx)
        """What is proposed for sequences."""
        self.texts = IdleTexts(self.cache, self._layout)
        """Those that idle slots have served last."""
        self._n_batch = n_batch
        self._similarity = similarity
        self._continuous = continuous
        self._waiting: list[Sequence] = []  # by id
        self.n_paused = 0
        self._active: dict[int, Sequence] = {}  # by slot, those admitted first in front
        self._running: dict[int, Sequence] = {}  # the same by sequence id
        self._placement = Placement(
            self.cache, self._layout, self._cutting, tier, self._running, n_ctx=n_ctx
        )
        self._idle = list(range(n_slots))  # least recently used first
        self._turns: list[Key] = []  # adapters of the active sequences, whose turn it is in front
        self._steps = 0  # that it has had in a row
        self._sharing = PrefillPlanner(self.cache, self._layout, n_batch=n_batch)
        self._is_full = False  # whether one was preempted, as llama.cpp had no cells

    # ---- submit, cancel, finish -----------------------------------------------------------

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
        """Cells with tokens of running and of cached texts; shared ones count once."""
        return self._layout.n_used(self.cache, self._active.values())

    def in_slot(self, slot: int) -> Sequence | None:
        return self._active.get(slot)

    def submit(self, sequence: Sequence) -> None:
        """Put `sequence` (1 <= tokens < n_ctx) into the queue."""
        insort(self._waiting, sequence, key=lambda waiting: waiting.id)

    def cancel(self, sequence: Sequence) -> None:
        """Remove the sequence from the queue or from its slot; its cells stay as cache. Has no
        effect on one that has ended."""
        if sequence.phase != "ended":
            self._withdraw(sequence, "ended")

    def pause(self, sequence: Sequence) -> None:
        """Put the sequence aside, with its text, until `resume`. Its cells stay as cache: `resume`
        finds those that were not evicted meanwhile. Has no effect on a sequence that is paused or
        has ended."""
        if sequence.phase not in ("paused", "ended"):
            self._withdraw(sequence, "paused")
            _start_again(sequence)
            self.n_paused += 1

    def resume(self, sequence: Sequence) -> None:
        """Put the sequence into the queue again, if it is paused."""
        if sequence.phase == "paused":
            self._withdraw(sequence, "queued")
            self.submit(sequence)

    def _withdraw(self, sequence: Sequence, phase: Phase) -> None:
        """Take the sequence, which enters `phase`, from where it is."""
        if sequence.slot >= 0:
            self.finish(sequence, phase)
            return
        if sequence.phase == "queued":
            self._waiting.remove(sequence)
        else:
            self.n_paused -= 1
        sequence.enter(phase)

    def finish(self, sequence: Sequence, phase: Phase = "ended") -> None:
        """Free the slot of `sequence`, which enters `phase`; what it has in the KV cache stays as
        cache."""
        self.ahead.take_back(sequence)
        self._cut_to_whole_spans(sequence)
        held = sequence.tokens.view(0, sequence.n_past)
        entry = CachedText(held, sequence.slot, sequence.n_exact, sequence.key)
        self.cache.close(sequence.seq_id, entry)
        self._free_slot(sequence, phase)

    def finish_before(self, chunk: Chunk) -> None:
        """`finish` where the text of an evaluated `chunk` had ended before: nothing of it stays."""
        chunk.sequence.n_ahead = chunk.n_tokens
        self.finish(chunk.sequence)

    def _cut_to_whole_spans(self, sequence: Sequence) -> None:
        """Drop the part of a span that the text of an active sequence ends with."""
        n, id = uncut(sequence.spans, sequence.n_past), sequence.seq_id
        if n < sequence.n_past:
            n = self.cache.reachable(id, n)
            sequence.n_past = n if self.cache.cut(id, n) else 0

    def discard(self, sequence: Sequence, phase: Phase = "ended") -> None:
        """Free the slot of `sequence`, which enters `phase`, and its cells."""
        self.cache.drop(sequence.seq_id)
        self._free_slot(sequence, phase)

    def shift(self, sequence: Sequence, n_keep: int, n_discard: int) -> bool:
        """Drop the `n_discard` tokens of an active sequence that follow its first `n_keep`, from
        its text and from the KV cache, which must hold them. False if the memory can't do it.

        Cells that another running text shares can't be moved: what is behind the gap is evaluated
        again then."""
        self.ahead.take_back(sequence)
        self.ahead.drop_proposed(sequence)
        stop, id = n_keep + n_discard, sequence.seq_id
        if not self.cache.is_alone(id, stop):
            sequence.n_past = n_keep if self.cache.cut(id, n_keep) else 0
        elif self.cache.cut_out(id, n_keep, stop):
            sequence.n_past -= n_discard
            sequence.n_exact = min(sequence.n_exact, n_keep)
        else:
            return False
        sequence.tokens.remove(n_keep, stop)
        sequence.settle()
        self.cache.retext(sequence.seq_id, sequence.tokens.view())
        return True

    def _free_slot(self, sequence: Sequence, phase: Phase) -> None:
        sequence.enter(phase)
        del self._active[sequence.slot]
        del self._running[sequence.seq_id]
        self._idle.append(sequence.slot)
        sequence.slot = sequence.seq_id = -1
        sequence.n_ahead = 0
        self.ahead.drop_proposed(sequence)

    def finished(self) -> list[tuple[int, TokenArray, Key, SequenceOf[Checkpoint]]]:
        """Sequence id, tokens, key and checkpoints of the texts in the KV cache, all of which are
        exact, the most recently used one in front. What runs is finished before."""
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

    def plan(self, n_prompt: int | None = None, n_burst: int = 0) -> list[Chunk]:
        """Admit waiting sequences, and return the chunks of the next step.

        They have at most `n_batch` tokens and need at most the free cells, all with the same key.
        One token of every generating sequence comes first. Prompts get at most `n_prompt` tokens;
        or `n_burst`, if all prompts end with these and none of them was cut before. What is
        proposed gets what is left of the batch and of the free cells. A sequence whose next token
        hasn't been chosen yet has no part in it, and none that waits for embeddings, so there may
        be no chunks. One of them at most is of a span: if that has to be whole, the step has
        its tokens in any case. The caller evaluates them and then calls `advance`, or `relieve` if
        llama.cpp found no cells.
        """
        self._admit()
        n_most = self._n_batch if n_prompt is None else n_prompt
        while self._active:
            n_active = len(self._active)
            for key in self._take_turns():
                if chunks := self._plan_key(key, n_most, n_burst):
                    return chunks
            if self.n_in("choosing") or self.n_in("encoding"):
                break
            # Unfinished prompts hold every cell and none can go on. The youngest gives its own to
            # the others before it is admitted again; unless one has just done so.
            if len(self._active) == n_active:
                self._preempt_youngest()
        return []

    def n_in(self, phase: Phase) -> int:
        """The number of sequences in slots that are in that phase."""
        return sum(s.phase == phase for s in self._active.values())

    @property
    def n_generating(self) -> int:
        return self.n_in("ready")

    @property
    def has_prompts(self) -> bool:
        """True if the next step may evaluate something of prompts."""
        return bool(self._waiting and self._idle) or self.n_in("prefill") > 0

    @property
    def is_fresh(self) -> bool:
        """True if requests wait and no slot is in use: the next step is for new requests only."""
        return bool(self._waiting) and not self._active

    @property
    def n_pending(self) -> int:
        """Tokens that are not evaluated yet, of waiting sequences and of those in slots."""
        return sum(s.n_pending for s in (*self._waiting, *self._active.values()))

    @property
    def prompt_length(self) -> int:
        """Tokens in front of the next step's chunks of prompts; the most of any of them."""
        return max((s.n_past for s in self._active.values() if s.phase == "prefill"), default=0)

    def _take_turns(self) -> list[Key]:
        """The adapters of all active sequences in the order of their turns."""
        keys = dict.fromkeys(s.adapters for s in self._active.values())
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

    def _plan_key(self, key: Key, n_prompt: int, n_burst: int) -> list[Chunk]:
        """The chunks of the sequences with the adapters `key`; none if none of them can go on."""
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
            parts = self._sharing.plan(prompts, len(ready), n_prompt, n_burst)
        n_others = len(ready) + sum(part.n_tokens for part in parts)
        chunks = [*self.ahead.plan(ready, n_others), *parts]
        n_pad = 0
        if len(parts) > 1:
            n_pad = self._cutting.n_ahead(self._n_batch - sum(chunk.n_tokens for chunk in chunks))
        return self._layout.arranged(chunks, n_pad, self.n_ctx)

    def advance(self, chunks: SequenceOf[Chunk]) -> None:
        """The chunks are in the KV cache now. What was proposed is confirmed next, or taken
        back."""
        for chunk in chunks:
            self.cache.grow(chunk.sequence.seq_id, chunk.n_tokens)
            is_there = not chunk.n_pad or self.cache.cut(chunk.sequence.seq_id, chunk.stop)
            chunk.sequence.n_past = chunk.stop if is_there else 0
            chunk.sequence.settle()
        self._cutting.evaluated(chunks)
        self.ahead.evaluated(chunks)
        self._sharing.evaluated()
        self._is_full = False

    def relieve(self) -> bool:
        """After llama.cpp found no cells where the accounts had some (those of a sliding window
        aren't counted): the next step does without proposed tokens, a cached text, or half of the
        prompts' tokens. If all that isn't enough, the youngest sequence is preempted, and the
        scheduler admits no sequence before a step is done.

        False if only one running sequence is left.
        """
        if self.ahead.relieve() or self.cache.evict() or self._sharing.relieve():
            return True
        if len(self._active) > 1:
            self._preempt_youngest()
            self._is_full = True
            return True
        return False

    def do_without_largest(self, chunks: SequenceOf[Chunk]) -> Sequence:
        """The sequence that has most of `chunks`, for whose evaluation there was no memory; of
        equal ones, the one in the highest place. The others are evaluated again, as some of them
        may be in the KV cache."""
        largest = max(chunks, key=lambda chunk: (chunk.n_tokens, chunk.sequence.slot)).sequence
        for sequence, start in ((chunk.sequence, chunk.start) for chunk in chunks):
            if sequence is not largest:
                self.ahead.drop_proposed(sequence)
                sequence.n_past = start if self.cache.cut(sequence.seq_id, start) else 0
                sequence.settle()
        return largest

    # ---- admission -----------------------------------------------------------------------

    def _admit(self) -> None:
        if not (self._waiting and self._idle) or (self._is_full and self._active):
            return
        for sequence in self._queue():
            if not self._idle:
                break
            if sequence.id_slot >= 0 and sequence.id_slot not in self._idle:
                continue  # waits for its own slot; those behind it may overtake
            source = self._placement.find(sequence)
            if source.n_soon >= MIN_FOLLOW:
                continue  # follows a sequence that evaluates their common prefix
            found = self._placement.find_below(sequence, source)
            if found is not None and found.text is None:
                continue  # it is being fetched
            if not self._fits(sequence, source, found):
                break
            self._waiting.remove(sequence)
            slot = self._choose_slot(sequence, source)
            self._placement.place(sequence, source, found, slot)
            self._occupy(slot, sequence)

    def _queue(self) -> Iterator[Sequence]:
        """The waiting sequences, in their turn: those of the request with the fewest running ones
        first, so that who asks for a thousand texts doesn't keep all slots from the others."""
        running = Counter(sequence.group for sequence in self._active.values())
        groups: dict[int, list[Sequence]] = {}
        for sequence in self._waiting:
            groups.setdefault(sequence.group, []).append(sequence)
        turns: list[tuple[int, int, Sequence]] = []
        for group, waiting in groups.items():
            turns += [(n, each.id, each) for n, each in enumerate(waiting, running[group])]
        for _, _, sequence in sorted(turns, key=itemgetter(0, 1)):
            yield sequence

    def _choose_slot(self, sequence: Sequence, source: PrefixOrigin) -> int:
        if sequence.id_slot >= 0:
            return sequence.id_slot
        entry = self.cache.entries.get(source.seq_id)
        wanted = self._similarity * len(sequence.tokens)
        if entry is not None and entry.slot >= 0 and 0 < wanted < source.n:
            return entry.slot
        return self._layout.choose_slot(self._idle, self._active)

    def _occupy(self, slot: int, sequence: Sequence) -> None:
        self.cache.unlabel(slot)
        self._idle.remove(slot)
        self._active[slot] = self._running[sequence.seq_id] = sequence
        sequence.slot = slot
        start = next_start(sequence.spans, sequence.n_past)
        sequence.n_ready = ALL if start is None else start
        sequence.settle()

    # ---- cells ---------------------------------------------------------------------------

    def _fits(self, sequence: Sequence, source: PrefixOrigin, found: Found | None) -> bool:
        """True if the whole text fits beside the cells that running sequences still need. What is
        `found` in the second tier gets cells of its own."""
        if not self._active:
            return True
        shared = source.n if found is None and source.seq_id in self._running else 0
        needed = len(sequence.tokens) - shared + sum(s.n_pending for s in self._active.values())
        return self._layout.has_room(self.cache, self._running, needed)

    def _preempt_youngest(self) -> Sequence:
        """Preempt the sequence admitted last: it goes back to the queue, with its text."""
        sequence = next(reversed(self._active.values()))
        self.discard(sequence, "queued")
        _start_again(sequence)
        self.submit(sequence)
        return sequence


def _start_again(sequence: Sequence) -> None:
    """Nothing of `sequence` is in the KV cache."""
    sequence.n_past, sequence.n_exact, sequence.checkpoints_at = 0, ALL, []
