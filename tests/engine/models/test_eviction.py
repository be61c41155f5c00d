"""Models make room for each other: --models-max."""

import asyncio

from tests.support.engines import PaperSupervisor
from tests.support.pool_stage import in_loop, soon, stage


@in_loop
async def test_the_idle_model_that_was_used_least_recently_makes_room() -> None:
    async with stage(models_max=2) as s:
        (await s.loaded("a")).release()
        (await s.loaded("b")).release()
        (await s.loaded("a")).release()
        (await s.loaded("c")).release()
        assert s.alive() == {"a", "c"}
        assert s.value("b") == "unloaded"


@in_loop
async def test_a_running_request_is_not_interrupted() -> None:
    async with stage(models_max=1) as s:
        a = await s.loaded("a")
        b = s.lease("b")
        await soon()
        assert s.alive() == {"a"}
        assert (s.value("b"), s.pool.status("b").waiting) == ("loading", True)
        a.release()
        await soon()
        assert s.alive() == {"b"}
        assert (s.value("b"), s.pool.status("b").waiting) == ("loading", False)
        s.engine("b").become_ready()
        (await b).release()


@in_loop
async def test_many_requests_for_many_models_are_all_served() -> None:
    async with stage(models_max=2) as s:
        names = [("abcd" * 25)[i * 7 % 100] for i in range(100)]
        served = []

        async def work(name: str) -> None:
            with await s.pool.lease(s.catalog.entries[name]) as lease:
                assert lease.supervisor is s.pool.supervisor(name)
                assert lease.supervisor.state == "ready"
                await asyncio.sleep(0)
                served.append(name)

        async def run_engines() -> None:
            while True:
                await asyncio.sleep(0)
                assert len(s.alive()) <= 2
                for each in PaperSupervisor.all:
                    if each.alive and each.state == "loading":
                        each.become_ready()

        engines = asyncio.create_task(run_engines())
        await asyncio.gather(*map(work, names))
        engines.cancel()
        await asyncio.wait({engines})
        assert sorted(served) == sorted(names)


@in_loop
async def test_no_limit() -> None:
    async with stage(models_max=0) as s:
        leases = [await s.loaded(name) for name in "abcd"]
        assert s.alive() == set("abcd")
        for lease in leases:
            lease.release()


@in_loop
async def test_a_sleeping_model_needs_no_place_until_it_wakes() -> None:
    async with stage(models_max=1) as s:
        (await s.loaded("a")).release()
        await s.engine("a").fall_asleep()
        b = await s.loaded("b")
        assert s.value("a") == "sleeping"
        task = s.lease("a")
        await soon()
        assert s.alive() == {"b"}
        b.release()
        await soon()
        assert s.alive() == {"a"}
        s.engine("a").become_ready()
        (await task).release()
