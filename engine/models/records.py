"""The models of a pool: a record, the last failure and the leases of each."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

import msgspec

from specllama.engine import system
from specllama.engine.catalog.entry import CatalogEntry
from specllama.engine.errors import EngineError, unavailable
from specllama.engine.models.client import EngineClient
from specllama.engine.models.events import ModelEvent, ModelEvents, ModelStatus, StatusPublisher
from specllama.engine.models.lifecycle import BACKOFF
from specllama.engine.models.residency import Ticket
from specllama.engine.models.supervisor import Supervisor
from specllama.engine.options import Options, replaced
from specllama.engine.wire.commands import is_illegal_instruction

# ---- Failed attempts to load a model, so that not every request tries it again at once.


@dataclass(frozen=True)
class ModelFailure:
    """The last attempts to load a model, all of which failed."""

    text: str
    exit_code: int | None
    n_times: int  # in a row
    until: float  # when requests may try again, of system.now()

    @classmethod
    def of(cls, supervisor: Supervisor, before: "ModelFailure | None") -> "ModelFailure":
        """The supervisor has just failed, after `before`. After the first time the next request
        may try again at once; no request tries again what this processor can't do."""
        n_times = before.n_times if before else 0
        until = system.now() + BACKOFF[min(n_times, len(BACKOFF) - 1)]
        if is_illegal_instruction(supervisor.exit_code):
            until = math.inf
        return cls(supervisor.failure, supervisor.exit_code, n_times + 1, until)

    @classmethod
    def known(cls, text: str) -> "ModelFailure | None":
        """The reason why a model can't be loaded, if there is one. No request tries it again."""
        return cls(text, None, 1, math.inf) if text else None

    def check(self, name: str) -> None:
        """Raises `EngineError` (unavailable) if it is too early to try again."""
        if system.now() < self.until:
            raise _error(name, self.text, self.exit_code)


def check_not_failed(name: str, supervisor: Supervisor) -> None:
    """Raises `EngineError` (unavailable) if the model could not be loaded."""
    if supervisor.failure and supervisor.state in ("failed", "stopped"):
        raise _error(name, supervisor.failure, supervisor.exit_code)


def _error(name: str, failure: str, exit_code: int | None) -> EngineError:
    how = "" if exit_code is None else f" (exit code {exit_code})"
    return unavailable(f"the model {name!r} could not be loaded: {failure}{how}")


# ---- The right to use a model for a while.


class Lease:
    """Keeps a model loaded and awake until `release`. It is a context manager as well."""

    def __init__(
        self, entry: CatalogEntry, supervisor: Supervisor, on_release: Callable[[], None]
    ) -> None:
        self.entry = entry
        self.supervisor = supervisor
        self._on_release: Callable[[], None] | None = on_release

    async def engine(self) -> EngineClient:
        """As `Supervisor.engine`."""
        return await self.supervisor.engine()

    def release(self) -> None:
        """Idempotent."""
        on_release, self._on_release = self._on_release, None
        if on_release is not None:
            on_release()

    def __enter__(self) -> "Lease":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


# ---- All that the pool knows of one model.


_ABSENT = ("downloaded", "failed", "stopped")  # states of which the supervisor's is not all


@dataclass(eq=False)
class ModelRecord:
    """One model of the catalog, loaded or not."""

    entry: CatalogEntry
    publisher: StatusPublisher
    supervisor: Supervisor | None = None  # while it is in use
    located: Options | None = None  # with its files, if it was in use before
    failure: ModelFailure | None = None  # of the last attempts to load it
    loading: asyncio.Task[None] | None = None  # because of `ModelPool.load`
    unloading: asyncio.Task[None] | None = None
    only_download: bool = False  # there is nothing yet that could be loaded
    gone: bool = False  # about to be forgotten
    n_returning: int = 0  # requests that wait for the end of an unloading
    waiting: dict[Ticket, asyncio.Future[Lease]] = field(default_factory=dict)

    @classmethod
    def of(cls, entry: CatalogEntry, events: ModelEvents) -> "ModelRecord":
        """A model that isn't loaded, and can't be if its entry says why."""
        publisher = StatusPublisher(entry.name, events)
        return cls(entry, publisher, failure=ModelFailure.known(entry.fault))

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def options(self) -> Options:
        """With the paths of its files once these have been downloaded."""
        if self.supervisor:
            return self.supervisor.options
        return self.located or self.entry.options

    @property
    def in_use(self) -> bool:
        """The model is loaded, or about to be, and not about to go for good."""
        if self.unloading:
            return self.n_returning > 0
        return self.status().value != "unloaded"

    def status(self) -> ModelStatus:
        """The status as GET /models shows it."""
        if self.n_returning:  # what is still there is not what will answer
            begun = self.supervisor is not None and self.unloading is None
            return ModelStatus(value="loading", waiting=not begun)
        supervisor = self.supervisor
        if supervisor and supervisor.state not in _ABSENT:
            waits = bool(self.waiting) and supervisor.state == "sleeping"
            return msgspec.structs.replace(ModelStatus.of(supervisor), waiting=waits)
        if self.waiting:
            return ModelStatus(value="loading", waiting=True)
        if failure := self.failure:
            return ModelStatus(failed=True, failure=failure.text, exit_code=failure.exit_code)
        # Until its process has ended, a model that is stopped is what it was before.
        is_stopping = supervisor is not None and supervisor.state == "stopped"
        return self.publisher.last if is_stopping else ModelStatus()

    def publish(self) -> None:
        """Tell the subscribers if the status has changed."""
        self.publisher.update(self.status())


# ---- The models of a pool, as they come and go.


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

    def add(self, entry: CatalogEntry) -> None:
        """A model that wasn't there."""
        self._records[entry.name] = ModelRecord.of(entry, self._events)

    def fetch(self, name: str) -> Supervisor:
        """Begin to download a model that is not in use, for the cache alone: requests for it are
        refused. The supervisor has its progress."""
        record = self._records[name]
        record.only_download = True
        return self._fetch(record)

    def fetching(self) -> list[CatalogEntry]:
        """The models of which there is no more than a download."""
        return [each.entry for each in self._records.values() if each.only_download]

    async def renew(self, entry: CatalogEntry) -> None:
        """Give a model its new entry. One in use is unloaded if its options are others now."""
        record = self._records[entry.name]
        known, record.entry = (record.entry.options, record.options), entry
        if record.in_use and _nameless(entry.options) in map(_nameless, known):
            return
        record.located, record.failure = None, ModelFailure.known(entry.fault)
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
