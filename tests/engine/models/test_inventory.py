"""Models that come and go while the server runs."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from specllama.engine.catalog.catalog import Catalog
from specllama.engine.catalog.entry import CatalogEntry
from specllama.engine.errors import EngineError
from specllama.engine.models.inventory import Inventory
from specllama.engine.models.pool import ModelPool
from specllama.engine.options import OptionError, replaced
from tests.support.engines import PaperSupervisor
from tests.support.options_support import model_options
from tests.support.pool_stage import Stage, entry, in_loop, seen, soon

FAR = "user/far:Q8_0"


class Place(Stage):
    """A pool, and the models that a new search would find."""

    def __init__(self, pool: ModelPool, catalog: Catalog, found: list[CatalogEntry]) -> None:
        super().__init__(pool, catalog)
        self.found = found
        self.inventory = Inventory(catalog, pool.members)
        self.n_changes = 0
        self.inventory.on_change = self._count

    def _count(self) -> None:
        self.n_changes += 1

    def change(self, name: str, **options: Any) -> None:
        [old] = [each for each in self.found if each.name == name]
        self.found[self.found.index(old)] = msgspec.structs.replace(
            old, options=replaced(old.options, **options)
        )


class PaperCatalog(Catalog):
    def __init__(self, found: list[CatalogEntry]) -> None:
        super().__init__(found, default="a", router=True, read=self._look)
        self.found: list[CatalogEntry] = found
        self.failure = self.stuck = ""
        self.removed: list[str] = []

    def _look(self, download: str = "") -> tuple[list[CatalogEntry], str]:
        if self.failure:
            raise OptionError(self.failure)
        return [*self.found, *([far(download)] if download else [])], "a"

    def remove_files(self, name: str) -> None:
        if self.stuck:
            raise PermissionError(1, self.stuck)
        self.removed.append(name)


def far(name: str = FAR) -> CatalogEntry:
    options = model_options(alias=name, hf_repo=name)
    return CatalogEntry(name=name, source="cache", options=options, removable=True)


@asynccontextmanager
async def place(entries: Iterable[CatalogEntry] = ()) -> AsyncIterator[tuple[Place, PaperCatalog]]:
    PaperSupervisor.all, tasks = [], asyncio.all_tasks()
    found = list(entries) or [entry(name) for name in "abc"]
    catalog = PaperCatalog(found)
    pool = ModelPool(catalog, new_supervisor=PaperSupervisor)
    await pool.start()
    here = Place(pool, catalog, found)
    try:
        yield here, catalog
    finally:
        await here.inventory.stop()
        await pool.stop()
        await soon()
        assert not {each.name for each in PaperSupervisor.all if each.alive}
        assert asyncio.all_tasks() == tasks


@in_loop
async def test_nothing_has_changed() -> None:
    async with place() as (s, _):
        (await s.loaded("a")).release()
        events = s.pool.subscribe()
        await s.inventory.reload()
        assert s.value("a") == "loaded"
        assert seen(events) == [("*", "models_reload", "")]
        assert s.n_changes == 1


@in_loop
async def test_other_names_and_tags_are_no_other_options() -> None:
    async with place() as (s, catalog):
        (await s.loaded("a")).release()
        s.found[0] = msgspec.structs.replace(s.found[0], aliases=("x",), tags=("y",))
        s.change("a", alias="x", tags=("y",))
        await s.inventory.reload()
        assert s.value("a") == "loaded"
        assert catalog.find("x") is s.found[0]


@in_loop
async def test_a_new_model_is_added_and_not_loaded() -> None:
    async with place() as (s, catalog):
        s.found.append(entry("d", startup=True))
        await s.inventory.reload()
        await soon()
        assert catalog.find("d") is s.found[-1]
        assert s.value("d") == "unloaded"
        (await s.loaded("d")).release()


@in_loop
async def test_a_changed_model_is_unloaded_and_comes_back_with_its_new_options() -> None:
    async with place() as (s, _):
        lease = await s.loaded("a")
        s.change("a", ctx_size=77)
        reloading = asyncio.create_task(s.inventory.reload())
        await soon()
        assert not reloading.done(), "what runs may finish"
        lease.release()
        await reloading
        assert s.value("a") == "unloaded"
        again = await s.loaded("a")
        assert s.engine("a").options.engine.context.ctx_size == 77
        again.release()


@in_loop
async def test_a_model_that_is_gone() -> None:
    async with place() as (s, catalog):
        lease = await s.loaded("b")
        old = catalog.entries["b"]
        s.found.pop(1)
        reloading = asyncio.create_task(s.inventory.reload())
        await soon()
        assert catalog.find("b") is None
        with pytest.raises(EngineError, match="'b' was removed"):  # found before, used after
            await s.pool.lease(old)
        lease.release()
        await reloading
        assert s.pool.status("b").value == "unloaded"
        assert s.pool.lease_now(old) is None
        with pytest.raises(EngineError, match="'b' was removed"):
            await s.pool.lease(old)


@in_loop
async def test_requests_that_wait_for_a_removed_model_get_an_error() -> None:
    async with place() as (s, _):
        waiting = s.lease("b")
        await soon()
        s.found.pop(1)
        await s.inventory.reload()
        with pytest.raises(EngineError, match="'b' was"):
            await waiting


@in_loop
async def test_a_failure_is_forgotten() -> None:
    async with place() as (s, _):
        waiting = s.lease("a")
        await soon()
        s.engine("a").fail("nonsense")
        with pytest.raises(EngineError):
            await waiting
        await soon()
        assert s.pool.status("a").failed
        await s.inventory.reload()
        assert not s.pool.status("a").failed


@in_loop
async def test_a_reload_continues_without_its_client() -> None:
    async with place() as (s, catalog):
        lease = await s.loaded("b")
        s.found.pop(1)
        events = s.pool.subscribe()
        reloading = asyncio.create_task(s.inventory.reload())
        await until(lambda: catalog.find("b") is None)
        await soon()
        reloading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reloading
        lease.release()
        await until(lambda: s.n_changes == 1)
        assert ("*", "models_reload", "") in seen(events)
        s.found.append(entry("b"))
        await s.inventory.reload()
        (await s.loaded("b")).release()


@in_loop
async def test_an_unreadable_file_changes_nothing() -> None:
    async with place() as (s, catalog):
        (await s.loaded("a")).release()
        catalog.failure = "f:1: nonsense"
        s.found.clear()
        with pytest.raises(EngineError, match="f:1: nonsense") as caught:
            await s.inventory.reload()
        assert caught.value.info.type == "server_error"
        assert list(catalog.entries) == ["a", "b", "c"]
        assert s.value("a") == "loaded"
        assert not s.n_changes


# ---- downloads -------------------------------------------------------------------------------


async def begun(s: Place) -> "asyncio.Task[None]":
    task = asyncio.create_task(s.inventory.download(FAR))
    while s.pool.supervisor(FAR) is None:
        await asyncio.sleep(0)  # it looks for models in a thread
    await soon()
    return task


@in_loop
async def test_a_download_is_answered_when_it_has_begun_and_ends_in_the_cache() -> None:
    async with place() as (s, catalog):
        task = await begun(s)
        assert not task.done()
        assert s.value(FAR) == "downloading"
        s.engine(FAR).download(1, 2)
        await task
        with pytest.raises(EngineError, match="already exists"):
            await s.inventory.download(FAR)
        with pytest.raises(EngineError, match="is being downloaded"):
            await s.pool.lease(catalog.entries[FAR])
        await s.inventory.reload()
        assert s.value(FAR) == "downloading", "looking for models doesn't break it off"
        s.found.append(entry(FAR))
        events = s.pool.subscribe()
        s.engine(FAR).downloaded()

        def ended() -> bool:
            assert FAR in catalog.entries, "it stays in the list, as clients have got its event"
            return s.n_changes == 2

        await until(ended)
        assert ("*", "models_reload", "") in seen(events)
        assert catalog.entries[FAR] is s.found[-1]
        (await s.loaded(FAR)).release()


@in_loop
async def test_a_download_that_ends_while_the_list_is_unreadable() -> None:
    async with place() as (s, catalog):
        task = await begun(s)
        s.engine(FAR).download(1, 2)
        await task
        catalog.failure = "f:1: nonsense"
        s.engine(FAR).downloaded()
        await until(lambda: FAR not in catalog.entries)
        assert list(catalog.entries) == ["a", "b", "c"]
        catalog.failure = ""
        s.found.append(entry(FAR))
        await s.inventory.reload()
        (await s.loaded(FAR)).release()


@in_loop
async def test_a_download_that_the_hub_refuses() -> None:
    async with place() as (s, catalog):
        task = await begun(s)
        s.engine(FAR).fail_download("no hub has that")
        with pytest.raises(EngineError, match="no hub has that") as caught:
            await task
        assert caught.value.info.type == "invalid_request_error"
        await until(lambda: s.n_changes == 1)
        assert FAR not in catalog.entries


@in_loop
async def test_a_download_that_is_unloaded() -> None:
    async with place() as (s, catalog):
        task = await begun(s)
        s.engine(FAR).download(1, 2)
        await task
        events = s.pool.subscribe()
        await s.pool.unload(FAR)
        await until(lambda: s.n_changes == 1)
        assert FAR not in catalog.entries
        assert (FAR, "download_failed", "") in seen(events)


@pytest.mark.parametrize("name", ["x", "../x", "a/b:", "a/b/c"])
def test_names_that_cannot_be(name: str) -> None:
    @in_loop
    async def refused() -> None:
        async with place() as (s, catalog):
            with pytest.raises(EngineError) as caught:
                await s.inventory.download(name)
            assert caught.value.info.type == "invalid_request_error"
            assert len(catalog.entries) == 3

    refused()


# ---- removing --------------------------------------------------------------------------------


@in_loop
async def test_a_download_is_removed() -> None:
    async with place([entry("a"), msgspec.structs.replace(entry("b"), removable=True)]) as (s, c):
        (await s.loaded("b")).release()
        events = s.pool.subscribe()
        await s.inventory.remove("b")
        assert c.removed == ["b"]
        assert list(c.entries) == ["a"]
        assert seen(events)[-1] == ("b", "model_remove", "")
        assert not s.alive()


@in_loop
async def test_removing_breaks_a_download_off() -> None:
    async with place() as (s, catalog):
        task = await begun(s)
        s.engine(FAR).download(1, 2)
        await task
        await s.inventory.remove(FAR)
        assert catalog.removed == [FAR]
        assert FAR not in catalog.entries
        await until(lambda: s.n_changes == 2)


@in_loop
async def test_only_downloads_are_removed() -> None:
    async with place() as (s, catalog):
        (await s.loaded("a")).release()
        for name, kind in (("a", "invalid_request_error"), ("missing", "not_found_error")):
            with pytest.raises(EngineError) as caught:
                await s.inventory.remove(name)
            assert caught.value.info.type == kind
        assert s.value("a") == "loaded"
        assert not catalog.removed


@in_loop
async def test_files_that_cannot_be_removed() -> None:
    async with place([entry("a"), msgspec.structs.replace(entry("b"), removable=True)]) as (s, c):
        c.stuck = "it is forbidden"
        with pytest.raises(EngineError, match="can't be removed: it is forbidden") as caught:
            await s.inventory.remove("b")
        assert caught.value.info.type == "server_error"
        assert list(c.entries) == ["a", "b"], "what is left of it is there"
        (await s.loaded("b")).release()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)
