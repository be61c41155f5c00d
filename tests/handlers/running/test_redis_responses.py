"""Responses in a real Redis server that is full, restarts, or has other data, if it is installed.

The tests of all stores are in `test_response_store.py`."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from specllama.handlers.running.admission import open_buckets
from specllama.handlers.running.buckets import Bucket, Demand
from specllama.handlers.running.response_store import ClaimedResponse, ResponseStore
from specllama.handlers.running.runtime import open_responses
from specllama.handlers.running.stores import StoreError, UnavailableStoreError
from tests.support.redis_servers import RedisProcess, redis_server

redis = pytest.importorskip("redis", reason="the library of the extra `redis` isn't installed")

pytestmark = pytest.mark.slow

PREFIX = "specllama:responses:"
READING = "specllama.handlers.running.redis_responses.READ_BYTES"
MAX_CONNECTIONS = "specllama.handlers.running.redis_server.MAX_CONNECTIONS"


def response(id: str, previous: str | None = None, status: str = "completed") -> Any:
    return {"id": id, "previous_response_id": previous, "output": [], "status": status}


def item(id: str, text: str = "") -> Any:
    return {"id": id, "text": text}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisProcess]:
    with redis_server(tmp_path) as running:
        yield running


def use(url: str, work: Callable[[ResponseStore, Any], Awaitable[None]]) -> None:
    """Runs `work` with a store, and with a client that blocks."""

    async def run() -> None:
        store = open_responses(url)
        with closing(redis.Redis.from_url(url)) as client:
            try:
                await work(store, client)
            finally:
                await store.close()

    asyncio.run(run())


def test_a_server_that_restarts(server: RedisProcess) -> None:
    async def work(store: ResponseStore, _: Any) -> None:
        for _ in range(2):
            await store.save("", response("a"), [item("i")])
            assert len(await store.chain("", "a", 1)) == 1
            server.kill()
            for call in (
                store.save("", response("b"), []),
                store.chain("", "a", 1),
                store.item("", "i"),
                store.delete("", "a"),
                store.renew([ClaimedResponse("", "a", "queued")], 1),
                store.check(),
            ):
                with pytest.raises(UnavailableStoreError, match=r"redis\.sock"):
                    await call
            server.start()
            assert await store.chain("", "a", 1) == []

    use(server.url, work)


def test_a_full_server_is_read(tmp_path: Path) -> None:
    async def work(store: ResponseStore, client: Any) -> None:
        await store.save("", response("a"), [item("i")])
        await store.save("", response("b", "a", "queued"), [item("i")], claim=1e9)
        n = 0

        async def fill() -> None:
            nonlocal n
            while True:
                await store.save("", response(f"{n}"), [item("x", "x" * 300_000)])
                n += 1

        with pytest.raises(UnavailableStoreError, match="memory"):
            await fill()
        assert n > 0
        assert len(await store.chain("", "b", 9)) == 2
        assert await store.item("", "i") is not None
        # Such a change takes the place of something that was stored.
        assert await store.save("", response("b", "a"), [item("i")], if_claimed=True)
        while n:
            n -= 1
            assert await store.delete("", str(n))
        await store.save("", response("c"), [item("x", "x" * 300_000)])
        assert client.zcard(PREFIX + "used") == 3
        sizes = [int(each) for each in client.hvals(PREFIX + "sizes")]
        assert int(client.get(PREFIX + "sum")) == sum(sizes)

    with redis_server(tmp_path, "--maxmemory", "4mb") as server:
        use(server.url, work)


def test_a_save_that_fails_leaves_nothing(tmp_path: Path) -> None:
    async def work(store: ResponseStore, client: Any) -> None:
        client.config_set("maxmemory", 1)
        with pytest.raises(UnavailableStoreError):
            await store.save("", response("a"), [item("i")])
        assert client.dbsize() == 0
        client.config_set("maxmemory", 0)
        await store.save("", response("a"), [item("i")])

    with redis_server(tmp_path) as server:
        use(server.url, work)


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (("HSET", "head", "no JSON"), StoreError),
        (("HSET", "i0", b"\xff"), StoreError),
        (("HDEL", "status"), StoreError),
        (("HDEL", "head"), StoreError),
        (("HDEL", "claimed_until"), UnavailableStoreError),  # the script fails
        (("DEL",), None),
    ],
)
def test_a_damaged_response(server: RedisProcess, command: Any, error: Any) -> None:
    async def work(store: ResponseStore, client: Any) -> None:
        await store.save("", response("a"), [item("i")])
        name, *values = command
        client.execute_command(name, PREFIX + "response:a", *values)
        if error is None:
            assert await store.chain("", "a", 1) == []
        else:
            with pytest.raises(StoreError) as caught:
                await store.chain("", "a", 1)
            assert type(caught.value) is error
        await store.save("", response("b"), [item("i")])
        assert len(await store.chain("", "b", 1)) == 1

    use(server.url, work)


def test_a_key_of_another_kind(server: RedisProcess) -> None:
    async def work(store: ResponseStore, client: Any) -> None:
        client.set(PREFIX + "response:a", "x")
        with pytest.raises(UnavailableStoreError, match="wrong kind"):
            await store.chain("", "a", 1)

    use(server.url, work)


def test_bounds_survive_the_loss_of_their_keys(
    server: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Redis server with an unsuitable `maxmemory-policy` may remove any key."""

    async def work(store: ResponseStore, client: Any) -> None:
        monkeypatch.setattr(store, "_bounds", (3, 1 << 20))
        for n, lost in enumerate(("used", "sizes", "sum", "response:1", "response:8")):
            for _ in range(2):
                await store.save("", response(str(2 * n)), [item("i")])
                await store.save("", response(str(2 * n + 1)), [item("i")])
            client.delete(PREFIX + lost)
        for n in range(10, 14):
            await store.save("", response(str(n)), [item("i")])
        assert client.zcard(PREFIX + "used") == 3
        for n in range(11, 14):
            assert len(await store.chain("", str(n), 1)) == 1

    use(server.url, work)


def test_a_long_chain_is_read_in_pieces(
    server: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(READING, 1000)

    async def work(store: ResponseStore, _: Any) -> None:
        for n in range(20):
            await store.save(
                "", response(str(n), str(n - 1) if n else None), [item("i", "x" * 300)]
            )
        found = await store.chain("", "19", 15)
        assert [each.response["id"] for each in found] == [str(n) for n in range(19, 4, -1)]

    use(server.url, work)


def test_quotas_and_responses_share_a_server(server: RedisProcess) -> None:
    async def work(store: ResponseStore, client: Any) -> None:
        buckets = open_buckets(server.url)
        await store.save("", response("a"), [item("i")])
        await buckets.take([Demand.of(Bucket("a", 10, 60.0), 1)])
        await store.delete("", "a")
        assert sorted(client.keys("*")) == [b"specllama:bucket:a", f"{PREFIX}sum".encode()]
        await buckets.close()

    use(server.url, work)


def test_calls_wait_for_a_connection(server: RedisProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MAX_CONNECTIONS, 3)

    async def work(store: ResponseStore, client: Any) -> None:
        buckets = open_buckets(server.url)
        takes = [buckets.take([Demand.of(Bucket("a", 1000, 60.0), 1)]) for _ in range(200)]
        assert all(each.is_granted for each in await asyncio.gather(*takes))
        await asyncio.gather(*(store.check() for _ in range(200)))
        assert len(client.client_list()) == 3 + 3 + 1
        await buckets.close()

    use(server.url, work)
