"""Token buckets, in memory or in a store that several server processes share.

A bucket holds up to `limit` units, and gets `limit` units back in each `period`. A full bucket can
be emptied at once, so a key uses at most `limit * (seconds / period + 1)` units in any time, plus
its debt: the level of a bucket falls below 0 if a call used more than it had taken, and the time
pays for that.
"""

import asyncio
import math
import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from specllama.engine import system
from specllama.handlers.running.sqlite_files import DatabaseKind
from specllama.handlers.running.stores import UnavailableStoreError

ROUNDING = 1e-6  # units; the sums of many short times are not exact
ALWAYS = -1e300
"""The needed level of a change that is never refused."""


class Bucket(msgspec.Struct, frozen=True):
    """The limit of one key. `id` identifies the bucket in the store, `period` is in seconds."""

    id: str
    limit: int
    period: float

    def refilled(self, level: float, since: float, now: float) -> float:
        """Returns the level now of a bucket that had `level` at the time `since`."""
        return min(self.limit, level + max(0.0, now - since) * self.limit / self.period)

    def seconds_until(self, needed: float, level: float) -> float:
        """Returns the time until a bucket with `level` has the `needed` one; infinite if it can
        never have it."""
        if needed > self.limit:
            return math.inf
        return max(0.0, needed - level) * self.period / self.limit


class Demand(msgspec.Struct, frozen=True):
    """A change of a bucket: `amount` units are taken (or given back, if it is negative), if its
    level is at least `needed`."""

    bucket: Bucket
    amount: float
    needed: float

    @classmethod
    def of(cls, bucket: Bucket, amount: float) -> "Demand":
        """Takes units if the bucket has them."""
        return cls(bucket, amount, amount)

    @classmethod
    def owed(cls, bucket: Bucket, amount: float) -> "Demand":
        """Takes units in any case, if need be as a debt."""
        return cls(bucket, amount, ALWAYS)

    def is_met(self, level: float) -> bool:
        return level + ROUNDING >= self.needed


class Taken(msgspec.Struct, frozen=True):
    """The outcome of several demands: all were granted, or all were refused. `levels` are those of
    the buckets afterwards, in the same order."""

    is_granted: bool
    levels: list[float]


class BucketStore(Protocol):
    """The levels of all buckets. A bucket that isn't in the store is full."""

    async def take(self, demands: Sequence[Demand]) -> Taken:
        """Meets all demands, on different buckets, or none, in one transaction. Raises
        UnavailableStoreError."""

    async def close(self) -> None:
        """Closes the store after all pending calls."""


State = tuple[float, float]
"""The level of a bucket, and its time."""


def changed(
    demands: Sequence[Demand], states: Sequence[State | None], now: float
) -> tuple[Taken, list[State]]:
    """Returns the outcome of `demands` on buckets with `states` (None: full), and the new states.

    If the clock was set back, a bucket gets nothing for at most one period."""
    levels: list[float] = []
    times: list[float] = []
    for demand, state in zip(demands, states, strict=True):
        bucket = demand.bucket
        level, since = (float(bucket.limit), now) if state is None else state
        levels.append(bucket.refilled(level, since, now))
        times.append(since if now < since <= now + bucket.period else now)
    is_granted = all(map(Demand.is_met, demands, levels))
    if is_granted:
        levels = [
            min(demand.bucket.limit, level - demand.amount)
            for demand, level in zip(demands, levels, strict=True)
        ]
    return Taken(is_granted, levels), list(zip(levels, times, strict=True))


class MemoryBuckets:
    """Buckets in this process, which are full after its start."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock
        self._states: dict[str, State] = {}

    async def take(self, demands: Sequence[Demand]) -> Taken:
        now = system.now() if self._clock is None else self._clock()
        ids = [demand.bucket.id for demand in demands]
        taken, states = changed(demands, [self._states.get(id) for id in ids], now)
        self._states.update(zip(ids, states, strict=True))
        return taken

    async def close(self) -> None:
        """Does nothing: the memory is freed with the object."""


QUOTAS = DatabaseKind(
    name="quotas",
    application_id=0x73706C71,
    version=1,
    schema="""
        CREATE TABLE buckets (
            id TEXT PRIMARY KEY,
            level REAL NOT NULL,
            at REAL NOT NULL
        ) WITHOUT ROWID
    """,
)
_SELECT = "SELECT level, at FROM buckets WHERE id = ?"
_UPSERT = """
    INSERT INTO buckets VALUES (?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET level = excluded.level, at = excluded.at
"""


class SqliteBuckets:
    """Buckets in an SQLite file, which the server processes of one machine may share. Their levels
    survive a restart, also of a killed process. One thread does all its work."""

    def __init__(self, path: str, clock: Callable[[], float] = time.time) -> None:
        """Raises StoreError."""
        self._connection = QUOTAS.open(path)
        self._connection.isolation_level = None  # transactions are explicit
        self._clock = clock
        self._thread = system.pool(1, "quotas")

    async def take(self, demands: Sequence[Demand]) -> Taken:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, self._take, demands)
        except sqlite3.Error as error:
            raise UnavailableStoreError(f"the database of quotas failed: {error}") from error

    def _take(self, demands: Sequence[Demand]) -> Taken:
        connection = self._connection
        ids = [demand.bucket.id for demand in demands]
        connection.execute("BEGIN IMMEDIATE")  # so that no other process reads meanwhile
        try:
            states = [connection.execute(_SELECT, (id,)).fetchone() for id in ids]
            taken, new = changed(demands, states, self._clock())
            rows = [(id, *state) for id, state in zip(ids, new, strict=True)]
            connection.executemany(_UPSERT, rows)
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        return taken

    async def close(self) -> None:
        self._thread.shutdown()
        self._connection.close()
