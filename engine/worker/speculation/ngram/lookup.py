"""ngram-simple, ngram-map-k and ngram-map-k4v: what followed the last tokens of a text when they
occurred in it before is likely to follow again."""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice

from specllama.engine.worker.speculation.ngram.index import NgramIndex
from specllama.engine.worker.speculation.source import Ask
from specllama.engine.worker.tokens import TokenArray

MAX_HITS = 64
"""Earlier occurrences that are looked at."""
MAX_VALUES = 4
"""Different continuations of one n-gram that are counted."""
MAX_KEYS = 4096
"""N-grams of a text whose last acceptance is remembered."""


class NgramSimple:
    """Proposes up to `size_m` tokens that followed the last occurrence of the last `size_n` tokens,
    if there are `min_hits` (64 at most)."""

    name = "ngram-simple"

    def __init__(self, size_n: int, size_m: int, min_hits: int) -> None:
        self._size_n, self._size_m = size_n, size_m
        self._min_hits = min(min_hits, MAX_HITS)
        self._indices: dict[int, NgramIndex] = {}

    def propose(self, asks: Sequence[Ask]) -> list[list[int]]:
        return [self._propose(ask, min(ask.n, self._size_m)) for ask in asks]

    def verified(self, id: int, n_proposed: int, n_accepted: int) -> None:
        """What was accepted changes nothing."""

    def forget(self, id: int) -> None:
        self._indices.pop(id, None)

    def close(self) -> None:
        self._indices.clear()

    @property
    def n_bytes(self) -> int:
        return sum(index.n_bytes for index in self._indices.values())

    def _hits(self, ask: Ask, most: int) -> list[int]:
        """The last places, `most` of them, where the last tokens ended before."""
        index = self._indices.get(ask.id)
        if index is None:
            index = self._indices[ask.id] = NgramIndex(self._size_n)
        return list(islice(index.earlier(ask.tokens), most)) if index.update(ask.tokens) else []

    def _propose(self, ask: Ask, n: int) -> list[int]:
        hits = self._hits(ask, self._min_hits)
        if n <= 0 or len(hits) < self._min_hits:
            return []
        return following(ask.tokens.view(), hits[0], n)


class NgramMapK(NgramSimple):
    """The same, but proposes no more than was accepted when the same tokens occurred last."""

    name = "ngram-map-k"

    def __init__(self, size_n: int, size_m: int, min_hits: int) -> None:
        super().__init__(size_n, size_m, min_hits)
        self._accepted: dict[int, OrderedDict[bytes, int]] = {}  # where not all was
        self._last: dict[int, bytes] = {}  # by sequence, what the last proposal followed

    def verified(self, id: int, n_proposed: int, n_accepted: int) -> None:
        key = self._last.pop(id, None)
        if key is None or not n_proposed:
            return
        accepted = self._accepted.setdefault(id, OrderedDict())
        accepted.pop(key, None)
        if n_accepted < n_proposed:
            accepted[key] = n_accepted
            if len(accepted) > MAX_KEYS:
                accepted.popitem(last=False)

    def forget(self, id: int) -> None:
        super().forget(id)
        self._accepted.pop(id, None)
        self._last.pop(id, None)

    def close(self) -> None:
        super().close()
        self._accepted.clear()
        self._last.clear()

    def _propose(self, ask: Ask, n: int) -> list[int]:
        self._last.pop(ask.id, None)
        key = ask.tokens.view(max(0, len(ask.tokens) - self._size_n)).tobytes()
        return self._limited(ask, key, super()._propose(ask, n))

    def _limited(self, ask: Ask, key: bytes, found: list[int]) -> list[int]:
        """As much of what was found for `key` as was accepted last."""
        accepted = self._accepted.get(ask.id)
        limit = accepted.get(key) if accepted is not None else None
        if found and limit != 0:
            self._last[ask.id] = key
        return found[:limit]


class NgramMapK4V(NgramMapK):
    """Counts the different `size_m` tokens that followed, up to four, and proposes the most
    frequent ones if they are twice as frequent as all others together."""

    name = "ngram-map-k4v"

    def _propose(self, ask: Ask, n: int) -> list[int]:
        self._last.pop(ask.id, None)
        hits = self._hits(ask, MAX_HITS)
        if n <= 0 or len(hits) < self._min_hits:
            return []
        text = ask.tokens.view()
        counts: dict[bytes, int] = {}
        ends: dict[bytes, int] = {}
        for end in hits:
            value = text[end : end + self._size_m].tobytes()
            whole = end + self._size_m <= len(text)
            if whole and (value in counts or len(counts) < MAX_VALUES):
                counts[value] = counts.get(value, 0) + 1
                ends.setdefault(value, end)
        if not counts:
            return []
        best = max(counts, key=lambda value: counts[value])  # the last occurrence of several
        others = sum(counts.values()) - counts[best]
        if counts[best] < 2 * others:
            return []
        key = text[ends[best] - self._size_n : ends[best]].tobytes() + best
        return self._limited(ask, key, text[ends[best] : ends[best] + n].tolist())


def following(text: TokenArray, end: int, n: int) -> list[int]:
    """The `n` tokens behind `end`. Where the text ends, it is taken to go on as it does since."""
    found: list[int] = text[end : end + n].tolist()
    while len(found) < n:
        found += found[: n - len(found)]
    return found
