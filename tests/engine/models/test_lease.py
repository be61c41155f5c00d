"""Leases: a request gets its model, or gives up waiting for it."""

import asyncio

import pytest

from specllama.engine.errors import EngineError
from tests.support.engines import PaperSupervisor
from tests.support.options_support import model_options
from tests.support.pool_stage import in_loop, soon, stage


@in_loop
async def test_a_request_loads_its_model_and_waits_for_it() -> None:
    async with stage() as s:
        task = s.lease("a")
        await soon()
        assert s.value("a") == "loading"
        assert not task.done()
        s.engine("a").become_ready()
        lease = await task
        assert s.value("a") == "loaded"
        assert lease.entry.name == "a"
        lease.release()
        lease.release()
        assert s.engine("a").n_leases == 0


@in_loop
async def test_requests_for_one_model_share_its_loading() -> None:
    async with stage() as s:
        tasks = [s.lease("a") for _ in range(20)]
        await soon()
        s.engine("a").become_ready()
        leases = await asyncio.gather(*tasks)
        assert len(PaperSupervisor.all) == 1
        assert s.engine("a").n_leases == 20
        for lease in leases:
            lease.release()


@in_loop
async def test_a_cancelled_wait_cancels_no_other() -> None:
    async with stage() as s:
        leaver, stayer = s.lease("a"), s.lease("a")
        await soon()
        leaver.cancel()
        await soon()
        s.engine("a").become_ready()
        (await stayer).release()
        assert leaver.cancelled()
        assert s.engine("a").n_leases == 0


@in_loop
async def test_a_cancelled_request_returns_its_new_lease() -> None:
    async with stage(models_max=1) as s:
        a = await s.loaded("a")
        b = s.lease("b")
        await soon()
        a.release()
        while s.pool.supervisor("b") is None:
            await asyncio.sleep(0)
        b.cancel()  # its lease is there, but it has not looked yet
        await soon()
        assert b.cancelled()
        s.engine("b").become_ready()
        await soon()
        assert s.engine("b").n_leases == 0
        (await s.loaded("a")).release()


@in_loop
async def test_without_autoload_only_running_models_are_used() -> None:
    async with stage() as s:
        with pytest.raises(EngineError, match="not loaded") as refused:
            await s.lease("a", autoload=False)
        assert refused.value.info.type == "invalid_request_error"
        (await s.loaded("a")).release()
        (await s.lease("a", autoload=False)).release()
        await s.engine("a").fall_asleep()
        task = s.lease("a", autoload=False)
        await soon()
        s.engine("a").become_ready()
        (await task).release()


@in_loop
async def test_the_only_model_is_there_from_the_start() -> None:
    async with stage(router=False) as s:
        assert s.alive() == {"a"}
        s.engine("a").become_ready()
        with await s.lease("b") as lease:  # whatever the name
            assert lease.supervisor is s.engine("a")
        for action in (s.pool.load, s.pool.unload):
            with pytest.raises(EngineError):
                await action("a")


@in_loop
async def test_a_lease_in_the_moment_in_which_it_would_sleep_and_is_stopped() -> None:
    """A watcher of the idle model waits for the lease, and doesn't send requests to an engine that
    has ended."""
    supervisor = PaperSupervisor(model_options(sleep_idle_seconds=1))
    supervisor.start()
    await soon()
    supervisor.become_ready()
    engine = await supervisor.engine()
    while not engine.n_running:  # its counts are requested before it is ended
        await asyncio.sleep(0.01)
    supervisor.acquire()
    await supervisor.stop()
    assert supervisor.n_leases == 1
    supervisor.release()
    assert not supervisor.alive
