"""The texts that idle slots have served last, for who saves, restores or erases one."""

from collections.abc import Sequence

from specllama.engine.worker.cache.checkpoints import Checkpoint
from specllama.engine.worker.cache.prefix_cache import Entry, Key, PrefixCache
from specllama.engine.worker.tokens import TokenArray


class IdleTexts:
    """They stay as cache until somebody needs the room."""

    def __init__(self, cache: PrefixCache, *, unified: bool) -> None:
        self._cache = cache
        self._unified = unified

    def erase(self, slot: int) -> int:
        """Forget the cached text of an idle slot; how many tokens it had."""
        id = self._cache.of_slot(slot)
        if id is None:
            return 0
        n_tokens = len(self._cache.entries[id].tokens)
        self._cache.drop(id)
        return n_tokens

    def cached(self, slot: int) -> tuple[int, Entry] | None:
        """The text that an idle slot has served last, if it is still there, and its sequence
        id."""
        id = self._cache.of_slot(slot)
        return None if id is None else (id, self._cache.entries[id])

    def adopt(
        self,
        slot: int,
        tokens: TokenArray,
        n_exact: int,
        key: Key,
        checkpoints: Sequence[Checkpoint] = (),
    ) -> int | None:
        """A sequence id and cells for a text that is restored into an idle slot, in place of the
        slot's own; None if there is no room. The caller calls `erase` if the restore fails."""
        self.erase(slot)
        if self._cache.make_room(len(tokens)) < len(tokens) or not self._cache.make_id():
            return None
        id = self._cache.open(None if self._unified else slot, tokens, key)
        self._cache.grow(id, len(tokens))
        self._cache.adopt(id, checkpoints)
        self._cache.close(id, Entry(tokens, slot, n_exact, key))
        return id

    def forget_moved(self, slot: int) -> None:
        """Keep of the text in an idle slot only the tokens that are exact."""
        found = self.cached(slot)
        if found is not None:
            id, entry = found
            if entry.n_exact < len(entry.tokens):
                self._cache.shorten(id, entry.n_exact)
