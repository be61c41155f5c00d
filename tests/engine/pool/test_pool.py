"""The pool of models, with engines that exist in name only, so that every race can be staged."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest

from engine.catalog.catalog import Catalog
from engine.catalog.download.parent import Transfer
from engine.catalog.entry import Entry
from engine.errors import EngineError
from engine.options import Options
from engine.pool.client import EngineClient
from engine.pool.events import ModelEvent, ModelEvents, Subscription
from engine.pool.lease import Lease
from engine.pool.pool import ModelPool
from engine.pool.supervisor import Supervisor
from tests.support.options_support import model_options


class FakeSupervisor(Supervisor):
    """A supervisor whose engine does what a test says."""

    all: ClassVar[list["FakeSupervisor"]] = []  # emptied for each test

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.name = options.engine.model.alias
        self.alive = False
        FakeSupervisor.all.append(self)

    async def start(self, *, load: bool = True) -> None:
        await asyncio.sleep(0)
        if not self._stopped():
            self.alive = self.state == "loading"

    async def engine(self) -> EngineClient:
        await asyncio.sleep(0)
        if self.state == "stopped":
            await super().engine()
        return None  # type: ignore[return-value]  # nobody looks at it

    async def stop(self, timeout: float = 0.0, reason: str = "") -> None:
        self._leaving = reason or "the server is shutting down"
        if timeout:
            try:
                async with asyncio.timeout(timeout):
                    await self._changes.until(lambda: not self._n_leases or self._stopped())
            except TimeoutError:
                pass
        self._set_state("stopped")
        await asyncio.sleep(0)
        self.alive = False

    def wake(self) -> None:
        super().wake()
        if self.state == "sleeping":
            self.alive = True
            self._set_state("waking")
        elif self.state == "downloaded":
            self.alive = True
            self._set_state("loading")

    # ---- what a test does --------------------------------------------------------------

    def become_ready(self) -> None:
        self.failure = ""
        self._set_state("ready")

    def fail(self, reason: str, exit_code: int | None = 1) -> None:
        self.alive, self.exit_code = False, exit_code
        self._fail(reason)

    def fall_asleep(self) -> None:
        self.alive = False
        self._set_state("sleeping")

    def download(self, n_done: int, n_total: int) -> None:
        self._on_transfer(Transfer("model.gguf", n_done, n_total))

    def downloaded(self) -> None:
        self._set_state("downloaded")

    def make_progress(self, fraction: float) -> None:
        self.progress = fraction
        self.on_change()


def entry(name: str, *, startup: bool = False, remote: bool = False, timeout: int = 10) -> Entry:
    options = model_options(alias=name, hf_repo="user/repo" if remote else "")
    return Entry(
        name=name,
        source="preset",
        options=options,
        load_on_startup=startup,
        stop_timeout=timeout,
    )


class Stage:
    """A pool over fake supervisors."""

    def __init__(self, pool: ModelPool, catalog: Catalog) -> None:
        self.pool, self.catalog = pool, catalog

    def lease(self, name: str, *, autoload: bool = True) -> asyncio.Task[Lease]:
        task = self.pool.lease(self.catalog.entries[name], autoload=autoload)
        return asyncio.create_task(task)

    def engine(self, name: str) -> FakeSupervisor:
        found = self.pool.supervisor(name)
        assert isinstance(found, FakeSupervisor)
        return found

    def value(self, name: str) -> str:
        return self.pool.status(name).value

    async def loaded(self, name: str) -> Lease:
        task = self.lease(name)
        await soon()
        if self.engine(name).state != "ready":
            self.engine(name).become_ready()
        return await task

    def alive(self) -> set[str]:
        return {each.name for each in FakeSupervisor.all if each.alive}


async def soon() -> None:
    """Until nothing more happens by itself."""
    for _ in range(30):
        await asyncio.sleep(0)


@asynccontextmanager
async def stage(*entries: Entry, models_max: int = 4, router: bool = True) -> AsyncIterator[Stage]:
    FakeSupervisor.all, tasks = [], asyncio.all_tasks()
    given = entries or tuple(entry(name) for name in "abcd")
    catalog = Catalog(given, default=given[0].name, router=router)
    pool = ModelPool(catalog, models_max=models_max, new_supervisor=FakeSupervisor)
    await pool.start()
    try:
        await soon()
        yield Stage(pool, catalog)
    finally:
        await pool.stop()
        assert not {each.name for each in FakeSupervisor.all if each.alive}
        assert asyncio.all_tasks() == tasks


def in_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), 30))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


# ---- leases ----------------------------------------------------------------------------------


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
        assert len(FakeSupervisor.all) == 1
        assert s.engine("a").n_leases == 20
        for lease in leases:
            lease.release()


@in_loop
async def test_who_stops_waiting_takes_nobody_along() -> None:
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
async def test_a_cancelled_request_gives_back_what_it_gets_in_that_moment() -> None:
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
        s.engine("a").fall_asleep()
        task = s.lease("a", autoload=False)
        await soon()
        s.engine("a").become_ready()
        (await task).release()


# ---- models-max ------------------------------------------------------------------------------


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
        assert s.value("b") == "loading"
        a.release()
        await soon()
        assert s.alive() == {"b"}
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
                for each in FakeSupervisor.all:
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
        s.engine("a").fall_asleep()
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


# ---- failures --------------------------------------------------------------------------------


@in_loop
async def test_a_model_that_fails_says_why_and_disturbs_no_other() -> None:
    async with stage() as s:
        a = await s.loaded("a")
        tasks = [s.lease("b"), s.lease("b")]
        await soon()
        s.engine("b").fail("out of memory", 137)
        for task in tasks:
            with pytest.raises(EngineError, match=r"out of memory \(exit code 137\)") as failed:
                await task
            assert failed.value.info.type == "unavailable_error"
        await soon()
        status = s.pool.status("b")
        assert (status.value, status.failed, status.exit_code) == ("unloaded", True, 137)
        assert s.value("a") == "loaded"
        a.release()


@in_loop
async def test_the_next_request_tries_again_but_not_endlessly() -> None:
    async with stage() as s:
        for _ in range(2):
            task = s.lease("a")
            await soon()
            s.engine("a").fail("no such file")
            await asyncio.wait({task})
            task.exception()
            await soon()
        with pytest.raises(EngineError, match="no such file"):
            await s.lease("a")
        assert len(FakeSupervisor.all) == 2
        await s.pool.load("a")  # who asks for it by hand need not wait
        await soon()
        s.engine("a").become_ready()
        await soon()
        assert not s.pool.status("a").failed
        (await s.lease("a")).release()


@in_loop
async def test_a_failure_frees_the_place_for_the_next() -> None:
    async with stage(models_max=1) as s:
        a, b = s.lease("a"), s.lease("b")
        await soon()
        s.engine("a").fail("broken")
        await asyncio.wait({a})
        a.exception()
        await soon()
        s.engine("b").become_ready()
        (await b).release()


# ---- load and unload -------------------------------------------------------------------------


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
            await s.pool.load("nobody")


@in_loop
async def test_unload_waits_for_what_runs() -> None:
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
    """Whoever asks for the loading and then looks until it is "loaded" must find the new one."""
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
        s.engine("a").become_ready()
        (await patient).release()
        assert s.value("a") == "loaded"
        assert seen(events) == [
            ("a", "status_change", "loading"),
            ("a", "model_status", "loading"),
            ("a", "status_change", "loaded"),
        ]


@in_loop
async def test_a_model_that_nobody_waits_for_any_longer_goes() -> None:
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
        s.engine("a").fall_asleep()
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


# ---- downloads -------------------------------------------------------------------------------


@in_loop
async def test_a_model_that_is_downloaded_needs_no_place_for_it() -> None:
    async with stage(entry("a"), entry("far", remote=True), models_max=1) as s:
        a = await s.loaded("a")
        task = s.lease("far")
        await soon()
        assert s.value("far") == "downloading"
        (await s.lease("a")).release()
        s.engine("far").download(50, 100)
        assert s.pool.status("far").progress == 0.5
        s.engine("far").downloaded()
        await soon()
        assert s.alive() == {"a"}
        a.release()
        await soon()
        assert s.alive() == {"far"}
        s.engine("far").become_ready()
        (await task).release()


@in_loop
async def test_a_download_can_fail_or_be_cancelled() -> None:
    async with stage(entry("far", remote=True)) as s:
        task = s.lease("far")
        await soon()
        s.engine("far").fail("no such repository", None)
        with pytest.raises(EngineError, match=r"no such repository$"):
            await task
        await soon()
        assert s.pool.status("far").failed
        task = s.lease("far")
        await soon()
        await s.pool.unload("far")
        with pytest.raises(EngineError, match="was unloaded"):
            await task


# ---- one model only --------------------------------------------------------------------------


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


# ---- events ----------------------------------------------------------------------------------


def seen(subscription: Subscription) -> list[tuple[str, str, str]]:
    subscription.close()
    events = [event for event, _ in subscription._events]
    return [(event.model, event.event, event.data.get("status", "")) for event in events]


@in_loop
async def test_every_change_of_status_is_told() -> None:
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
        s.engine("far").fall_asleep()
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
async def test_a_failure_is_told_with_its_code() -> None:
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


def test_a_slow_reader_loses_progress_but_no_state() -> None:
    news, slow = ModelEvents(), Subscription()
    news._subscriptions.add(slow)
    for i in range(5):
        slow.put(ModelEvent("a", "download_progress", {"i": i}), is_progress=True)
    news.publish("a", "status_change", {"status": "loading"})
    news.publish("b", "status_change", {"status": "loading"})
    assert [(event.model, event.data) for event, _ in slow._events] == [
        ("a", {"i": 4}),
        ("a", {"status": "loading"}),
        ("b", {"status": "loading"}),
    ]


def test_a_reader_that_never_reads_is_let_go() -> None:
    news = ModelEvents()
    lost = news.subscribe()
    for _ in range(2000):
        news.publish("a", "status_change", {})
    assert len(seen(lost)) < 1100
