"""Random histories of a server, each from a seed: clients come, read slowly or leave, models sleep
and are unloaded, processes die, files and calls into llama.cpp fail. Every text must be what its
request gets alone."""

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Literal

from specllama.engine.catalog.catalog import Catalog
from specllama.engine.catalog.entry import CatalogEntry
from specllama.engine.errors import EngineError, ErrorInfo
from specllama.engine.models.client import EngineClient
from specllama.engine.models.generation import Generation
from specllama.engine.models.pool import ModelPool
from specllama.engine.wire.replies import Finished
from tests.simulation.library import Fault, Speed
from tests.simulation.requests import Asked, Choice, Requests, any_model
from tests.simulation.server import Machine, SimulatedModel, model_files, run_in
from tests.simulation.world import World

FEWEST_REQUESTS = 8
MOST_REQUESTS = 60
FEWEST_STEPS = 200
LONGEST = 20_000
"""Seconds of the simulation after which a request that has no end waits for ever."""
FAILURES = (-2, -3, 2, 1, -1)
"""Of `llama_decode`: no memory, a failed or aborted computation, no cells, a bad batch."""
WHILE_LOADING = (-2, -3, 2)
"""The others can't happen in an empty cache."""
SIGNALS = (-9, -11, -6)
MOST_FAULTS = 20
PATIENCE = 100
"""Seconds that a model may take to be loaded, failures included."""
CHANCES = {
    "load": 0.1,
    "start": 0.1,
    "disk": 0.05,
    "trial": 0.1,
    "costly": 0.1,
    "death": 1e-3,
    "nonsense": 1e-3,
    "slow": 0.01,
    "hang": 1e-3,
}
"""How likely it is that something fails, in a history where it can."""
ERRORS = {
    "invalid_request_error",
    "not_supported_error",
    "server_error",
    "unavailable_error",
    "exceed_context_size_error",
}


ACTIONS: tuple[Literal["save", "restore", "erase"], ...] = ("save", "restore", "restore", "erase")


class HistoryError(AssertionError):
    """Something that must not happen has happened."""


class History:
    """One server and its clients. All that is random comes from `seed`."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.world = World(seed)
        self.random = self.world.random
        self.has_faults = self.random.random() < 0.6
        self.n_steps = 0
        self.story: list[str] = []
        self.folder = ""

    def tell(self, line: str) -> None:
        line = line.replace(self.folder, "")  # which another time has another name
        self.story.append(f"{self.world.now - 1000:.3f} s: {line}")

    # ---- running -------------------------------------------------------------------------

    def run(self) -> None:
        """Raises `HistoryError`, and whatever else goes wrong."""
        with tempfile.TemporaryDirectory() as folder:
            self.folder = folder
            self._prepare(Path(folder))
            try:
                run_in(self.world, self.machine, self._serve)
            finally:
                self.n_steps = self.machine.n_steps
            try:
                for asked in self.requests.all:
                    self._check(asked)
            finally:
                self.requests.close()

    def _prepare(self, folder: Path) -> None:
        choose = self.random.choice
        names = ["a", "b", "c"][: choose([1, 1, 2, 3])]
        files = folder / "files"
        files.mkdir()
        self.choices = {name: any_model(self.random, files) for name in names}
        self.requests = Requests(self.random, self.choices)
        paths = model_files(folder, names)
        speed = Speed(choose([1e-3, 1e-2, 0.1]))
        models = {
            str(path): SimulatedModel(
                self.choices[name].shape,
                is_device=choose([True, False]),
                speed=speed,
                load_seconds=choose([0.1, 2.0]),
                has_adapters=self.choices[name].has_adapters,
            )
            for name, path in paths.items()
        }
        self.machine = Machine(self.world, models)
        if self.has_faults:
            self.machine.chances = {kind: p for kind, p in CHANCES.items() if choose([True, False])}
        entries = [
            CatalogEntry(
                name=name,
                source="preset",
                options=self.choices[name].all_options(name, path),
                load_on_startup=choose([True, False]),
                stop_timeout=choose([0, 10]),
            )
            for name, path in paths.items()
        ]
        self.catalog = Catalog(entries, default=names[0], router=len(names) > 1)
        for name, choice in self.choices.items():
            self.tell(f"model {name}: {choice.shape} {_told(choice)}")
        self.tell(f"chances: {self.machine.chances}")

    async def _serve(self) -> None:
        models_max = self.random.choice([0, 1, 2])
        self.tell(f"at most {models_max} models")
        self.pool = ModelPool(self.catalog, models_max=models_max)
        await self.pool.start()
        await self.pool.started()
        clients = asyncio.create_task(self._clients())
        others: list[Coroutine[Any, Any, None]] = [self._administrator()]
        if self.has_faults:
            others.append(self._faults())
        tasks = [asyncio.create_task(each) for each in others]
        done, _ = await asyncio.wait([clients], timeout=LONGEST)
        for task in tasks:
            if task.done():
                task.result()
            task.cancel()
        await asyncio.wait(tasks)
        if not done:
            waiting = [str(each.number) for each in self.requests.all if each.end is None]
            raise HistoryError(f"requests {', '.join(waiting)} wait for ever")
        clients.result()
        await self._settle()
        await self.pool.stop()
        if alive := self.machine.alive():
            raise HistoryError(f"{len(alive)} processes are left")
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            raise HistoryError(f"tasks are left: {', '.join(sorted(t.get_name() for t in left))}")

    # ---- clients -------------------------------------------------------------------------

    async def _clients(self) -> None:
        """Lets clients come, some of them together, and waits for all."""
        tasks: list[asyncio.Task[None]] = []
        n = self.random.randint(FEWEST_REQUESTS, MOST_REQUESTS)
        while len(self.requests.all) < n or (
            self.machine.n_steps < FEWEST_STEPS and len(self.requests.all) < MOST_REQUESTS * 4
        ):
            new = [self.requests.new() for _ in range(self.random.choice([1, 1, 2, 6]))]
            for group in new:
                for asked in group:
                    self.tell(str(asked))
            tasks += [asyncio.create_task(self._client(group)) for group in new]
            await asyncio.sleep(self.random.choice([0.0, 0.01, 0.1, 0.5, 5.0]))
        await asyncio.gather(*tasks)

    async def _client(self, group: list[Asked]) -> None:
        entry = self.catalog.entries[group[0].model]
        patience = self.random.choice([None, None, None, None, 0.01, 0.1, 1.0])
        try:
            async with asyncio.timeout(patience):
                lease = self.pool.lease_now(entry) or await self.pool.lease(entry)
                with lease:
                    await self._read_all(group, await lease.engine())
        except TimeoutError:
            for asked in group:
                if asked.end is None:
                    asked.is_cancelled = True
                    self.tell(f"request {asked.number} is cancelled")
        except EngineError as error:
            for asked in group:
                self._failed(asked, error.info)

    async def _read_all(self, group: list[Asked], engine: EngineClient) -> None:
        first = group[0]
        generations = engine.generate_all(
            [first.prompt],
            [asked.params for asked in group],
            owner=first.owner,
            private=first.private,
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                for asked, generation in zip(group, generations, strict=True):
                    tasks.create_task(self._read(asked, generation))
        finally:
            for generation in generations:
                generation.cancel()

    async def _read(self, asked: Asked, generation: Generation) -> None:
        pace = self.random.choice([0.0, 0.0, 0.01, 0.2])
        try:
            async for event in generation:
                if asked.end is not None:
                    raise HistoryError(f"request {asked.number} has an event behind its end")
                asked.tokens += event.tokens
                asked.text += event.text
                if isinstance(event, Finished):
                    asked.end = event
                    self.tell(f"request {asked.number} is finished")
                    self._count(event)
                elif pace:
                    await asyncio.sleep(pace)
        except EngineError as error:
            self._failed(asked, error.info)

    def _failed(self, asked: Asked, error: ErrorInfo) -> None:
        if asked.end is not None:
            raise HistoryError(f"request {asked.number} has two ends")
        asked.end = error
        self.world.happens(f"end: {error.type}")
        self.tell(f"request {asked.number} failed: {error.message}")

    def _count(self, event: Finished) -> None:
        timings = event.timings
        self.world.happens(f"end: {event.stop_type}")
        for kind, happened in {
            "a prefix is cached": timings.cache_n > 0,
            "a proposal is accepted": timings.draft_n_accepted > 0,
            "a proposal is rejected": timings.draft_n > timings.draft_n_accepted,
            "the context is shifted": event.truncated,
        }.items():
            self.world.happens(kind, happened)

    # ---- what else happens ---------------------------------------------------------------

    async def _administrator(self) -> None:
        """Loads and unloads models, looks at them, saves and restores slots."""
        while True:
            await asyncio.sleep(self.random.choice([0.1, 1.0, 5.0]))
            name = self.random.choice([*self.choices])
            try:
                await self._administer(name)
            except EngineError as error:
                self._check_error(error.info)
            except TimeoutError:
                self.world.happens("slot: withdrawn")

    async def _administer(self, name: str) -> None:
        choice, supervisor = self.choices[name], self.pool.supervisor(name)
        engine = supervisor.awake_engine() if supervisor is not None else None
        action = self.random.choice(["unload", "load", "look", "look", "slot", "slot", "slot"])
        if action == "unload":
            self.pool.begin_unload(name)
            self.tell(f"{name} is unloaded")
        elif action == "load":
            await self.pool.load(name)
            self.tell(f"{name} is loaded")
        elif engine is None:
            return
        elif action == "look":
            await engine.stats()
            await engine.slots()
            await engine.detokenize([1, 2, 3])
        elif choice.options["slot_save_path"]:
            slot = self.random.randrange(choice.options["parallel"])
            what = self.random.choice(ACTIONS)
            file = self.random.choice("xy")
            async with asyncio.timeout(self.random.choice([None, 0.1, 1.0])):
                done = await engine.slot_action(slot, what, file)
            self.world.happens(f"slot: {what}")
            self.tell(f"slot {slot} of {name}: {what} {file}, {done.n_tokens} tokens")

    async def _faults(self) -> None:
        for _ in range(self.random.randint(1, MOST_FAULTS)):
            await asyncio.sleep(self.random.choice([0.05, 0.3, 2.0]))
            if not (alive := self.machine.alive()):
                continue
            child, chance = self.random.choice(alive), self.random.random()
            if chance < 0.1:
                seconds = self.random.choice([0.1, 5.0, 100.0])
                self.tell(f"{child.process.name} is stopped for {seconds} s")
                self.world.happens("fault: stopped")
                child.process.stopped_until = self.world.now + seconds
            elif chance < 0.15:
                seconds = self.random.choice([5.0, 40.0, 600.0])
                self.tell(f"the machine sleeps for {seconds} s")
                self.world.happens("fault: the machine sleeps")
                self.world.now += seconds
            elif chance < 0.4:
                code = self.random.choice(SIGNALS)
                self.tell(f"{child.process.name} dies of signal {-code}")
                self.world.happens("fault: signal")
                child.process.end(code)
            else:
                failures = FAILURES if self.machine.is_ready(child) else WHILE_LOADING
                fault = Fault(self.random.choice(failures), self.random.randrange(4))
                self.tell(f"{child.process.name}: {fault}")
                self.world.happens(f"fault: llama_decode gives {fault.status}")
                self.machine.libraries[child.process].faults.append(fault)
        self.tell("from now on, nothing fails")
        self.machine.chances.clear()

    # ---- checking ------------------------------------------------------------------------

    async def _settle(self) -> None:
        """Nothing is left of the requests once they have ended."""
        self.machine.chances.clear()
        for child in self.machine.alive():
            self.machine.libraries[child.process].faults.clear()
        for name in self.choices:
            supervisor = self.pool.supervisor(name)
            if supervisor is None:
                continue
            for _ in range(PATIENCE):  # a model that is being loaded has one
                if not supervisor.n_leases:
                    break
                await asyncio.sleep(1.0)
            if supervisor.n_leases:
                raise HistoryError(f"{supervisor.n_leases} leases of {name} are left")
            if (client := supervisor.awake_engine()) is not None:
                await self._settle_engine(name, client)

    async def _settle_engine(self, name: str, client: EngineClient) -> None:
        if client.n_running:
            raise HistoryError(f"{client.n_running} requests of {name} are left")
        try:
            stats, slots = await client.stats(), await client.slots()
        except EngineError:
            return  # it has just died, or fallen asleep
        self.world.happens("a prefix is shared", stats.n_prompt_shared)
        self.world.happens("a text is restored", stats.n_prompt_restored)
        if stats.n_processing or stats.n_deferred:
            raise HistoryError(f"{name} still has {stats.n_processing} requests")
        if any(slot.is_processing for slot in slots):
            raise HistoryError(f"a slot of {name} is left in use")

    def _has_failed(self) -> bool:
        """True if something has failed in this history, on purpose."""
        return any(kind.startswith("fault: ") for kind in +self.world.events)

    def _check_error(self, error: ErrorInfo) -> None:
        if error.type not in ERRORS:
            raise HistoryError(f"an error of type {error.type}: {error.message}")

    def _check(self, asked: Asked) -> None:
        who = f"request {asked.number}"
        if asked.end is None and not asked.is_cancelled:
            raise HistoryError(f"{who} has no end")
        if isinstance(asked.end, ErrorInfo):
            self._check_error(asked.end)
            is_explained = self._has_failed() or "unload" in asked.end.message
            if not (is_explained or self.requests.is_refused(asked)):
                raise HistoryError(f"{who} failed: {asked.end.message}")
        if wrong := self.requests.wrong(asked):
            raise HistoryError(f"{who}: {wrong}")


def _told(choice: Choice) -> dict[str, Any]:
    """The options that aren't empty."""
    return {name: value for name, value in choice.options.items() if value not in ("", (), False)}
