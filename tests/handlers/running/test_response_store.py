"""The database of responses."""

import asyncio
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.engine.errors import EngineError
from specllama.engine.options import OptionError
from specllama.handlers.running.response_store import MAX_CHAIN, Database, ResponseStore
from specllama.handlers.running.sqlite_files import StoreError
from tests.support.http_support import small_runtime


def message(id: str, text: str = "") -> Any:
    return {"id": id, "type": "message", "text": text}


def response(id: str, previous: str | None = None, output: list[Any] | None = None) -> Any:
    return {
        "id": id,
        "previous_response_id": previous,
        "output": [message(f"out of {id}")] if output is None else output,
        "model": "m",
    }


def save(database: Database, id: str, previous: str | None = None, text: str = "") -> None:
    database.save(response(id, previous), [message(f"in of {id}", text)])


def ids(items: list[Any]) -> list[str]:
    return [item["id"] for item in items]


# ---- stored responses ----------------------------------------------------------------------------

texts = st.text(max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
items = st.lists(
    st.dictionaries(texts, values, max_size=3).flatmap(
        lambda rest: st.text(min_size=1, max_size=4).map(lambda id: {**rest, "id": id})
    ),
    max_size=4,
)


@settings(max_examples=50, deadline=None)
@given(texts, items, items, st.dictionaries(texts, values, max_size=3))
def test_saved_responses_are_loaded(
    id: str, input: list[Any], output: list[Any], rest: dict[str, Any]
) -> None:
    database = Database()
    saved: Any = {**rest, **response(id, None, output)}
    database.save(saved, input)
    assert database.response(id) == saved
    assert database.conversation(id) == input + output
    assert all(database.item(each["id"]) is not None for each in input + output)
    database.close()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 9), st.integers(1, 4), st.sampled_from(["asc", "desc"]))
def test_pages_put_together_are_the_whole_input(n: int, limit: int, order: Any) -> None:
    with closing(Database()) as database:
        expected = [message(str(i)) for i in range(n)]
        database.save(response("r"), expected)
        seen: list[Any] = []
        after = None
        while True:
            page = database.input_items("r", after=after, limit=limit, order=order)
            assert page is not None
            assert len(page.items) <= limit
            seen += page.items
            if not page.has_more:
                break
            after = seen[-1]["id"]
        assert seen == (expected if order == "asc" else expected[::-1])
        with pytest.raises(EngineError, match="after"):
            database.input_items("r", after="x", limit=1, order=order)
        assert database.input_items("other", after=None, limit=1, order=order) is None


def test_a_conversation_is_in_its_order() -> None:
    with closing(Database()) as database:
        for id, previous in (("a", None), ("b", "a"), ("c", "b"), ("other", "a")):
            save(database, id, previous)
        expected = ["in of a", "out of a", "in of b", "out of b", "in of c", "out of c"]
        assert ids(database.conversation("c")) == expected
        assert ids(database.conversation("other")) == [*expected[:2], "in of other", "out of other"]
        for gone in ("x", "a"):
            assert database.delete(gone) == (gone == "a")
            assert not database.delete(gone)
        with pytest.raises(EngineError, match="no response 'a'") as caught:
            database.conversation("c")
        assert caught.value.info.type == "invalid_request_error"
        assert database.item("in of a") is None
        assert database.item("in of b") == message("in of b")


def test_a_chain_has_an_end(tmp_path: Path) -> None:
    path = tmp_path / "responses.db"
    with closing(Database(str(path))) as database:
        for i in range(MAX_CHAIN + 1):
            save(database, str(i), str(i - 1) if i else None)
        assert len(database.conversation(str(MAX_CHAIN - 1))) == 2 * MAX_CHAIN
        with pytest.raises(EngineError, match=str(MAX_CHAIN)):
            database.conversation(str(MAX_CHAIN))
        with closing(sqlite3.connect(path)) as other, other:
            other.execute("UPDATE responses SET previous = '5' WHERE id = '0'")
        with pytest.raises(EngineError, match=str(MAX_CHAIN)):
            database.conversation("3")


# ---- bounds ----------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["save", "read", "go on", "delete"]), st.integers(0, 7)),
        max_size=40,
    )
)
def test_the_least_recently_used_go_first(steps: list[tuple[str, int]]) -> None:
    kept: list[str] = []  # by use
    previous: dict[str, str | None] = {}
    with closing(Database(max_responses=4)) as database:
        for n, (what, which) in enumerate(steps):
            id = kept[which % len(kept)] if kept else "none"
            if what == "save":
                previous[str(n)] = id if id in kept and which % 2 else None
                save(database, str(n), previous[str(n)])
                kept = [*kept, str(n)][-4:]
            elif what == "delete":
                assert database.delete(id) == (id in kept)
                kept = [each for each in kept if each != id]
            elif what == "read":
                assert (database.response(id) is None) == (id not in kept)
                kept.sort(key=lambda each: each == id)
            elif (chain := chain_of(id, previous, kept)) is None:
                with pytest.raises(EngineError):
                    database.conversation(id)
            else:
                assert len(database.conversation(id)) == 2 * len(chain)
                used = {*chain}
                kept = [e for e in kept if e not in used] + sorted(used, key=int)
        assert {id for id in previous if database.response(id) is not None} == {*kept}


def chain_of(id: str, previous: dict[str, str | None], kept: list[str]) -> list[str] | None:
    chain: list[str] = []
    next_: str | None = id
    while next_ is not None:
        if next_ not in kept:
            return None
        chain.append(next_)
        next_ = previous[next_]
    return chain


def test_large_responses_make_room_for_larger_ones() -> None:
    with closing(Database(max_bytes=10_000)) as database:
        for id in "abc":
            save(database, id, text="x" * 3000)
        save(database, "d", text="x" * 3000)
        assert [id for id in "abcd" if database.response(id)] == ["b", "c", "d"]
        save(database, "e", text="x" * 100_000)  # the last one stays in any case
        assert [id for id in "abcde" if database.response(id)] == ["e"]


def test_a_file_has_no_bounds(tmp_path: Path) -> None:
    with closing(Database(str(tmp_path / "r.db"), max_responses=1, max_bytes=1)) as database:
        for id in "abc":
            save(database, id)
        assert all(database.response(id) for id in "abc")


# ---- files -----------------------------------------------------------------------------------


def test_a_file_outlives_the_server(tmp_path: Path) -> None:
    path = str(tmp_path / "responses.db")
    with closing(Database(path)) as database:
        save(database, "a")
    with closing(Database(path)) as first, closing(Database(path)) as second:
        save(first, "b", "a")
        save(second, "c", "b")
        assert len(first.conversation("c")) == 6


def damaged(path: Path) -> None:
    with closing(Database(str(path))) as database:
        for i in range(200):
            save(database, str(i), text="x" * 500)
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
                assert all(database.response(str(n)) for n in range(6))


# ---- for asyncio -----------------------------------------------------------------------------


def test_many_at_once() -> None:
    async def run() -> None:
        store = ResponseStore()
        await asyncio.gather(*(store.save(response(str(n)), []) for n in range(50)))
        found = await asyncio.gather(*(store.response(str(n)) for n in range(50)))
        assert [each["id"] for each in found] == [str(n) for n in range(50)]
        await store.delete("7")
        for missing in (store.response("7"), store.delete("7")):
            with pytest.raises(EngineError) as caught:
                await missing
            assert caught.value.info.type == "not_found_error"
        with pytest.raises(EngineError, match="'7'"):
            await store.input_items("7", after=None, limit=1, order="asc")
        assert await store.item("7") is None
        store.close()

    asyncio.run(run())


def test_a_database_that_fails_is_a_server_error(tmp_path: Path) -> None:
    path = tmp_path / "responses.db"

    async def run() -> None:
        store = ResponseStore(str(path))
        await store.save(response("a"), [message("i")])
        with closing(sqlite3.connect(path)) as other, other:
            other.execute("UPDATE items SET body = 'no JSON'")
        with pytest.raises(EngineError) as caught:
            await store.conversation("a")
        assert caught.value.info.type == "server_error"
        with closing(sqlite3.connect(path)) as other, other:
            other.execute("DROP TABLE items")
        with pytest.raises(EngineError, match="database"):
            await store.save(response("b"), [])
        store.close()

    asyncio.run(run())


def test_another_owner_finds_nothing() -> None:
    with closing(Database()) as database:
        database.save(response("a"), [message("in of a")], "me")
        database.save(response("b", "a"), [message("in of b")], "me")
        for other in ("", "you"):
            assert database.response("a", other) is None
            assert database.item("in of a", other) is None
            page = database.input_items("a", other, after=None, limit=1, order="asc")
            assert page is None
            assert not database.delete("a", other)
            with pytest.raises(EngineError, match="there is no response 'b'"):
                database.conversation("b", other)
        assert database.response("a", "me") is not None
        assert len(database.conversation("b", "me")) == 4


def test_a_file_without_owners_is_taken_on(tmp_path: Path) -> None:
    path = str(tmp_path / "r.db")
    with closing(Database(path)) as database:
        database.save(response("a"), [])
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("ALTER TABLE responses DROP COLUMN owner; PRAGMA user_version = 1")
    with closing(Database(path)) as database:
        database.save(response("b"), [], "me")
        assert database.response("a") is not None
        assert database.response("a", "me") is None


def test_one_store_for_several_owners() -> None:
    async def use() -> None:
        store = ResponseStore()
        mine, yours = store.of("me"), store.of("you")
        await mine.save(response("a"), [])
        assert await mine.response("a")
        for other in (yours, store):
            with pytest.raises(EngineError, match="there is no response 'a'"):
                await other.response("a")
        store.close()

    asyncio.run(use())
