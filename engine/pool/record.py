"""All that the pool knows of one model."""

import asyncio
from dataclasses import dataclass, field

import msgspec

from specllama.engine.catalog.entry import Entry
from specllama.engine.options import Options
from specllama.engine.pool.events import ModelEvents
from specllama.engine.pool.failure import Failure
from specllama.engine.pool.lease import Lease
from specllama.engine.pool.publisher import StatusPublisher
from specllama.engine.pool.residency import Ticket
from specllama.engine.pool.status import ModelStatus
from specllama.engine.pool.supervisor import Supervisor

_ABSENT = ("downloaded", "failed", "stopped")  # states of which the supervisor's is not all


@dataclass(eq=False)
class ModelRecord:
    """One model of the catalog, loaded or not."""

    entry: Entry
    publisher: StatusPublisher
    supervisor: Supervisor | None = None  # while it is in use
    located: Options | None = None  # with its files, if it was in use before
    failure: Failure | None = None  # of the last attempts to load it
    loading: asyncio.Task[None] | None = None  # because of `ModelPool.load`
    unloading: asyncio.Task[None] | None = None
    only_download: bool = False  # there is nothing yet that could be loaded
    gone: bool = False  # about to be forgotten
    n_returning: int = 0  # requests that wait for the end of an unloading
    waiting: dict[Ticket, asyncio.Future[Lease]] = field(default_factory=dict)

    @classmethod
    def of(cls, entry: Entry, events: ModelEvents) -> "ModelRecord":
        """A model that isn't loaded, and can't be if its entry says why."""
        publisher = StatusPublisher(entry.name, events)
        return cls(entry, publisher, failure=Failure.known(entry.fault))

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
