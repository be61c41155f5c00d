"""Loads and unloads models on request."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial

from specllama.engine.catalog.catalog import Catalog
from specllama.engine.catalog.entry import CatalogEntry, wants_fetch
from specllama.engine.errors import EngineError, invalid_request, unavailable
from specllama.engine.models.accounts import MemoryAccounts, MemoryView
from specllama.engine.models.events import ModelEvents, ModelStatus, Subscription
from specllama.engine.models.lifecycle import State
from specllama.engine.models.measuring import MemoryMeter
from specllama.engine.models.records import (
    Keeping,
    Lease,
    Members,
    ModelFailure,
    ModelRecord,
    check_not_failed,
)
from specllama.engine.models.residency import ModelSlot, Residency, Ticket
from specllama.engine.models.supervisor import SHUTTING_DOWN, Supervisor
from specllama.engine.options import Options

log = logging.getLogger("specllama.engine.models")


class ModelPool:
    """A supervisor for each model in use.

    A router loads models on request, at most `models_max` (0: any number) at the same time, and
    within the limits of the `meter`, if there is one; `engine.models.residency` decides which one
    is unloaded to make room. A model that sleeps or is being downloaded uses no memory and does not
    count. A server that is no router has one model, loaded from the start to the end.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        models_max: int = 4,
        meter: MemoryMeter | None = None,
        keep_alive_max: float = 300.0,
        new_supervisor: Callable[[Options], Supervisor] = Supervisor,
    ) -> None:
        """`keep_alive_max` is the maximum of `keep`, in seconds."""
        self._catalog = catalog
        self._keep_alive_max = keep_alive_max
        self._models_max = models_max
        self._new_supervisor = new_supervisor
        self._residency = Residency(models_max)
        self._accounts = MemoryAccounts(meter, self._residency)
        self._events = ModelEvents()
        self._records = {
            name: ModelRecord.of(entry, self._events) for name, entry in catalog.entries.items()
        }
        self.members = Members(
            self._records,
            self._events,
            fetch=partial(self._create, load=False),
            unload=self._begin_unload,
        )
        """The set of models; `engine.models.inventory` changes it."""
        self._first: list[ModelRecord] = []  # models that a router loads at the start
        self._stopping = False

    async def start(self) -> None:
        """Begins to load the model, or the router's models with load-on-startup. Returns before
        they are ready."""
        if not self._catalog.router:
            self._create(self._only)
            return
        records = [each for each in self._records.values() if each.entry.load_on_startup]
        if self._models_max and len(records) > self._models_max:
            log.warning(
                "%d models are configured for loading on startup, but at most %d can be loaded "
                "(--models-max)",
                *(len(records), self._models_max),
            )
            records = records[: self._models_max]
        self._first = records
        for record in records:
            self._start_loading(record, makes_room=False)

    async def started(self) -> bool:
        """Waits for the models that are loaded at the start. Returns False if all of them failed,
        or if the server is being stopped."""
        if self._catalog.router:
            await _all_of(record.loading for record in self._first if record.loading)
            if self._first and all(record.failure for record in self._first):
                log.error("no model could be loaded; a request that names one tries again")
                return False
            return not self._stopping
        supervisor = self._only.supervisor
        assert supervisor is not None, "it is created at the start, and never unloaded"
        await supervisor.loaded()
        return supervisor.state not in ("failed", "stopped")

    async def stop(self) -> None:
        """Ends all processes. Waiting and running requests fail."""
        self._stopping = True
        self.end_events()
        records = self._records.values()
        for record in records:
            self._refuse(record, list(record.waiting), unavailable(SHUTTING_DOWN))
            record.end_keeping()
        in_use = [record.supervisor for record in records if record.supervisor]
        await _all_of(asyncio.create_task(supervisor.stop()) for supervisor in in_use)
        tasks = [task for record in records for task in (record.unloading, record.loading)]
        await _all_of(task for task in tasks if task)

    def supervisor(self, name: str) -> Supervisor | None:
        """Returns the supervisor of a model; None if the model isn't in use."""
        record = self._records.get(name)
        return record.supervisor if record else None

    def options(self, entry: CatalogEntry) -> Options:
        """Returns a model's options, with the paths of its files after they have been
        downloaded."""
        record = self._records.get(entry.name)
        return record.options if record else entry.options

    def status(self, name: str) -> ModelStatus:
        """Returns the status of a model; that of a removed one is unloaded."""
        record = self._records.get(name)
        return record.status() if record else ModelStatus()

    def memory(self, name: str) -> MemoryView:
        """Returns the memory of a model."""
        record = self._records.get(name)
        return self._accounts.view(record) if record else MemoryView({}, {})

    def subscribe(self) -> Subscription:
        """Returns the events of all models from now on."""
        return self._events.subscribe()

    def end_events(self) -> None:
        """Ends all subscriptions, current and future ones."""
        self._events.close()

    def lease_now(self, entry: CatalogEntry) -> Lease | None:
        """Returns a lease at once, without waiting; None if `lease` would have to wait, or would
        raise."""
        record = self._records.get(entry.name)
        supervisor = record.supervisor if record else None
        if (
            record is None
            or supervisor is None
            or supervisor.awake_engine() is None
            or self._stopping
        ):
            return None
        if not self._catalog.router:
            supervisor.acquire()
            return Lease(entry, supervisor, supervisor.release)
        place = self._residency.grant_now(entry.name)
        return None if place is None else self._granted(record, place)

    async def lease(self, entry: CatalogEntry, *, autoload: bool = True) -> Lease:
        """Returns a lease, which keeps the model in use until it is released.

        Raises `EngineError` (unavailable) if the model can't be loaded, is unloaded meanwhile, or
        if the server shuts down. A router waits for the model's place and for the loading; if it
        would have to load the model and `autoload` is off, it raises invalid_request. A server that
        is no router raises unavailable until its model has been loaded.
        """
        if self._catalog.router:
            record = self._records.get(entry.name)
            if record is None or record.gone:
                raise unavailable(f"the model {entry.name!r} was removed")
            if record.only_download:
                raise invalid_request(f"the model {record.name!r} is being downloaded")
            if not (autoload or record.in_use):
                raise invalid_request(f"the model {record.name!r} is not loaded")
            if record.failure:
                record.failure.check(record.name)
            return await self._bring(record)
        supervisor = self._only.supervisor
        assert supervisor is not None, "it is created at the start, and never unloaded"
        supervisor.acquire()
        lease = Lease(entry, supervisor, supervisor.release)
        try:
            await supervisor.engine()
        except BaseException:
            lease.release()
            raise
        return lease

    async def load(self, name: str) -> None:
        """Begins to load a model, which may have to wait for a place. Raises `EngineError`
        (invalid_request) if it is loaded or loading, or if its entry has a fault."""
        record = self._records[name]
        if record.loading or record.in_use:
            value = record.status().value
            raise invalid_request(f"the model {name!r} is already running ({value})")
        if fault := record.entry.fault:
            raise invalid_request(f"the model {name!r} can't be loaded: {fault}")
        self._start_loading(record)

    async def unload(self, name: str) -> None:
        """Unloads a model like `begin_unload`, and waits until it is unloaded."""
        self.begin_unload(name)
        if unloading := self._records[name].unloading:
            await asyncio.wait({unloading})

    def begin_unload(self, name: str) -> None:
        """Begins to unload a model. Running requests may finish within the `stop_timeout` of its
        entry; requests that wait for its loading fail at once. Raises `EngineError`
        (invalid_request) if it is not in use, or if it is the server's only model."""
        if not self._catalog.router:
            raise invalid_request("the only model of this server can't be unloaded")
        record = self._records[name]
        if not (record.waiting or record.supervisor or record.loading):
            raise invalid_request(f"the model {name!r} is not running")
        self._begin_unload(record, f"the model {name!r} was unloaded")

    def _begin_unload(self, record: ModelRecord, reason: str) -> None:
        self._refuse(record, list(record.waiting), unavailable(reason))
        if record.loading:
            record.loading.cancel()
        if record.supervisor:
            self._end(record, record.entry.stop_timeout, reason)
            self._settle()

    def unload_idle(self, name: str) -> bool:
        """Calls `begin_unload` for an idle model of a router. Returns False for other models."""
        if self._catalog.router and (record := self._records.get(name)):
            record.end_keeping()
        if not (self._catalog.router and self._residency.idle(name)) or self._stopping:
            return False
        self.begin_unload(name)
        return True

    def keep(self, name: str, seconds: float) -> None:
        """Keeps a router's model in memory for `seconds`, at most `keep_alive_max`, unless another
        model waits for memory. Replaces the time of an earlier call."""
        record = self._records.get(name)
        seconds = min(seconds, self._keep_alive_max)
        if record is None or record.supervisor is None or self._stopping or seconds <= 0:
            return
        record.end_keeping()
        if self._residency.keep(name):
            record.keeping = Keeping(
                self._residency, name, record.supervisor, seconds, self._settle
            )
        self._settle()

    @property
    def _only(self) -> ModelRecord:
        """The model of a server that is no router."""
        return self._records[self._catalog.default]

    # ---- requests --------------------------------------------------------------------------

    async def _bring(self, record: ModelRecord, *, makes_room: bool = True) -> Lease:
        """Waits until the model is downloaded, measured, has a place, and is ready."""
        await self._download(record)
        await self._accounts.measure(record)
        if not makes_room:
            self._accounts.check_room(record)
        lease = await self._take_place(record)
        try:
            await lease.supervisor.loaded()
            check_not_failed(record.name, lease.supervisor)
            await lease.supervisor.engine()
        except BaseException:
            lease.release()
            raise
        return lease

    async def _download(self, record: ModelRecord) -> None:
        """Downloads the model before it requests a place, as a download may take hours."""
        await self._until_gone(record)
        self._check_open(record)
        supervisor = record.supervisor
        if supervisor is None:
            if not wants_fetch(record.entry.options):
                return
            supervisor = self._create(record, load=False)
        await supervisor.fetched()
        check_not_failed(record.name, supervisor)
        if supervisor.state == "stopped":
            raise unavailable(f"the model {record.name!r} was unloaded")

    async def _until_gone(self, record: ModelRecord) -> None:
        """Waits until the model's unloading is complete, if it has begun. Meanwhile the status of
        the model is loading."""
        if not record.unloading:
            return
        record.n_returning += 1
        record.publish()
        try:
            while record.unloading:
                await asyncio.wait({record.unloading})
        except asyncio.CancelledError:
            record.n_returning -= 1
            record.publish()
            raise
        record.n_returning -= 1

    async def _take_place(self, record: ModelRecord) -> Lease:
        self._check_open(record)
        need = self._accounts.need(record)
        ticket = self._residency.request(record.name, need, pinned=record.entry.pin)
        future: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        record.waiting[ticket] = future
        self._settle()
        record.publish()
        try:
            return await future
        except asyncio.CancelledError:
            if ticket in record.waiting:
                self._refuse(record, [ticket], unavailable("cancelled"))
            elif not future.cancelled() and future.exception() is None:
                future.result().release()  # granted at the moment of the cancellation
            raise

    def _refuse(self, record: ModelRecord, tickets: Iterable[Ticket], error: EngineError) -> None:
        for ticket in tickets:
            self._residency.withdraw(ticket)
            future = record.waiting.pop(ticket)
            if not future.done():
                future.set_exception(error)
            record.publish()
        self._settle()

    def _check_open(self, record: ModelRecord) -> None:
        if self._stopping:
            raise unavailable(SHUTTING_DOWN)
        if record.gone:
            raise unavailable(f"the model {record.name!r} was removed")

    def _start_loading(self, record: ModelRecord, *, makes_room: bool = True) -> None:
        """Begins to load the model, without `makes_room` only if it fits beside all others."""

        async def bring() -> None:
            try:
                (await self._bring(record, makes_room=makes_room)).release()
            except EngineError as error:
                if record.failure is None:  # else `_on_transition` has logged it
                    log.warning("%s", error)
            finally:
                if record.loading is asyncio.current_task():
                    record.loading = None

        record.loading = asyncio.create_task(bring(), name=f"load {record.name}")

    # ---- supervisors -----------------------------------------------------------------------

    def _settle(self) -> None:
        """Executes the decisions of `engine.models.residency` after a change."""
        if self._stopping:
            return
        plan = self._residency.plan()
        for name in plan.evicted:
            log.info("the model %r is unloaded to make room for another one", name)
            record = self._records[name]
            self._end(record, record.entry.stop_timeout, "the model was unloaded")
        for name in plan.admitted:
            record = self._records[name]
            if record.supervisor:  # the model sleeps, or is only downloaded
                record.supervisor.measured = record.measured
                record.supervisor.wake()
            else:
                self._create(record)
        too_late: list[Lease] = []
        for ticket in plan.granted:
            assert ticket.place is not None
            record = self._records[ticket.name]
            future = record.waiting.pop(ticket)
            lease = self._granted(record, ticket.place)
            if future.done():  # cancelled, but its task has not run since
                too_late.append(lease)
            else:
                future.set_result(lease)
        for lease in too_late:
            lease.release()
        for ticket in plan.refused:
            record = self._records[ticket.name]
            self._refuse(record, [ticket], self._accounts.refused(record, ticket))

    def _granted(self, record: ModelRecord, place: ModelSlot) -> Lease:
        supervisor = record.supervisor
        assert supervisor is not None, "a model with a place has one"
        supervisor.acquire()

        def release() -> None:
            supervisor.release()
            self._residency.release(place)
            self._accounts.report(record)
            self._settle()

        return Lease(record.entry, supervisor, release)

    def _create(self, record: ModelRecord, *, load: bool = True) -> Supervisor:
        supervisor = record.supervisor = self._new_supervisor(record.entry.options)
        supervisor.model = record.name if self._catalog.router else ""
        supervisor.measured = record.measured
        supervisor.on_transition = partial(self._on_transition, record, supervisor)
        supervisor.on_progress = lambda: record.publisher.progress(ModelStatus.of(supervisor))
        supervisor.start(load=load)
        record.publisher.begin(ModelStatus.of(supervisor))
        return supervisor

    def _end(self, record: ModelRecord, timeout: float, reason: str) -> None:
        """Begins to unload the model, unless that has begun."""
        supervisor = record.supervisor
        if record.unloading or supervisor is None:
            return
        record.end_keeping()
        self._residency.leave(record.name)
        unload = self._unload(record, supervisor, timeout, reason)
        record.unloading = asyncio.create_task(unload, name=f"unload {record.name}")

    async def _unload(
        self, record: ModelRecord, supervisor: Supervisor, timeout: float, reason: str
    ) -> None:
        await supervisor.stop(timeout, reason)
        record.located = supervisor.options
        record.supervisor = record.unloading = None
        self._residency.gone(record.name)
        record.publish()
        self._settle()

    def _on_transition(self, record: ModelRecord, supervisor: Supervisor, before: State) -> None:
        state = supervisor.state
        if before == "downloading" and state in ("downloaded", "failed", "stopped"):
            record.publisher.downloaded(ok=state == "downloaded")
        if state == "ready":
            record.failure = None
        elif state == "failed":
            if self._catalog.router or supervisor.info is not None:
                # The failure of a server's only model is reported by its launcher (on_fatal).
                log.error("the model %r could not be loaded: %s", record.name, supervisor.failure)
            record.failure = ModelFailure.of(supervisor, record.failure)
        if state != "stopped":
            record.publish()
        if self._catalog.router:
            self._move(record, supervisor)

    def _move(self, record: ModelRecord, supervisor: Supervisor) -> None:
        """Reports the new state to the residency: the model may become a candidate for eviction, or
        free its place."""
        match supervisor.state:
            case "ready":
                self._residency.settled(record.name)
                self._accounts.report(record)
            case "sleeping" if not record.unloading:
                self._residency.gone(record.name)  # a request that wakes it needs a place again
            case "failed":
                self._end(record, 0, supervisor.failure)
        self._settle()


async def _all_of(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Waits for tasks that report their errors themselves."""
    if pending := set(tasks):
        await asyncio.wait(pending)
