"""Token buckets in memory and in SQLite agree, and never give more than the limit."""

import asyncio
import dataclasses
import itertools
import math
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from contract_tests.kit.server import SECONDS
from specllama.engine.options import OptionError
from specllama.handlers.running.admission import open_buckets
from specllama.handlers.running.buckets import (
    QUOTAS,
    ROUNDING,
    RUNNING_SECONDS,
    Bucket,
    BucketStore,
    Demand,
    MemoryBuckets,
    SqliteBuckets,
    Taken,
)
from specllama.handlers.running.stores import UnavailableStoreError

BUCKETS = [Bucket("a", 10, 60.0), Bucket("b", 1000, 60.0), Bucket("c", 7, 86400.0)]
SECOND = st.floats(0, 200, allow_nan=False)
AMOUNT = st.integers(0, 40)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def taken(store: BucketStore, *demands: Demand) -> Taken:
    return asyncio.run(store.take(demands))


def histories(
    steps: list[tuple[float, list[tuple[int, int, bool]]]], *clocked: tuple[BucketStore, Clock]
) -> list[list[Taken]]:
    """Returns the outcomes of the same changes at the same times in each store."""

    async def outcomes(store: BucketStore, clock: Clock) -> list[Taken]:
        found = []
        for seconds, changes in steps:
            clock.now += seconds
            make = {each[0]: each for each in changes}.values()
            demands = [
                (Demand.owed if is_owed else Demand.of)(BUCKETS[i], n) for i, n, is_owed in make
            ]
            found.append(await store.take(demands))
        await store.close()
        return found

    return [asyncio.run(outcomes(*each)) for each in clocked]


@given(
    st.lists(
        st.tuples(
            st.floats(-100, 200, allow_nan=False),
            st.lists(st.tuples(st.integers(0, 2), st.integers(-20, 40), st.booleans()), max_size=3),
        ),
        max_size=20,
    )
)
def test_memory_and_sqlite_agree_exactly(
    steps: list[tuple[float, list[tuple[int, int, bool]]]],
) -> None:
    clocks = Clock(), Clock()
    with tempfile.TemporaryDirectory() as folder:
        file = SqliteBuckets(str(Path(folder, "quotas.db")), clocks[1])
        memory, stored = histories(steps, (MemoryBuckets(clocks[0]), clocks[0]), (file, clocks[1]))
    assert memory == stored


@given(
    st.integers(1, 50),
    st.floats(1, 1000),
    st.lists(st.tuples(SECOND, AMOUNT, st.floats(0, 1), st.integers(0, 5)), max_size=40),
)
def test_a_key_never_uses_more_than_its_limit(
    limit: int, period: float, calls: list[tuple[float, int, float, int]]
) -> None:
    """Calls take what they may need, and settle later, in any order, what they didn't use."""
    bucket, clock = Bucket("a", limit, period), Clock()
    store, begin = MemoryBuckets(clock), clock.now
    used, open_calls = 0.0, []
    for seconds, n, share, others in calls:
        clock.now += seconds
        if taken(store, Demand.of(bucket, n)).is_granted:
            open_calls.append((n, share * n))
            used += share * n
        while len(open_calls) > others:
            reserved, was_used = open_calls.pop(0)
            taken(store, Demand.owed(bucket, was_used - reserved))
        most = limit * ((clock.now - begin) / period + 1)
        assert used <= most + ROUNDING * (len(calls) + 1)


@given(
    st.integers(1, 50),
    st.floats(1, 1000),
    st.lists(st.tuples(SECOND, st.integers(0, 50)), max_size=30),
)
@example(10, 60.0, [(200.0, 10), (0.0, 10)])
def test_a_bucket_that_was_idle_has_no_more_than_its_limit(
    limit: int, period: float, calls: list[tuple[float, int]]
) -> None:
    """The limit is one of every time, not only of the whole time."""
    bucket, clock = Bucket("a", limit, period), Clock()
    store, used = MemoryBuckets(clock), list[tuple[float, int]]()
    for seconds, n in calls:
        clock.now += seconds
        if taken(store, Demand.of(bucket, n)).is_granted:
            used.append((clock.now, n))
        for i, (begin, _) in enumerate(used):
            most = limit * ((clock.now - begin) / period + 1)
            assert sum(each for _, each in used[i:]) <= most + ROUNDING * (len(calls) + 1)


@given(
    st.integers(1, 50),
    st.floats(1, 1000),
    st.lists(st.tuples(SECOND, st.integers(1, 500)), max_size=40),
)
def test_a_debt_is_one_call_at_most(
    limit: int, period: float, calls: list[tuple[float, int]]
) -> None:
    """Calls whose cost is known only at their end, one after the other."""
    bucket, clock = Bucket("a", limit, period), Clock()
    store, begin, used = MemoryBuckets(clock), clock.now, 0
    for seconds, n in calls:
        clock.now += seconds
        if taken(store, Demand(bucket, 0, needed=1)).is_granted:
            taken(store, Demand.owed(bucket, n))
            used += n
        largest = max(n for _, n in calls)
        most = limit * ((clock.now - begin) / period + 1) + largest
        assert used <= most + ROUNDING * (len(calls) + 1)


@given(st.integers(1, 1000), st.floats(1, 1e5), st.integers(1, 1200), st.integers(0, 1200))
def test_after_the_announced_time_there_is_enough(
    limit: int, period: float, spent: int, wanted: int
) -> None:
    bucket, clock = Bucket("a", limit, period), Clock()
    store = MemoryBuckets(clock)
    [level] = taken(store, Demand.owed(bucket, spent)).levels
    seconds = bucket.seconds_until(wanted, level)
    if wanted > limit:
        assert math.isinf(seconds)
        return
    clock.now += seconds
    assert taken(store, Demand.of(bucket, wanted)).is_granted


def test_demands_are_met_together_or_not_at_all() -> None:
    a, _, c = BUCKETS
    store = MemoryBuckets(Clock())
    assert taken(store, Demand.of(a, 2), Demand.of(c, 7)) == Taken(True, [8, 0])
    assert taken(store, Demand.of(a, 2), Demand.of(c, 1)) == Taken(False, [8, 0])
    assert taken(store, Demand.of(a, 8)) == Taken(True, [0])


def test_a_clock_that_was_set_back_delays_by_at_most_a_period() -> None:
    bucket, clock = Bucket("a", 10, 60.0), Clock()
    store = MemoryBuckets(clock)
    taken(store, Demand.of(bucket, 10))
    for seconds in (-3600, 60):
        clock.now += seconds
        found = taken(store, Demand.owed(bucket, 0))
    assert found.levels == [10]
    taken(store, Demand.of(bucket, 10))
    clock.now -= 30
    assert taken(store, Demand.owed(bucket, 0)).levels == [0]
    clock.now += 60
    assert taken(store, Demand.owed(bucket, 0)).levels == [5]


def test_a_file_keeps_the_levels(tmp_path: Path) -> None:
    clock, bucket = Clock(), Bucket("a", 10, 60.0)
    for expected in (6, 2):
        store = SqliteBuckets(str(tmp_path / "quotas.db"), clock)
        assert taken(store, Demand.of(bucket, 4)).levels == [expected]
        asyncio.run(store.close())
    clock.now += 6
    store = SqliteBuckets(str(tmp_path / "quotas.db"), clock)
    assert taken(store, Demand.owed(bucket, 0)).levels == [3]
    asyncio.run(store.close())


TAKES = """
import asyncio, sys
from specllama.handlers.running.buckets import Bucket, Demand, SqliteBuckets

async def main():
    store, bucket = SqliteBuckets(sys.argv[1]), Bucket("a", 100, 1e12)
    takes = [await store.take([Demand.of(bucket, 1)]) for _ in range(100)]
    print(sum(each.is_granted for each in takes))
    await store.close()

asyncio.run(main())
"""


@pytest.mark.slow
def test_several_processes_share_a_file(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TAKES, str(tmp_path / "quotas.db")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(3)]
    granted = [int(each.communicate(timeout=SECONDS)[0]) for each in running]
    assert sum(granted) == 100


def test_a_broken_file_refuses(tmp_path: Path) -> None:
    store = SqliteBuckets(path := str(tmp_path / "quotas.db"))
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE buckets")
    for _ in range(2):  # the connection stays usable
        with pytest.raises(UnavailableStoreError, match="no such table"):
            taken(store, Demand.of(BUCKETS[0], 1))
    with sqlite3.connect(path) as connection:
        connection.execute(QUOTAS.schema.partition(";")[0])  # the first table
    assert taken(store, Demand.of(BUCKETS[0], 1)).is_granted
    asyncio.run(store.close())


def test_stores_of_the_option(tmp_path: Path) -> None:
    assert isinstance(open_buckets("memory"), MemoryBuckets)
    file = open_buckets(str(tmp_path / "quotas.db"))
    assert isinstance(file, SqliteBuckets)
    asyncio.run(file.close())
    for where in (str(tmp_path), "redis://host:port"):
        with pytest.raises(OptionError, match=r"^--quota-store"):
            open_buckets(where)
    (tmp_path / "text").write_text("no database", "utf-8")
    with pytest.raises(OptionError, match=r"text: file is not a database"):
        open_buckets(str(tmp_path / "text"))


def test_many_concurrent_calls_take_one_after_the_other(tmp_path: Path) -> None:
    async def takes(store: BucketStore) -> int:
        bucket = Bucket("a", 30, 1e12)
        found = await asyncio.gather(*(store.take([Demand.of(bucket, 2)]) for _ in range(40)))
        await store.close()
        return sum(each.is_granted for each in found)

    stores = (MemoryBuckets(), SqliteBuckets(str(tmp_path / "quotas.db")))
    assert [asyncio.run(takes(store)) for store in stores] == list(itertools.repeat(15, 2))


STEPS = st.lists(
    st.tuples(
        st.floats(0, 50, allow_nan=False),
        st.sampled_from(["begin", "begin", "renew", "end"]),
        st.sampled_from("ab"),
        st.integers(0, 3),
    ),
    max_size=30,
)


async def counted(
    store: BucketStore, clock: Clock, steps: list[tuple[float, str, str, int]]
) -> list[int]:
    """Returns the outcomes of changes of running calls."""
    found: list[int] = []
    for seconds, change, key, call in steps:
        clock.now += seconds
        name = f"{key}{call}"
        if change == "begin":
            found.append(await store.begin(key, f"{name} {len(found)}", 2))
            if not found[-1]:
                await store.end(key, name)  # at most one of each name
                found.append(await store.begin(key, name, 3))
        elif change == "renew":
            await store.renew([(key, name), ("b", "unknown")])
        else:
            await store.end(key, name)
    await store.close()
    return found


@given(STEPS)
def test_the_stores_agree_on_running_calls(steps: list[tuple[float, str, str, int]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        one, other = Clock(), Clock()
        file = SqliteBuckets(str(Path(directory, "quotas.db")), other)
        assert asyncio.run(counted(MemoryBuckets(one), one, steps)) == asyncio.run(
            counted(file, other, steps)
        )


def test_a_running_call_that_is_not_renewed_ends() -> None:
    async def work() -> None:
        clock = Clock()
        store = MemoryBuckets(clock)
        assert [await store.begin("a", call, 2) for call in ("x", "y", "z")] == [0, 0, 2]
        clock.now += RUNNING_SECONDS - 1
        await store.renew([("a", "y")])
        clock.now += 2
        assert [await store.begin("a", call, 2) for call in ("z", "w")] == [0, 2]
        for call in ("y", "z", "z"):
            await store.end("a", call)
        assert not store._calls

    asyncio.run(work())


def test_an_older_file_gets_the_table_of_running_calls(tmp_path: Path) -> None:
    path = str(tmp_path / "quotas.db")
    buckets, _, _ = QUOTAS.schema.partition(";")
    old = dataclasses.replace(QUOTAS, version=1, schema=buckets, upgrades={})
    old.open(path).close()
    store = SqliteBuckets(path)
    assert asyncio.run(store.begin("a", "x", 1)) == 0
    assert asyncio.run(store.begin("a", "y", 1)) == 1
    asyncio.run(store.close())
