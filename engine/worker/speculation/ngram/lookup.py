"""ngram-simple, ngram-map-k and ngram-map-k4v: propose the tokens that followed an earlier
occurrence of a text's last tokens."""

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt

from specllama.engine.errors import BackendError
from specllama.engine.worker.cache.texts import Key
from specllama.engine.worker.speculation.ngram.index import NgramIndex
from specllama.engine.worker.speculation.source import Ask, SourceState
from specllama.engine.worker.tokens import TokenArray, TokenBuffer

# ---- Files of llama-lookup-create: the tokens that follow n-grams of up to four tokens, with
# counts.
#
# An entry has four token ids (-1 after the last token of a shorter n-gram), the number of
# followers, and a token id and a count for each follower. All numbers have 32 bits, in the byte
# order of the machine that wrote the file: little-endian.


MAX_NGRAM = 4
_HEAD = MAX_NGRAM + 1  # numbers before an entry's followers

_Numbers = npt.NDArray[np.int32]


class LookupFile:
    """The n-grams of a file. Followers outside of a vocabulary of `n_vocab` tokens are dropped."""

    def __init__(self, path: str, n_vocab: int) -> None:
        """Reads the file at `path`. Raises BackendError if it can't be read or is invalid."""
        self._n_vocab = n_vocab
        try:
            size = os.path.getsize(path)
            numbers: _Numbers = np.fromfile(path, "<i4")
        except OSError as error:
            raise BackendError(f"cannot read {path}: {error.strerror or error}") from None
        if size % 4:
            raise BackendError(f"{path} is damaged, or not a file of llama-lookup-create")
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
        """The counts of the tokens that follow `ngram`, which has at most four tokens."""
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
    """The index of the first number of each entry."""
    starts = []
    at, end, item = 0, len(numbers), numbers.item
    while at < end:
        n = item(at + MAX_NGRAM) if at + _HEAD <= end else 0
        if n <= 0 or at + _HEAD + 2 * n > end:
            raise BackendError(f"{path} is damaged, or not a file of llama-lookup-create")
        starts.append(at)
        at += _HEAD + 2 * n
    return np.array(starts, np.int64)


MAX_HITS = 64
"""Maximum number of earlier occurrences that are considered."""
MAX_VALUES = 4
"""Maximum number of different continuations of one n-gram that are counted."""
MAX_KEYS = 4096
"""Maximum number of n-grams of a text whose last acceptance is stored."""


class SimpleState(SourceState):
    """A text and its n-gram index. `sizes` are as in `NgramSimple`."""

    def __init__(self, tokens: TokenBuffer, key: Key, sizes: tuple[int, int, int]) -> None:
        super().__init__(tokens, key)
        self._size_n, self._size_m, self._min_hits = sizes
        self._index = NgramIndex(self._size_n)

    def propose(self, n: int) -> list[int]:
        """Returns at most `n` tokens that may follow."""
        hits = self._hits(self._min_hits)
        if n <= 0 or len(hits) < self._min_hits:
            return []
        return following(self.tokens.view(), hits[0], min(n, self._size_m))

    def _hits(self, most: int) -> list[int]:
        """The ends of the last `most` earlier occurrences of the newest tokens."""
        is_whole = self._index.update(self.tokens)
        return list(islice(self._index.earlier(self.tokens), most)) if is_whole else []


class MapKState(SimpleState):
    """A text, and the number of tokens accepted last after each of its n-grams."""

    def __init__(self, tokens: TokenBuffer, key: Key, sizes: tuple[int, int, int]) -> None:
        super().__init__(tokens, key, sizes)
        self.accepted: OrderedDict[bytes, int] = OrderedDict()
        """By the n-gram before a proposal; only proposals that were rejected in part."""
        self._last: bytes | None = None  # the n-gram before the last proposal

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
        """`found`, cut to the number of tokens that were accepted last after `key`."""
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
        best = max(counts, key=lambda value: counts[value])  # of equal ones, the last occurrence
        others = sum(counts.values()) - counts[best]
        if counts[best] < 2 * others:
            return []
        key = text[ends[best] - self._size_n : ends[best]].tobytes() + best
        n = min(n, self._size_m)
        return self._limited(key, text[ends[best] : ends[best] + n].tolist())


class NgramSimple:
    """Proposes up to `size_m` tokens that followed the last earlier occurrence of the newest
    `size_n` tokens, if there are at least `min_hits` occurrences (at most 64 can be required)."""

    name = "ngram-simple"
    _state: type[SimpleState] = SimpleState

    def __init__(self, size_n: int, size_m: int, min_hits: int) -> None:
        self._sizes = size_n, size_m, min(min_hits, MAX_HITS)

    def begin(self, tokens: TokenBuffer, key: Key) -> SimpleState:
        return self._state(tokens, key, self._sizes)

    def propose(self, asks: Sequence[Ask[SimpleState]]) -> list[list[int]]:
        return [ask.state.propose(ask.n) for ask in asks]

    def close(self) -> None:
        """Does nothing: there are no resources."""


class NgramMapK(NgramSimple):
    """Like `NgramSimple`, but proposes at most as many tokens as were accepted after the same
    n-gram last time."""

    name = "ngram-map-k"
    _state = MapKState


class NgramMapK4V(NgramMapK):
    """Counts up to four different continuations of `size_m` tokens, and proposes the most frequent
    one if it is at least twice as frequent as all others together."""

    name = "ngram-map-k4v"
    _state = MapK4VState


def following(text: TokenArray, end: int, n: int) -> list[int]:
    """The `n` tokens from position `end` on. If the text ends before, its part from `end` on is
    repeated."""
    found: list[int] = text[end : end + n].tolist()
    while len(found) < n:
        found += found[: n - len(found)]
    return found
