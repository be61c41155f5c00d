"""Work that goes on after its request."""

import asyncio
from functools import partial
from typing import Any

import pytest

from specllama.engine.errors import EngineError
from specllama.handlers.running import ongoing as background
from specllama.handlers.running.ongoing import BackgroundJobs
from specllama.handlers.running.response_store import ClaimedResponse, Responses
from specllama.handlers.running.sqlite_responses import SqliteResponses
from specllama.handlers.running.stores import UnavailableStoreError


def response(id: str, status: str = "queued") -> Any:
    return {"id": id, "previous_response_id": None, "output": [], "status": status}


async def begun(store: SqliteResponses, *ids: str) -> BackgroundJobs:
    """Stores responses with these ids, and returns their server's jobs."""
    for id in ids:
        await Responses(store).begin(response(id), [])
    return BackgroundJobs(store)


async def endless(ended: list[str], id: str) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        ended.append(id)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "HEARTBEAT", 0.0)


def test_states_are_stored() -> None:
    async def run() -> None:
        store = SqliteResponses()
        jobs, go = await begun(store, "a"), asyncio.Event()
        states: list[Any] = ["queued"]

        async def stored() -> str:
            return (await Responses(store).find("a")).response["status"]

        async def work() -> None:
            await go.wait()
            states.append(None)  # from now on, the job itself stores its response
            await Responses(store).end(response("a", "completed"), [])

        jobs.start(("", "a"), work(), lambda: states[-1])
        assert await stored() == "queued"
        states.append("in_progress")
        while await stored() != "in_progress":
            pass
        go.set()
        while await stored() != "completed":
            pass
        await jobs.stop()
        assert await stored() == "completed"
        await store.close()

    asyncio.run(run())


def test_work_is_cancelled_and_waited_for() -> None:
    async def run() -> None:
        store, ended = SqliteResponses(), list[str]()
        jobs = await begun(store, *"abc")
        for id in "abc":
            jobs.start(("", id), endless(ended, id), lambda: "queued")
        await asyncio.sleep(0)
        await jobs.cancel(("", "b"))
        await jobs.cancel(("", "missing"))
        assert ended == ["b"]
        await jobs.stop()
        assert sorted(ended) == ["a", "b", "c"]
        await store.close()

    asyncio.run(run())


def test_work_ends_with_its_claim() -> None:
    """Another process has cancelled or deleted the response, or it is lost."""

    async def run() -> None:
        store, ended = SqliteResponses(), list[str]()
        jobs = await begun(store, *"abc")
        states: dict[str, Any] = dict.fromkeys("abc", "queued")
        for id in "abc":
            jobs.start(("", id), endless(ended, id), partial(states.get, id))
        await Responses(store).end(response("a", "cancelled"), [])
        while ended != ["a"]:
            await asyncio.sleep(0)
        states["b"] = None  # its job stores it now
        for id in "bc":
            await Responses(store).delete(id)
        while ended != ["a", "c"]:
            await asyncio.sleep(0)
        await jobs.stop()
        assert ended == ["a", "c", "b"]
        await store.close()

    asyncio.run(run())


class Away(SqliteResponses):
    """Can't renew claims for three times."""

    n_left = 3

    async def renew(self, claimed: Any, seconds: float) -> list[ClaimedResponse]:
        if self.n_left:
            self.n_left -= 1
            raise UnavailableStoreError("x")
        return await super().renew(claimed, seconds)


def test_work_goes_on_without_the_store(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        store, ended = Away(), list[str]()
        jobs = await begun(store, "a")
        jobs.start(("", "a"), endless(ended, "a"), lambda: "in_progress")
        while (await Responses(store).find("a")).response["status"] == "queued":
            assert not ended
        await jobs.stop()
        await store.close()

    asyncio.run(run())
    assert caplog.text.count("may be lost: x") == 3


def test_there_is_room_for_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(background, "MAX_JOBS", 2)
        store = SqliteResponses()
        jobs = await begun(store, *"ab")
        full = pytest.raises(EngineError, match="2 responses in the background")
        with jobs.room(), jobs.room(), full, jobs.room():
            pass
        for id in "ab":
            with jobs.room():
                jobs.start(("", id), endless([], id), lambda: "queued")
        with full, jobs.room():
            pass
        await asyncio.sleep(0)
        await jobs.cancel(("", "a"))
        await asyncio.sleep(0)
        with jobs.room():
            pass
        await jobs.stop()
        await store.close()

    asyncio.run(run())
