"""What chunks have behind the texts of their sequences: tokens that are proposed.

Their cells are the sequence's, but no part of its text: within the step, each is confirmed in its
turn, or it is taken back with all behind it.
"""

from collections.abc import Sequence as SequenceOf

from engine.worker.cache.prefix_cache import PrefixCache
from engine.worker.scheduling.sequences import Chunk, Sequence


class Ahead:
    """Plans what is proposed for sequences into room that nobody else wants, and keeps what comes
    of it."""

    def __init__(self, cache: PrefixCache, *, n_batch: int, n_ctx: int, unified: bool) -> None:
        self._cache = cache
        self._n_batch = n_batch
        self._n_ctx = n_ctx
        self._unified = unified
        self._n_planned = 0  # tokens of the planned step
        self._is_short = False  # whether there were no cells for them

    def plan(self, ready: SequenceOf[Sequence], n_others: int) -> list[Chunk]:
        """Chunks with one token of each of `ready`, and what is proposed behind it. The step has
        `n_others` tokens in all, those of `ready` included."""
        room = self._n_batch - n_others
        if (n_free := self._cache.n_free) is not None:
            room = min(room, n_free - n_others)
        if self._is_short or not self._cache.is_cuttable:
            room = 0
        # llama.cpp evaluates separate caches together in batches of as many tokens of each.
        parts = granted(ready, max(0, room), self._n_ctx, alike=not self._unified)
        self._n_planned = sum(map(len, parts))
        return [
            Chunk(s, s.n_past, s.n_past + 1, part, min(s.n_forced, len(part)))
            for s, part in zip(ready, parts, strict=True)
        ]

    def evaluated(self, chunks: SequenceOf[Chunk]) -> None:
        """The chunks are in the KV cache now. What was proposed is confirmed next, or taken
        back."""
        self._is_short = False
        for chunk in chunks:
            chunk.sequence.n_ahead = len(chunk.proposed)
            self.drop_proposed(chunk.sequence)

    def relieve(self) -> bool:
        """llama.cpp has found no cells: the next step does without. False if this one did."""
        had_some = self._n_planned > 0
        self._is_short = self._is_short or had_some
        self._n_planned = 0
        return had_some

    def confirm(self, sequence: Sequence) -> None:
        """The token that was just added to the text is the first one ahead: it needs no more
        evaluating."""
        sequence.n_past += 1
        sequence.n_ahead -= 1

    def take_back(self, sequence: Sequence) -> None:
        """Forget what is ahead of an active sequence."""
        if sequence.n_ahead:
            sequence.n_ahead = 0
            if not self._cache.cut(sequence.seq_id, sequence.n_past):
                sequence.n_past = 0

    def drop_proposed(self, sequence: Sequence) -> None:
        """Evaluate nothing of what is proposed for `sequence` now."""
        sequence.proposed, sequence.n_forced = (), 0


def granted(
    ready: SequenceOf[Sequence], n: int, n_ctx: int, *, alike: bool
) -> list[tuple[int, ...]]:
    """The part that each of `ready` gets evaluated of what is proposed for it: `n` tokens of all,
    and of each no more than its context has room for. If `alike`, all get as many."""
    rooms = [max(0, n_ctx - len(s.tokens) - 1) for s in ready]
    wanted = [min(len(s.proposed), room) for s, room in zip(ready, rooms, strict=True)]
    if alike and wanted:
        wanted = len(wanted) * [min(*wanted, n // len(wanted))]
    parts: list[tuple[int, ...]] = []
    for sequence, n_wanted in zip(ready, wanted, strict=True):
        part = sequence.proposed[: min(n_wanted, n)]
        n -= len(part)
        parts.append(part)
    return parts
