"""A request's keep_alive keeps its model in memory."""

import asyncio

from tests.support.pool_stage import in_loop, soon, stage


@in_loop
async def test_a_kept_model_makes_no_room_until_its_time_is_over() -> None:
    async with stage(models_max=1) as s:
        (await s.loaded("a")).release()
        s.pool.keep("a", 100)
        assert 0 < s.pool.memory("a").seconds_kept <= 100
        waiting = s.lease("b")
        await soon()
        assert s.alive() == {"a"}
        (await s.loaded("a")).release()  # it still has its place
        s.pool.keep("a", 0.001)  # without effect: another model waits
        await soon()
        s.engine("b").become_ready()
        (await waiting).release()
        assert s.alive() == {"b"}
        assert s.pool.memory("a").seconds_kept == 0


@in_loop
async def test_the_time_ends() -> None:
    async with stage(models_max=1) as s:
        (await s.loaded("a")).release()
        s.pool.keep("a", 0.01)
        waiting = s.lease("b")
        while s.alive() != {"b"}:
            await asyncio.sleep(0)
        s.engine("b").become_ready()
        (await waiting).release()


@in_loop
async def test_the_administrator_limits_the_time() -> None:
    async with stage(models_max=1, keep_alive_max=50) as s:
        (await s.loaded("a")).release()
        s.pool.keep("a", float("inf"))
        assert s.pool.memory("a").seconds_kept <= 50
    async with stage(models_max=1, keep_alive_max=0) as s:
        (await s.loaded("a")).release()
        s.pool.keep("a", 100)
        (await s.loaded("b")).release()
        assert s.alive() == {"b"}


@in_loop
async def test_a_kept_model_can_be_unloaded() -> None:
    async with stage() as s:
        (await s.loaded("a")).release()
        s.pool.keep("a", 100)
        assert s.engine("a").n_leases == 1, "it doesn't sleep"
        assert s.pool.unload_idle("a")
        await soon()
        assert not s.alive()
        (await s.loaded("a")).release()
        s.pool.keep("a", 100)
        await s.pool.unload("a")
        assert not s.alive()


@in_loop
async def test_a_model_that_is_not_loaded_is_not_kept() -> None:
    async with stage() as s:
        s.pool.keep("a", 100)
        s.pool.keep("unknown", 100)
        assert s.pool.memory("a").seconds_kept == 0
        assert s.pool.memory("unknown").need == {}
