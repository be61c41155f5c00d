"""ngram-cache: proposes the token that most often followed the last one to four tokens of a text,
in the text itself and in files made from other texts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice

import numpy as np

from specllama.engine.worker.cache.texts import Key
from specllama.engine.worker.speculation.ngram.index import NgramIndex
from specllama.engine.worker.speculation.ngram.lookup import MAX_NGRAM, LookupFile
from specllama.engine.worker.speculation.source import Ask, SourceState
from specllama.engine.worker.tokens import TokenBuffer

MAX_HITS = 16
"""Maximum number of counted occurrences of an n-gram, the last ones."""
N_MAX = 8
"""Maximum number of proposed tokens, as in llama-server."""
N_STATIC = 2
"""Length of the n-grams in the static file."""
STATIC_WEIGHT = 100
"""Weight of each occurrence of a token in the static file."""

# By the length of the n-gram: the minimum occurrences, and the minimum percentage of the best
# token.
_LAX = ((2, 66), (2, 50), (1, 50), (1, 50))
_STRICT = ((4, 75), (3, 66), (2, 66), (2, 66))

_Followers = Mapping[int, int]


class NgramCacheState(SourceState):
    """The n-gram indices of a text, by length."""

    def __init__(self, tokens: TokenBuffer, key: Key) -> None:
        super().__init__(tokens, key)
        self.indices = [NgramIndex(length) for length in range(1, MAX_NGRAM + 1)]


class NgramCache:
    """Proposes one token after the other, from the text itself, or else the dynamic file, or else
    the static one. The static file also weights the tokens of the other two."""

    name = "ngram-cache"

    def __init__(self, static: LookupFile | None = None, dynamic: LookupFile | None = None) -> None:
        self._static, self._dynamic = static, dynamic

    def begin(self, tokens: TokenBuffer, key: Key) -> NgramCacheState:
        return NgramCacheState(tokens, key)

    def propose(self, asks: Sequence[Ask[NgramCacheState]]) -> list[list[int]]:
        return [self._propose(ask.state, min(ask.n, N_MAX)) for ask in asks]

    def close(self) -> None:
        self._static = self._dynamic = None

    def _propose(self, state: NgramCacheState, n: int) -> list[int]:
        tokens = state.tokens
        n_ready = sum(index.update(tokens) for index in state.indices)
        last: list[int] = tokens.view(max(0, len(tokens) - MAX_NGRAM)).tolist()
        if n_ready < len(state.indices) or len(last) < N_STATIC:
            return []
        found: list[int] = []
        for _ in range(n):
            token = self._next(state, last)
            if token is None:
                break
            found.append(token)
            last = [*last, token][-MAX_NGRAM:]
        return found

    def _next(self, state: NgramCacheState, last: list[int]) -> int | None:
        static = self._static.followers(last[-N_STATIC:]) if self._static is not None else {}
        view = state.tokens.view()
        for index in reversed(state.indices[: len(last)]):
            ends = index.before_more(state.tokens, np.array(last[-index.n :], np.int32))
            counts = Counter(view.item(end) for end in islice(ends, MAX_HITS))
            if (token := _best(counts, static, *_LAX[index.n - 1])) is not None:
                return token
        if self._dynamic is not None:
            for n in range(len(last), 0, -1):
                counts = Counter(self._dynamic.followers(last[-n:]))
                if (token := _best(counts, static, *_STRICT[n - 1])) is not None:
                    return token
        return _best(static, {}, *_LAX[N_STATIC - 1])


def _best(counts: _Followers, static: _Followers, n_least: int, percent: int) -> int | None:
    """The token with the highest weight (the first of equal ones), if it has at least `percent` of
    at least `n_least` occurrences; else None."""
    if not counts:
        return None
    best = max(counts, key=lambda token: counts[token] * STATIC_WEIGHT * static.get(token, 0.01))
    n_all = sum(counts.values())
    if n_all < n_least or 100 * counts[best] < percent * n_all:
        return None
    return best
