"""Token buckets and running calls of API keys, in memory or in a store that several server
processes share.

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
from typing import Any, Protocol, TypeVar

import msgspec

from specllama.engine import system
from specllama.handlers.running.sqlite_files import DatabaseKind
from specllama.handlers.running.stores import UnavailableStoreError

T = TypeVar("T")

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


RUNNING_SECONDS = 60.0
"""How long a running call is counted after it began, or was renewed."""


class BucketStore(Protocol):
    """The levels of all buckets, and the running calls of keys with a limit for them. A bucket that
    isn't in the store is full. All methods but `close` raise UnavailableStoreError."""

    async def take(self, demands: Sequence[Demand]) -> Taken:
        """Meets all demands, on different buckets, or none, in one transaction."""

    async def begin(self, key: str, call: str, limit: int) -> int:
        """Adds a running call of a key, for RUNNING_SECONDS, and returns 0. If the key has `limit`
        of them or more, returns their number and adds nothing."""

    async def renew(self, calls: Sequence[tuple[str, str]]) -> None:
        """Renews calls, each with its key before it. Passes over calls that are not there."""

    async def end(self, key: str, call: str) -> None:
        """Removes a running call, if it is there."""

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
        self._calls: dict[str, dict[str, float]] = {}  # of each key, with the time of their end

    def _now(self) -> float:
        return system.now() if self._clock is None else self._clock()

    async def begin(self, key: str, call: str, limit: int) -> int:
        now = self._now()
        left = {each: end for each, end in self._calls.get(key, {}).items() if end > now}
        if is_full := len(left) >= limit:
            self._calls[key] = left
        else:
            self._calls[key] = {**left, call: now + RUNNING_SECONDS}
        return len(left) if is_full else 0

    async def renew(self, calls: Sequence[tuple[str, str]]) -> None:
        end = self._now() + RUNNING_SECONDS
        for key, call in calls:
            if call in self._calls.get(key, ()):
                self._calls[key][call] = end

    async def end(self, key: str, call: str) -> None:
        running = self._calls.get(key, {})
        running.pop(call, None)
        if not running:
            self._calls.pop(key, None)

    async def take(self, demands: Sequence[Demand]) -> Taken:
        now = self._now()
        ids = [demand.bucket.id for demand in demands]
        taken, states = changed(demands, [self._states.get(id) for id in ids], now)
        self._states.update(zip(ids, states, strict=True))
        return taken

    async def close(self) -> None:
        """Does nothing: the memory is freed with the object."""


_CALLS = """
    CREATE TABLE calls (
        key TEXT NOT NULL,
        id TEXT NOT NULL,
        until REAL NOT NULL,
        PRIMARY KEY (key, id)
    ) WITHOUT ROWID
"""
QUOTAS = DatabaseKind(
    name="quotas",
    application_id=0x73706C71,
    version=2,
    schema=f"""
        CREATE TABLE buckets (
            id TEXT PRIMARY KEY,
            level REAL NOT NULL,
            at REAL NOT NULL
        ) WITHOUT ROWID;
        {_CALLS}
    """,
    upgrades={1: _CALLS},
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
        return await self._run(self._take, demands)

    async def begin(self, key: str, call: str, limit: int) -> int:
        return await self._run(self._begin, key, call, limit)

    async def renew(self, calls: Sequence[tuple[str, str]]) -> None:
        await self._run(self._renew, calls)

    async def end(self, key: str, call: str) -> None:
        await self._run(self._end, key, call)

    async def _run(self, change: Callable[..., T], *arguments: Any) -> T:
        """Returns the result of `change`, which makes one transaction."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, self._transact, change, *arguments)
        except sqlite3.Error as error:
            raise UnavailableStoreError(f"the database of quotas failed: {error}") from error

    def _transact(self, change: Callable[..., T], *arguments: Any) -> T:
        self._connection.execute("BEGIN IMMEDIATE")  # so that no other process reads meanwhile
        try:
            result = change(*arguments)
            self._connection.execute("COMMIT")
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        return result

    def _take(self, demands: Sequence[Demand]) -> Taken:
        ids = [demand.bucket.id for demand in demands]
        states = [self._connection.execute(_SELECT, (id,)).fetchone() for id in ids]
        taken, new = changed(demands, states, self._clock())
        rows = [(id, *state) for id, state in zip(ids, new, strict=True)]
        self._connection.executemany(_UPSERT, rows)
        return taken

    def _begin(self, key: str, call: str, limit: int) -> int:
        now = self._clock()
        self._connection.execute("DELETE FROM calls WHERE key = ? AND until <= ?", (key, now))
        count = "SELECT count(*) FROM calls WHERE key = ?"
        n: int = self._connection.execute(count, (key,)).fetchone()[0]
        if n >= limit:
            return n
        row = (key, call, now + RUNNING_SECONDS)
        self._connection.execute("INSERT INTO calls VALUES (?, ?, ?)", row)
        return 0

    def _renew(self, calls: Sequence[tuple[str, str]]) -> None:
        until = self._clock() + RUNNING_SECONDS
        renew = "UPDATE calls SET until = ? WHERE key = ? AND id = ?"
        self._connection.executemany(renew, [(until, *each) for each in calls])

    def _end(self, key: str, call: str) -> None:
        self._connection.execute("DELETE FROM calls WHERE key = ? AND id = ?", (key, call))

    async def close(self) -> None:
        self._thread.shutdown()
        self._connection.close()
