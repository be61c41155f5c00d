"""Work that goes on after its request."""

import asyncio
from typing import Any

import pytest

from specllama.engine.errors import EngineError
from specllama.handlers.running import ongoing as background
from specllama.handlers.running.ongoing import BackgroundJobs

RESPONSE: Any = {}


async def endless(ended: list[str], id: str) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        ended.append(id)


def test_work_is_shown_until_it_ends() -> None:
    async def run() -> None:
        jobs, go = BackgroundJobs(), asyncio.Event()
        shown: Any = {"status": "queued"}

        async def work() -> None:
            await go.wait()

        asked: Any = [{"id": "msg_1"}]
        jobs.start(("", "a"), shown, work(), asked)
        assert jobs.shown(("", "a")) is shown
        assert jobs.input(("", "a")) is asked
        assert jobs.shown(("", "b")) is None
        assert jobs.input(("", "b")) is None
        go.set()
        while jobs.shown(("", "a")) is not None:
            await asyncio.sleep(0)

    asyncio.run(run())


def test_work_is_cancelled_and_waited_for() -> None:
    async def run() -> None:
        jobs, ended = BackgroundJobs(), list[str]()
        for id in "abc":
            jobs.start(("", id), RESPONSE, endless(ended, id))
        await asyncio.sleep(0)
        await jobs.cancel(("", "b"))
        await jobs.cancel(("", "missing"))
        assert ended == ["b"]
        await jobs.stop()
        assert sorted(ended) == ["a", "b", "c"]

    asyncio.run(run())


def test_there_is_room_for_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(background, "MAX_JOBS", 2)
        jobs = BackgroundJobs()
        for id in "ab":
            jobs.check_room()
            jobs.start(("", id), RESPONSE, endless([], id))
        with pytest.raises(EngineError, match="2 responses in the background"):
            jobs.check_room()
        await asyncio.sleep(0)
        await jobs.cancel(("", "a"))
        await asyncio.sleep(0)
        jobs.check_room()
        await jobs.stop()

    asyncio.run(run())
