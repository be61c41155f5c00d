"""Why the first token of a prompt that wasn't cached had to be computed.

The reasons are decided at admission, from what the caches contain at that moment. Tokens that are
cached elsewhere, or were cached, are only a reason if there are at least `MIN_RUN` of them or all
the rest of the prompt: two texts that have nothing to do with each other often begin with the same
few tokens.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from specllama.engine.wire.stats import MissReason
from specllama.engine.worker.cache.evicted import BLOCK
from specllama.engine.worker.cache.prefix_cache import PrefixCache
from specllama.engine.worker.cache.radix import Divergence
from specllama.engine.worker.cache.texts import Key, Tier, owner_of
from specllama.engine.worker.scheduling.sequences import Sequence, uncut
from specllama.engine.worker.tokens import TokenArray, find_run

MIN_RUN = BLOCK
"""The minimum number of cached tokens that are a reason."""
MAX_REST = 8192
"""Tokens of a cached text, after the place where a prompt diverges from it, that are compared."""
N_SAMPLES = 4
"""The number of runs of `MIN_RUN` tokens of a prompt that are searched in these."""
MAX_KEYS = 64
"""The number of other keys whose texts are searched, the newest first."""


class Nearest(NamedTuple):
    """What the caches have of a prompt. A text in the KV cache or in the second tier has its first
    `n_same` tokens. The first `n_there` of these are computed and exact, and the first `n_usable`
    can be restored, shared or copied. `is_running`: the rest of `n_same` is still being computed.
    `at` is where the prompt diverges from all texts."""

    n_same: int
    n_there: int
    n_usable: int
    is_running: bool
    at: Divergence


def reusable(sequence: Sequence) -> int:
    """The number of prompt tokens that may come from a cache: the last one is always evaluated, for
    its logits, and with it the whole medium that contains it."""
    return uncut(sequence.spans, sequence.n_prompt - 1)


class Misses:
    """Decides the reasons. `running` are the sequences in slots, by sequence id."""

    def __init__(
        self, cache: PrefixCache, tier: Tier | None, running: Mapping[int, Sequence]
    ) -> None:
        self._cache = cache
        self._tier = tier
        self._running = running

    def look(self, sequence: Sequence, n_expected: int) -> Nearest | None:
        """What the caches have of a prompt that is about to be placed, and will probably have
        `n_expected` tokens of it; None if more can't be had."""
        limit = reusable(sequence)
        if not sequence.cache_prompt or n_expected >= limit:
            return None
        text = sequence.tokens.view()
        n_same, n_there, n_usable, is_running = 0, 0, 0, False
        for id, n in self._cache.matches(text, sequence.key).items():
            n = uncut(sequence.spans, min(n, limit))
            running = self._running.get(id)
            n_held = self._cache.entries[id].n_exact if running is None else running.n_given
            if n > n_same:
                n_same, is_running = n, running is not None and running.n_exact >= n
            n_there = max(n_there, min(n, n_held))
            n_usable = max(n_usable, self._cache.reachable(id, min(n, n_held)))
        at = self._cache.divergence(text, sequence.key, MAX_REST)
        if self._tier is not None:
            near = self._tier.near(text, sequence.key, MAX_REST)
            n = uncut(sequence.spans, min(near.at.n, limit))
            n_same, n_there = max(n_same, n), max(n_there, n)
            n_usable = max(n_usable, min(near.n_usable, n))
            at = near.at if near.at.n > at.n else at
        return Nearest(n_same, n_there, n_usable, is_running, at)

    def reason(self, sequence: Sequence, nearest: Nearest | None) -> MissReason | None:
        """Why token number `n_cached` of a placed sequence wasn't cached; None if all reusable
        tokens were. `nearest` is the result of `look`."""
        n, limit = sequence.n_cached, reusable(sequence)
        if n >= limit:
            return None
        if not sequence.cache_prompt:
            return "disabled"
        if nearest is None:
            return "cost"  # it was expected, but copying or restoring has failed

        def is_run(stop: int) -> bool:
            return stop - n >= MIN_RUN or stop >= limit

        if is_run(nearest.n_usable):
            return "cost"
        if is_run(nearest.n_there):
            return "window"
        if is_run(nearest.n_same):
            return "running" if nearest.is_running else "shift"
        return self._reason_without(sequence, nearest.at, is_run)

    def _reason_without(
        self, sequence: Sequence, at: Divergence, is_run: Callable[[int], bool]
    ) -> MissReason:
        """The reason if no text with the same key has the next tokens."""
        text, key, n = sequence.tokens.view(), sequence.key, sequence.n_cached
        if self._cache.evicted.has(text, key, n):
            return "evicted"
        if is_run(self._most_in(text, self._other_keys(key, same_owner=True))):
            return "adapter"
        if 0 < at.n < len(text) and len(at.rest) and at.n >= n:
            if text[at.n] < 0 and at.rest[0] < 0:
                return "media"
            if _is_edited(text, at):
                return "edited"
        if is_run(self._most_in(text, self._other_keys(key, same_owner=False))):
            return "key"
        return "new"

    def _other_keys(self, key: Key, *, same_owner: bool) -> Iterator[Key]:
        """The other keys of texts with the same owner, or those of texts of other owners."""
        keys = [*self._cache.keys(), *(self._tier.keys() if self._tier is not None else ())]
        owner = owner_of(key)
        others = (each for each in dict.fromkeys(keys) if (owner_of(each) == owner) == same_owner)
        return islice((each for each in others if each != key), MAX_KEYS)

    def _most_in(self, text: TokenArray, keys: Iterator[Key]) -> int:
        """The length of the longest common prefix of `text` with a finished text with one of
        `keys`."""
        most = 0
        for key in keys:
            matches = self._cache.matches(text, key).items()
            found = [n for id, n in matches if id not in self._running]
            if self._tier is not None:
                found.append(self._tier.common_prefix(text, key))
            most = max(most, *found, 0)
        return most


def _is_edited(text: TokenArray, at: Divergence) -> bool:
    """True if `text` seems to be a changed form of the cached text from which it diverges: they
    have at least half of the shorter text in common, or one of a few runs of tokens after the
    divergence, evenly distributed over the rest of `text`, is in the rest of the cached text."""
    if at.n >= max(MIN_RUN, min(len(text), at.length) // 2):
        return True
    cached, n_rest = at.rest.tobytes(), min(len(text) - at.n, MAX_REST) - MIN_RUN
    starts = [at.n + n_rest * i // N_SAMPLES for i in range(1, N_SAMPLES + 1)]
    runs = [text[start : start + MIN_RUN].tobytes() for start in starts] if n_rest >= 0 else []
    return any(find_run(cached, run, 0) >= 0 for run in dict.fromkeys(runs))
