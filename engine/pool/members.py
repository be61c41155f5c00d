"""The models of a pool, as they come and go."""

import asyncio
from collections.abc import Callable

from specllama.engine.catalog.entry import Entry
from specllama.engine.options import Options, replaced
from specllama.engine.pool.events import ModelEvent, ModelEvents
from specllama.engine.pool.failure import Failure
from specllama.engine.pool.record import ModelRecord
from specllama.engine.pool.supervisor import Supervisor


class Members:
    """Changes which records a pool has. `fetch` begins the download of a model, `unload` the end
    of one, with a reason; both are the pool's."""

    def __init__(
        self,
        records: dict[str, ModelRecord],
        events: ModelEvents,
        *,
        fetch: Callable[[ModelRecord], Supervisor],
        unload: Callable[[ModelRecord, str], None],
    ) -> None:
        self._records = records
        self._events = events
        self._fetch = fetch
        self._unload = unload

    def add(self, entry: Entry) -> None:
        """A model that wasn't there."""
        self._records[entry.name] = ModelRecord.of(entry, self._events)

    def fetch(self, name: str) -> Supervisor:
        """Begin to download a model that is not in use, for the cache alone: requests for it are
        refused. The supervisor has its progress."""
        record = self._records[name]
        record.only_download = True
        return self._fetch(record)

    def fetching(self) -> list[Entry]:
        """The models of which there is no more than a download."""
        return [each.entry for each in self._records.values() if each.only_download]

    async def renew(self, entry: Entry) -> None:
        """Give a model its new entry. One in use is unloaded if its options are others now."""
        record = self._records[entry.name]
        known, record.entry = (record.entry.options, record.options), entry
        if record.in_use and _nameless(entry.options) in map(_nameless, known):
            return
        record.located, record.failure = None, Failure.known(entry.fault)
        await self._clear(record, "was unloaded, as its options have changed")

    async def remove(self, name: str) -> None:
        """End all work on a model and forget it, if it is there."""
        if record := self._records.get(name):
            record.gone = True
            await self._clear(record, "was removed")
            self._records.pop(name, None)

    def publish(self, event: ModelEvent) -> None:
        """Tell the subscribers."""
        self._events.publish(event)

    async def _clear(self, record: ModelRecord, why: str) -> None:
        """Unload a model if it is in use, and wait for the end of it."""
        if record.waiting or record.supervisor or record.loading:
            self._unload(record, f"the model {record.name!r} {why}")
        while record.unloading:
            await asyncio.wait({record.unloading})


def _nameless(options: Options) -> Options:
    """The options without those that only name the model."""
    return replaced(options, alias="", tags=())
