"""SQLite files of this server, which several server processes may use at the same time.

A file belongs to one kind of database, which the application id in the file identifies.
"""

import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specllama.engine import system
from specllama.handlers.running.stores import StoreError

BUSY_SECONDS = 10.0  # how long to wait for another process that writes to the same file


@dataclass(frozen=True)
class DatabaseKind:
    """A kind of database. `schema` creates the tables of `version`; `upgrades` has, for each
    earlier version that is still read, the statements that make the next version of its tables."""

    name: str
    application_id: int
    version: int
    schema: str
    upgrades: Mapping[int, str] = field(default_factory=dict)

    def open(self, path: str) -> sqlite3.Connection:
        """Opens the file at `path`, and creates it if it doesn't exist; "" means memory. The
        connection may be used by one thread at a time. Raises StoreError."""
        try:
            connection = sqlite3.connect(
                path or ":memory:", timeout=BUSY_SECONDS, check_same_thread=False
            )
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
        except sqlite3.Error as error:
            raise StoreError(f"{path}: {error}") from error
        except StoreError as error:
            raise StoreError(f"{path}: {error}") from None
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA foreign_keys = ON")
        # Reading the list of tables fails for a file of another kind; `quick_check` finds damage.
        empty = value_of(connection, "SELECT count(*) FROM sqlite_master") == 0
        if not (empty or self._is_kind_of(connection)):
            raise StoreError(f"this is not a database of {self.name}")
        if (found := value_of(connection, "PRAGMA quick_check(1)")) != "ok":
            raise StoreError(f"the database is damaged: {' '.join(str(found).split())}")
        # With WAL, readers and a writer in several processes don't lock each other out, and a power
        # failure loses only the last transactions.
        _switch_to_wal(connection)
        connection.execute("PRAGMA synchronous = NORMAL")
        if empty:
            self._make_tables(connection)
        while (version := value_of(connection, "PRAGMA user_version")) in self.upgrades:
            connection.executescript(
                f"BEGIN IMMEDIATE; {self.upgrades[version]}; "
                f"PRAGMA user_version = {version + 1}; COMMIT"
            )
        if version != self.version:
            raise StoreError(f"the database has version {version}, not {self.version}")

    def _is_kind_of(self, connection: sqlite3.Connection) -> bool:
        return bool(value_of(connection, "PRAGMA application_id") == self.application_id)

    def _make_tables(self, connection: sqlite3.Connection) -> None:
        marks = f"PRAGMA application_id = {self.application_id}; PRAGMA user_version = "
        try:
            connection.executescript(
                f"BEGIN IMMEDIATE; {self.schema}; {marks}{self.version}; COMMIT"
            )
        except sqlite3.OperationalError:
            connection.rollback()
            if not self._is_kind_of(connection):
                raise
            # another process has created them meanwhile


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    # SQLite ignores its timeout here, and fails at once if another connection holds the lock.
    deadline = system.now() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or system.now() > deadline:
                raise
        time.sleep(0.01)


def value_of(connection: sqlite3.Connection, query: str, *parameters: Any) -> Any:
    """Returns the first column of the first row; None without rows."""
    row = connection.execute(query, parameters).fetchone()
    return None if row is None else row[0]
