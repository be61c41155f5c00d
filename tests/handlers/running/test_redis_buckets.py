"""Token buckets in a real Redis server, if it is installed: apt-get install redis-server."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specllama.handlers.running.admission import open_buckets
from specllama.handlers.running.buckets import (
    ALWAYS,
    RUNNING_SECONDS,
    Bucket,
    Demand,
    MemoryBuckets,
)
from specllama.handlers.running.stores import UnavailableStoreError
from tests.support.redis_servers import redis_server

pytest.importorskip("redis", reason="the library of the extra `redis` isn't installed")
pytestmark = pytest.mark.slow

AGES = 1e12  # s; nothing is refilled meanwhile
T = TypeVar("T")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server.url


def with_store(url: str, work: Callable[[Any], Awaitable[T]]) -> T:
    async def run() -> T:
        store: Any = open_buckets(url)
        try:
            await store._server.client.flushall()
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def test_concurrent_calls_never_take_more_than_the_limit(url: str) -> None:
    async def work(store: Any) -> int:
        demands = [Demand.of(Bucket(id, 50, AGES), 1) for id in ("a", "b")]
        others = [open_buckets(url) for _ in range(3)]
        takes = [each.take(demands) for each in (store, *others) for _ in range(40)]
        found = await asyncio.gather(*takes)
        for each in others:
            await each.close()
        return sum(each.is_granted for each in found)

    assert with_store(url, work) == 50


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from("abc"), st.integers(-20, 40), st.booleans()),
            unique_by=lambda each: each[0],
            min_size=1,
        ),
        max_size=20,
    )
)
def test_the_script_agrees_with_the_memory(
    url: str, steps: list[list[tuple[str, int, bool]]]
) -> None:
    async def work(store: Any) -> None:
        memory = MemoryBuckets(lambda: 0.0)
        for step in steps:
            demands = [
                Demand(Bucket(id, 30, AGES), n, ALWAYS if is_owed else n) for id, n, is_owed in step
            ]
            found, expected = await store.take(demands), await memory.take(demands)
            assert found.is_granted == expected.is_granted
            assert found.levels == pytest.approx(expected.levels)

    with_store(url, work)


def test_time_refills_a_bucket_by_the_clock_of_the_redis_server(url: str) -> None:
    async def work(store: Any) -> None:
        bucket = Bucket("a", 10, AGES)
        await store.take([Demand.owed(bucket, 25)])
        key = "specllama:bucket:a"
        client = store._server.client
        # It is full after 2.5 periods; what is removed earlier would be full at once.
        assert await client.ttl(key) > 2.5 * AGES
        at = float(await client.hget(key, "at"))
        await client.hset(key, "at", str(at - AGES))
        assert (await store.take([Demand.owed(bucket, 0)])).levels == pytest.approx([-5])
        await client.hset(key, "at", str(at - 9 * AGES))
        assert (await store.take([Demand.owed(bucket, 0)])).levels == pytest.approx([10])

    with_store(url, work)


def test_a_redis_server_that_is_gone_refuses(tmp_path: Path) -> None:
    store = open_buckets(f"unix://:secret@{tmp_path / 'nothing.sock'}")
    with pytest.raises(UnavailableStoreError, match=r"nothing\.sock") as caught:
        asyncio.run(store.take([Demand.of(Bucket("a", 1, 1.0), 1)]))
    assert "secret" not in str(caught.value)


def test_running_calls_are_counted_for_all_servers(url: str) -> None:
    async def work(store: Any) -> None:
        others = [open_buckets(url) for _ in range(3)]
        begins = [
            each.begin("a", f"{i} {n}", 50)
            for i, each in enumerate((store, *others))
            for n in range(40)
        ]
        found = await asyncio.gather(*begins)
        assert sorted(found) == [0] * 50 + [50] * 110
        assert await store.begin("b", "x", 1) == 0
        for each in others:
            await each.close()
        names = await store._server.client.zrange("specllama:running:a", 0, -1)
        await store.end("a", names[0].decode())
        await store.end("a", "unknown")
        assert [await store.begin("a", name, 50) for name in ("x", "y")] == [0, 50]

    with_store(url, work)


def test_a_running_call_that_is_not_renewed_ends(url: str) -> None:
    async def work(store: Any) -> None:
        for name in ("x", "y"):
            assert await store.begin("a", name, 2) == 0
        client, key = store._server.client, "specllama:running:a"
        await client.zadd(key, {"x": 1, "y": 1})
        await store.renew([("a", "y"), ("a", "unknown"), ("c", "unknown")])
        assert await store.begin("a", "z", 2) == 0
        assert await client.zrange(key, 0, -1) == [b"y", b"z"]
        assert 0 < await client.ttl(key) <= 2 * RUNNING_SECONDS
        assert not await client.exists("specllama:running:c")

    with_store(url, work)
