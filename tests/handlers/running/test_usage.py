"""The usage of keys, counted exactly: by several servers, and in spite of failures."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract_tests.kit.server import SECONDS, wait_until
from specllama.engine.errors import EngineError
from specllama.engine.wire.replies import Timings
from specllama.handlers.running import usage as usage_module
from specllama.handlers.running.stores import StoreError
from specllama.handlers.running.usage import (
    GROUPS,
    HOUR,
    Usage,
    UsageDatabase,
    UsageLog,
    UsageQuery,
    UsageRow,
)

NOW = 500_000 * HOUR + 17
COUNT = st.integers(0, 1000)
USAGE = st.builds(Usage, COUNT, COUNT, COUNT, COUNT, COUNT, COUNT, COUNT)
PLACE = st.tuples(st.sampled_from("ab"), st.sampled_from("xy"), st.integers(0, 3))


def summed(usages: list[Usage]) -> Usage:
    total = Usage()
    for each in usages:
        total.add(each)
    return total


@given(
    st.lists(st.tuples(PLACE, USAGE), max_size=20),
    st.sets(st.sampled_from(GROUPS)),
    st.none() | st.sampled_from("ab"),
    st.integers(0, 4 * HOUR),
    st.none() | st.integers(0, 4 * HOUR),
)
def test_rows_are_the_sums_of_their_groups(
    added: list[tuple[tuple[str, str, int], Usage]],
    groups: set[usage_module.Group],
    key: str | None,
    since: int,
    until: int | None,
) -> None:
    expected = defaultdict(list)
    database = UsageDatabase()
    for (name, model, hour), usage in added:
        place = name, model, hour * HOUR
        database.add({place: usage})
        is_early = until is not None and hour * HOUR >= until
        if key in (None, name) and hour >= since // HOUR and not is_early:
            parts = zip(GROUPS, place, strict=True)
            expected[tuple(each if part in groups else None for part, each in parts)].append(usage)
    query = UsageQuery(key=key, since=since, until=until, group_by=groups)
    found = database.rows(query)
    assert {(row.key, row.model, row.hour): row.usage for row in found} == {
        place: summed(usages) for place, usages in expected.items()
    }
    assert found == sorted(
        found, key=lambda row: (-(row.hour or 0), row.key or "", row.model or "")
    )
    paged = [
        row
        for offset in range(len(found) + 1)
        for row in database.rows(
            UsageQuery(key=key, since=since, until=until, group_by=groups, limit=1, offset=offset)
        )
    ]
    assert paged == found
    database.close()


def test_the_oldest_rows_in_memory_make_room() -> None:
    database = UsageDatabase(max_rows=3)
    for hour in range(5):
        database.add({("a", model, hour * HOUR): Usage(requests=1) for model in "xy"})
    found = [(row.model, row.hour) for row in database.rows(UsageQuery())]
    assert found == [("x", 4 * HOUR), ("y", 4 * HOUR), ("x", 3 * HOUR)]
    with tempfile.TemporaryDirectory() as folder:
        file = UsageDatabase(str(Path(folder, "usage.db")), max_rows=1)
        file.add({("a", "x", hour * HOUR): Usage(requests=1) for hour in range(5)})
        assert len(file.rows(UsageQuery())) == 5
        file.close()


def test_timings_are_counted() -> None:
    used = Usage.of(Timings(cache_n=3, prompt_n=4, prompt_ms=250, predicted_n=5, predicted_ms=750))
    assert used == Usage(prompt_tokens=7, cached_tokens=3, generated_tokens=5, seconds=1.0)


def test_hours_of_the_clock() -> None:
    now = [float(NOW)]

    async def run() -> list[tuple[int | None, int]]:
        log = UsageLog(clock=lambda: now[0])
        for seconds in (0, 1, HOUR):
            now[0] += seconds
            log.add("a", "x", Usage(requests=1))
        rows = await log.rows(UsageQuery())
        await log.close()
        return [(row.hour, row.usage.requests) for row in rows]

    assert asyncio.run(run()) == [(500_001 * HOUR, 1), (500_000 * HOUR, 2)]


def rows_of(path: Path) -> list[UsageRow]:
    database = UsageDatabase(str(path))
    try:
        return database.rows(UsageQuery())
    finally:
        database.close()


def test_servers_add_to_the_rows_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "usage.db"

    async def run() -> None:
        logs = [UsageLog(str(path), lambda: NOW) for _ in range(2)]
        for _ in range(3):
            for number, log in enumerate(logs, 1):
                log.add("a", "x", Usage(requests=number, seconds=0.5))
                await log.rows(UsageQuery())
        for log in logs:
            log.add("a", "x", Usage(requests=10))  # written at the end
            await log.close()

    asyncio.run(run())
    hour = NOW // HOUR * HOUR
    assert rows_of(path) == [UsageRow("a", "x", hour, Usage(requests=29, seconds=3.0))]


LATE = 1e6
"""A number of seconds until the next write that never pass in a test."""


def test_counts_of_a_failed_write_are_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "usage.db"
    monkeypatch.setattr(usage_module, "WRITE_SECONDS", LATE)

    async def run() -> None:
        log = UsageLog(str(path), lambda: NOW)
        with sqlite3.connect(path) as connection:
            [(schema,)] = connection.execute("SELECT sql FROM sqlite_master")
            connection.execute("DROP TABLE usage")
        log.add("a", "x", Usage(requests=1))
        with pytest.raises(EngineError, match="usage failed"):
            await log.rows(UsageQuery())
        log.add("a", "x", Usage(requests=2))
        with sqlite3.connect(path) as connection:
            connection.execute(schema)
        assert [row.usage.requests for row in await log.rows(UsageQuery())] == [3]
        await log.close()

    asyncio.run(run())
    assert "the counts are kept" in caplog.messages[0]


def failing_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float = 0.0
) -> tuple[UsageLog, Event, Event]:
    """A log, which writes every `seconds`. Its first write to the database begins (the first
    event), and fails after the second event."""
    monkeypatch.setattr(usage_module, "WRITE_SECONDS", seconds)
    log = UsageLog(str(path), lambda: NOW)
    began, may_fail = Event(), Event()
    real = log._database.add

    def add(rows: dict[tuple[str, str, int], Usage]) -> None:
        monkeypatch.setattr(log._database, "add", real)
        began.set()
        may_fail.wait(SECONDS)
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(log._database, "add", add)
    return log, began, may_fail


def test_counts_of_a_failed_write_are_added_to_those_of_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        log, began, may_fail = failing_once(tmp_path / "usage.db", monkeypatch, LATE)
        log.add("a", "x", Usage(requests=1))
        reading = asyncio.create_task(log.rows(UsageQuery()))
        await asyncio.to_thread(began.wait, SECONDS)
        log.add("a", "x", Usage(requests=2))
        may_fail.set()
        assert not await reading
        assert [row.usage.requests for row in await log.rows(UsageQuery())] == [3]
        await log.close()

    asyncio.run(run())


def test_a_failed_write_is_repeated_without_further_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "usage.db"

    async def run() -> None:
        log, _, may_fail = failing_once(path, monkeypatch)
        may_fail.set()
        log.add("a", "x", Usage(requests=1))
        async with asyncio.timeout(SECONDS):
            while not rows_of(path):
                await asyncio.sleep(0)
        await log.close()

    asyncio.run(run())


@pytest.mark.parametrize("seconds", [0.0, LATE])
def test_a_write_that_fails_at_the_end_is_repeated(
    seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was begun by the timer, or by a reader."""
    path = tmp_path / "usage.db"

    async def run() -> None:
        log, began, may_fail = failing_once(path, monkeypatch, seconds)
        log.add("a", "x", Usage(requests=1))
        reading = asyncio.create_task(log.rows(UsageQuery())) if seconds else None
        await asyncio.to_thread(began.wait, SECONDS)
        closing = asyncio.create_task(log.close())
        await asyncio.sleep(0)
        may_fail.set()
        if reading is not None:
            await asyncio.wait({reading})
        await closing

    asyncio.run(run())
    assert [row.usage.requests for row in rows_of(path)] == [1]


def test_other_files_are_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE other (a)")
    with pytest.raises(StoreError, match=r"other.db: this is not a database of usage"):
        UsageLog(str(tmp_path / "other.db"))


COUNTS = """
import asyncio, sys
from specllama.handlers.running.usage import Usage, UsageLog

async def main():
    log = UsageLog(sys.argv[1])
    for n in range(1_000_000):
        log.add("a", "x", Usage(requests=1))
        print(n + 1, flush=True)
        await asyncio.sleep(0.001)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_killed_process_loses_only_what_it_has_not_written(tmp_path: Path) -> None:
    """Every write is complete: what is in the file was counted before the kill, and what was
    counted more than a second before it is in the file."""
    path = tmp_path / "usage.db"
    with subprocess.Popen(
        [sys.executable, "-c", COUNTS, str(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        first = wait_until(lambda: _requests(path), "the first second is written")
        wait_until(lambda: _requests(path) > first, "the next second is written")
        process.send_signal(signal.SIGKILL)
        n_counted = int(process.stdout.read().split()[-1])
        process.wait(SECONDS)
    assert first < _requests(path) <= n_counted


def _requests(path: Path) -> int:
    try:
        return sum(row.usage.requests for row in rows_of(path))
    except StoreError:  # it is being created
        return 0
