"""What chunks have behind the texts of their sequences: tokens that are proposed.

Their cells are the sequence's, but no part of its text: within the step, each is confirmed in its
turn, or it is taken back with all behind it.
"""

from collections.abc import Sequence as SequenceOf

from specllama.engine.worker.cache.prefix_cache import PrefixCache
from specllama.engine.worker.scheduling.sequences import Chunk, Sequence


class Ahead:
    """Plans what is proposed for sequences into room that nobody else wants, and keeps what comes
    of it."""

    def __init__(self, cache: PrefixCache, *, n_batch: int, n_ctx: int, unified: bool) -> None:
        self._cache = cache
        self._n_batch = n_batch
        self._n_ctx = n_ctx
        self._unified = unified
        self.takes_early = True
        """With separate caches, whether tokens that are forced may be evaluated before the rest of
        the step."""
        self._planned: list[Chunk] = []  # those of the next step that have proposed tokens
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
        grants = granted(
            ready,
            max(0, room),
            self._n_ctx,
            alike=not self._unified,
            early=self.takes_early,
        )
        chunks = [
            Chunk(s, s.n_past, s.n_past + 1, s.proposed[:n], min(s.n_forced, n), n_early)
            for s, (n, n_early) in zip(ready, grants, strict=True)
        ]
        self._planned = [chunk for chunk in chunks if chunk.proposed]
        return chunks

    def evaluated(self, chunks: SequenceOf[Chunk]) -> None:
        """The chunks are in the KV cache now. What was proposed is confirmed next, or taken
        back."""
        self._is_short = False
        for chunk in chunks:
            chunk.sequence.n_ahead = len(chunk.proposed)
            self.drop_proposed(chunk.sequence)

    def relieve(self) -> bool:
        """llama.cpp has found no cells: the next step does without. False if this one did."""
        had_some = bool(self._planned)
        self._is_short = self._is_short or had_some
        for chunk in self._planned:
            if chunk.n_early:  # it may be there already
                self._cache.cut(chunk.sequence.seq_id, chunk.start)
        self._planned = []
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
    ready: SequenceOf[Sequence], n: int, n_ctx: int, *, alike: bool, early: bool
) -> list[tuple[int, int]]:
    """How many tokens each of `ready` gets evaluated of what is proposed for it: `n` tokens of all,
    and of each no more than its context has room for; and how many of its chunk come early.

    If `alike`, the step has as many tokens of each. What more of them is forced may come `early`.
    """
    wanted = [max(0, min(len(s.proposed), n_ctx - len(s.tokens) - 1)) for s in ready]
    if not alike or not ready:
        grants: list[tuple[int, int]] = []
        for each in wanted:
            grants.append((min(each, n), 0))
            n -= grants[-1][0]
        return grants
    if not early:
        return len(ready) * [(min(*wanted, n // len(ready)), 0)]
    forced = [min(s.n_forced, each) for s, each in zip(ready, wanted, strict=True)]
    n_together = min(*forced, n // len(ready))
    n_likely = min(each - n_forced for each, n_forced in zip(wanted, forced, strict=True))
    n -= n_together * len(ready)
    parts: list[int] = []
    for each in forced:
        parts.append(min(each - n_together, n))
        n -= parts[-1]
    if any(n_early < each - n_together for n_early, each in zip(parts, forced, strict=True)):
        n_likely = 0  # it comes behind all that is forced
    n_together += min(n_likely, n // len(ready))
    return [(n_together + n_early, n_early) for n_early in parts]
