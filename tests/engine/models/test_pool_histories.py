"""Random histories of a pool: whatever happens to its models, no record is left over."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from specllama.engine.catalog.catalog import Catalog
from specllama.engine.errors import EngineError
from specllama.engine.models.events import Subscription
from specllama.engine.models.pool import ModelPool
from specllama.engine.models.records import Lease
from tests.support.engines import PaperSupervisor
from tests.support.pool_stage import entry, seen, soon

pytestmark = pytest.mark.slow

NAMES = ("a", "b", "c", "far")
AT_REST = {"unloaded", "loaded", "sleeping"}


class Histories(RuleBasedStateMachine):
    """Requests, loading and unloading by hand, and engines that do as they like."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.errors: list[dict[str, Any]] = []
        self.requests: list[asyncio.Task[Lease]] = []
        self.leases: list[Lease] = []
        self.unloads: list[asyncio.Task[None]] = []

    def run(self, work: Coroutine[Any, Any, Any] | None = None, *, settle: bool = True) -> None:
        async def both() -> None:
            if work is not None:
                await work
            if settle:
                await soon()
            else:
                await asyncio.sleep(0)
            self._collect()

        self.runner.run(both())

    def _collect(self) -> None:
        """Requests that have ended: with a lease, or with an error for its client."""
        for task in [task for task in self.requests if task.done()]:
            self.requests.remove(task)
            if not task.cancelled():
                error = task.exception()
                assert error is None or isinstance(error, EngineError)
                if error is None:
                    self.leases.append(task.result())

    def engines(self) -> list[PaperSupervisor]:
        return [each for each in PaperSupervisor.all if each.alive]

    def loading(self) -> list[PaperSupervisor]:
        return [each for each in self.engines() if each.state in ("loading", "waking")]

    def idle(self) -> list[PaperSupervisor]:
        ready = [each for each in self.engines() if each.state == "ready"]
        return [each for each in ready if not each.n_leases]

    @initialize(limit=st.integers(0, 2))
    def begin(self, limit: int) -> None:
        async def start() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: self.errors.append(context))
            await self.pool.start()

        PaperSupervisor.all = []
        entries = [entry(name, remote=name == "far", timeout=1000) for name in NAMES]
        self.catalog = Catalog(entries, default="a", router=True)
        self.limit = limit
        self.pool = ModelPool(self.catalog, models_max=limit, new_supervisor=PaperSupervisor)
        self.events: Subscription = self.pool.subscribe()
        self.run(start())

    @rule(name=st.sampled_from(NAMES), autoload=st.booleans(), settle=st.booleans())
    def ask(self, name: str, autoload: bool, settle: bool) -> None:
        async def ask() -> None:
            lease = self.pool.lease(self.catalog.entries[name], autoload=autoload)
            self.requests.append(asyncio.create_task(lease))

        self.run(ask(), settle=settle)

    @rule(name=st.sampled_from(NAMES))
    def ask_now(self, name: str) -> None:
        async def ask() -> None:
            if lease := self.pool.lease_now(self.catalog.entries[name]):
                self.leases.append(lease)

        self.run(ask())

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), settle=st.booleans())
    def cancel(self, data: st.DataObject, settle: bool) -> None:
        data.draw(st.sampled_from(self.requests)).cancel()
        self.run(settle=settle)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), settle=st.booleans())
    def release(self, data: st.DataObject, settle: bool) -> None:
        async def release() -> None:
            lease.release()

        lease = data.draw(st.sampled_from(self.leases))
        self.leases.remove(lease)
        self.run(release(), settle=settle)

    @rule(name=st.sampled_from(NAMES), settle=st.booleans())
    def load(self, name: str, settle: bool) -> None:
        async def load() -> None:
            in_use = self.pool._records[name].in_use
            try:
                await self.pool.load(name)
            except EngineError:
                assert in_use or self.pool._records[name].loading
            else:
                assert not in_use

        self.run(load(), settle=settle)

    @rule(name=st.sampled_from(NAMES), settle=st.booleans())
    def unload(self, name: str, settle: bool) -> None:
        async def unload() -> None:
            if self.pool.status(name).value != "unloaded":
                self.unloads.append(asyncio.create_task(self.pool.unload(name)))

        self.run(unload(), settle=settle)

    @precondition(lambda self: self.loading())
    @rule(data=st.data(), settle=st.booleans())
    def becomes_ready(self, data: st.DataObject, settle: bool) -> None:
        async def become_ready() -> None:
            engine.become_ready()

        engine = data.draw(st.sampled_from(self.loading()))
        self.run(become_ready(), settle=settle)

    @precondition(lambda self: self.loading())
    @rule(data=st.data(), settle=st.booleans())
    def fails(self, data: st.DataObject, settle: bool) -> None:
        data.draw(st.sampled_from(self.loading())).fail("no such file")
        self.run(settle=settle)

    @precondition(lambda self: self.engines())
    @rule(data=st.data(), settle=st.booleans())
    def crashes(self, data: st.DataObject, settle: bool) -> None:
        data.draw(st.sampled_from(self.engines())).crash()
        self.run(settle=settle)

    @precondition(lambda self: self.idle())
    @rule(data=st.data())
    def falls_asleep(self, data: st.DataObject) -> None:
        self.run(data.draw(st.sampled_from(self.idle())).fall_asleep())

    @rule(ok=st.booleans())
    def downloads_end(self, ok: bool) -> None:
        for each in PaperSupervisor.all:
            if each.downloads:
                each.downloaded() if ok else each.fail_download("no such repository")
        self.run()

    @invariant()
    def no_more_models_than_places(self) -> None:
        assert not self.errors
        assert not self.limit or len(self.engines()) <= self.limit

    @invariant()
    def records_say_what_is_there(self) -> None:
        for name, record in self.pool._records.items():
            assert not record.unloading or record.supervisor
            if self.pool.status(name).value in ("downloading", "loaded", "sleeping"):
                assert record.supervisor is not None

    def teardown(self) -> None:
        if not hasattr(self, "pool"):
            self.runner.close()
            return
        self.run(self._let_all_end())
        assert not self.requests
        assert {self.pool.status(name).value for name in NAMES} <= AT_REST
        last = dict.fromkeys(NAMES, "unloaded")
        for name, event, status in seen(self.events):
            if event in ("model_status", "status_change"):
                last[name] = status
        now = {name: self.pool.status(name).value for name in NAMES}
        assert last == now, (last, now, list(seen(self.events))[-4:])
        self.run(self.pool.stop())
        assert not self.engines()
        left = {each.name: each.n_leases for each in PaperSupervisor.all if each.n_leases}
        assert not left, f"{len(self.leases)} leases are held"
        for record in self.pool._records.values():
            assert (record.supervisor is None) or record.supervisor.state == "stopped"
            assert not record.loading
            assert not record.unloading
            assert not record.waiting
        self.runner.close()
        assert not self.errors

    async def _let_all_end(self) -> None:
        """Everything that was begun comes to its end when engines do their part."""
        for _ in range(8 * len(NAMES)):
            while self.leases:
                self.leases.pop().release()
            for each in PaperSupervisor.all:
                if each.downloads:
                    each.downloaded()
            await soon()
            for engine in self.engines():
                if engine.state in ("loading", "waking", "restarting", "failed"):
                    engine.become_ready()
            await soon()
            self._collect()
        while self.leases:
            self.leases.pop().release()
        for unload in self.unloads:  # of a model that was gone before, or is going already
            assert not unload.done() or isinstance(unload.exception(), EngineError | None)


Histories.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
test_histories = Histories.TestCase
