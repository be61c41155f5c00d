"""Sleeping, waking, draining and downloading, with real engine processes."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import psutil
import pytest

from contract_tests.kit.server import SECONDS
from specllama.engine.catalog.catalog import Catalog
from specllama.engine.catalog.entry import CatalogEntry
from specllama.engine.errors import EngineError
from specllama.engine.helpers.download.downloader import FetchError, Transfer
from specllama.engine.models.pool import ModelPool
from specllama.engine.models.supervisor import Supervisor
from specllama.engine.options import Options, replaced
from specllama.engine.params import GenerationParams
from specllama.engine.shipped import model_path
from tests.support.engines import generate
from tests.support.options_support import model_options
from tests.support.playing import EXACT
from tools.models import build
from tools.models.lora import ADAPTERS

pytestmark = pytest.mark.slow

SLEEPY = model_options(sleep_idle_seconds=1, **EXACT)
SHORT = GenerationParams(n_predict=8, seed=3, ignore_eos=True)
LONG = GenerationParams(n_predict=-1, ignore_eos=True, stream=True)


def children() -> set[psutil.Process]:
    """The engine processes; other tests may have left processes of other kinds to the session."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if "specllama.engine.worker" in process.cmdline():
                found.add(process)
    return found


def in_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        before = children()
        asyncio.run(test())
        assert not children() - before

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@asynccontextmanager
async def running(supervisor: Supervisor) -> AsyncIterator[Supervisor]:
    supervisor.start()
    try:
        await supervisor.loaded()
        yield supervisor
    finally:
        await supervisor.stop()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def asleep(supervisor: Supervisor) -> None:
    await until(lambda: supervisor.state == "sleeping")


async def answer(supervisor: Supervisor) -> str:
    supervisor.acquire()
    try:
        engine = await supervisor.engine()
        return (await generate(engine, ["def f("], SHORT).result()).text
    finally:
        supervisor.release()


@in_loop
async def test_an_idle_model_sleeps_without_memory_and_wakes_with_the_same_answers() -> None:
    async with running(Supervisor(SLEEPY)) as supervisor:
        before, info, pid = await answer(supervisor), supervisor.info, supervisor.pid
        assert pid is not None
        assert psutil.Process(pid).memory_info().rss > model_path().stat().st_size
        await asleep(supervisor)
        assert not psutil.pid_exists(pid)
        assert not children()
        assert supervisor.info is info is not None
        assert supervisor.awake_engine() is None
        answers = await asyncio.gather(*(answer(supervisor) for _ in range(4)))
        assert set(answers) == {before}
        assert supervisor.state == "ready"
        assert supervisor.exit_code == 0


@in_loop
async def test_a_lease_keeps_it_awake() -> None:
    async with running(Supervisor(SLEEPY)) as supervisor:
        supervisor.acquire()
        pid = supervisor.pid
        await asyncio.sleep(1.5)
        assert supervisor.pid == pid
        supervisor.release()
        await asleep(supervisor)


@in_loop
async def test_how_long_it_stays_awake_is_known() -> None:
    async with running(Supervisor(model_options(sleep_idle_seconds=1000))) as supervisor:
        supervisor.acquire()
        assert supervisor.seconds_awake == 1000, "it is in use"
        supervisor.release()
        seconds = supervisor.seconds_awake
        assert seconds is not None
        assert 0 <= seconds <= 1000
    async with running(Supervisor(model_options())) as supervisor:
        assert supervisor.seconds_awake is None


@in_loop
async def test_a_generation_without_a_lease_keeps_it_awake() -> None:
    async with running(Supervisor(SLEEPY)) as supervisor:
        pid, stream = supervisor.pid, generate(await supervisor.engine(), ["a"], LONG)
        with suppress(TimeoutError):
            async with asyncio.timeout(1.8):
                async for _ in stream:
                    pass
        stream.cancel()
        assert supervisor.pid == pid
        await asleep(supervisor)


@in_loop
async def test_requests_that_come_while_it_falls_asleep_are_served() -> None:
    async with running(Supervisor(SLEEPY)) as supervisor:
        expected = await answer(supervisor)
        while supervisor.awake_engine() is not None:
            await asyncio.sleep(0)  # every turn counts: its process ends within milliseconds
        assert supervisor.state == "dozing"  # the process is about to end
        assert await answer(supervisor) == expected


@in_loop
async def test_a_crash_while_it_wakes_is_a_restart() -> None:
    async with running(Supervisor(SLEEPY)) as supervisor:
        await asleep(supervisor)
        request = asyncio.create_task(answer(supervisor))
        await until(lambda: supervisor.pid is not None)
        state: str = supervisor.state
        assert state == "waking"
        assert supervisor.pid is not None
        os.kill(supervisor.pid, signal.SIGKILL)
        assert await request
        assert supervisor.state == "ready"


@in_loop
async def test_the_scales_of_adapters_outlast_a_sleep() -> None:
    adapter = str(build.ensure_adapter(next(iter(ADAPTERS))))
    options = model_options(sleep_idle_seconds=1, lora=((adapter, 1.0),))
    async with running(Supervisor(options)) as supervisor:
        supervisor.adapter_scales = [(0, 0.25)]
        await asleep(supervisor)
        adapters = await (await supervisor.engine()).adapters()
        assert [each.scale for each in adapters] == [0.25]


@in_loop
async def test_stop_while_it_sleeps_or_wakes() -> None:
    for wake in (False, True):
        async with running(Supervisor(SLEEPY)) as supervisor:
            await asleep(supervisor)
            if wake:
                request = asyncio.create_task(answer(supervisor))
                await until(lambda: supervisor.state == "waking")
                await supervisor.stop()
                with pytest.raises(EngineError, match="shutting down"):
                    await request


@in_loop
async def test_stop_waits_for_leases_but_not_for_ever() -> None:
    async with running(Supervisor(model_options())) as supervisor:
        supervisor.acquire()
        engine = await supervisor.engine()
        stop = asyncio.create_task(supervisor.stop(SECONDS, "it was unloaded"))
        await asyncio.sleep(0)
        assert (await generate(engine, ["a"], SHORT).result()).n_decoded == 8
        with pytest.raises(EngineError, match="it was unloaded"):
            supervisor.acquire()
        supervisor.release()
        await stop
        assert supervisor.state == "stopped"

    async with running(Supervisor(model_options())) as supervisor:
        supervisor.acquire()
        stream = generate(await supervisor.engine(), ["a"], LONG)
        await anext(stream)
        await supervisor.stop(0.2, "it was unloaded")
        with pytest.raises(EngineError, match="it was unloaded") as ended:
            [event async for event in stream]
        assert ended.value.info.type == "unavailable_error"


@in_loop
async def test_a_model_is_downloaded_before_it_is_loaded() -> None:
    seen = []

    async def fetch(options: Options, on_progress: Callable[[Transfer], None]) -> Options:
        on_progress(Transfer("model.gguf", 1, 4))
        await asyncio.sleep(0)
        return replaced(options, model=str(model_path()))

    supervisor = Supervisor(model_options(hf_repo="user/repo"), fetch=fetch)
    supervisor.on_progress = lambda: seen.append((supervisor.state, supervisor.progress))
    supervisor.start(load=False)
    with pytest.raises(EngineError, match="Downloading"):
        await supervisor.engine()
    await supervisor.fetched()
    assert supervisor.state in ("downloaded", "loading")
    assert ("downloading", 0.25) in seen
    supervisor.wake()
    await supervisor.loaded()
    assert await answer(supervisor)
    await supervisor.stop()


@in_loop
async def test_a_download_that_fails_and_one_that_is_stopped() -> None:
    async def broken(options: Options, on_progress: Callable[[Transfer], None]) -> Options:
        raise FetchError("no such repository")

    cancelled = asyncio.Event()

    async def endless(options: Options, on_progress: Callable[[Transfer], None]) -> Options:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cancelled.set()
        raise AssertionError

    async with running(Supervisor(model_options(hf_repo="a/b"), fetch=broken)) as supervisor:
        assert (supervisor.state, supervisor.failure) == ("failed", "no such repository")
    supervisor = Supervisor(model_options(hf_repo="a/b"), fetch=endless)
    supervisor.start()
    await asyncio.sleep(0.05)
    await supervisor.stop()
    assert cancelled.is_set()


# ---- the pool with real engines --------------------------------------------------------------


def entry(name: str, path: str, **settings: object) -> CatalogEntry:
    options = replaced(model_options(model=path), **settings)
    return CatalogEntry(
        name=name, source="models_dir", options=options, stop_timeout=round(SECONDS)
    )


def two_models(**settings: object) -> Catalog:
    other = build.ensure("tiny-spm")
    entries = [entry("one", "", **settings), entry("two", str(other), **settings)]
    return Catalog(entries, default="one", router=True)


async def ask(pool: ModelPool, model: CatalogEntry) -> str:
    with await pool.lease(model) as lease:
        engine = await lease.engine()
        return (await generate(engine, ["def f("], SHORT).result()).text


@in_loop
async def test_two_models_take_turns_in_one_place() -> None:
    catalog = two_models()
    one, two = catalog.entries["one"], catalog.entries["two"]
    pool = ModelPool(catalog, models_max=1)
    await pool.start()
    try:
        answers = await asyncio.gather(*(ask(pool, model) for model in (one, two, one, two)))
        assert answers[0] == answers[2]
        assert answers[1] == answers[3]
        assert answers[0] != answers[1]
        assert len(children()) == 1
    finally:
        await pool.stop()


@in_loop
async def test_a_model_is_unloaded_when_its_requests_are_done() -> None:
    catalog = two_models()
    pool = ModelPool(catalog)
    with await pool.lease(catalog.entries["one"]) as lease:
        engine = await lease.engine()
        params = msgspec.structs.replace(SHORT, n_predict=80, stream=True)
        stream = generate(engine, ["def f("], params)
        await anext(stream)
        unload = asyncio.create_task(pool.unload("one"))
        events = [event async for event in stream]
        assert getattr(events[-1], "n_decoded", 0) == 80
        assert pool.status("one").value == "loaded"
    await unload
    assert pool.status("one").value == "unloaded"
    assert not children()
    await pool.stop()


@in_loop
async def test_a_model_in_the_pool_sleeps_and_wakes() -> None:
    catalog = two_models(sleep_idle_seconds=1)
    one = catalog.entries["one"]
    pool = ModelPool(catalog, models_max=1)
    before = await ask(pool, one)
    await until(lambda: pool.status("one").value == "sleeping")
    assert not children()
    assert pool.status("one").info is not None
    assert await ask(pool, one) == before
    await pool.stop()


@in_loop
async def test_a_file_that_is_no_model_fails_alone() -> None:
    catalog = Catalog([entry("good", ""), entry("bad", __file__)], default="good", router=True)
    pool = ModelPool(catalog)
    good, bad = (catalog.entries[name] for name in ("good", "bad"))
    with pytest.raises(EngineError, match="'bad' could not be loaded") as failed:
        await ask(pool, bad)
    assert "exit code 1" in str(failed.value)
    assert pool.status("bad").exit_code == 1
    assert await ask(pool, good)
    await pool.stop()
