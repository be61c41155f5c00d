"""ngram-mod: proposes the tokens that followed the same n-grams in any text with the same key."""

from collections import OrderedDict
from collections.abc import Sequence

from specllama.engine.worker.cache.texts import Key
from specllama.engine.worker.speculation.ngram.index import MAX_NEW, Hashing
from specllama.engine.worker.speculation.source import Ask, SourceState
from specllama.engine.worker.tokens import TokenArray, TokenBuffer

MAX_YOUNG = 1 << 17
"""N-grams of a key in the young generation; when it is full, the old generation is dropped."""
MAX_NGRAMS = 1 << 19
"""Maximum number of n-grams of all keys, at about 100 bytes each. The least recently used key is
dropped first."""
_FEW = 16
"""Up to so many new n-grams are added faster one by one than as an array."""
_TAIL = 8
"""Number of last tokens that are compared to detect a changed text."""


class _Table:
    """The follower of each n-gram, in the newest text that has it."""

    def __init__(self) -> None:
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def age(self, max_young: int) -> None:
        """If the young generation is full, make it the old one, and drop the former old one."""
        if len(self._young) >= max_young:
            self._young, self._old = {}, self._young

    def add(self, hash: int, next: int) -> None:
        self._young[hash] = next

    def add_all(self, hashing: Hashing, text: TokenArray) -> None:
        """Add all n-grams of a text that a token follows."""
        hashes = hashing.windows(text[:-1]).tolist()
        self._young.update(zip(hashes, text[hashing.n :].tolist(), strict=True))

    def get(self, hash: int) -> int | None:
        found = self._young.get(hash)
        return self._old.get(hash) if found is None else found


class NgramModState(SourceState):
    """The part of a text that is in the table of its key."""

    def __init__(self, tokens: TokenBuffer, key: Key) -> None:
        super().__init__(tokens, key)
        self.n = 0  # tokens
        self.hash = 0  # of the last n-gram
        self.tail = b""


class NgramMod:
    """Proposes up to `n_max` tokens, each by the follower of the `n_match` tokens before it.
    Proposes nothing rather than fewer than `n_min` tokens, unless fewer were requested."""

    name = "ngram-mod"

    def __init__(
        self,
        n_match: int,
        n_max: int,
        n_min: int,
        *,
        max_young: int = MAX_YOUNG,
        max_ngrams: int = MAX_NGRAMS,
    ) -> None:
        self._hashing = Hashing(n_match)
        self._n_max, self._n_min = n_max, n_min
        self._max_young, self._max_ngrams = max_young, max_ngrams
        self._tables: OrderedDict[Key, _Table] = OrderedDict()

    def __len__(self) -> int:
        """The number of n-grams in all tables."""
        return sum(len(table) for table in self._tables.values())

    def begin(self, tokens: TokenBuffer, key: Key) -> NgramModState:
        return NgramModState(tokens, key)

    def propose(self, asks: Sequence[Ask[NgramModState]]) -> list[list[int]]:
        found = [self._propose(ask.state, min(ask.n, self._n_max)) for ask in asks]
        while len(self._tables) > 1 and len(self) > self._max_ngrams:
            self._tables.popitem(last=False)
        return found

    def close(self) -> None:
        self._tables.clear()

    def _propose(self, state: NgramModState, n: int) -> list[int]:
        tokens = state.tokens
        table = self._tables.setdefault(state.key, _Table())
        self._tables.move_to_end(state.key)
        self._add(table, state)
        last: list[int] = tokens.view(max(0, len(tokens) - self._hashing.n)).tolist()
        if n <= 0 or state.n < len(tokens) or len(last) < self._hashing.n:
            return []
        hash, rolled = state.hash, self._hashing.rolled
        for i in range(n):
            token = table.get(hash)
            if token is None:
                break
            last.append(token)
            hash = rolled(hash, last[i], token)
        found = last[self._hashing.n :]
        return found if len(found) >= min(self._n_min, n) else []

    def _add(self, table: _Table, seen: NgramModState) -> None:
        """Add the new tokens of the text to `table`, at most `MAX_NEW` per call."""
        tokens, n = seen.tokens, self._hashing.n
        if seen.n > len(tokens) or _tail(tokens, seen.n) != seen.tail:
            seen.n = 0
        table.age(self._max_young)
        stop = min(len(tokens), seen.n + MAX_NEW)
        if seen.n < n or stop - seen.n > _FEW:
            start = max(0, seen.n - n)
            if stop - start > n:
                table.add_all(self._hashing, tokens.view(start, stop))
            if stop >= n:
                seen.hash = self._hashing.of(tokens.view(stop - n, stop))
        else:
            for at in range(seen.n, stop):
                token = tokens.item(at)
                table.add(seen.hash, token)
                seen.hash = self._hashing.rolled(seen.hash, tokens.item(at - n), token)
        seen.n, seen.tail = stop, _tail(tokens, stop)


def _tail(tokens: TokenBuffer, n: int) -> bytes:
    return tokens.view(max(0, n - _TAIL), n).tobytes()
