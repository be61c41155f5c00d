"""Texts of idle slots leave the KV cache for the second tier.

llama.cpp computes attention over all cells of a unified cache up to the highest used one
(`llama_kv_cache::get_n_kv`), so the cells of idle texts delay the running ones. A text leaves when
it has delayed others, or is about to, for as long as its copy to host memory and back takes. So
the delay and the copy together cost at most about twice as much as the better decision.

Texts leave when another one gets a slot, before that one is evaluated: it gets the freed cells.
Cells that running texts share would not be freed, so they don't count as a delay.
"""

from collections.abc import Iterable, Mapping

from specllama.engine.worker.cache.prefix_cache import PrefixCache
from specllama.engine.worker.cache.texts import Tier
from specllama.engine.worker.scheduling.sequences import Sequence

MIN_CELLS = 2048
"""No text leaves if fewer cells than these could be freed."""
SHARE = 1 / 4
"""The same, as a part of the cells that the running texts need."""
ROWS_OF_STEP = 8
"""A step takes as long as if it had so many more rows: even with a single one, it reads all
cells."""


class IdleMover:
    """Moves finished texts from `cache` to `tier`.

    `always`: all of them whenever a sequence gets a slot; without a unified cache they are only
    copied, since removing them would free no cells for others. None: from a unified cache when it
    pays. False: never.
    """

    def __init__(
        self, cache: PrefixCache, tier: Tier | None, *, is_unified: bool, always: bool | None
    ) -> None:
        self._cache = cache
        self._tier = tier
        self._is_unified = is_unified
        self._always = always
        self.has_more = False
        """True if the last step may have had no time for all texts."""

    def begin_step(self, running: Mapping[int, Sequence], *, has_admitted: bool) -> None:
        """Called at the start of a step. `running` are the sequences in slots, by sequence id;
        `has_admitted`: one of them has just got its slot."""
        if self._tier is None or self._always is False:
            return
        if self._always:
            if has_admitted:
                self._save_all()
        elif self._is_unified and (has_admitted or self.has_more):
            self.has_more = self._move(self._tier, running)

    def evaluated(self, n_rows: int) -> None:
        """Count the rows of a step."""
        self._cache.n_rows += ROWS_OF_STEP + n_rows

    def _save_all(self) -> None:
        """Copy the finished texts, and remove the copied ones from a unified cache; the other ones
        stay, and can be copied later. Without a unified cache, texts of owners with a limit aren't
        copied: both copies would count."""
        for id, entry in list(self._cache.entries.items()):
            is_wanted = self._is_unified or not entry.limit
            if is_wanted and self._cache.offer(id) and self._is_unified:
                self._cache.forget(id)

    def _move(self, tier: Tier, running: Mapping[int, Sequence]) -> bool:
        """Move the texts that are worth it, the least recently used one first. True if a text was
        moved."""
        cache = self._cache
        n_pending = sum(sequence.n_pending for sequence in running.values())
        n_covered = cache.n_covered(n_pending)
        if n_covered - n_pending < MIN_CELLS:
            return False  # without counting the cells in use
        n_needed = cache.n_cells_of(running) + n_pending
        if n_covered - n_needed < max(MIN_CELLS, SHARE * n_needed):
            return False
        n_answers = _rows_of_answers(running.values())
        has_moved = False
        for id, n_cells in cache.idle_shares(running).items():
            entry = cache.entries[id]
            n_rows = cache.n_rows - entry.used_at + n_pending + n_answers
            is_due = tier.is_worth(len(entry.tokens), cache.n_bytes_of(id), n_rows * n_cells)
            if is_due and cache.offer(id):
                cache.forget(id)
                has_moved = True
        return has_moved


def _rows_of_answers(running: Iterable[Sequence]) -> float:
    """The expected number of rows of the answers of these sequences, as `evaluated` counts them."""
    lengths = [each.ticket.n_answer for each in running if each.ticket is not None]
    return sum(lengths) + ROWS_OF_STEP * max(lengths, default=0)
