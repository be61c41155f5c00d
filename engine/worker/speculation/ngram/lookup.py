"""ngram-simple, ngram-map-k and ngram-map-k4v: what followed the last tokens of a text when they
occurred in it before is likely to follow again."""

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt

from specllama.engine.errors import BackendError
from specllama.engine.worker.cache.prefix_cache import Key
from specllama.engine.worker.speculation.ngram.index import NgramIndex
from specllama.engine.worker.speculation.source import Ask, SourceState
from specllama.engine.worker.tokens import TokenArray, TokenBuffer

# ---- Files of llama-lookup-create: which tokens follow an n-gram of up to four tokens, and how
# often.
#
# An entry is four token ids, -1 behind the last one of a shorter n-gram; the number of followers;
# and a token id and a number of occurrences for each of these. All numbers have 32 bits, in the
# order of bytes of the machine that wrote them, which is little-endian.


MAX_NGRAM = 4
_HEAD = MAX_NGRAM + 1  # numbers in front of an entry's followers

_Numbers = npt.NDArray[np.int32]


class LookupFile:
    """The n-grams of a file. Followers that are no tokens of a vocabulary of `n_vocab` are left
    out."""

    def __init__(self, path: str, n_vocab: int) -> None:
        """Raises BackendError."""
        self._n_vocab = n_vocab
        try:
            size = os.path.getsize(path)
            numbers: _Numbers = np.fromfile(path, "<i4")
        except OSError as error:
            raise BackendError(f"cannot read {path}: {error.strerror or error}") from None
        if size % 4:
            raise BackendError(f"{path} is damaged, or no file of llama-lookup-create")
        self._numbers = numbers
        starts = _starts(numbers, path)
        keys = numbers[starts[:, None] + np.arange(MAX_NGRAM)].copy()
        names = keys.view(f"V{4 * MAX_NGRAM}").ravel() if len(keys) else keys.ravel()
        self._places: Mapping[bytes, int] = dict(
            zip((name.tobytes() for name in names), starts.tolist(), strict=True)
        )

    def __len__(self) -> int:
        """The number of n-grams."""
        return len(self._places)

    def followers(self, ngram: Sequence[int]) -> dict[int, int]:
        """How often each token follows `ngram`, of at most four tokens."""
        padded = [*ngram, *[-1] * (MAX_NGRAM - len(ngram))]
        start = self._places.get(np.array(padded, "<i4").tobytes())
        if start is None:
            return {}
        n = self._numbers.item(start + MAX_NGRAM)
        pairs = self._numbers[start + _HEAD : start + _HEAD + 2 * n].tolist()
        return {
            token: count
            for token, count in zip(pairs[::2], pairs[1::2], strict=True)
            if 0 <= token < self._n_vocab and count > 0
        }


def _starts(numbers: _Numbers, path: str) -> npt.NDArray[np.int64]:
    """Where each entry begins."""
    starts = []
    at, end, item = 0, len(numbers), numbers.item
    while at < end:
        n = item(at + MAX_NGRAM) if at + _HEAD <= end else 0
        if n <= 0 or at + _HEAD + 2 * n > end:
            raise BackendError(f"{path} is damaged, or no file of llama-lookup-create")
        starts.append(at)
        at += _HEAD + 2 * n
    return np.array(starts, np.int64)


MAX_HITS = 64
"""Earlier occurrences that are looked at."""
MAX_VALUES = 4
"""Different continuations of one n-gram that are counted."""
MAX_KEYS = 4096
"""N-grams of a text whose last acceptance is remembered."""


class SimpleState(SourceState):
    """A text, and where its n-grams end. `sizes` are those of `NgramSimple`."""

    def __init__(self, tokens: TokenBuffer, key: Key, sizes: tuple[int, int, int]) -> None:
        super().__init__(tokens, key)
        self._size_n, self._size_m, self._min_hits = sizes
        self._index = NgramIndex(self._size_n)

    def propose(self, n: int) -> list[int]:
        """What follows there, `n` tokens at most."""
        hits = self._hits(self._min_hits)
        if n <= 0 or len(hits) < self._min_hits:
            return []
        return following(self.tokens.view(), hits[0], min(n, self._size_m))

    def _hits(self, most: int) -> list[int]:
        """The last places, `most` of them, where the last tokens ended before."""
        is_whole = self._index.update(self.tokens)
        return list(islice(self._index.earlier(self.tokens), most)) if is_whole else []


class MapKState(SimpleState):
    """A text, and how many tokens were accepted last behind each of its n-grams."""

    def __init__(self, tokens: TokenBuffer, key: Key, sizes: tuple[int, int, int]) -> None:
        super().__init__(tokens, key, sizes)
        self.accepted: OrderedDict[bytes, int] = OrderedDict()
        """By what a proposal followed, if not all of it was."""
        self._last: bytes | None = None  # what the last proposal followed

    def propose(self, n: int) -> list[int]:
        self._last = None
        key = self.tokens.view(max(0, len(self.tokens) - self._size_n)).tobytes()
        return self._limited(key, super().propose(n))

    def verified(self, n_proposed: int, n_accepted: int) -> None:
        key, self._last = self._last, None
        if key is None or not n_proposed:
            return
        self.accepted.pop(key, None)
        if n_accepted < n_proposed:
            self.accepted[key] = n_accepted
            if len(self.accepted) > MAX_KEYS:
                self.accepted.popitem(last=False)

    def _limited(self, key: bytes, found: list[int]) -> list[int]:
        """As much of what was found for `key` as was accepted last."""
        limit = self.accepted.get(key)
        if found and limit != 0:
            self._last = key
        return found[:limit]


class MapK4VState(MapKState):
    """A text whose different continuations are counted."""

    def propose(self, n: int) -> list[int]:
        self._last = None
        hits = self._hits(MAX_HITS)
        if n <= 0 or len(hits) < self._min_hits:
            return []
        text = self.tokens.view()
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
        n = min(n, self._size_m)
        return self._limited(key, text[ends[best] : ends[best] + n].tolist())


class NgramSimple:
    """Proposes up to `size_m` tokens that followed the last occurrence of the last `size_n` tokens,
    if there are `min_hits` (64 at most)."""

    name = "ngram-simple"
    _state: type[SimpleState] = SimpleState

    def __init__(self, size_n: int, size_m: int, min_hits: int) -> None:
        self._sizes = size_n, size_m, min(min_hits, MAX_HITS)

    def begin(self, tokens: TokenBuffer, key: Key) -> SimpleState:
        return self._state(tokens, key, self._sizes)

    def propose(self, asks: Sequence[Ask[SimpleState]]) -> list[list[int]]:
        return [ask.state.propose(ask.n) for ask in asks]

    def close(self) -> None:
        """It holds nothing."""


class NgramMapK(NgramSimple):
    """The same, but proposes no more than was accepted when the same tokens occurred last."""

    name = "ngram-map-k"
    _state = MapKState


class NgramMapK4V(NgramMapK):
    """Counts the different `size_m` tokens that followed, up to four, and proposes the most
    frequent ones if they are twice as frequent as all others together."""

    name = "ngram-map-k4v"
    _state = MapK4VState


def following(text: TokenArray, end: int, n: int) -> list[int]:
    """The `n` tokens behind `end`. Where the text ends, it is taken to go on as it does since."""
    found: list[int] = text[end : end + n].tolist()
    while len(found) < n:
        found += found[: n - len(found)]
    return found
