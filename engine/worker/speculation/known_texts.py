"""Finished texts, as what other texts that begin alike may go on with."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from specllama.engine.worker.cache.prefix_cache import Key
from specllama.engine.worker.cache.radix import RadixIndex
from specllama.engine.worker.speculation.ngram.index import NgramIndex
from specllama.engine.worker.speculation.source import Ask
from specllama.engine.worker.tokens import TokenArray, TokenBuffer

MAX_TEXTS = 512
MAX_TOKENS = 1 << 21
"""Of all texts; each takes 8 bytes."""
MAX_FOUND = 16


class KnownTexts:
    """Texts by key, in the order of their use: the least recently used ones go first.

    They are kept apart from the cells of the KV cache: who begins as another text did takes over
    its cells, and drops those that are of no use, just when the text is of use here.
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
        """The least recently used first."""
        return iter(self._texts.values())

    def add(self, tokens: TokenArray, key: Key) -> None:
        """Keep a copy of `tokens`, if it isn't the beginning of another text; those that are a
        beginning of it go."""
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
        """The texts that begin with `tokens`, at least one, and go on: `MAX_FOUND` at most, the one
        used last in front. That one counts as used."""
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


# ---- The radix source: continuations of texts with the same key and the same beginning.


MIN_TOKENS = 16
"""Shorter texts aren't kept."""
N_AGAIN = 4
"""Equal tokens after which a text that went another way is followed again."""
MAX_AGAIN = 4096
"""Tokens of it that are searched for these."""
MAX_HITS = 16
"""Places where they are found; the one nearest to where the text was left counts."""


class _Left:
    """A text that went another way, from shortly before that place on."""

    def __init__(self, text: TokenArray, place: int) -> None:
        self.text = text
        self._start = max(0, place - N_AGAIN)
        self._part = TokenBuffer(text[self._start : self._start + MAX_AGAIN])
        self._index = NgramIndex(N_AGAIN)
        self._index.update(self._part, MAX_AGAIN)

    def covers(self, place: int) -> bool:
        return self._start <= place < self._start + len(self._part)

    def found(self, tokens: TokenBuffer, place: int) -> int | None:
        """Where the last tokens of another text are in this one, as near to `place` as possible:
        the place of what follows."""
        last = tokens.view(len(tokens) - N_AGAIN)
        ends = islice(self._index.before_more(self._part, last), MAX_HITS)
        places = [self._start + end for end in ends]
        return min(places, key=lambda found: abs(found - place), default=None)


class _Follower:
    """A sequence, and the text whose token `at + ahead` is expected as its token `at`."""

    __slots__ = ("ahead", "key", "left", "n_seen", "others", "text", "tokens", "version")

    def __init__(self, tokens: TokenBuffer, key: Key) -> None:
        self.tokens = tokens
        self.key = key
        self.text: TokenArray | None = None
        self.ahead = 0
        self.n_seen = 0  # tokens that `text` agrees with, but for those it was found again behind
        self.others: list[tuple[int, TokenArray]] = []  # agreed so far; the likeliest one last
        self.left: _Left | None = None
        self.version = -1  # of the texts that were looked at


class Radix:
    """Proposes what follows in the text used last of those that begin as the sequence's own. If it
    goes another way, then in another one of these; or else in the same text, from where the last
    tokens of the sequence occur in it.

    Texts are kept when their sequences leave their slots, if tokens have ever been asked for. They
    are found once; after that only what is new is compared.
    """

    name = "radix"

    def __init__(self, texts: KnownTexts | None = None) -> None:
        self._texts = texts if texts is not None else KnownTexts()
        self._followers: dict[int, _Follower] = {}

    def propose(self, asks: Sequence[Ask]) -> list[list[int]]:
        return [self._propose(ask) for ask in asks]

    def verified(self, id: int, n_proposed: int, n_accepted: int) -> None:
        """The sequence's own tokens say enough."""

    def forget(self, id: int) -> None:
        follower = self._followers.pop(id, None)
        if follower is not None and len(follower.tokens) >= MIN_TOKENS:
            self._texts.add(follower.tokens.view(), follower.key)

    def close(self) -> None:
        self._followers.clear()
        self._texts.clear()

    def _propose(self, ask: Ask) -> list[int]:
        follower = self._followers.get(ask.id)
        if follower is None or len(ask.tokens) < follower.n_seen:
            follower = self._followers[ask.id] = _Follower(ask.tokens, ask.key)
        follower.tokens = ask.tokens
        if not self._follow(follower) and not self._turn(follower):
            self._return(follower)
        follower.n_seen = len(ask.tokens)
        text = follower.text
        if text is None or ask.n <= 0:
            return []
        at = len(ask.tokens) + follower.ahead
        found: list[int] = text[at : at + ask.n].tolist()
        return found

    def _follow(self, follower: _Follower) -> bool:
        """True if the text that is followed agrees with what is new, and goes on."""
        text, ahead, n_tokens = follower.text, follower.ahead, len(follower.tokens)
        if text is None:
            return False
        if _agrees(text, ahead, follower.tokens, follower.n_seen) and n_tokens + ahead < len(text):
            return True
        follower.text = None
        place = follower.n_seen + ahead
        if (
            follower.left is None
            or follower.left.text is not text
            or not follower.left.covers(place)
        ):
            follower.left = _Left(text, place)
        return False

    def _turn(self, follower: _Follower) -> bool:
        """True if there is another text that begins as this one."""
        tokens, n_tokens = follower.tokens, len(follower.tokens)
        version = self._texts.version(follower.key)
        if version != follower.version:
            follower.version = version
            found = self._texts.beginning(tokens.view(), follower.key)
            follower.others = [(n_tokens, text) for text in reversed(found)]
        while follower.others:
            n_agreed, text = follower.others.pop()
            if _agrees(text, 0, tokens, n_agreed) and n_tokens < len(text):
                follower.text, follower.ahead = text, 0
                return True
        return False

    def _return(self, follower: _Follower) -> None:
        """Follow the text that was left last again, if the last tokens occur in it."""
        left, n_tokens = follower.left, len(follower.tokens)
        if left is None or n_tokens < N_AGAIN:
            return
        place = left.found(follower.tokens, n_tokens + follower.ahead)
        if place is not None:
            follower.text, follower.ahead = left.text, place - n_tokens


def _agrees(text: TokenArray, ahead: int, tokens: TokenBuffer, start: int) -> bool:
    """True if `text` has what `tokens` have from `start` on, `ahead` of there."""
    expected = text[start + ahead : len(tokens) + ahead]
    return bool(np.array_equal(expected, tokens.view(start)))
