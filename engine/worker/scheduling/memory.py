"""The two properties of a KV cache's memory that the scheduling depends on.

Its layout: all sequences share one array of cells, or each slot has its own. This determines which
slot a text may use, which cached text it takes over, whether it fits, and which rows a step
evaluates together.

How its texts can be cut: anywhere, at checkpoints, or not at all. A text that can be cut anywhere
shares any prefix, and unconfirmed tokens at its end can be taken back. Memory with one state for
the whole text (recurrent, hybrid), or without the cells that have left a sliding window, can only
go back to a copy of its state, a checkpoint.
"""

from bisect import bisect
from collections.abc import Callable, Container, Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from math import ceil
from typing import Protocol

from specllama.engine.worker.cache import checkpoints
from specllama.engine.worker.cache.prefix_cache import PrefixCache
from specllama.engine.worker.cache.texts import KVCache
from specllama.engine.worker.scheduling.sequences import Chunk, Sequence, uncut
from specllama.engine.worker.scheduling.step_clock import FEW_ROWS

MIN_COPY = 16
"""The minimum number of tokens that justifies a copy between separate caches: llama.cpp copies the
whole cache."""
ROWS_OF_BATCH = 8
"""The fixed cost of a micro-batch, in rows."""
MIN_FOLLOW = 8
"""The minimum number of shared tokens still to be evaluated by a leader that justifies waiting for
it."""


@dataclass(frozen=True, slots=True)
class PrefixOrigin:
    """The longest cached prefix of a text: `n` tokens of sequence `seq_id` (-1: none). A leader
    will evaluate `n_soon` more tokens of it. The longest common prefix with any sequence has
    `n_same` tokens, including cells that can't be shared."""

    seq_id: int = -1
    n: int = 0
    n_soon: int = 0
    n_same: int = 0


class CacheLayout(Protocol):
    """The interface of both layouts. `cache` is the cache with this layout."""

    least_copy: int
    """The minimum number of tokens that justifies a copy."""

    def has_room(self, cache: PrefixCache, running: Iterable[int], n: int) -> bool:
        """True if the `running` sequences leave at least `n` cells free."""

    def n_used(self, cache: PrefixCache, active: Iterable[Sequence]) -> int:
        """The number of cells used by active and cached texts; shared cells count once."""

    def choose_slot(self, idle: SequenceOf[int], busy: Container[int]) -> int:
        """One of the idle slots, which are sorted by their last use, the oldest first."""

    def id_of(self, slot: int) -> int | None:
        """The required sequence id of a text in `slot`; None if any id can be used."""

    def make_id(self, cache: PrefixCache, slot: int, keep: int | None = None) -> None:
        """Make sure that a sequence id is free for a text in `slot`, if necessary by eviction of
        another text than `keep`."""

    def to_take(
        self, cache: PrefixCache, sequence: Sequence, source: PrefixOrigin, slot: int
    ) -> int | None:
        """The finished text whose cells `sequence`, which will be in `slot`, takes over instead of
        sharing them; None if there is none."""

    def arranged(self, chunks: SequenceOf[Chunk], n_pad: int, n_ctx: int) -> list[Chunk]:
        """The chunks of a step in the order of their rows, with up to `n_pad` tokens of padding."""

    def least_rows(self, n_ready: int) -> int:
        """The minimum size of a prompt chunk in a step with `n_ready` generating sequences, to be
        efficient."""

    def grants(
        self, ready: SequenceOf[Sequence], n: int, n_ctx: int, *, early: bool
    ) -> list[tuple[int, int]]:
        """For each of `ready`, how many of its proposed tokens are evaluated, and how many of these
        in an early decode of their own before the step (0 unless `early`). All together get at most
        `n` tokens, each at most as many as fit into its context."""


def layout_of(n_cells: int | None) -> CacheLayout:
    """The layout of a cache whose sequences share `n_cells`; None: each slot has its own cells."""
    return SeparateLayout() if n_cells is None else UnifiedLayout(n_cells)


class UnifiedLayout:
    """One array of `n_cells`. A shared prefix takes no additional cells, a text can have any
    sequence id, and one decode can have all rows."""

    least_copy = 1

    def __init__(self, n_cells: int) -> None:
        self._n_cells = n_cells

    def has_room(self, cache: PrefixCache, running: Iterable[int], n: int) -> bool:
        return cache.n_cells_of(running) + n <= self._n_cells

    def n_used(self, cache: PrefixCache, active: Iterable[Sequence]) -> int:
        assert cache.n_free is not None
        return self._n_cells - cache.n_free

    def choose_slot(self, idle: SequenceOf[int], busy: Container[int]) -> int:
        return idle[0]

    def id_of(self, slot: int) -> int | None:
        return None

    def make_id(self, cache: PrefixCache, slot: int, keep: int | None = None) -> None:
        cache.make_id(keep)

    def to_take(
        self, cache: PrefixCache, sequence: Sequence, source: PrefixOrigin, slot: int
    ) -> int | None:
        """Takes a text over if all of it is useful, if no other sequence id is free, or if parts of
        it may be moved (`n_reuse`)."""
        entries = cache.entries
        found = source.seq_id if source.seq_id in entries else None
        if sequence.n_reuse:
            own = cache.of_slot(slot)
            if found is None and own is not None and entries[own].key == sequence.key:
                return own
            return found
        if found is None:
            return None
        is_all_of_use = source.n >= len(entries[found].tokens) - 1
        is_last_id = not cache.has_unused and len(entries) == 1
        return found if is_all_of_use or is_last_id else None

    def arranged(self, chunks: SequenceOf[Chunk], n_pad: int, n_ctx: int) -> list[Chunk]:
        return [*chunks]

    def least_rows(self, n_ready: int) -> int:
        return 1

    def grants(
        self, ready: SequenceOf[Sequence], n: int, n_ctx: int, *, early: bool
    ) -> list[tuple[int, int]]:
        grants: list[tuple[int, int]] = []
        for each in _wanted(ready, n_ctx):
            grants.append((min(each, n), 0))
            n -= grants[-1][0]
        return grants


class SeparateLayout:
    """One array for each slot; the slot's number is the sequence id. llama.cpp evaluates rows of
    several sequences together only if their ids are consecutive and each has equally many rows."""

    least_copy = MIN_COPY

    def has_room(self, cache: PrefixCache, running: Iterable[int], n: int) -> bool:
        return True

    def n_used(self, cache: PrefixCache, active: Iterable[Sequence]) -> int:
        cached = sum(len(entry.tokens) for entry in cache.entries.values())
        return cached + sum(s.n_past for s in active)

    def choose_slot(self, idle: SequenceOf[int], busy: Container[int]) -> int:
        beside = (slot for slot in idle if slot - 1 in busy or slot + 1 in busy)
        return next(beside, idle[0])

    def id_of(self, slot: int) -> int | None:
        return slot

    def make_id(self, cache: PrefixCache, slot: int, keep: int | None = None) -> None:
        if (own := cache.of_slot(slot)) is not None:
            cache.give_up(own)

    def to_take(
        self, cache: PrefixCache, sequence: Sequence, source: PrefixOrigin, slot: int
    ) -> int | None:
        """Takes over the slot's own text, unless another one has a much longer prefix."""
        own = cache.of_slot(slot)
        if own is None or cache.entries[own].key != sequence.key:
            return None
        n_own = cache.common_prefix(own, sequence.tokens.view(), sequence.key)
        n_own = cache.reachable(own, min(n_own, cache.entries[own].n_exact))
        better = source.n - n_own >= MIN_COPY
        return None if better and not sequence.n_reuse else own

    def arranged(self, chunks: SequenceOf[Chunk], n_pad: int, n_ctx: int) -> list[Chunk]:
        ordered = sorted(chunks, key=lambda chunk: chunk.sequence.seq_id)
        if n_pad <= 0 or sum(_may_be_padded(chunk) for chunk in ordered) < 2:
            return ordered
        return _padded(ordered, n_pad, n_ctx)

    def least_rows(self, n_ready: int) -> int:
        return FEW_ROWS + 1 if n_ready else 1

    def grants(
        self, ready: SequenceOf[Sequence], n: int, n_ctx: int, *, early: bool
    ) -> list[tuple[int, int]]:
        """Equally many for each sequence. Further forced tokens may be evaluated `early`."""
        if not ready:
            return []
        wanted = _wanted(ready, n_ctx)
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
            n_likely = 0  # likely tokens follow all forced ones
        n_together += min(n_likely, n // len(ready))
        return [(n_together + n_early, n_early) for n_early in parts]


def _wanted(ready: Iterable[Sequence], n_ctx: int) -> list[int]:
    """The number of proposed tokens of each sequence that fit into its context."""
    return [max(0, min(len(s.proposed), n_ctx - len(s.tokens) - 1)) for s in ready]


# ---- Padding. llama.cpp takes equally many rows of each separate cache into a micro-batch, so the
# shortest chunk ends it. A micro-batch of few rows takes nearly as long as a slightly larger one,
# so prompts of nearly the same length are padded to equally many rows.


def _may_be_padded(chunk: Chunk) -> bool:
    """True for a chunk of a prompt with text tokens only, and the logits of at most one token."""
    return chunk.n_tokens > 1 and chunk.is_plain


def _padded(chunks: SequenceOf[Chunk], n_pad: int, n_ctx: int) -> list[Chunk]:
    """The `chunks`, sorted by sequence id, with the padding that saves the most time."""
    ids = [chunk.sequence.seq_id for chunk in chunks]
    sizes = [chunk.n_tokens for chunk in chunks]
    best, least = sizes, ROWS_OF_BATCH * micro_batches(ids, sizes)
    longest = max(c.n_tokens for c in chunks if _may_be_padded(c))
    for whole in (longest, ROWS_OF_BATCH):
        padded = [
            min(whole * ceil(c.n_tokens / whole), n_ctx - c.start) if _may_be_padded(c) else n
            for c, n in zip(chunks, sizes, strict=True)
        ]
        n_more = sum(padded) - sum(sizes)
        cost = n_more + ROWS_OF_BATCH * micro_batches(ids, padded)
        if n_more <= n_pad and cost < least:
            best, least = padded, cost
    return [
        chunk._replace(n_pad=n - chunk.n_tokens) if n > chunk.n_tokens else chunk
        for chunk, n in zip(chunks, best, strict=True)
    ]


def micro_batches(ids: SequenceOf[int], sizes: SequenceOf[int]) -> int:
    """The number of micro-batches in which llama.cpp evaluates chunks of `sizes` rows of the caches
    `ids`, which ascend. Assumes that no micro-batch exceeds its maximum size
    (`llama_batch_allocr::split_equal`)."""
    left, n = dict(zip(ids, sizes, strict=True)), 0
    while left:
        first = next(iter(left))
        together = [id for at, id in enumerate(left) if id == first + at]
        least = min(left[id] for id in together)
        for id in together:
            left[id] -= least
            if not left[id]:
                del left[id]
        n += 1
    return n


# ---- Cutting.


class Cutting(Protocol):
    """The interface of the three kinds of cutting."""

    def n_ahead(self, n: int) -> int:
        """How many of `n` tokens may be evaluated although they may have to be taken back."""

    def n_soon(self, leader: Sequence, n: int, n_same: int) -> int:
        """The number of tokens that a waiting text will be able to share with `leader`. The text
        and the prompt of `leader` have `n_same` tokens in common; `n` can be shared now."""

    def begin(self, sequence: Sequence, n_same: Callable[[], int]) -> None:
        """Plan the checkpoints of `sequence`, which has just got its cached prefix. `n_same`
        returns the length of its longest common prefix with any other text."""

    def evaluated(self, chunks: SequenceOf[Chunk]) -> None:
        """Record that the chunks are in the KV cache."""


def cutting_of(kv: KVCache, cache: PrefixCache, n_checkpoints: int, step: int = 0) -> Cutting:
    """The cutting of `kv`, whose texts in `cache` have at most `n_checkpoints` each. Those in the
    middle of a prompt are at least `step` tokens apart."""
    if kv.is_cuttable:
        return Anywhere()
    return AtCheckpoints(cache, step) if n_checkpoints else Nowhere()


class Anywhere:
    """Texts can be cut at any token."""

    def n_ahead(self, n: int) -> int:
        return n

    def n_soon(self, leader: Sequence, n: int, n_same: int) -> int:
        return n_same

    def begin(self, sequence: Sequence, n_same: Callable[[], int]) -> None:
        pass

    def evaluated(self, chunks: SequenceOf[Chunk]) -> None:
        pass


class Nowhere(Anywhere):
    """A text can only be kept as a whole, or dropped."""

    def n_ahead(self, n: int) -> int:
        return 0

    def n_soon(self, leader: Sequence, n: int, n_same: int) -> int:
        return n


class AtCheckpoints(Nowhere):
    """Texts can be cut at checkpoints of their prompts: near the end, and where other texts
    diverge."""

    def __init__(self, cache: PrefixCache, step: int = 0) -> None:
        self._cache = cache
        self._step = step

    def n_soon(self, leader: Sequence, n: int, n_same: int) -> int:
        if leader.n_past < n_same and n_same - n >= MIN_FOLLOW:
            self._add(leader, [n_same])
        n_before = bisect(leader.checkpoints_at, n_same)
        return leader.checkpoints_at[n_before - 1] if n_before else n

    def begin(self, sequence: Sequence, n_same: Callable[[], int]) -> None:
        if 0 < sequence.n_past <= sequence.n_exact:
            # Usually the end of a chat turn: further texts are likely to continue from here.
            self._cache.save(sequence.seq_id, sequence.n_past)
        wanted = checkpoints.positions(sequence.n_past, sequence.n_prompt)
        places = {uncut(sequence.spans, n) for n in wanted}
        sequence.checkpoints_at = []
        if (n := n_same()) - sequence.n_past >= MIN_FOLLOW:
            # A third text is likely to diverge here, too.
            places.add(n)
        self._add(sequence, (n for n in places if n > sequence.n_past))

    def evaluated(self, chunks: SequenceOf[Chunk]) -> None:
        for chunk in chunks:
            at = chunk.sequence.checkpoints_at
            if at and at[0] == chunk.stop:
                del at[0]
                self._cache.save(chunk.sequence.seq_id, chunk.stop)

    def _add(self, sequence: Sequence, places: Iterable[int]) -> None:
        """Add checkpoints at `places` to those of the prompt that are still to be made."""
        wanted = sorted({*sequence.checkpoints_at, *places})
        if self._step:
            kept = self._cache.checkpoints.get(sequence.seq_id, ())
            last = max((each.n for each in kept if each.n <= sequence.n_past), default=0)
            wanted = checkpoints.spaced(wanted, last, sequence.n_prompt, self._step)
        sequence.checkpoints_at = wanted
