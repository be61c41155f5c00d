"""The database of responses: files that outlive the server, and files that can't be used."""

import asyncio
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from specllama.engine.options import OptionError
from specllama.handlers.running.response_store import ClaimedResponse
from specllama.handlers.running.sqlite_responses import Database, SqliteResponses
from specllama.handlers.running.stores import StoreError
from tests.support.http_support import small_runtime


def response(id: str, previous: str | None = None, status: str = "completed") -> Any:
    return {"id": id, "previous_response_id": previous, "output": [], "status": status}


def save(database: Database, id: str, text: str = "", previous: str | None = None) -> None:
    database.save("", response(id, previous), [{"id": f"in of {id}", "text": text}])  # type: ignore[list-item]


def test_a_file_has_no_bounds(tmp_path: Path) -> None:
    with closing(Database(str(tmp_path / "r.db"), max_responses=1, max_bytes=1)) as database:
        for id in "abc":
            save(database, id)
        assert all(database.chain("", id, 1) for id in "abc")


def test_a_file_outlives_the_server(tmp_path: Path) -> None:
    path = str(tmp_path / "responses.db")
    with closing(Database(path)) as database:
        save(database, "a")
    with closing(Database(path)) as first, closing(Database(path)) as second:
        save(first, "b", previous="a")
        save(second, "c", previous="b")
        assert len(first.chain("", "c", 9)) == 3


def damaged(path: Path) -> None:
    with closing(Database(str(path))) as database:
        for i in range(200):
            save(database, str(i), "x" * 500)
    raw = bytearray(path.read_bytes())
    for at in range(4096 * 3, len(raw) - 100, 4096):
        raw[at : at + 64] = b"\xff" * 64
    path.write_bytes(raw)


def foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE addresses (name TEXT)")


def newer(path: Path) -> None:
    Database(str(path)).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (damaged, "damaged|malformed"),
        (foreign, "not a database of responses"),
        (newer, "version 99"),
        (lambda path: path.write_bytes(b"GGUF" * 1000), "not a database"),
        (lambda path: path.write_bytes(b"SQLite format 3\0" + b"\xff" * 5000), "."),
        (lambda path: path.mkdir(), "unable to open"),
    ],
)
def test_unusable_files_are_reported(tmp_path: Path, make: Any, message: str) -> None:
    path = tmp_path / "responses.db"
    make(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(StoreError, match=message) as caught:
        Database(str(path))
    assert str(path) in str(caught.value)
    with pytest.raises(OptionError, match="--responses-db"):
        small_runtime(responses_db=str(path))
    assert before is None or path.read_bytes() == before
    with pytest.raises(StoreError):
        Database(str(tmp_path / "missing" / "responses.db"))


def test_processes_may_begin_at_once(tmp_path: Path) -> None:
    barrier = threading.Barrier(6)

    def begin(n: int, path: str) -> None:
        barrier.wait()
        with closing(Database(path)) as database:
            save(database, str(n))

    with ThreadPoolExecutor(6) as pool:
        for time in range(20):
            path = str(tmp_path / f"{time}.db")
            list(pool.map(begin, range(6), [path] * 6))
            with closing(Database(path)) as database:
                assert all(database.chain("", str(n), 1) for n in range(6))


def test_a_database_that_fails(tmp_path: Path) -> None:
    path = tmp_path / "responses.db"

    async def run() -> None:
        store = SqliteResponses(str(path))
        item: Any = {"id": "i"}
        await store.save("", response("a"), [item])
        with closing(sqlite3.connect(path)) as other, other:
            other.execute("UPDATE items SET body = 'no JSON'")
        with pytest.raises(StoreError):
            await store.chain("", "a", 1)
        with closing(sqlite3.connect(path)) as other, other:
            other.execute("DROP TABLE items")
        with pytest.raises(StoreError, match="no such table"):
            await store.save("", response("b"), [item])
        await store.close()

    asyncio.run(run())


def test_a_claim_lasts_for_its_time(tmp_path: Path) -> None:
    now = 1000.0
    path, claimed = str(tmp_path / "r.db"), ClaimedResponse("", "a", "in_progress")
    with closing(Database(path, clock=lambda: now)) as database:
        database.save("", response("a", status="queued"), [], claim=30)
        now += 29
        assert database.renew([claimed], 30) == []
        now += 29
        [found] = database.chain("", "a", 1)
        assert (found.response["status"], found.is_lost) == ("in_progress", False)
        now += 1
        assert database.chain("", "a", 1)[0].is_lost
        assert database.renew([claimed], 30) == [claimed]
        assert not database.save("", response("a"), [], if_claimed=True)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_files_of_earlier_versions_are_taken_on(tmp_path: Path, version: int) -> None:
    path = str(tmp_path / "r.db")
    with closing(Database(path)) as database:
        save(database, "a")
    newer = ["kind", *["status", "claimed_until", "owner"][: {1: 3, 2: 2, 3: 0}[version]]]
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE secrets")
        for column in newer:
            connection.execute(f"ALTER TABLE responses DROP COLUMN {column}")
        connection.execute(f"PRAGMA user_version = {version}")
    with closing(Database(path)) as database:
        database.save("me", response("b"), [])
        [found] = database.chain("", "a", 1)
        assert (found.response["status"], found.is_lost) == ("completed", False)
        assert database.chain("me", "a", 1) == []
        assert len(database.chain("me", "b", 1)) == 1
        talk: Any = {"id": "conv_1", "metadata": {}}
        database.create("me", talk, [])
        assert database.conversation("me", "conv_1") is not None
        assert database.conversation("me", "b") is None
        assert database.secret(b"1") == b"1"
