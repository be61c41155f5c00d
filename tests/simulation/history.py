"""Random histories of a server, each from a seed: clients come, read slowly or leave, models sleep
and are unloaded, processes die, files and calls into llama.cpp fail. Every text has to
equal the text that the request gets alone."""

import asyncio
import tempfile
from collections.abc import Set
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Literal

from specllama.engine.catalog.catalog import Catalog
from specllama.engine.catalog.entry import CatalogEntry
from specllama.engine.errors import EngineError, ErrorInfo
from specllama.engine.models.client import EngineClient
from specllama.engine.models.generation import Generation
from specllama.engine.models.pool import ModelPool
from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import Finished
from tests.simulation.alone import NORM, load_shared
from tests.simulation.http import application, started
from tests.simulation.http_clients import (
    KEYS,
    AskedForm,
    any_form,
    ask,
    ask_again,
    wrong_form,
    wrong_text,
)
from tests.simulation.library import Fault, Speed
from tests.simulation.models import DRAFT, PROJECTOR, Choice, any_model, model_files
from tests.simulation.processes import Child
from tests.simulation.requests import Asked, AskedVectors, Requests, wrong_stats
from tests.simulation.server import SHORT_BLOCK, Machine, SimulatedModel, run_in
from tests.simulation.terms import Readings
from tests.simulation.world import World, limited
from tests.support.models import random_model
from tests.support.options_support import server_options

FEWEST_REQUESTS = 8
MOST_REQUESTS = 80
FEWEST_STEPS = 200
LONGEST = 20_000
"""Simulated seconds after which a request without an end counts as waiting for ever."""
FAILURES = (-2, -3, 2, 1, -1)
"""Failures of `llama_decode`: no memory, a failed or aborted computation, no cells, a bad batch."""
WHILE_LOADING = (-2, -3, 2)
"""The failures that are possible in an empty cache."""
SIGNALS = (-9, -11, -6)
MOST_FAULTS = 20
PATIENCE = 100
"""Seconds that a model may take to be loaded, failures included."""
CHANCES = {
    "load": 0.1,
    "start": 0.1,
    "disk": 0.05,
    "gone": 0.05,
    "torn": 0.05,
    "trial": 0.1,
    "costly": 0.1,
    "death": 3e-3,
    "nonsense": 3e-3,
    "slow": 0.01,
    "hang": 3e-3,
    "encode": 0.05,
    "seq_rm": 0.02,
    "memory": 0.02,
    "state": 0.02,
}
"""The probability of a failure, in a history with failures."""
ERRORS = {
    "invalid_request_error",
    "not_supported_error",
    "server_error",
    "unavailable_error",
    "exceed_context_size_error",
}


CHORES = (
    ("unload", "load", "look", "look", "slot", "slot", "slot"),
    ("look", "slot", "slot"),
    ("look",),
)
"""The actions of the administrator in a history."""
RESTS = ((0.02, 0.1), (0.1, 1.0), (0.1, 1.0, 5.0, 20.0))
"""Seconds between two actions of the administrator."""
ACTIONS: tuple[Literal["save", "restore", "erase"], ...] = ("save", "restore", "restore", "erase")


class HistoryError(AssertionError):
    """Something that must not happen has happened."""


class History:
    """One server and its clients. `seed` determines all random choices.

    Events that are `omitted`, by name, don't happen. All other events stay the same, except the
    order of tasks; another `order` also gives another order.
    """

    def __init__(self, seed: int, order: int = 0, omitted: Set[str] = frozenset()) -> None:
        self.seed, self.order = seed, order
        self.omitted = omitted
        self.parts: list[str] = []
        """The names of the events that may be omitted."""
        self.world = World(f"{seed} {order}")
        self.random = self._random_of("history")
        self.has_faults = self.random.random() < 0.5
        self.n_steps = 0
        """The number of steps of all engines, including those with one request alone."""
        self.is_over = False
        """Whether all clients have ended."""
        self.has_http = self.random.random() < 0.3
        self.has_keys = self.random.random() < 0.5
        self.forms: list[AskedForm] = []
        self.meters: list[tuple[Readings, list[Asked]]] = []
        """The meters of requests, which may have several texts."""
        self.story: list[str] = []
        self.folder = ""

    def _random_of(self, name: str) -> Random:
        return Random(f"{self.seed} {name}")

    def _takes_part(self, name: str) -> bool:
        self.parts.append(name)
        return name not in self.omitted

    def tell(self, line: str) -> None:
        line = line.replace(self.folder, "")  # the folder has another name in each run
        self.story.append(f"{self.world.now - 1000:.3f} s: {line}")

    # ---- running -------------------------------------------------------------------------

    def run(self) -> None:
        """Plays the history. Raises `HistoryError`, or the exception of any part."""
        with tempfile.TemporaryDirectory() as folder:
            self.folder = folder
            self._prepare(Path(folder))
            try:
                with limited():
                    run_in(self.world, self.machine, self._serve)
            finally:
                self.n_steps += self.machine.n_steps
            if self.machine.wrong:
                raise HistoryError(self.machine.wrong)
            try:
                for asked in self.requests.texts:
                    self._check(asked)
                for asked_vectors in self.requests.vectors:
                    self._check(asked_vectors)
            finally:
                self.n_steps += self.requests.n_steps_alone
                self.requests.close()

    def _prepare(self, folder: Path) -> None:
        choose = self.random.choice
        names = ["a", "b", "c"][: choose([1, 1, 2, 2, 3])]
        files = folder / "files"
        files.mkdir()
        self.choices = {
            name: any_model(self.random, number, files, shifts=not self.has_http)
            for number, name in enumerate(names)
        }
        if choose([True, False]):  # a text kept by one model fits another
            first = self.choices["a"]
            self.choices = {name: first.with_number(i) for i, name in enumerate(names)}
        self.requests = Requests(self._random_of, self.choices)
        paths = model_files(folder, names)
        self.paths = {name: str(path) for name, path in paths.items()}
        for name in (DRAFT, PROJECTOR):
            (files / name).symlink_to(random_model())
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
        load_shared()
        if self.has_http:
            application()  # made here, as its locks outlive the world
        self.machine = Machine(self.world, models)
        self.requests.is_approximate = self._is_approximate
        self.requests.is_started_again = lambda model: self.machine.n_started[self.paths[model]] > 1
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
        self.chores, self.rests = choose(CHORES), choose(RESTS)
        self.catalog = Catalog(entries, default=names[0], router=len(names) > 1)
        for name, choice in self.choices.items():
            self.tell(f"model {name}: {choice.shape} {_told(choice)}")
        self.tell(f"chances: {self.machine.chances}")

    async def _serve(self) -> None:
        models_max = self.random.choice([0, 1, 2])
        self.tell(f"at most {models_max} models")
        if self.has_http:
            keys = KEYS if self.has_keys else ()
            options = server_options(models_max=models_max, api_key=keys)
            async with started(options, self.catalog) as self.application:
                self.pool = self.application.runtime.pool
                await self._live()
                await self._ask_again()
                await self._settle()
        else:
            self.pool = ModelPool(self.catalog, models_max=models_max)
            await self.pool.start()
            await self._live()
            await self._settle()
            await self.pool.stop()
        if alive := self.machine.alive():
            raise HistoryError(f"{len(alive)} processes are left")
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            raise HistoryError(f"tasks are left: {', '.join(sorted(t.get_name() for t in left))}")

    async def _live(self) -> None:
        """Runs clients, faults and the administrator until all clients have ended."""
        await self.pool.started()
        clients = asyncio.create_task(self._clients())
        administrator = asyncio.create_task(self._administrator())
        faults = asyncio.create_task(self._faults())
        done, _ = await asyncio.wait([clients], timeout=LONGEST)
        self.is_over = True
        if faults.done():
            faults.result()
        faults.cancel()
        await asyncio.wait([faults])
        self.machine.chances.clear()
        for child in self.machine.engines():
            self.machine.libraries[child.process].faults.clear()
        if not done:
            raise HistoryError("some requests wait for ever")
        clients.result()
        await self._check_meters()
        done, _ = await asyncio.wait([administrator], timeout=LONGEST)
        if not done:
            raise HistoryError("the administrator waits for ever")
        administrator.result()

    async def _check_meters(self) -> None:
        """Checks what the meters have received some time after the last client has left."""
        if any(len(meter.used) < meter.n_texts for meter, _ in self.meters):
            await asyncio.sleep(PATIENCE)
        for meter, group in self.meters:
            ends = [each.end.timings if isinstance(each.end, Finished) else None for each in group]
            if wrong := meter.wrong(ends):
                raise HistoryError(f"request {meter.number}: {wrong}")

    async def _ask_again(self) -> None:
        """Repeats each API request without other requests, and checks that its text is the same."""
        for asked in self.forms:
            if wrong := wrong_form(asked):
                raise HistoryError(f"request {asked.number}: {wrong}")
            self.world.happens(f"status {asked.answer.status}")
            is_text = asked.answer.status == 200 and (asked.answer.is_whole or asked.is_stream)
            if not is_text or not asked.reading().text:
                self._check_refusal(asked)
                continue
            if self.machine.has_relaxed and asked.form.has_schema:
                continue  # other keywords may be enforced now
            if wrong := wrong_text(asked, await ask_again(self.application, asked)):
                raise HistoryError(f"request {asked.number}: {wrong}")

    def _check_refusal(self, asked: AskedForm) -> None:
        is_explained = self._has_failed() or b"unload" in asked.answer.body
        if asked.answer.status >= 500 and not is_explained:
            raise HistoryError(f"request {asked.number}: {bytes(asked.answer.body)!r}")

    # ---- clients -------------------------------------------------------------------------

    async def _clients(self) -> None:
        """Lets clients come, some of them together, and waits for all."""
        tasks: list[asyncio.Task[None]] = []
        random = self._random_of("clients")
        fewest = random.randint(FEWEST_REQUESTS, MOST_REQUESTS)
        habits = self.requests.habits
        while self.requests.n < fewest or (
            self.machine.n_steps < FEWEST_STEPS
            and self.requests.n < 4 * MOST_REQUESTS
            and not self.omitted
        ):
            for _ in range(random.choice(habits.together)):
                asked = self.requests.new()
                if not self._takes_part(f"request {self.requests.n}"):
                    continue
                if self.has_http:
                    client = self._client_of_form(asked)
                else:
                    client = self._client(asked, self.requests.n)
                tasks.append(asyncio.create_task(client))
            await asyncio.sleep(random.choice(habits.pauses))
        if tasks:
            await asyncio.wait(tasks)
        for task in tasks:
            task.result()

    async def _client(self, asked: list[Asked] | AskedVectors, number: int) -> None:
        parts = asked if isinstance(asked, list) else [asked]
        random = self._random_of(f"client {number}")
        patience = random.choice([0.01, 0.1, 1.0]) if random.random() < 0.2 else None
        self.tell(f"{parts[0]} x {len(parts)}, for {patience} s")
        entry = self.catalog.entries[parts[0].model]
        try:
            async with asyncio.timeout(patience):
                lease = self.pool.lease_now(entry) or await self.pool.lease(entry)
                with lease:
                    engine = await lease.engine()
                    if isinstance(asked, list):
                        await self._read_all(asked, engine, random)
                    else:
                        await self._read_vectors(asked, engine)
        except TimeoutError:
            for part in parts:
                if part.end is None:
                    part.is_cancelled = True
                    self.tell(f"request {part.number} is cancelled")
        except EngineError as error:
            for part in parts:
                self._failed(part, error.info)

    async def _client_of_form(self, planned: list[Asked] | AskedVectors) -> None:
        """Returns the same prompt in the format of some API."""
        group = planned if isinstance(planned, list) else [planned]
        for each in group:
            each.is_cancelled = True  # this one is asked in its place
        if isinstance(first := group[0], Asked):
            prompt = "".join(part for part in first.prompt if isinstance(part, str))
        else:
            prompt = first.inputs[0]
        random = self._random_of(f"client {first.number}")
        form = any_form(
            first.number,
            random,
            first.model,
            prompt,
            embeds=isinstance(first, AskedVectors),
            has_keys=self.has_keys,
        )
        self.forms.append(form)
        self.tell(str(form))
        self.forms += await ask(self.application, form, random)
        status, n_bytes = form.answer.status, len(form.answer.body)
        self.tell(f"request {form.number}: status {status}, {n_bytes} bytes")
        self.world.happens(f"client: {form.manner}")

    async def _read_vectors(self, asked: AskedVectors, engine: EngineClient) -> None:
        async for vectors in engine.embed([[text] for text in asked.inputs], normalize=NORM):
            asked.vectors.append(vectors)
        asked.is_finished = True
        self.world.happens("end: vectors")
        self.tell(f"request {asked.number} is finished")

    async def _read_all(self, group: list[Asked], engine: EngineClient, random: Random) -> None:
        first = group[0]
        meter = self.requests.terms_habits.meter(first.number, len(group))
        generations = engine.generate_all(
            first.prompt,
            [asked.params for asked in group],
            owner=first.owner,
            private=first.private,
            terms=first.terms,
            meter=meter,
        )
        if meter is not None:
            self.meters.append((meter, group))
        for asked in group:
            asked.sent = self.world.now
        pace = random.choice([0.0, 0.0, 0.01, 0.2])
        try:
            async with asyncio.TaskGroup() as tasks:
                for asked, generation in zip(group, generations, strict=True):
                    tasks.create_task(self._read(asked, generation, pace))
        finally:
            for generation in generations:
                generation.cancel()

    async def _read(self, asked: Asked, generation: Generation, pace: float) -> None:
        try:
            async for event in generation:
                if asked.end is not None:
                    raise HistoryError(f"request {asked.number} has an event after its end")
                asked.number_in_process = event.id
                asked.relaxed = bool(generation.relaxed)
                asked.tokens += event.tokens
                asked.text += event.text
                if isinstance(event, Finished):
                    asked.end, asked.ended = event, generation.ended
                    self.tell(f"request {asked.number} is finished")
                    self._count(event)
                elif pace:
                    await asyncio.sleep(pace)
        except EngineError as error:
            self._failed(asked, error.info)

    def _failed(self, asked: Asked | AskedVectors, error: ErrorInfo) -> None:
        if asked.end is not None:
            raise HistoryError(f"request {asked.number} has two ends")
        asked.end = error
        self.world.happens(f"end: {error.type}")
        self.tell(f"request {asked.number} failed: {error.message}")

    def _count(self, event: Finished) -> None:
        timings = event.timings
        self.world.happens(f"end: {event.stop_type}")
        if event.deadline:
            self.world.happens(f"deadline: {event.deadline}")
        for kind, happened in {
            "a prefix is cached": timings.cache_n > 0,
            "a proposal is accepted": timings.draft_n_accepted > 0,
            "a proposal is rejected": timings.draft_n > timings.draft_n_accepted,
            "the context is shifted": event.truncated,
        }.items():
            self.world.happens(kind, happened)

    # ---- the administrator and faults------------------------------------------------------

    async def _administrator(self) -> None:
        """Loads and unloads models, looks at them, saves and restores slots."""
        pace = self._random_of("administrator")
        for number in count(1):
            await asyncio.sleep(pace.choice(self.rests))
            if self.is_over:
                return
            if not self._takes_part(f"administration {number}"):
                continue
            try:
                await self._administer(self._random_of(f"administration {number}"))
            except EngineError as error:
                self._check_error(error.info)
            except TimeoutError:
                self.world.happens("slot: withdrawn")

    async def _administer(self, random: Random) -> None:
        name = random.choice([*self.choices])
        choice, supervisor = self.choices[name], self.pool.supervisor(name)
        engine = supervisor.awake_engine() if supervisor is not None else None
        action = random.choice(self.chores)
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
            await engine.digest(random.choice([1, 100, 10_000]))
            if not choice.embeds:
                await self._look_at_blocks(engine)
        elif choice.options["slot_save_path"]:
            slot = random.randrange(choice.options["parallel"])
            what, file = random.choice(ACTIONS), random.choice("xy")
            if what == "restore":
                self.requests.restored.add(name)
            async with asyncio.timeout(random.choice([None, 0.1, 1.0])):
                done = await engine.slot_action(slot, what, file)
            self.world.happens(f"slot: {what}")
            self.tell(f"slot {slot} of {name}: {what} {file}, {done.n_tokens} tokens")

    async def _look_at_blocks(self, engine: EngineClient) -> None:
        found = await engine.blocks([*range(1, 12)], GenerationParams())
        if found.n_tokens != 11 or len(found.blocks) != 8 * (11 // SHORT_BLOCK):
            raise HistoryError(f"a prompt of 11 tokens has the blocks {found}")

    async def _faults(self) -> None:
        if not self.has_faults:
            return
        pace = self._random_of("faults")
        for number in range(pace.randint(1, MOST_FAULTS)):
            await asyncio.sleep(pace.choice([0.05, 0.3, 2.0]))
            if self._takes_part(f"fault {number}") and (alive := self.machine.engines()):
                random = self._random_of(f"fault {number}")
                self._fault(random.choice(alive), random)
        self.tell("from now on, nothing fails")
        self.machine.chances.clear()

    def _fault(self, child: Child, random: Random) -> None:
        chance, name = random.random(), child.process.name
        if chance < 0.1:
            seconds = random.choice([0.1, 5.0, 100.0])
            self.tell(f"{name} is stopped for {seconds} s")
            self.world.happens("fault: stopped")
            child.process.stopped_until = self.world.now + seconds
        elif chance < 0.15:
            seconds = random.choice([5.0, 40.0, 600.0])
            self.tell(f"the machine sleeps for {seconds} s")
            self.world.happens("fault: the machine sleeps")
            self.world.now += seconds
        elif chance < 0.4:
            code = random.choice(SIGNALS)
            self.tell(f"{name} dies of signal {-code}")
            self.world.happens("fault: signal")
            child.process.end(code)
        else:
            failures = FAILURES if self.machine.is_ready(child) else WHILE_LOADING
            fault = Fault(random.choice(failures), random.randrange(4))
            self.tell(f"{name}: {fault}")
            self.world.happens(f"fault: llama_decode gives {fault.status}")
            self.machine.libraries[child.process].faults.append(fault)

    # ---- checking ------------------------------------------------------------------------

    async def _settle(self) -> None:
        """Checks that all requests, leases, cells and media are released after the clients' end."""
        for name in self.choices:
            supervisor = self.pool.supervisor(name)
            if supervisor is None:
                continue
            for _ in range(PATIENCE):  # a model that is being loaded has a lease
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
            return  # the process has just died or been unloaded
        self.world.happens("a prefix is shared", stats.n_prompt_shared)
        self.world.happens("a text is restored", stats.n_prompt_restored)
        if stats.n_processing or stats.n_deferred:
            raise HistoryError(f"{name} still has {stats.n_processing} requests")
        if any(slot.is_processing for slot in slots):
            raise HistoryError(f"a slot of {name} is left in use")
        if (n := self.machine.n_cells_used(self.paths[name])) not in (None, stats.n_cells_used):
            raise HistoryError(f"{n} cells of {name} are in use, not {stats.n_cells_used}")
        if n := self.machine.n_media(self.paths[name]):
            raise HistoryError(f"{n} media of {name} are never released")
        is_only = self.machine.n_started[self.paths[name]] == 1
        if is_only and not (self.has_http or self.choices[name].embeds):
            wrong = wrong_stats(stats, self.requests.texts_of(name))
            if wrong:
                raise HistoryError(f"{name} {wrong}")

    def _is_approximate(self, asked: Asked) -> bool:
        return (self.paths[asked.model], asked.number_in_process) in self.machine.approximate

    def _has_failed(self) -> bool:
        """True if this history has had a simulated failure."""
        return any(kind.startswith("fault: ") for kind in +self.world.events)

    def _check_error(self, error: ErrorInfo) -> None:
        if error.type not in ERRORS:
            raise HistoryError(f"an error of type {error.type}: {error.message}")

    def _check(self, asked: Asked | AskedVectors) -> None:
        if f"request {asked.number}" in self.omitted:
            return
        who = f"request {asked.number}"
        is_finished = isinstance(asked, AskedVectors) and asked.is_finished
        if asked.end is None and not (asked.is_cancelled or is_finished):
            raise HistoryError(f"{who} has no end")
        if isinstance(asked.end, ErrorInfo):
            self._check_error(asked.end)
            is_explained = self._has_failed() or "unload" in asked.end.message
            if not (is_explained or self.requests.is_refused(asked)):
                raise HistoryError(f"{who} failed: {asked.end.message}")
        if isinstance(asked, AskedVectors):
            wrong = self.requests.wrong_vectors(asked)
        else:
            wrong = self.requests.wrong(asked) or self.requests.wrong_count(asked)
            if asked.is_too_late and not self._has_failed():
                wrong = wrong or "it has ended long after its time limit"
            if asked.relaxed and not self.world.events["fault: costly"]:
                wrong = wrong or "its schema is relaxed, and no trial was costly"
        if wrong:
            raise HistoryError(f"{who}: {wrong}")


def _told(choice: Choice) -> dict[str, Any]:
    """Returns the options that aren't empty."""
    return {name: value for name, value in choice.options.items() if value not in ("", (), False)}
