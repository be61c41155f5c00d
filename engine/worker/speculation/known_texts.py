"""Finished texts, as proposals for texts with the same beginning."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from specllama.engine.worker.cache.radix import RadixIndex
from specllama.engine.worker.cache.texts import Key
from specllama.engine.worker.speculation.ngram.index import NgramIndex
from specllama.engine.worker.speculation.source import Ask, SourceState
from specllama.engine.worker.tokens import TokenArray, TokenBuffer

MAX_TEXTS = 512
MAX_TOKENS = 1 << 21
"""Total tokens of all texts, at 8 bytes each."""
MAX_FOUND = 16


class KnownTexts:
    """Texts by key, in the order of their last use; the least recently used ones are dropped first.

    They are independent of the KV cache: a sequence with the same beginning takes over the cells of
    a cached text and drops its rest, just when that rest is useful here.
    """

    def __init__(self, max_texts: int = MAX_TEXTS, max_tokens: int = MAX_TOKENS) -> None:
        self._max_texts, self._max_tokens = max_texts, max_tokens
        self._indices: dict[Key, RadixIndex] = {}
        self._texts: OrderedDict[int, tuple[Key, TokenArray]] = OrderedDict()
        self._versions: dict[Key, int] = {}
        self._last_id = 0
        self.n_tokens = 0

    def __len__(self) -> int:
        return len(self._texts)

    def __iter__(self) -> Iterator[tuple[Key, TokenArray]]:
        """Iterates from the least recently used text on."""
        return iter(self._texts.values())

    def add(self, tokens: TokenArray, key: Key) -> None:
        """Keep a copy of `tokens`, unless it is the beginning of another text. Drops texts that are
        a beginning of it."""
        if not 0 < len(tokens) <= self._max_tokens:
            return
        for id, n in self._matches(tokens, key).items():
            if n == len(tokens):
                self._texts.move_to_end(id)
                return
            if n == len(self._texts[id][1]):
                self._remove(id)
        self._last_id += 1
        self._texts[self._last_id] = key, tokens.copy()
        self._indices.setdefault(key, RadixIndex()).insert(self._last_id, tokens)
        self._versions[key] = self._last_id
        self.n_tokens += len(tokens)
        while len(self._texts) > self._max_texts or self.n_tokens > self._max_tokens:
            self._remove(next(iter(self._texts)))

    def version(self, key: Key) -> int:
        """A number that grows with each text that is added under `key`."""
        return self._versions.get(key, 0)

    def beginning(self, tokens: TokenArray, key: Key) -> list[TokenArray]:
        """The longer texts that begin with `tokens` (at least one token), at most `MAX_FOUND`, the
        most recently used one first. That one is marked as used."""
        n_tokens = len(tokens)
        matches = self._matches(tokens, key)
        found = (id for id in reversed(self._texts) if matches.get(id) == n_tokens)
        texts = {id: self._texts[id][1] for id in islice(found, MAX_FOUND)}
        texts = {id: text for id, text in texts.items() if len(text) > n_tokens}
        if texts:
            self._texts.move_to_end(next(iter(texts)))
        return list(texts.values())

    def clear(self) -> None:
        self._indices.clear()
        self._versions.clear()
        self._texts.clear()
        self.n_tokens = 0

    def _matches(self, tokens: TokenArray, key: Key) -> dict[int, int]:
        index = self._indices.get(key)
        return index.matches(tokens) if index is not None else {}

    def _remove(self, id: int) -> None:
        key, tokens = self._texts.pop(id)
        self.n_tokens -= len(tokens)
        index = self._indices[key]
        index.remove(id)
        if not index:
            del self._indices[key], self._versions[key]


# ---- The radix source: proposes continuations of texts with the same key and beginning.


MIN_TOKENS = 16
"""Shorter texts aren't kept."""
N_AGAIN = 4
"""Number of equal tokens after which a diverged text is followed again."""
MAX_AGAIN = 4096
"""Maximum number of tokens of the diverged text that are searched for these."""
MAX_HITS = 16
"""Maximum number of matches to consider; the one nearest to the point of divergence is used."""


class _DivergedText:
    """A text that diverged at `place`, from shortly before that place on."""

    def __init__(self, text: TokenArray, place: int) -> None:
        self.text = text
        self._start = max(0, place - N_AGAIN)
        self._part = TokenBuffer(text[self._start : self._start + MAX_AGAIN])
        self._index = NgramIndex(N_AGAIN)
        self._index.update(self._part, MAX_AGAIN)

    def covers(self, place: int) -> bool:
        return self._start <= place < self._start + len(self._part)

    def found(self, tokens: TokenBuffer, place: int) -> int | None:
        """The place in this text after an occurrence of the last `N_AGAIN` tokens of another text,
        as near to `place` as possible."""
        last = tokens.view(len(tokens) - N_AGAIN)
        ends = islice(self._index.before_more(self._part, last), MAX_HITS)
        places = [self._start + end for end in ends]
        return min(places, key=lambda found: abs(found - place), default=None)


class RadixState(SourceState):
    """A running text, and the known text that it follows: token `at + ahead` of that one is
    proposed as its token `at`."""

    def __init__(self, texts: KnownTexts, tokens: TokenBuffer, key: Key) -> None:
        super().__init__(tokens, key)
        self._texts = texts
        self._begin()

    def _begin(self) -> None:
        self._text: TokenArray | None = None
        self._ahead = 0
        self._n_seen = 0  # compared tokens of this text
        self._others: list[tuple[int, TokenArray]] = []  # agree so far; the likeliest one last
        self._diverged: _DivergedText | None = None
        self._version = -1  # of the known texts when `_others` was set

    def propose(self, n: int) -> list[int]:
        """Returns at most `n` tokens that may follow."""
        if len(self.tokens) < self._n_seen:
            self._begin()
        if not self._follow() and not self._switch():
            self._resume()
        self._n_seen = len(self.tokens)
        if self._text is None or n <= 0:
            return []
        at = len(self.tokens) + self._ahead
        found: list[int] = self._text[at : at + n].tolist()
        return found

    def detach(self) -> None:
        """Keep the text for others."""
        if len(self.tokens) >= MIN_TOKENS:
            self._texts.add(self.tokens.view(), self.key)

    def _follow(self) -> bool:
        """True if the followed text agrees with the new tokens, and has more."""
        text, ahead, diverged = self._text, self._ahead, self._diverged
        if text is None:
            return False
        if _agrees(text, ahead, self.tokens, self._n_seen) and len(self.tokens) + ahead < len(text):
            return True
        self._text = None
        place = self._n_seen + ahead
        if diverged is None or diverged.text is not text or not diverged.covers(place):
            self._diverged = _DivergedText(text, place)
        return False

    def _switch(self) -> bool:
        """Follow another text with the same beginning. Returns False if there is none."""
        tokens, n_tokens = self.tokens, len(self.tokens)
        version = self._texts.version(self.key)
        if version != self._version:
            self._version = version
            found = self._texts.beginning(tokens.view(), self.key)
            self._others = [(n_tokens, text) for text in reversed(found)]
        while self._others:
            n_agreed, text = self._others.pop()
            if _agrees(text, 0, tokens, n_agreed) and n_tokens < len(text):
                self._text, self._ahead = text, 0
                return True
        return False

    def _resume(self) -> None:
        """Follow the last diverged text again, if the newest tokens occur in it."""
        diverged, n_tokens = self._diverged, len(self.tokens)
        if diverged is None or n_tokens < N_AGAIN:
            return
        place = diverged.found(self.tokens, n_tokens + self._ahead)
        if place is not None:
            self._text, self._ahead = diverged.text, place - n_tokens


class Radix:
    """Proposes the continuation of the most recently used text that begins like the sequence's own.
    If the sequence diverges from it, follows another such text; without one, the same text from a
    place where the newest tokens of the sequence occur.

    A text is kept when its sequence leaves its slot, if proposals were ever requested for it.
    Matching texts are looked up once; later, only new tokens are compared.
    """

    name = "radix"

    def __init__(self, texts: KnownTexts | None = None) -> None:
        self._texts = texts if texts is not None else KnownTexts()

    def begin(self, tokens: TokenBuffer, key: Key) -> RadixState:
        return RadixState(self._texts, tokens, key)

    def propose(self, asks: Sequence[Ask[RadixState]]) -> list[list[int]]:
        return [ask.state.propose(ask.n) for ask in asks]

    def close(self) -> None:
        self._texts.clear()


def _agrees(text: TokenArray, ahead: int, tokens: TokenBuffer, start: int) -> bool:
    """True if the `tokens` from `start` on are in `text`, shifted by `ahead`."""
    expected = text[start + ahead : len(tokens) + ahead]
    return bool(np.array_equal(expected, tokens.view(start)))
