"""The quotas of an API key: its buckets, what is left in them, and the errors of empty ones."""

import math
from collections.abc import Sequence
from typing import Final

from specllama.engine import system
from specllama.engine.errors import EngineError, ErrorInfo
from specllama.handlers.http.api_keys import ApiKey
from specllama.handlers.http.rate_limits import RateLimit
from specllama.handlers.running.buckets import Bucket, Demand, Taken

MINUTE: Final = 60.0
DAY: Final = 86400.0
REQUESTS: Final = "requests per minute"


def buckets_of(key: ApiKey) -> list[Bucket]:
    """Returns the buckets of a key; a key without limits has none."""
    limits = {
        REQUESTS: (key.requests_per_minute, MINUTE),
        "tokens per minute": (key.tokens_per_minute, MINUTE),
        "tokens per day": (key.tokens_per_day, DAY),
    }
    return [
        Bucket(f"{key.id}:{name}", limit, period)
        for name, (limit, period) in limits.items()
        if limit
    ]


def name_of(bucket: Bucket) -> str:
    """Returns what a bucket counts: `requests per minute`, or tokens per some time."""
    return bucket.id.rpartition(":")[2]


def counts_tokens(bucket: Bucket) -> bool:
    return name_of(bucket) != REQUESTS


class Balance:
    """The levels of a key's buckets, as they were at the last change by this call, and as time has
    refilled them since then."""

    def __init__(self, key: ApiKey) -> None:
        self.buckets = buckets_of(key)
        self.of_tokens = [each for each in self.buckets if counts_tokens(each)]
        self._key = key
        self._levels = {each: float(each.limit) for each in self.buckets}
        self._at = system.now()
        self._is_known = False

    def note(self, demands: Sequence[Demand], taken: Taken) -> None:
        """Takes over the levels after `demands`."""
        now = system.now()
        self._levels = {each: self._level(each, now) for each in self.buckets}
        self._at, self._is_known = now, True
        for demand, level in zip(demands, taken.levels, strict=True):
            self._levels[demand.bucket] = level

    def _level(self, bucket: Bucket, now: float) -> float:
        return bucket.refilled(self._levels[bucket], self._at, now)

    @property
    def n_tokens(self) -> int:
        """The number of tokens that all buckets of tokens have now; -1 if there is none."""
        now = system.now()
        levels = [self._level(each, now) for each in self.of_tokens]
        return max(0, math.floor(min(levels))) if levels else -1

    def rate_limits(self) -> list[RateLimit]:
        """Returns the limit of requests, and the one of tokens of which the fewest are left, as far
        as they exist; nothing before the first change."""
        now = system.now()
        found: dict[str, RateLimit] = {}
        if not self._is_known:
            return []
        for bucket in self.buckets:
            level = self._level(bucket, now)
            limit = RateLimit(
                "tokens" if counts_tokens(bucket) else "requests",
                bucket.limit,
                max(0, math.floor(level)),
                bucket.seconds_until(bucket.limit, level),
            )
            known = found.get(limit.kind)
            if known is None or limit.remaining < known.remaining:
                found[limit.kind] = limit
        return [*found.values()]

    def refusal(self, demands: Sequence[Demand]) -> EngineError:
        """Returns the error for `demands` that were refused at the current levels, with the time
        until they can be met."""
        waits = [
            (each.bucket.seconds_until(each.needed, self._levels[each.bucket]), i)
            for i, each in enumerate(demands)
        ]
        seconds, i = max(waits)
        return self._error(demands[i].bucket, seconds, math.ceil(demands[i].needed))

    def shortage(self, n_tokens: int) -> EngineError:
        """Returns the error for a call that needs `n_tokens`, more than there are."""
        return self.refusal([Demand.of(each, n_tokens) for each in self.of_tokens])

    def _error(self, bucket: Bucket, seconds: float, needed: int) -> EngineError:
        limit = f"{bucket.limit} {name_of(bucket)}"
        if math.isinf(seconds):
            text = (
                f"this request may use {needed} tokens, more than the limit of the API key "
                f"{self._key.name!r}, {limit}: ask for fewer"
            )
            return EngineError(ErrorInfo("rate_limit_error", text, final=True))
        text = f"the API key {self._key.name!r} has reached its limit of {limit}"
        if counts_tokens(bucket) and needed > 1:
            left = max(0, math.floor(self._levels[bucket]))
            text += f": this request may use {needed} tokens, and {left} are left"
        return EngineError(
            ErrorInfo("rate_limit_error", text, retry_after=max(1, math.ceil(seconds)))
        )
