"""The models of a pool: the record, the last failure and the leases of each."""

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
from specllama.engine.models.residency import Residency, Ticket
from specllama.engine.models.supervisor import Supervisor
from specllama.engine.options import Options, replaced
from specllama.engine.wire.commands import is_illegal_instruction
from specllama.engine.wire.replies import Measured

# ---- Models that stay in memory for some time after their requests (`keep_alive`).


class Keeping:
    """A loaded model that stays in memory, and awake, until `end` or for `seconds`. Then `on_end`
    is called."""

    def __init__(
        self,
        residency: Residency,
        name: str,
        supervisor: Supervisor,
        seconds: float,
        on_end: Callable[[], None],
    ) -> None:
        supervisor.acquire()
        self._residency = residency
        self._name = name
        self._supervisor: Supervisor | None = supervisor
        self._until = system.now() + seconds
        self._on_end = on_end
        self._timer = asyncio.get_running_loop().call_later(seconds, self._expire)

    @property
    def seconds_left(self) -> float:
        """The remaining time; 0 after its end."""
        return max(self._until - system.now(), 0.0) if self._supervisor else 0.0

    def end(self) -> None:
        """Ends it without a call of `on_end`. Further calls have no effect."""
        self._timer.cancel()
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            self._residency.end_keeping(self._name)
            supervisor.release()

    def _expire(self) -> None:
        self.end()
        self._on_end()


# ---- Failed attempts to load a model. They delay the attempts of further requests.


@dataclass(frozen=True)
class ModelFailure:
    """The last attempts to load a model, all of which failed."""

    text: str
    exit_code: int | None
    n_times: int  # in a row
    until: float  # time of system.now() from which requests may try again

    @classmethod
    def of(cls, supervisor: Supervisor, before: "ModelFailure | None") -> "ModelFailure":
        """Returns the failure after the supervisor has failed, following the failure `before`.
        After the first failure, the next request may try again at once. There is no retry after an
        instruction that this processor doesn't support."""
        n_times = before.n_times if before else 0
        until = system.now() + BACKOFF[min(n_times, len(BACKOFF) - 1)]
        if is_illegal_instruction(supervisor.exit_code):
            until = math.inf
        return cls(supervisor.failure, supervisor.exit_code, n_times + 1, until)

    @classmethod
    def known(cls, text: str) -> "ModelFailure | None":
        """Returns a permanent failure with the reason `text`, after which no request tries to load
        the model; None if `text` is empty."""
        return cls(text, None, 1, math.inf) if text else None

    @classmethod
    def passing(cls, text: str) -> "ModelFailure":
        """Returns a failure with the reason `text`, after which each request tries again."""
        return cls(text, None, 1, -math.inf)

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


# ---- Leases, which keep a model in use.


class Lease:
    """Keeps a model loaded and awake until `release`. Also a context manager."""

    def __init__(
        self, entry: CatalogEntry, supervisor: Supervisor, on_release: Callable[[], None]
    ) -> None:
        self.entry = entry
        self.supervisor = supervisor
        self._on_release: Callable[[], None] | None = on_release

    async def engine(self) -> EngineClient:
        """Returns the engine, see `Supervisor.engine`."""
        return await self.supervisor.engine()

    def release(self) -> None:
        """Ends the lease. Further calls have no effect."""
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


# ---- The pool's record of one model.


_ABSENT = ("downloaded", "failed", "stopped")
"""States of the supervisor that don't determine the model's status."""


@dataclass(eq=False)
class ModelRecord:
    """One model of the catalog, loaded or not."""

    entry: CatalogEntry
    publisher: StatusPublisher
    supervisor: Supervisor | None = None  # while it is in use
    located: Options | None = None  # options with the paths of files, from its last use
    failure: ModelFailure | None = None  # of the last attempts to load it
    loading: asyncio.Task[None] | None = None  # started by `ModelPool.load`
    unloading: asyncio.Task[None] | None = None
    only_download: bool = False  # it is being downloaded for the cache: there are no files to load
    gone: bool = False  # about to be removed
    measured: Measured | None = None  # what it takes, from the last dry run
    n_measuring: int = 0  # requests that wait for a dry run
    keeping: Keeping | None = None  # by a request with keep_alive; it may have ended
    n_returning: int = 0  # requests that wait for the end of an unloading
    waiting: dict[Ticket, asyncio.Future[Lease]] = field(default_factory=dict)

    @classmethod
    def of(cls, entry: CatalogEntry, events: ModelEvents) -> "ModelRecord":
        """Returns the record of a model that isn't loaded. An entry with a fault can't be loaded:
        its record gets a permanent failure."""
        publisher = StatusPublisher(entry.name, events)
        return cls(entry, publisher, failure=ModelFailure.known(entry.fault))

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def options(self) -> Options:
        """The options with the paths of its files, after these have been downloaded."""
        if self.supervisor:
            return self.supervisor.options
        return self.located or self.entry.options

    @property
    def in_use(self) -> bool:
        """True if the model is loaded or loading, and isn't being unloaded for good."""
        if self.unloading:
            return self.n_returning > 0
        return self.status().value != "unloaded"

    def end_keeping(self) -> None:
        if self.keeping:
            self.keeping.end()

    def status(self) -> ModelStatus:
        """Returns the status for GET /models."""
        if self.n_returning:  # the old process won't answer these requests
            begun = self.supervisor is not None and self.unloading is None
            return ModelStatus(value="loading", waiting=not begun)
        supervisor = self.supervisor
        if supervisor and supervisor.state not in _ABSENT:
            waits = bool(self.waiting) and supervisor.state == "sleeping"
            return msgspec.structs.replace(ModelStatus.of(supervisor), waiting=waits)
        if self.waiting or self.n_measuring:
            return ModelStatus(value="loading", waiting=bool(self.waiting))
        if failure := self.failure:
            return ModelStatus(failed=True, failure=failure.text, exit_code=failure.exit_code)
        # A stopping model keeps its previous status until its process has ended.
        is_stopping = supervisor is not None and supervisor.state == "stopped"
        return self.publisher.last if is_stopping else ModelStatus()

    def publish(self) -> None:
        """Publishes the status if it has changed."""
        self.publisher.update(self.status())


# ---- The set of a pool's models.


class Members:
    """Adds and removes records of a pool. Two functions of the pool are passed to it: `fetch`
    begins the download of a model, `unload` begins to unload a model, with a reason."""

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
        """Adds a new model."""
        self._records[entry.name] = ModelRecord.of(entry, self._events)

    def fetch(self, name: str) -> Supervisor:
        """Begins to download a model that is not in use, without loading it: until the download is
        complete, requests for the model are rejected. Returns the supervisor, which has the
        progress."""
        record = self._records[name]
        record.only_download = True
        return self._fetch(record)

    def fetching(self) -> list[CatalogEntry]:
        """Returns the models that are only being downloaded."""
        return [each.entry for each in self._records.values() if each.only_download]

    async def renew(self, entry: CatalogEntry) -> None:
        """Replaces the entry of a model. A model in use is unloaded if its options have changed."""
        record = self._records[entry.name]
        known, record.entry = (record.entry.options, record.options), entry
        if record.in_use and _nameless(entry.options) in map(_nameless, known):
            return
        record.located, record.measured = None, None
        record.failure = ModelFailure.known(entry.fault)
        await self._clear(record, "was unloaded, as its options have changed")

    async def remove(self, name: str) -> None:
        """Ends all work on a model and removes its record, if it exists."""
        if record := self._records.get(name):
            record.gone = True
            await self._clear(record, "was removed")
            self._records.pop(name, None)

    def publish(self, event: ModelEvent) -> None:
        """Publishes an event to all subscribers."""
        self._events.publish(event)

    async def _clear(self, record: ModelRecord, why: str) -> None:
        """Unloads a model if it is in use, and waits for its end."""
        if record.waiting or record.supervisor or record.loading:
            self._unload(record, f"the model {record.name!r} {why}")
        while record.unloading:
            await asyncio.wait({record.unloading})


def _nameless(options: Options) -> Options:
    """Returns the options without the model's names."""
    return replaced(options, alias="", tags=())
