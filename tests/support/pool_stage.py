"""A pool over engine processes that exist in name only."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

from specllama.engine.catalog.catalog import Catalog
from specllama.engine.catalog.entry import CatalogEntry
from specllama.engine.errors import server_error
from specllama.engine.models.events import Subscription
from specllama.engine.models.measuring import MemoryMeter
from specllama.engine.models.pool import ModelPool
from specllama.engine.models.records import Lease
from specllama.engine.options import EngineOptions
from specllama.engine.options.text_values import memory_sizes
from specllama.engine.wire.devices import DeviceMemory, DeviceUse
from specllama.engine.wire.replies import Measured
from tests.support.engines import PaperSupervisor
from tests.support.options_support import model_options


class PaperMeter(MemoryMeter):
    """Measures models that exist in name only, by the numbers of a test: MiB by device."""

    def __init__(
        self, limits: str, sizes: Mapping[str, Mapping[str, int]], margin: int = 0
    ) -> None:
        super().__init__(memory_sizes(limits) if limits else (), margin << 20)
        self.sizes = sizes
        self.asked: list[str] = []

    async def _ask(self, options: EngineOptions | None) -> Measured:
        await asyncio.sleep(0)
        return Measured([DeviceMemory("host", 900 << 20, 1000 << 20), DeviceMemory("GPU0", 0, 0)])

    async def measure(self, options: EngineOptions) -> Measured:
        name = options.model.alias
        self.asked.append(name)
        if name not in self.sizes:
            raise server_error("it isn't a model")
        uses = [
            DeviceUse(name="CPU" if device == "host" else device, kv_cache=size << 20)
            for device, size in self.sizes[name].items()
        ]
        return Measured(list(self._memory or ()), uses, ctx_size=4321, is_cache_16_bit=True)


def entry(
    name: str,
    *,
    startup: bool = False,
    remote: bool = False,
    timeout: int = 10,
    pin: bool = False,
) -> CatalogEntry:
    options = model_options(alias=name, hf_repo="user/repo" if remote else "")
    return CatalogEntry(
        name=name,
        source="preset",
        options=options,
        load_on_startup=startup,
        pin=pin,
        stop_timeout=timeout,
    )


class Stage:
    """A pool whose engines a test controls."""

    def __init__(self, pool: ModelPool, catalog: Catalog) -> None:
        self.pool, self.catalog = pool, catalog

    def lease(self, name: str, *, autoload: bool = True) -> asyncio.Task[Lease]:
        task = self.pool.lease(self.catalog.entries[name], autoload=autoload)
        return asyncio.create_task(task)

    def engine(self, name: str) -> PaperSupervisor:
        found = self.pool.supervisor(name)
        assert isinstance(found, PaperSupervisor)
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
        return {each.name for each in PaperSupervisor.all if each.alive}


async def soon() -> None:
    """Runs the event loop until all tasks wait."""
    for _ in range(30):
        await asyncio.sleep(0)


@asynccontextmanager
async def stage(
    *entries: CatalogEntry,
    models_max: int = 4,
    router: bool = True,
    meter: MemoryMeter | None = None,
    keep_alive_max: float = 300.0,
) -> AsyncIterator[Stage]:
    PaperSupervisor.all, tasks = [], asyncio.all_tasks()
    given = entries or tuple(entry(name) for name in "abcd")
    catalog = Catalog(given, default=given[0].name, router=router)
    pool = ModelPool(
        catalog,
        models_max=models_max,
        meter=meter,
        keep_alive_max=keep_alive_max,
        new_supervisor=PaperSupervisor,
    )
    await pool.start()
    try:
        await soon()
        yield Stage(pool, catalog)
    finally:
        await pool.stop()
        assert not {each.name for each in PaperSupervisor.all if each.alive}
        assert asyncio.all_tasks() == tasks


def in_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(test())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def seen(subscription: Subscription) -> list[tuple[str, str, str]]:
    """Returns the unread events: model, name, status."""
    subscription.close()
    events = [event for event, _ in subscription._events]
    return [(event.model, event.event, event.data.get("status", "")) for event in events]
