"""Changes the set of models: reloads the list, downloads new models, removes downloaded ones."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from specllama.engine.catalog.catalog import Catalog
from specllama.engine.catalog.entry import CatalogEntry, wants_fetch
from specllama.engine.errors import EngineError, invalid_request, server_error
from specllama.engine.models.events import EVERY_MODEL, ModelEvent
from specllama.engine.models.records import Members
from specllama.engine.models.supervisor import Supervisor
from specllama.engine.options import OptionError, text_values

log = logging.getLogger("specllama.engine.models")


class Inventory:
    """Keeps the catalog of a router and the members of its pool in sync while models are added and
    removed."""

    def __init__(self, catalog: Catalog, members: Members) -> None:
        self.on_change: Callable[[], None] = lambda: None
        """Called when the set of models has changed."""
        self._catalog = catalog
        self._members = members
        self._turn = asyncio.Lock()  # serializes changes to the catalog
        self._tasks: set[asyncio.Task[None]] = set()

    async def reload(self) -> None:
        """Reads the list of models again. A model in use is unloaded if it was removed or its
        options have changed; no model is loaded. Raises `EngineError` (server_error) if the list
        can't be read; nothing changes then.

        Cancelling the wait doesn't interrupt the change, which is atomic.
        """
        await asyncio.shield(self._start(self._reload_in_turn(), "reload"))

    async def download(self, name: str) -> None:
        """Begins to download a model of the Hub (user/repo or user/repo:QUANT) into the cache, and
        returns as soon as the Hub has confirmed that the model exists. The model is added after the
        download.

        Raises `EngineError` (invalid_request) for a name that is invalid, already exists, or is
        unknown to the Hub.
        """
        _check_name(name)
        async with self._turn:
            if self._catalog.named(name):
                raise invalid_request(f"the model {name!r} already exists")
            try:
                entry = await asyncio.to_thread(self._catalog.entry_to_download, name)
            except OptionError as error:
                raise server_error(f"the models can't be read again: {error}") from None
            is_here = not wants_fetch(entry.options)  # downloaded after the server's start
            if not is_here:
                self._members.add(entry)
                self._catalog.replace(
                    [*self._catalog.entries.values(), entry], self._catalog.default
                )
                supervisor = self._members.fetch(name)
                self._start(self._conclude(entry, supervisor), f"fetch {name}")
        if is_here:
            await self.reload()
            return
        await supervisor.fetch_begun()
        if supervisor.state == "failed":
            raise invalid_request(f"the model {name!r} can't be downloaded: {supervisor.failure}")

    async def remove(self, name: str) -> None:
        """Unloads a model or cancels its download, and removes its files from the cache.

        Raises `EngineError`: not_found_error for an unknown model, invalid_request_error if its
        files are not (only) in the cache or it has a preset, server_error if the files can't be
        removed.
        """
        async with self._turn:
            entry = self._catalog.entries.get(name)
            if entry is None:
                raise EngineError.of("not_found_error", f"model {name[:200]!r} not found")
            if not entry.removable:
                raise invalid_request(
                    f"the model {name!r} can't be removed: it isn't a download in the cache, or "
                    "has a preset"
                )
            was_default = name == self._catalog.default
            await self._drop(entry)
            try:
                await asyncio.to_thread(self._catalog.remove_files, name)
            except OSError as error:
                failure = server_error(f"the model {name!r} can't be removed: {error.strerror}")
            else:
                self._members.publish(ModelEvent(name, "model_remove"))
                if was_default:  # the next default model may be hidden so far
                    await self._reload()
                self.on_change()
                return
        await self.reload()  # the model with its remaining files
        raise failure

    async def stop(self) -> None:
        """Stops waiting for downloads. The pool ends the downloads."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Returns a task that runs independently of its caller, until `stop`."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _reload_in_turn(self) -> None:
        async with self._turn:
            await self._reload()

    async def _reload(self, ended: CatalogEntry | None = None) -> None:
        """Reads the list again. `ended` is a model whose download has ended: it stays listed until
        the model in the cache, if there is one, takes its place."""
        try:
            entries, default = await asyncio.to_thread(self._catalog.read)
        except OptionError as error:
            raise server_error(f"the models can't be read again: {error}") from None
        if ended is not None:
            await self._members.remove(ended.name)
        found = {entry.name: entry for entry in entries}
        found |= {entry.name: entry for entry in self._members.fetching()}
        before = {name: each for name, each in self._catalog.entries.items() if each is not ended}
        for name in found.keys() - before.keys():
            self._members.add(found[name])
        self._catalog.replace(found.values(), default)
        await asyncio.gather(
            *(self._members.remove(name) for name in before.keys() - found.keys()),
            *(self._members.renew(found[name]) for name in found.keys() & before.keys()),
        )
        self._members.publish(ModelEvent(EVERY_MODEL, "models_reload"))
        self.on_change()

    async def _drop(self, entry: CatalogEntry) -> None:
        others = [each for each in self._catalog.entries.values() if each is not entry]
        self._catalog.replace(others, self._catalog.default)
        await self._members.remove(entry.name)

    async def _conclude(self, entry: CatalogEntry, supervisor: Supervisor) -> None:
        """After the download, replaces the entry by the model in the cache, if there is one."""
        await supervisor.fetched()
        async with self._turn:
            is_listed = self._catalog.entries.get(entry.name) is entry
            try:
                await self._reload(ended=entry if is_listed else None)
            except EngineError as error:
                log.warning("%s", error)
                if is_listed:
                    await self._drop(entry)


def _check_name(name: str) -> None:
    try:
        text_values.hf_repo(name)
    except OptionError as error:
        raise invalid_request(f"model: {error}") from None
