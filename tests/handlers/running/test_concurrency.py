"""The running calls of keys, in a store that several servers share."""

import asyncio
from contextlib import ExitStack

import msgspec
import pytest

from specllama.engine.errors import EngineError
from specllama.handlers.http.api_keys import ApiKey
from specllama.handlers.options.keys_file import digest
from specllama.handlers.running import concurrency
from specllama.handlers.running.buckets import RUNNING_SECONDS, MemoryBuckets
from specllama.handlers.running.concurrency import RunningCalls

KEY = ApiKey(name="alice", id="key:alice", digest=digest("sk"), concurrency=2)


class Late(MemoryBuckets):
    """A store that other servers reach in a moment."""

    async def end(self, key: str, call: str) -> None:
        await asyncio.sleep(concurrency.SETTLE_SECONDS / 2)
        await super().end(key, call)


async def refused(calls: RunningCalls, key: ApiKey = KEY) -> str:
    with ExitStack() as leases, pytest.raises(EngineError) as caught:
        await calls.begin(key, leases)
    return caught.value.info.message


def test_the_calls_of_all_servers_count() -> None:
    async def work() -> None:
        store = MemoryBuckets()
        one, other = RunningCalls(store), RunningCalls(store)
        with ExitStack() as leases:
            await one.begin(KEY, leases)
            await other.begin(KEY, leases)
            for each in (one, other):
                assert "2 running requests" in await refused(each)
            await one.begin(msgspec.structs.replace(KEY, id="key:bob"), leases)
        await one.close()
        await other.close()
        assert not store._calls
        assert len(one) == len(other) == 0

    asyncio.run(work())


def test_a_client_may_go_on_before_the_store_knows_of_its_last_end() -> None:
    async def work() -> None:
        store = Late()
        one, other = RunningCalls(store), RunningCalls(store)
        key = msgspec.structs.replace(KEY, concurrency=1)
        for each in (one, one, other, one):
            with ExitStack() as leases:
                await each.begin(key, leases)
        await one.close()
        await other.close()
        assert not store._calls

    asyncio.run(work())


def test_running_calls_are_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        now, renewed = [0.0], asyncio.Event()

        class Watched(MemoryBuckets):
            async def renew(self, calls: object) -> None:
                await super().renew(calls)  # type: ignore[arg-type]
                renewed.set()

        store = Watched(lambda: now[0])
        calls = RunningCalls(store)
        with ExitStack() as leases:
            await calls.begin(KEY, leases)
            now[0] = RUNNING_SECONDS - 1
            renewed.clear()
            await renewed.wait()
            now[0] = RUNNING_SECONDS + 1
            await RunningCalls(store).begin(KEY, leases)
            assert await refused(calls)
        await calls.close()
        assert calls._renewing is None

    monkeypatch.setattr(concurrency, "RENEW_SECONDS", 0.0)
    asyncio.run(work())


def test_a_cancelled_beginning_leaves_nothing() -> None:
    async def work() -> None:
        class Slow(MemoryBuckets):
            async def begin(self, key: str, call: str, limit: int) -> int:
                n = await super().begin(key, call, limit)
                await asyncio.Event().wait()
                return n

        store = Slow()
        calls = RunningCalls(store)
        with ExitStack() as leases:
            task = asyncio.create_task(calls.begin(KEY, leases))
            while not store._calls:
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
        await calls.close()
        assert task.cancelled()
        assert not store._calls

    asyncio.run(work())
