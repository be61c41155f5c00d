"""Loading and unloading by hand, at the start and at the end."""

import asyncio

import pytest

from specllama.engine.errors import EngineError
from tests.support.pool_stage import entry, in_loop, seen, soon, stage


@in_loop
async def test_load_and_unload_by_hand() -> None:
    async with stage() as s:
        await s.pool.load("a")
        await soon()
        with pytest.raises(EngineError, match="already running"):
            await s.pool.load("a")
        s.engine("a").become_ready()
        await soon()
        with pytest.raises(EngineError, match="already running"):
            await s.pool.load("a")
        await s.pool.unload("a")
        assert s.value("a") == "unloaded"
        assert not s.alive()
        with pytest.raises(EngineError, match="not running") as refused:
            await s.pool.unload("a")
        assert refused.value.info.type == "invalid_request_error"
        with pytest.raises(KeyError):
            await s.pool.load("missing")


@in_loop
async def test_unload_waits_for_running_requests() -> None:
    async with stage() as s:
        lease = await s.loaded("a")
        unload = asyncio.create_task(s.pool.unload("a"))
        await soon()
        assert s.value("a") == "loaded"
        assert not unload.done()
        lease.release()
        await unload
        assert s.value("a") == "unloaded"


@in_loop
async def test_unload_waits_no_longer_than_the_stop_timeout() -> None:
    async with stage(entry("a", timeout=0)) as s:
        lease = await s.loaded("a")
        await s.pool.unload("a")
        assert not s.alive()
        with pytest.raises(EngineError, match="was unloaded"):
            await lease.engine()
        lease.release()


@in_loop
async def test_unload_while_it_loads_or_waits_for_its_turn() -> None:
    async with stage(models_max=1) as s:
        first, second = s.lease("a"), s.lease("b")
        await soon()
        await s.pool.unload("b")
        with pytest.raises(EngineError, match="'b' was unloaded"):
            await second
        assert s.value("b") == "unloaded"
        await s.pool.unload("a")
        with pytest.raises(EngineError, match="'a' was unloaded"):
            await first
        assert not s.alive()


@in_loop
async def test_a_request_during_an_unload_gets_a_new_engine() -> None:
    async with stage() as s:
        lease = await s.loaded("a")
        old = s.engine("a")
        unload = asyncio.create_task(s.pool.unload("a"))
        await soon()
        with pytest.raises(EngineError, match="not loaded"):
            await s.lease("a", autoload=False)
        request = s.lease("a")
        await soon()
        assert s.engine("a") is old
        lease.release()
        await unload
        await soon()
        assert s.engine("a") is not old
        s.engine("a").become_ready()
        (await request).release()


@in_loop
async def test_a_model_that_is_loaded_again_is_not_taken_for_the_one_that_goes() -> None:
    """A caller that requests the loading and then waits for "loaded" must get the new process."""
    async with stage() as s:
        lease = await s.loaded("a")
        events = s.pool.subscribe()
        old = s.engine("a")
        unload = asyncio.create_task(s.pool.unload("a"))
        await soon()
        assert s.value("a") == "loaded", "what it serves goes on"
        await s.pool.load("a")
        await soon()
        assert s.value("a") == "loading"
        with pytest.raises(EngineError, match="already running"):
            await s.pool.load("a")
        patient = s.lease("a", autoload=False)
        lease.release()
        while s.pool.supervisor("a") in (old, None):
            assert s.value("a") == "loading"
            await asyncio.sleep(0)
        await unload
        await soon()
        s.engine("a").become_ready()
        (await patient).release()
        assert s.value("a") == "loaded"
        assert seen(events) == [
            ("a", "status_change", "loading"),
            ("a", "model_status", "loading"),
            ("a", "status_change", "loaded"),
        ]


@in_loop
async def test_a_model_without_waiting_requests_is_unloaded() -> None:
    async with stage() as s:
        lease = await s.loaded("a")
        unload = asyncio.create_task(s.pool.unload("a"))
        await soon()
        request = s.lease("a")
        await soon()
        assert s.value("a") == "loading"
        events = s.pool.subscribe()
        request.cancel()
        await soon()
        assert s.value("a") == "loaded", "what it serves goes on"
        assert seen(events) == [("a", "status_change", "loaded")]
        lease.release()
        await unload
        assert s.value("a") == "unloaded"


@in_loop
async def test_a_sleeping_model_is_unloaded_and_loaded_again() -> None:
    async with stage() as s:
        (await s.loaded("a")).release()
        await s.engine("a").fall_asleep()
        unload, request = asyncio.create_task(s.pool.unload("a")), s.lease("a")
        await unload
        await soon()
        s.engine("a").become_ready()
        (await request).release()


@in_loop
async def test_models_to_be_loaded_on_startup() -> None:
    entries = [entry(name, startup=name != "b") for name in "abcd"]
    async with stage(*entries, models_max=2) as s:
        assert s.alive() == {"a", "c"}


@in_loop
async def test_a_start_waits_for_the_first_models_of_which_one_is_enough() -> None:
    entries = [entry("a", startup=True), entry("b", startup=True), entry("c")]
    async with stage(*entries) as s:
        started = asyncio.create_task(s.pool.started())
        s.engine("a").fail("it is damaged")
        await soon()
        assert not started.done()
        s.engine("b").become_ready()
        assert await started


@pytest.mark.parametrize("late", [False, True])
def test_a_start_without_any_model_is_none(late: bool, caplog: pytest.LogCaptureFixture) -> None:
    @in_loop
    async def none_of_them() -> None:
        entries = [entry(name, startup=name != "c") for name in "abc"]
        async with stage(*entries) as s:
            started = None if late else asyncio.create_task(s.pool.started())
            for name in "ab":
                s.engine(name).fail("it is damaged")
            await soon()
            assert not await (started or s.pool.started())
            again = s.lease("a")
            await soon()
            s.engine("a").become_ready()
            (await again).release()

    none_of_them()
    assert "no model could be loaded" in caplog.text


@in_loop
async def test_a_router_that_loads_nothing_from_the_start_is_started() -> None:
    async with stage(entry("a")) as s:
        assert await s.pool.started()


@in_loop
async def test_shutdown_in_the_middle_of_everything() -> None:
    async with stage(*map(entry, "abcd"), entry("e", remote=True), models_max=2) as s:
        a = await s.loaded("a")
        tasks = [s.lease("b"), s.lease("c"), s.lease("e")]
        await soon()
        unload = asyncio.create_task(s.pool.unload("a"))
        await s.pool.load("d")
        await soon()
        await s.pool.stop()
        for task in tasks:
            with pytest.raises(EngineError, match=r"shutting down|was unloaded"):
                await task
        with pytest.raises(EngineError, match="shutting down"):
            await s.lease("d")
        await unload
        a.release()


@in_loop
async def test_only_an_idle_model_is_unloaded_in_passing() -> None:
    async with stage() as s:
        assert not s.pool.unload_idle("a")
        loading = s.lease("a")
        await soon()
        assert not s.pool.unload_idle("a"), "somebody waits for it"
        s.engine("a").become_ready()
        lease = await loading
        assert not s.pool.unload_idle("a"), "somebody works with it"
        lease.release()
        assert s.pool.unload_idle("a")
        assert not s.pool.unload_idle("a"), "it is leaving"
        await soon()
        assert s.value("a") == "unloaded"
