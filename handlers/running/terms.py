"""The terms on which the engine serves a request: from its API key, its fields and its headers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from specllama.engine import system
from specllama.engine.errors import unavailable
from specllama.engine.wire.requests import NO_TERMS, Terms
from specllama.handlers.http.api_keys import ApiKey, current_key
from specllama.handlers.http.log_fields import log_fields, warn_ignored


class Wishes(NamedTuple):
    """What a request chooses: its priority, and its time limits in milliseconds from its arrival,
    for all of it and for its prompt. 0 or less is no limit. None: nothing is chosen."""

    priority: int | None = None
    timeout_ms: int | None = None
    prompt_ms: int | None = None

    def or_else(self, other: "Wishes") -> "Wishes":
        """Returns these wishes; those of `other` apply where nothing is chosen."""
        if other == NO_WISHES:
            return self
        return Wishes(*(b if a is None else a for a, b in zip(self, other, strict=True)))

    @property
    def first_ms(self) -> int:
        """The shorter of the two time limits; 0 without any."""
        limits = [ms for ms in (self.timeout_ms, self.prompt_ms) if ms is not None and ms > 0]
        return min(limits, default=0)


NO_WISHES = Wishes()


def terms_of(
    key: ApiKey | None, wishes: Wishes, *, passed_ms: float = 0.0, default_priority: int = 0
) -> Terms:
    """Returns the terms of a request that arrived `passed_ms` ago. A request without a priority has
    that of its key, or else the `default_priority`. A time limit that has passed already becomes
    1 ms, as 0 means no limit."""
    if key is None and wishes == NO_WISHES:
        return Terms(priority=default_priority) if default_priority else NO_TERMS
    priority = wishes.priority
    if priority is None:
        priority = (0 if key is None else key.priority) or default_priority
    elif key is not None and priority < key.best_priority:
        warn_ignored("priority: %s is less than the API key allows", priority)
        priority = key.best_priority
    return Terms(
        weight=1.0 if key is None else key.weight,
        priority=priority,
        prompt_ms=_left(wishes.prompt_ms, passed_ms),
        timeout_ms=_left(wishes.timeout_ms, passed_ms),
        key_name="" if key is None else key.name,
        cache_bytes=0 if key is None else key.cache_mib << 20,
    )


def _left(limit_ms: int | None, passed_ms: float) -> int:
    """Returns what is left of a time limit; 0 if there is none."""
    return max(1, int(limit_ms - passed_ms)) if limit_ms is not None and limit_ms > 0 else 0


def current_terms(wishes: Wishes, *, default_priority: int = 0) -> Terms:
    """Returns the terms of the current request."""
    return terms_of(
        current_key(), wishes, passed_ms=_passed_ms(), default_priority=default_priority
    )


def _passed_ms() -> float:
    """Returns the time since the arrival of the current request."""
    return 1e3 * (system.now() - log_fields().arrived)


@asynccontextmanager
async def in_time(limit_ms: int | None) -> AsyncIterator[None]:
    """A context that ends when the current request is older than `limit_ms` (None, or 0 or less: at
    any age). Raises EngineError (unavailable) then."""
    if limit_ms is None or limit_ms <= 0:
        yield
        return
    left = 1e-3 * (limit_ms - _passed_ms())
    try:
        async with asyncio.timeout(left) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise unavailable(f"the request was not answered within its {limit_ms} ms") from None
