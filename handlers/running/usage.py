"""What API keys have used: a row for each key, model and hour, in an SQLite database.

Counts are collected in memory. Those for a file are written by a thread once per second, in one
transaction, so a killed server loses at most its last second. Several servers may write to one
file: each adds its counts to the rows.
"""

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from specllama.engine import system
from specllama.engine.errors import server_error
from specllama.engine.wire.replies import Timings
from specllama.handlers.running.sqlite_files import DatabaseKind

log = logging.getLogger(__name__)

HOUR = 3600  # s
WRITE_SECONDS = 1.0
"""The interval between two writes to the file."""
MAX_ROWS = 10_000
"""The limit for the rows of a database in memory; the oldest hours are removed."""

Group = Literal["key", "model", "hour"]
GROUPS: tuple[Group, ...] = ("key", "model", "hour")


class Usage(msgspec.Struct):
    """Counts. `prompt_tokens` include the `cached_tokens`; `seconds` is the time of computation."""

    requests: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    media: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, timings: Timings) -> "Usage":
        return cls(
            prompt_tokens=timings.cache_n + timings.prompt_n,
            cached_tokens=timings.cache_n,
            generated_tokens=timings.predicted_n,
            seconds=(timings.prompt_ms + timings.predicted_ms) / 1e3,
        )

    def add(self, other: "Usage") -> None:
        self.requests += other.requests
        self.refused += other.refused
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.generated_tokens += other.generated_tokens
        self.media += other.media
        self.seconds += other.seconds


class UsageRow(msgspec.Struct, frozen=True):
    """The usage of one group. `key`, `model` and `hour` are None if they don't distinguish groups.
    `hour` is its beginning, in seconds since 1970."""

    key: str | None
    model: str | None
    hour: int | None
    usage: Usage


class UsageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A page of rows, the latest hours first, then by key and model. `since` and `until` are in
    seconds since 1970, and count whole hours; `key` None means all keys."""

    key: str | None = None
    since: int = 0
    until: int | None = None
    group_by: Collection[Group] = GROUPS
    limit: int = 100
    offset: int = 0


Place = tuple[str, str, int]
"""The key's name ("" without a key), the model and the hour of a row."""

COUNTS = Usage.__struct_fields__
KIND = DatabaseKind(
    name="usage",
    application_id=0x73706C75,
    version=1,
    schema=f"""
        CREATE TABLE usage (
            key TEXT NOT NULL,
            model TEXT NOT NULL,
            hour INTEGER NOT NULL,
            {", ".join(f"{name} INTEGER NOT NULL" for name in COUNTS if name != "seconds")},
            seconds REAL NOT NULL,
            PRIMARY KEY (hour, key, model)
        ) WITHOUT ROWID
    """,
)
_ADD = f"""
    INSERT INTO usage VALUES ({", ".join("?" * (3 + len(COUNTS)))})
    ON CONFLICT (hour, key, model) DO UPDATE SET
    {", ".join(f"{name} = {name} + excluded.{name}" for name in COUNTS)}
"""
_DROP_OLDEST = """
    DELETE FROM usage WHERE (hour, key, model) IN (
        SELECT hour, key, model FROM usage ORDER BY hour DESC, key, model LIMIT -1 OFFSET ?
    )
"""


class UsageDatabase:
    """The table, for one thread. Methods raise sqlite3.Error if the database fails."""

    def __init__(self, path: str = "", *, max_rows: int = MAX_ROWS) -> None:
        """Opens the file at `path`, and creates it if it doesn't exist; "" means memory, to which
        `max_rows` applies. Raises StoreError."""
        self._max_rows = None if path else max_rows
        self._connection = KIND.open(path)

    def add(self, rows: dict[Place, Usage]) -> None:
        """Adds counts to the rows in the database, in one transaction."""
        values = [(*place, *msgspec.structs.astuple(usage)) for place, usage in rows.items()]
        with self._connection as connection:
            connection.executemany(_ADD, values)
            if self._max_rows is not None:
                connection.execute(_DROP_OLDEST, (self._max_rows,))

    def rows(self, query: UsageQuery) -> list[UsageRow]:
        """Returns at most `query.limit` rows."""
        groups = [name for name in GROUPS if name in query.group_by]
        chosen = [name if name in groups else "NULL" for name in GROUPS]
        sums = [f"sum({name})" for name in COUNTS]
        order = [name for name in ("hour DESC", "key", "model") if name.split()[0] in groups]
        conditions, values = _conditions(query)
        found = self._connection.execute(
            f"SELECT {', '.join([*chosen, *sums])} FROM usage WHERE {conditions} "
            + (f"GROUP BY {', '.join(groups)} ORDER BY {', '.join(order)} " if groups else "")
            + "LIMIT ? OFFSET ?",
            (*values, query.limit, query.offset),
        )
        return [
            UsageRow(key, model, hour, Usage(*counts))
            for key, model, hour, *counts in found
            if counts[-1] is not None  # the only row of sums without groups, if no row is meant
        ]

    def close(self) -> None:
        self._connection.close()


def _conditions(query: UsageQuery) -> tuple[str, list[int | str]]:
    """Returns the condition for the rows of a query, and the values for its placeholders."""
    conditions: dict[str, int | str] = {"hour >= ?": query.since // HOUR * HOUR}
    if query.until is not None:
        conditions["hour < ?"] = query.until
    if query.key is not None:
        conditions["key = ?"] = query.key
    return " AND ".join(conditions), [*conditions.values()]


T = TypeVar("T")


class UsageLog:
    """Collects what calls use. Methods are for the event loop's thread."""

    def __init__(self, path: str = "", clock: Callable[[], float] = time.time) -> None:
        """Raises StoreError."""
        self.is_kept = bool(path)
        self._database = UsageDatabase(path)
        self._thread = system.pool(1, "usage")
        self._clock = clock
        self._new: dict[Place, Usage] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()  # of the write that runs
        self._has_failed = False
        self._is_closed = False

    def add(self, key: str, model: str, usage: Usage) -> None:
        """Adds to the counts of this hour."""
        place = key, model, int(self._clock()) // HOUR * HOUR
        known = self._new.get(place)
        if known is None:
            self._new[place] = known = Usage()
        known.add(usage)
        if self.is_kept or len(self._new) > MAX_ROWS:
            self._write_soon()

    def _write_soon(self) -> None:
        if self._timer is None and not self._is_closed:
            self._timer = asyncio.get_running_loop().call_later(WRITE_SECONDS, self._begin_write)

    def _begin_write(self) -> None:
        self._timer = None
        self._writing = asyncio.create_task(self._write())

    async def _write(self) -> None:
        """Writes the new counts. If that fails, they are kept for the next time."""
        async with self._lock:
            new, self._new = self._new, {}
            try:
                await self._run(self._database.add, new)
            except sqlite3.Error as error:
                if not self._has_failed:
                    log.error("the database of usage failed, the counts are kept: %s", error)
                self._has_failed = True
                for place, usage in new.items():
                    self._new.setdefault(place, Usage()).add(usage)
                self._write_soon()
            else:
                self._has_failed = False

    async def rows(self, query: UsageQuery) -> Sequence[UsageRow]:
        """Returns the rows, with all counts until now. Raises EngineError (server_error) if the
        database fails."""
        await self._write()
        try:
            return await self._run(self._database.rows, query)
        except sqlite3.Error as error:
            log.error("the database of usage failed: %s", error)
            message = "the database of usage failed; the server's log says why"
            raise server_error(message) from error

    async def _run(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    async def close(self) -> None:
        """Writes the last counts, and closes the database."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._writing is not None:
            await self._writing
        if self.is_kept:  # a read may also have begun a write
            await self._write()
        self._thread.shutdown()
        self._database.close()
