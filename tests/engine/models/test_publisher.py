"""The events that the pool publishes."""

import asyncio

from specllama.engine.models.events import ModelEvent
from tests.support.pool_stage import entry, in_loop, seen, soon, stage


@in_loop
async def test_every_change_of_status_is_published() -> None:
    async with stage(entry("far", remote=True)) as s:
        events = s.pool.subscribe()
        task = s.lease("far")
        await soon()
        for n_done in range(0, 100, 10):
            s.engine("far").download(n_done, 100)
        assert await anext(events) == ModelEvent("far", "model_status", {"status": "downloading"})
        progress = (await anext(events)).data["progress"]["model.gguf"]
        assert progress == {"done": 0, "total": 100}
        s.engine("far").downloaded()
        await soon()
        s.engine("far").make_progress(0.5)
        s.engine("far").become_ready()
        (await task).release()
        await s.engine("far").fall_asleep()
        await s.pool.unload("far")
        assert seen(events) == [
            ("far", "download_finished", ""),
            ("far", "status_change", "unloaded"),
            ("far", "status_change", "loading"),
            ("far", "status_change", "loading"),
            ("far", "status_change", "loaded"),
            ("far", "status_change", "sleeping"),
            ("far", "status_change", "unloaded"),
        ]


@in_loop
async def test_the_end_of_progress_is_published_however_soon_it_comes() -> None:
    async with stage() as s:
        events = s.pool.subscribe()
        task = s.lease("a")
        await soon()
        for percent in range(101):
            s.engine("a").make_progress(percent / 100)
        assert (await anext(events)).data == {"status": "loading"}
        assert (await anext(events)).data["progress"]["value"] == 1.0  # it replaces older ones
        s.engine("a").become_ready()
        (await task).release()
        assert (await anext(events)).data["status"] == "loaded"


@in_loop
async def test_a_failure_is_published_with_its_code() -> None:
    async with stage() as s:
        events = s.pool.subscribe()
        task = s.lease("a")
        await soon()
        s.engine("a").fail("broken", 3)
        await asyncio.wait({task})
        task.exception()
        await soon()
        assert [await anext(events), await anext(events)] == [
            ModelEvent("a", "model_status", {"status": "loading"}),
            ModelEvent("a", "status_change", {"status": "unloaded", "exit_code": 3}),
        ]


@in_loop
async def test_the_end_of_the_server_is_the_end_of_the_events() -> None:
    async with stage() as s:
        events = s.pool.subscribe()
        reader = asyncio.create_task(anext(events, None))
        await soon()
        await s.pool.stop()
        assert await reader is None
        assert [event async for event in s.pool.subscribe()] == []
