"""The models that are loaded: which, for whom, and for how long."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from engine.catalog.catalog import Catalog
from engine.catalog.entry import Entry
from engine.catalog.fetch import wants_fetch
from engine.errors import EngineError, invalid_request, unavailable
from engine.lease import Lease
from engine.load_failures import LoadFailures, check_not_failed
from engine.model_events import Subscription
from engine.model_news import ModelNews
from engine.model_status import ModelStatus
from engine.options import Options
from engine.residency import Residency, Ticket
from engine.supervisor import SHUTTING_DOWN, State, Supervisor

log = logging.getLogger("engine.pool")


class ModelPool:
    """A supervisor for each model in use.

    A router loads models when they are asked for, at most `models_max` (0: any number) at the
    same time; `engine.residency` says which one has to make room. A model that sleeps, or is
    being downloaded, holds no memory and does not count. Otherwise there is one model, loaded
    from the start to the end.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        models_max: int = 4,
        new_supervisor: Callable[[Options], Supervisor] = Supervisor,
    ) -> None:
        self._catalog = catalog
        self._models_max = models_max
        self._new_supervisor = new_supervisor
        self._supervisors: dict[str, Supervisor] = {}
        self._states: dict[str, State] = {}  # of the supervisors, when they were last heard of
        self._located: dict[str, Options] = {}  # of models that were in use, with their files
        self._residency = Residency(models_max)
        self._waiting: dict[Ticket, asyncio.Future[Lease]] = {}
        self._starting: set[asyncio.Task[None]] = set()
        self._loading: dict[str, asyncio.Task[None]] = {}  # because of `load`
        self._unloading: dict[str, asyncio.Task[None]] = {}
        self._failures = LoadFailures()
        self._news = ModelNews()
        self._stopping = False

    async def start(self) -> None:
        """Begin to load the model, or the router's models that are to be loaded on startup;
        returns before they are ready."""
        if not self._catalog.router:
            self._create(self._catalog.default)
            return
        names = [name for name, entry in self._catalog.entries.items() if entry.load_on_startup]
        if self._models_max and len(names) > self._models_max:
            log.warning(
                "%d models are to be loaded on startup, but at most %d can be (--models-max)",
                *(len(names), self._models_max),
            )
            names = names[: self._models_max]
        for name in names:
            self._start_loading(name)

    async def stop(self) -> None:
        """End everything: requests that wait or run end with an error, and no process stays."""
        self._stopping = True
        self.end_events()
        self._refuse(list(self._waiting), SHUTTING_DOWN)
        await _all_of(self._starting)
        await _all_of(asyncio.create_task(each.stop()) for each in self._supervisors.values())
        await _all_of([*self._unloading.values(), *self._loading.values()])

    def supervisor(self, name: str) -> Supervisor | None:
        """That of a model in use."""
        return self._supervisors.get(name)

    def options(self, name: str) -> Options:
        """A model's options, with the paths of its files once these have been downloaded. Raises
        KeyError if there is no such model."""
        if supervisor := self._supervisors.get(name):
            return supervisor.options
        return self._located.get(name) or self._catalog.entries[name].options

    def status(self, name: str) -> ModelStatus:
        """Raises KeyError if there is no such model."""
        entry, supervisor = self._catalog.entries[name], self._supervisors.get(name)
        state = supervisor.state if supervisor else None
        if supervisor and state not in ("downloaded", "failed", "stopped"):
            return ModelStatus.of(supervisor)
        if self._residency.wanted(entry.name):
            return ModelStatus(value="loading")
        if failure := self._failures.get(name):
            return ModelStatus(failed=True, failure=failure.text, exit_code=failure.exit_code)
        # Until its process has ended, a model that is stopped is what it was before.
        return self._news.last(name) if state == "stopped" else ModelStatus()

    def subscribe(self) -> Subscription:
        """All that happens from now on."""
        return self._news.subscribe()

    def end_events(self) -> None:
        """End all subscriptions, and those to come."""
        self._news.close()

    def lease_now(self, entry: Entry) -> Lease | None:
        """A lease of a model that is ready and has room for one more; None if `lease` would have
        to wait, or would raise."""
        supervisor = self.supervisor(entry.name)
        if supervisor is None or supervisor.awake_engine() is None or self._stopping:
            return None
        if not self._catalog.router:
            supervisor.acquire()
            return Lease(entry, supervisor, supervisor.release)
        ticket = self._residency.request(entry.name)
        future: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = future
        self._settle()
        if future.done():
            return future.result()
        self._residency.withdraw(ticket)
        del self._waiting[ticket]
        return None

    async def lease(self, entry: Entry, *, autoload: bool = True) -> Lease:
        """Use the model until the lease is released.

        Raises `EngineError`: unavailable if it can't be loaded, is unloaded meanwhile or the
        server shuts down. A router waits for its turn and for the loading, or raises
        invalid_request if it would have to load the model and `autoload` is off. Otherwise it
        is unavailable until the model has been loaded.
        """
        if self._catalog.router:
            name = entry.name
            is_here = self.status(name).value != "unloaded" and name not in self._unloading
            if not (autoload or is_here):
                raise invalid_request(f"the model {name!r} is not loaded")
            self._failures.check(name)
            return await self._bring(name)
        supervisor = self._supervisors[self._catalog.default]
        supervisor.acquire()
        lease = Lease(entry, supervisor, supervisor.release)
        try:
            await supervisor.engine()
        except BaseException:
            lease.release()
            raise
        return lease

    async def load(self, name: str) -> None:
        """Begin to load a model; it may have to wait for its turn. Raises `EngineError`
        (invalid_request) if it is loaded, or about to be."""
        status = self.status(name)
        if name in self._loading or (status.value != "unloaded" and name not in self._unloading):
            raise invalid_request(f"the model {name!r} is already running ({status.value})")
        self._start_loading(name)

    async def unload(self, name: str) -> None:
        """`begin_unload`, and wait until the model is gone."""
        self.begin_unload(name)
        if unloading := self._unloading.get(name):
            await asyncio.wait({unloading})

    def begin_unload(self, name: str) -> None:
        """Begin to end a model. What runs gets its entry's `stop_timeout`, what waits for it to
        be loaded ends at once. Raises `EngineError` (invalid_request) if it is not in use, or
        the only one."""
        if not self._catalog.router:
            raise invalid_request("the only model of this server can't be unloaded")
        reason = f"the model {name!r} was unloaded"
        waiting = [ticket for ticket in self._waiting if ticket.name == name]
        if not waiting and name not in self._supervisors and name not in self._loading:
            raise invalid_request(f"the model {name!r} is not running")
        self._refuse(waiting, reason)
        if loading := self._loading.get(name):
            loading.cancel()
        if name in self._supervisors:
            self._end(name, self._catalog.entries[name].stop_timeout, reason)
            self._settle()

    # ---- requests --------------------------------------------------------------------------

    async def _bring(self, name: str) -> Lease:
        """Wait until the model is here, has a place, and is ready."""
        await self._download(name)
        lease = await self._take_place(name)
        try:
            await lease.supervisor.loaded()
            check_not_failed(name, lease.supervisor)
            await lease.supervisor.engine()
        except BaseException:
            lease.release()
            raise
        return lease

    async def _download(self, name: str) -> None:
        """Before the model asks for a place: it may take hours."""
        while name in self._unloading:
            await asyncio.wait({self._unloading[name]})
        self._check_open()
        supervisor = self._supervisors.get(name)
        if supervisor is None:
            if not wants_fetch(self._catalog.entries[name].options):
                return
            supervisor = self._create(name, load=False)
        await supervisor.fetched()
        check_not_failed(name, supervisor)
        if supervisor.state == "stopped":
            raise unavailable(f"the model {name!r} was unloaded")

    async def _take_place(self, name: str) -> Lease:
        self._check_open()
        ticket = self._residency.request(name)
        future: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = future
        self._settle()
        self._news.update(name, self.status(name))
        try:
            return await future
        except asyncio.CancelledError:
            if ticket in self._waiting:
                self._refuse([ticket], "cancelled")
            elif not future.cancelled() and future.exception() is None:
                future.result().release()  # it came in the very moment
            raise

    def _refuse(self, tickets: Iterable[Ticket], reason: str) -> None:
        for ticket in tickets:
            self._residency.withdraw(ticket)
            future = self._waiting.pop(ticket)
            if not future.done():
                future.set_exception(unavailable(reason))
            self._news.update(ticket.name, self.status(ticket.name))
        self._settle()

    def _check_open(self) -> None:
        if self._stopping:
            raise unavailable(SHUTTING_DOWN)

    def _start_loading(self, name: str) -> None:
        async def bring() -> None:
            try:
                (await self._bring(name)).release()
            except EngineError as error:
                log.warning("%s", error)
            finally:
                if self._loading.get(name) is asyncio.current_task():
                    del self._loading[name]

        self._loading[name] = asyncio.create_task(bring(), name=f"load {name}")

    # ---- supervisors -----------------------------------------------------------------------

    def _settle(self) -> None:
        """Do what `engine.residency` decides, now that something has changed."""
        if self._stopping:
            return
        plan = self._residency.plan()
        for name in plan.evicted:
            log.info("the model %r has to make room for another one", name)
            self._end(name, self._catalog.entries[name].stop_timeout, "the model was unloaded")
        for name in plan.admitted:
            if supervisor := self._supervisors.get(name):  # asleep, or only downloaded
                supervisor.wake()
            else:
                self._create(name)
        for ticket in plan.granted:
            self._waiting.pop(ticket).set_result(self._granted(ticket))

    def _granted(self, ticket: Ticket) -> Lease:
        supervisor, place = self._supervisors[ticket.name], ticket.place
        assert place is not None
        supervisor.acquire()

        def release() -> None:
            supervisor.release()
            self._residency.release(place)
            self._settle()

        return Lease(self._catalog.entries[ticket.name], supervisor, release)

    def _create(self, name: str, *, load: bool = True) -> Supervisor:
        supervisor = self._new_supervisor(self._catalog.entries[name].options)
        self._supervisors[name], self._states[name] = supervisor, supervisor.state
        supervisor.on_change = partial(self._changed, name, supervisor)
        self._start_supervisor(supervisor.start(load=load))
        self._news.begin(name, ModelStatus.of(supervisor))
        return supervisor

    def _start_supervisor(self, start: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(start)
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    def _end(self, name: str, timeout: float, reason: str) -> asyncio.Task[None]:
        """The task that ends when the model is gone."""
        if name not in self._unloading:
            self._residency.leave(name)
            task = asyncio.create_task(self._unload(name, timeout, reason), name=f"unload {name}")
            self._unloading[name] = task
        return self._unloading[name]

    async def _unload(self, name: str, timeout: float, reason: str) -> None:
        await self._supervisors[name].stop(timeout, reason)
        self._located[name] = self._supervisors[name].options
        del self._supervisors[name], self._unloading[name]
        self._residency.gone(name)
        self._news.update(name, self.status(name))
        self._settle()

    def _changed(self, name: str, supervisor: Supervisor) -> None:
        """The state or the progress of a supervisor is another one."""
        before, state = self._states[name], supervisor.state
        self._states[name] = state
        if state == before:
            self._news.progress(name, ModelStatus.of(supervisor))
            return
        if before == "downloading" and state in ("downloaded", "failed"):
            self._news.downloaded(name, ok=state == "downloaded")
        if state == "ready":
            self._failures.forget(name)
        elif state == "failed":
            if self._catalog.router or supervisor.info is not None:
                # Of a server's only model, whoever started the server is told (on_fatal).
                log.error("the model %r could not be loaded: %s", name, supervisor.failure)
            self._failures.add(name, supervisor)
        if state != "stopped":
            self._news.update(name, self.status(name))
        if self._catalog.router:
            self._move(name, supervisor)

    def _move(self, name: str, supervisor: Supervisor) -> None:
        """Its new state may make it a candidate for leaving, or free its place."""
        match supervisor.state:
            case "ready":
                self._residency.settled(name)
            case "sleeping" if name not in self._unloading:
                self._residency.gone(name)  # whoever wakes it asks for a place again
            case "failed":
                self._end(name, 0, supervisor.failure)
        self._settle()


async def _all_of(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Wait for tasks that report their troubles themselves."""
    if pending := set(tasks):
        await asyncio.wait(pending)
