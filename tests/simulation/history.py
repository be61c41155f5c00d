"""Random histories of a server, each from a seed: clients come, read slowly or leave, models sleep,
processes die, calls into llama.cpp fail. Every text must be what its request gets alone."""

import asyncio
import tempfile
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from specllama.engine.catalog.catalog import Catalog
from specllama.engine.catalog.entry import CatalogEntry
from specllama.engine.errors import EngineError, ErrorInfo
from specllama.engine.models.pool import ModelPool
from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import Finished
from specllama.engine.wire.requests import Submit
from specllama.engine.worker.backend import Model
from specllama.engine.worker.generation.engine import Engine
from tests.simulation.library import Fault, LibraryStandIn, ModelShape, Speed, installed
from tests.simulation.memory import Kind
from tests.simulation.server import Machine, SimulatedModel, model_files, run_in
from tests.simulation.world import World
from tests.support.options_support import model_options

FEWEST_REQUESTS = 8
FEWEST_STEPS = 200
MOST_REQUESTS = 60
LONGEST = 5000
"""Seconds of the simulation after which a request that has no end waits for ever."""
WORDS = ("river", "stone", "light", "engine", "paper", "window", "garden", "number")
FAILURES = (-2, -3, 2, 1, -1)
"""Of `llama_decode`: no memory, a failed or aborted computation, no cells, a bad batch."""
WHILE_LOADING = (-2, -3, 2)
"""The others can't happen in an empty cache."""
SIGNALS = (-9, -11, -6)
MOST_FAULTS = 20
GENERATING = 40
ASKED = ("n_predict", "temperature", "seed", "stop", "ignore_eos")
"""The parameters that a text depends on."""
ALSO_SET = ("stream", "cache_prompt", "n_probs")
MOST_CHARACTERS = 600


class HistoryError(AssertionError):
    """Something that must not happen has happened."""


@dataclass
class Asked:
    """A request of a history: what it has got, and its end."""

    number: int
    model: str
    prompt: str
    params: GenerationParams
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    end: Finished | ErrorInfo | None = None
    is_cancelled: bool = False


class History:
    """One server and its clients. All that is random comes from `seed`."""

    def __init__(self, vocabulary: Model, seed: int) -> None:
        self.seed = seed
        self.world = World(seed)
        self.random = self.world.random
        self.vocabulary = vocabulary
        self.requests: list[Asked] = []
        self.has_faults = self.random.random() < 0.6
        self.n_faults = 0
        names = ["a", "b", "c"][: self.random.choice([1, 1, 2, 3])]
        self.shapes = {name: self._shape() for name in names}
        self.options = {name: self._options() for name in names}
        self.story = [f"{name}: {self.shapes[name]} {self.options[name]}" for name in names]
        self.n_steps = 0
        self._common = [self._words(self.random.choice([2, 20, 40, 90])) for _ in range(3)]
        self._alone: dict[str, Alone] = {}
        self._speeds = Speed(self.random.choice([1e-3, 1e-2, 0.1]))

    def tell(self, line: str) -> None:
        self.story.append(f"{self.world.now - 1000:.3f} s: {line}")

    # ---- what there is -------------------------------------------------------------------

    def _shape(self) -> ModelShape:
        kind: Kind = self.random.choice(get_args(Kind))
        window = self.random.choice([16, 48]) if kind == "window" else 0
        return ModelShape(kind, n_ctx_train=2048, window=window)

    def _options(self) -> dict[str, Any]:
        choose = self.random.choice
        n_slots = self.random.randint(1, 4)
        unified = choose([True, False])
        types = self.random.sample(["radix", "ngram-simple", "ngram-mod", "ngram-cache"], 2)
        return {
            "parallel": n_slots,
            "kv_unified": unified,
            "ctx_size": choose([256, 256, 1024]) if unified else 256 * n_slots,
            "batch_size": (batch := choose([16, 64, 256])),
            "ubatch_size": choose([16, batch]),
            "cache_ram": choose([0, 1, -1, -1]),
            "ctx_checkpoints": choose([0, 2, 8]),
            "spec_type": tuple(types) if choose([True, False]) else (),
            "warmup": choose([True, False]),
            "sleep_idle_seconds": choose([-1, -1, 2]),
        }

    def _words(self, n: int) -> str:
        return " ".join(self.random.choices(WORDS, k=n))

    def _asked(self) -> Asked:
        choose = self.random.choice
        prompt = f"{choose(self._common)} {self._words(self.random.randint(1, 10))}"
        if self.requests and self.random.random() < 0.3:  # a conversation goes on
            before = choose(self.requests).prompt
            prompt = f"{before} {self._words(self.random.randint(1, 5))}"[-MOST_CHARACTERS:]
        params = GenerationParams(
            n_predict=choose([0, 1, 2, 5, 10, GENERATING]),
            temperature=choose([0.0, 0.0, 0.8]),
            seed=self.random.randrange(3),
            stop=choose([[], [], ["e"], ["th", "in"]]),
            cache_prompt=self.random.random() < 0.9,
            ignore_eos=choose([True, False]),
            stream=choose([True, False]),
            n_probs=choose([0, 0, 2]),
        )
        model = choose([*self.shapes])
        asked = Asked(len(self.requests) + 1, model, prompt, params)
        self.requests.append(asked)
        chosen = {name: getattr(params, name) for name in (*ASKED, *ALSO_SET)}
        self.tell(f"request {asked.number} to {model}: {prompt!r} {chosen}")
        return asked

    # ---- running -------------------------------------------------------------------------

    def run(self) -> None:
        """Raises `HistoryError`."""
        with tempfile.TemporaryDirectory() as folder:
            paths = model_files(Path(folder), [*self.shapes])
            models = {
                str(path): SimulatedModel(
                    self.shapes[name],
                    self.random.choice([True, False]),
                    self._speeds,
                    self.random.choice([0.1, 2.0]),
                )
                for name, path in paths.items()
            }
            self.machine = Machine(self.world, models)
            entries = [
                CatalogEntry(
                    name=name,
                    source="preset",
                    options=model_options(
                        alias=name, model=str(path), threads=1, **self.options[name]
                    ),
                    load_on_startup=self.random.choice([True, False]),
                    stop_timeout=self.random.choice([0, 10]),
                )
                for name, path in paths.items()
            ]
            router = len(entries) > 1
            self.catalog = Catalog(entries, default=entries[0].name, router=router)
            try:
                run_in(self.world, self.machine, self._serve)
            finally:
                self.n_steps = self.machine.n_steps
            try:
                for asked in self.requests:
                    self._check(asked)
            finally:
                for engine in self._alone.values():
                    engine.close()

    async def _serve(self) -> None:
        models_max = self.random.choice([0, 1, 2])
        self.tell(f"at most {models_max} models")
        self.pool = ModelPool(self.catalog, models_max=models_max)
        await self.pool.start()
        await self.pool.started()
        clients = asyncio.create_task(self._clients())
        faults = asyncio.create_task(self._faults()) if self.has_faults else None
        done, _ = await asyncio.wait([clients], timeout=LONGEST)
        if faults is not None:
            faults.cancel()
            await asyncio.wait([faults])
        if done:
            clients.result()
        else:
            waiting = [str(each.number) for each in self.requests if each.end is None]
            raise HistoryError(f"requests {', '.join(waiting)} wait for ever")
        await self._settle()
        await self.pool.stop()
        if alive := self.machine.alive():
            raise HistoryError(f"{len(alive)} processes are left")
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            raise HistoryError(f"tasks are left: {', '.join(sorted(t.get_name() for t in left))}")

    async def _clients(self) -> None:
        """Lets clients come, some of them together, and waits for all."""
        tasks: list[asyncio.Task[None]] = []
        n = self.random.randint(FEWEST_REQUESTS, MOST_REQUESTS)
        while len(tasks) < n or self.machine.n_steps < FEWEST_STEPS:
            new = [self._asked() for _ in range(self.random.choice([1, 1, 2, 6]))]
            tasks += [asyncio.create_task(self._client(asked)) for asked in new]
            await asyncio.sleep(self.random.choice([0.0, 0.01, 0.1, 0.5, 5.0]))
        await asyncio.gather(*tasks)

    async def _client(self, asked: Asked) -> None:
        entry = self.catalog.entries[asked.model]
        patience = self.random.choice([None, None, None, None, 0.01, 0.1, 1.0])
        try:
            async with asyncio.timeout(patience):
                lease = self.pool.lease_now(entry) or await self.pool.lease(entry)
                with lease:
                    await self._read(asked, await lease.engine())
        except TimeoutError:
            asked.is_cancelled = True
            self.tell(f"request {asked.number} is cancelled")
        except EngineError as error:
            asked.end = error.info
            self.tell(f"request {asked.number} failed: {error.info.message}")

    async def _read(self, asked: Asked, engine: Any) -> None:
        pace = self.random.choice([0.0, 0.0, 0.01, 0.2])
        generation = engine.generate([asked.prompt], asked.params)
        try:
            async for event in generation:
                if asked.end is not None:
                    raise HistoryError(f"request {asked.number} has an event behind its end")
                asked.tokens += event.tokens
                asked.text += event.text
                if isinstance(event, Finished):
                    asked.end = event
                    self.tell(f"request {asked.number} is finished")
                elif pace:
                    await asyncio.sleep(pace)
        finally:
            generation.cancel()

    async def _faults(self) -> None:
        for _ in range(self.random.randint(1, MOST_FAULTS)):  # then there is peace
            await asyncio.sleep(self.random.choice([0.05, 0.3, 2.0]))
            if not (alive := self.machine.alive()):
                continue
            child = self.random.choice(alive)
            self.n_faults += 1
            if self.random.random() < 0.3:
                code = self.random.choice(SIGNALS)
                self.tell(f"{child.process.name} dies of signal {-code}")
                child.process.end(code)
            else:
                failures = FAILURES if self.machine.is_ready(child) else WHILE_LOADING
                fault = Fault(self.random.choice(failures), self.random.randrange(4))
                self.tell(f"{child.process.name}: {fault}")
                self.machine.libraries[child.process].faults.append(fault)

    async def _settle(self) -> None:
        """Nothing is left of the requests once they have ended."""
        for child in self.machine.alive():
            self.machine.libraries[child.process].faults.clear()
        for name in self.shapes:
            supervisor = self.pool.supervisor(name)
            if supervisor is None:
                continue
            if supervisor.n_leases:
                raise HistoryError(f"{supervisor.n_leases} leases of {name} are left")
            client = supervisor.awake_engine()
            if client is None:
                continue
            if client.n_running:
                raise HistoryError(f"{client.n_running} requests of {name} are left")
            try:
                stats, slots = await client.stats(), await client.slots()
            except EngineError:
                continue  # it has just died, or fallen asleep
            if stats.n_processing or stats.n_deferred:
                raise HistoryError(f"{name} still has {stats.n_processing} requests")
            if any(slot.is_processing for slot in slots):
                raise HistoryError(f"a slot of {name} is left in use")

    # ---- checking ------------------------------------------------------------------------

    def _check(self, asked: Asked) -> None:
        who = f"request {asked.number}"
        if asked.end is None and not asked.is_cancelled:
            raise HistoryError(f"{who} has no end")
        truth, text = self.alone(asked)
        if isinstance(asked.end, ErrorInfo) and truth and not self.n_faults:
            raise HistoryError(f"{who} failed: {asked.end.message}")
        if not text.startswith(asked.text):
            raise HistoryError(f"{who} has {asked.text!r} in the place of {text!r}")
        if truth[: len(asked.tokens)] != asked.tokens:
            raise HistoryError(f"{who} has {asked.tokens} in the place of {truth}")
        if isinstance(asked.end, Finished) and (asked.tokens, asked.text) != (truth, text):
            raise HistoryError(f"{who} has {len(asked.tokens)} tokens of {len(truth)}")

    def alone(self, asked: Asked) -> tuple[list[int], str]:
        """The tokens and the text that the request gets in an engine of its own, without cache;
        none if it is refused."""
        if (engine := self._alone.get(asked.model)) is None:
            options = self.options[asked.model]
            n_ctx = options["ctx_size"] if options["kv_unified"] else 256
            engine = Alone(self.vocabulary, self.shapes[asked.model], n_ctx)
            self._alone[asked.model] = engine
        told = {name: getattr(asked.params, name) for name in ASKED}
        return engine.answer(asked.prompt, told)


class Alone:
    """An engine with one slot that has one request at a time, and no cache."""

    def __init__(self, vocabulary: Model, shape: ModelShape, n_ctx: int) -> None:
        options = model_options(
            parallel=1, ctx_size=n_ctx, cache_ram=0, ctx_checkpoints=0, warmup=False, threads=1
        )
        self._library = LibraryStandIn(shape)
        self._known: dict[tuple[str, str], tuple[list[int], str]] = {}
        with self._installed():
            self._engine = Engine(vocabulary, options.engine)

    def _installed(self) -> AbstractContextManager[None]:
        return installed(lambda: self._library)

    def answer(self, prompt: str, asked: dict[str, Any]) -> tuple[list[int], str]:
        """Tokens and text; none if the request is refused."""
        key = (prompt, repr(asked))
        if key not in self._known:
            with self._installed():
                self._known[key] = self._answer(prompt, asked)
        return self._known[key]

    def _answer(self, prompt: str, asked: dict[str, Any]) -> tuple[list[int], str]:
        engine = self._engine
        params = GenerationParams(**asked, cache_prompt=False)
        try:
            request = engine.prepare(Submit(1, [prompt], params))
        except EngineError:
            return [], ""
        events = engine.submit(request)
        while engine.has_work:
            events += engine.step()
        for event in events:
            if isinstance(event, Finished):
                return event.tokens, event.text
        return [], ""

    def close(self) -> None:
        with self._installed():
            self._engine.close()
