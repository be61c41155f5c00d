"""A server in a `World`: the pool of models with all that is below it, over simulated processes."""

import gc
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from llguidance import LLMatcher

from specllama.engine import system
from specllama.engine.grammars import compiling
from specllama.engine.helpers.check import check_main
from specllama.engine.helpers.inspect import inspect_main
from specllama.engine.helpers.render import render_main
from specllama.engine.helpers.trial.trial_jobs import Answer, Costly, TrialJob
from specllama.engine.models import generation
from specllama.engine.models.client import EngineClient
from specllama.engine.options import EngineOptions
from specllama.engine.wire import link, startup
from specllama.engine.wire.framing import MSGPACK, Decoder, Encoder
from specllama.engine.wire.link import Link
from specllama.engine.wire.replies import Event, Failed, Finished, Reply, Step, Vectors
from specllama.engine.worker import process as engine_process
from specllama.engine.worker import worker
from specllama.engine.worker.backend import BackendError, Model, context, model
from specllama.engine.worker.backend.watch import ThreadWatch
from specllama.engine.worker.cache import block_hashes, disk_cache, slot_file
from specllama.engine.worker.cache.texts import ALL
from specllama.engine.worker.constraints import constraint, trial, vocabulary
from specllama.engine.worker.constraints.trial import EndedError
from specllama.engine.worker.constraints.vocabulary import Vocabulary
from specllama.engine.worker.embedding.embedder import Embedder
from specllama.engine.worker.generation import planning
from specllama.engine.worker.generation.engine import Engine
from specllama.engine.worker.media import encoder
from specllama.engine.worker.media.encoder import MediaEncoder
from specllama.engine.worker.scheduling import idle
from specllama.engine.worker.scheduling.scheduler import Scheduler
from specllama.engine.worker.scheduling.sequences import Chunk, Sequence
from specllama.engine.worker.scheduling.slots import SlotTable
from specllama.engine.worker.speculation import draft_loading
from specllama.engine.worker.worker import Worker
from specllama.handlers.running import run_in_thread
from tests.simulation.alone import shared_draft, shared_model, trial_answer
from tests.simulation.disk import SimulatedDisk
from tests.simulation.events import counted
from tests.simulation.library import LibraryStandIn, ModelShape, Speed, installed, replaced
from tests.simulation.models import SimulatedProjector
from tests.simulation.processes import Child, EventLoop
from tests.simulation.threads import SimulatedPool, system_of
from tests.simulation.world import Process, World

HELPERS: dict[str, Any] = {
    module.__name__: module for module in (check_main, inspect_main, render_main)
}
"""The helper processes that are simulated, by the names of their main modules."""
SHORT_BLOCK = 4
"""Replaces `block_hashes.BLOCK`, as texts are short."""
FEW_CELLS = 16
"""Replaces `idle.MIN_CELLS`, as caches are small."""
FEW_EVENTS = 4
"""Replaces `generation.AHEAD`: readers that fall behind are common."""


_vocabularies: dict[frozenset[int], Vocabulary] = {}


def shared_vocabulary(model: Model, lexemes: list[bytes], shown: frozenset[int]) -> Vocabulary:
    """Replaces `Vocabulary`. Its objects never change, so equal ones are shared."""
    if shown not in _vocabularies:
        _vocabularies[shown] = Vocabulary(model, lexemes, shown)
    return _vocabularies[shown]


@dataclass(frozen=True)
class SimulatedModel:
    """The properties of the model in a model file."""

    shape: ModelShape
    is_device: bool
    speed: Speed
    load_seconds: float
    has_adapters: bool = False


@dataclass
class Machine:
    """The engine processes of a world, and the models that they load, by path."""

    world: World
    models: dict[str, SimulatedModel]
    children: dict[Process, Child] = field(default_factory=dict)
    libraries: dict[Process, LibraryStandIn] = field(default_factory=dict)
    ready: set[Process] = field(default_factory=set)
    paths: dict[Process, str] = field(default_factory=dict)
    """The model of an engine process."""
    n_started: Counter[str] = field(default_factory=Counter)
    """The number of engine processes that have loaded a model, by its path."""
    n_steps: int = 0
    wrong: str = ""
    """The first fault inside the server, even if all requests got the right answers."""
    chances: dict[str, float] = field(default_factory=dict)
    """The probability of each failure, by name."""
    approximate: set[tuple[str, int]] = field(default_factory=set)
    """The requests that continue from moved cells, or with cells that were evaluated again after a
    shift of the context, by path of the model and number in the process. All others get the same
    text as alone."""
    has_relaxed: bool = False
    """Whether a schema was compiled without its costly keywords."""
    _shifted: set[Sequence] = field(default_factory=set)
    _n_media: Counter[Process] = field(default_factory=Counter)
    """The number of media that are ordered and not released, by process."""
    _ended: set[tuple[EngineClient, int]] = field(default_factory=set)
    """The requests that have ended, by their numbers in their processes."""

    def program(self, child: Child) -> int:
        """Runs the program that the command of a process names, and returns the exit status."""
        self.children[child.process] = child
        module = child.command[child.command.index("-m") + 1]
        if module in HELPERS:
            sys.argv[1:] = child.command[child.command.index("-m") + 2 :]
            HELPERS[module].main()
            return 0
        self.libraries[child.process] = LibraryStandIn()
        return engine_process.main()

    def happens(self, what: str) -> bool:
        """Decides at random whether the operation `what` fails this time, and counts failures."""
        chance = self.chances.get(what, 0.0)
        happens = chance > 0 and self.world.random.random() < chance
        self.world.happens(f"fault: {what}", happens)
        return happens

    def is_ready(self, child: Child) -> bool:
        """True once its engine exists."""
        return child.process in self.ready

    def alive(self) -> list[Child]:
        return [child for child in self.children.values() if child.get_returncode() is None]

    def engines(self) -> list[Child]:
        """Returns the running engine processes."""
        return [child for child in self.alive() if child.process in self.libraries]

    def n_cells_used(self, path: str) -> int | None:
        """Returns the number of cells with tokens in the only process of a model; None if
        unknown."""
        process = self._process_of(path)
        return self.libraries[process].n_cells_used() if process is not None else None

    def n_media(self, path: str) -> int:
        """Returns the number of media that the only process of a model hasn't released."""
        process = self._process_of(path)
        return self._n_media[process] if process is not None else 0

    def _process_of(self, path: str) -> Process | None:
        """Returns the only process of a model; None if there are several, or no process."""
        found = [each.process for each in self.engines() if self.paths.get(each.process) == path]
        return found[0] if len(found) == 1 else None

    def library(self) -> LibraryStandIn:
        """Returns the library of the current process."""
        return self.libraries[self.world.current.process]

    def _look(self, engine: Engine) -> None:
        """Checks after a step that the scheduler counts the cells with tokens correctly."""
        counted, used = engine.scheduler.n_cells_used, self.library().n_cells_used()
        if used not in (None, counted):
            self._report(f"{counted} cells are counted, and {used} have tokens")
        slots, queue = engine.scheduler.slots, engine.scheduler.slots.queue
        if not (queue.n_waiting or slots.active):
            if queue._levels or queue._pinned:
                self._report("the queue has flows without a text")
            if queue.n_tokens or queue.n_calls:
                self._report(
                    f"{queue.n_tokens} tokens of {queue.n_calls} calls wait without a text"
                )

    def _look_at_digest(self, engine: Engine, digest: bytes) -> None:
        """Checks that each block of a digest belongs to a text with cells, to a kept one, or to an
        encoded medium, and that its hash is that of this text or medium."""
        scheduler, memory, tier = engine.scheduler, self.library().memory, engine._planner._tier
        texts = [
            (entry.tokens[: min(memory.highest(id) + 1, entry.n_exact)], entry.key)
            for id, entry in scheduler.cache.entries.items()
        ]
        for id, running in scheduler.slots.running.items():
            n = min(memory.highest(id) + 1, running.n_exact)
            texts.append((running.tokens.view(0, n), running.key))
        texts += [(kept.tokens, kept.key) for kept in (tier._host if tier is not None else ())]
        media = map(engine.registry.name_of, engine._embeddings.ids())
        cached = {block_hashes.medium_hash(name) for name in media}
        for tokens, key in texts:
            hashes = block_hashes.hashes_of(tokens, key, engine.registry.name_of)
            cached.update(hashes[at : at + 8] for at in range(0, len(hashes), 8))
        found = [digest[at : at + 8] for at in range(0, len(digest), 8)]
        if not {*found} <= cached:
            self._report("a digest has blocks that are not cached")
        if len({*found}) < len(found):
            self._report("a digest has a block twice")
        self.world.happens("a digest has blocks", bool(found))

    def _report(self, wrong: str) -> None:
        self.wrong = self.wrong or f"{self.world.current.process.name}: {wrong}"

    def _hear(self, client: EngineClient, message: Step | Failed | Reply) -> None:
        """Checks that an engine sends nothing about a request after its end."""
        parts: list[Any] = [*message.events] if isinstance(message, Step) else [message]
        for part in parts:
            if (client, part.id) in self._ended:
                self._report(f"request {part.id} of a process has {part} after its end")
            if isinstance(part, Finished | Failed):
                self._ended.add((client, part.id))

    def _take_over(self, decoder: Decoder[Any], encoder: Encoder = MSGPACK) -> Link[Any, Any]:
        child = self.children[self.world.current.process]
        return Link(child.read, child.write, decoder, encoder)

    def _load(self, path: str, options: EngineOptions, progress: Callable[[float], None]) -> Model:
        """Replaces `Model`: sets the properties of the simulated library, and returns the shared
        model."""
        model = self.models[path]
        self.paths[self.world.current.process] = path
        self.n_started[path] += 1
        library, shared = self.library(), shared_model(has_adapters=model.has_adapters)
        library.shape, library.is_device = model.shape, model.is_device
        library.speed = model.speed
        library.spend = self._compute
        library.happens = self.happens
        library.report = self._report
        library.adapters = shared._adapters
        for fraction in (0.25, 0.5, 1.0):
            self.world.sleep(model.load_seconds / 3)
            progress(fraction)
        if self.happens("load"):
            raise BackendError(f"cannot load the model {path!r}")
        return shared

    def _projector(self, path: str, model: Model, options: EngineOptions) -> SimulatedProjector:
        def compute() -> None:
            self.world.sleep(1e-3)
            if self.happens("encode"):
                raise BackendError("the projector can't encode this")

        return SimulatedProjector(path, self.library().shape, compute)

    def _compute(self, seconds: float) -> None:
        if self.happens("hang"):
            self.world.wait()
        self.world.sleep(seconds * (100 if self.happens("slow") else 1))

    def _load_draft(self, path: str, options: EngineOptions) -> Model:
        """Replaces `Model` for a draft model, which is dense."""
        shared = shared_draft()
        self.library().others[int(shared._model)] = ModelShape(n_ctx_train=2048)
        if self.happens("load"):
            raise BackendError(f"cannot load the model {path!r}")
        return shared

    def _mask(self, matcher: LLMatcher) -> bytes:
        """Returns the mask of a constraint after a random time, which is sometimes long."""
        chance = self.world.random.random()
        self.world.sleep(1e-5 if chance < 0.7 else 3e-4 if chance < 0.95 else 0.1)
        return compiling.mask(matcher)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Replaces threads, processes and computations by simulated ones while the context is
        open."""

        def fitted(path: str, options: EngineOptions) -> EngineOptions:
            return options

        class SimulatedWorker(Worker):
            def __init__(self, *args: Any) -> None:
                machine.ready.add(machine.world.current.process)
                super().__init__(*args)

        machine = self

        def step(
            engine: Engine, send: Callable[[list[Event]], None], may_go_on: Callable[[], bool]
        ) -> None:
            self.n_steps += 1
            goes_on = self.n_steps % 2 == 0  # after the others, the state is looked at
            engine_step(engine, send, lambda: goes_on and may_go_on())
            self._look(engine)

        def digest(engine: Engine, max_blocks: int) -> bytes:
            found = engine_digest(engine, max_blocks)
            self._look_at_digest(engine, found)
            return found

        def embed(embedder: Embedder, send: Callable[[list[Vectors | Failed]], None]) -> None:
            self.n_steps += 1
            embedder_step(embedder, send)

        def dispatch(client: EngineClient, message: Step | Failed | Reply) -> None:
            self._hear(client, message)
            client_dispatch(client, message)

        def shift(scheduler: Scheduler, sequence: Sequence, *args: Any) -> bool:
            self._shifted.add(sequence)
            return scheduler_shift(scheduler, sequence, *args)

        def submit(slots: SlotTable, sequence: Sequence, n_uncached: int | None = None) -> None:
            if sequence in self._shifted:  # its text is evaluated again after a preemption
                self.approximate.add((self.paths[self.world.current.process], sequence.id))
            slots_submit(slots, sequence, n_uncached)

        def advance(scheduler: Scheduler, chunks: SequenceOf[Chunk]) -> None:
            path = self.paths[self.world.current.process]
            for chunk in chunks:
                sequence = chunk.sequence
                is_again = sequence in self._shifted and not chunk.is_single
                is_moved = sequence not in self._shifted and sequence.n_exact < ALL
                if is_again or is_moved:
                    self.approximate.add((path, sequence.id))
            scheduler_advance(scheduler, chunks)

        def order(encoder: MediaEncoder, *args: Any) -> Any:
            self._n_media[self.world.current.process] += 1
            return encoder_order(encoder, *args)

        def release(encoder: MediaEncoder, order: Any) -> None:
            self._n_media[self.world.current.process] -= 1
            encoder_release(encoder, order)

        scheduler_shift, scheduler_advance = Scheduler.shift, Scheduler.advance
        slots_submit = SlotTable.submit
        encoder_order, encoder_release = MediaEncoder.order, MediaEncoder.release
        engine_step, engine_digest, embedder_step = Engine.step, Engine.digest, Embedder.step
        client_dispatch = EngineClient.dispatch
        process = {
            "take_over": self._take_over,
            "send_log": lambda level: None,
            "initialize": lambda numa: "",
            "fitted": fitted,
            "Model": self._load,
            "_disable_debugger": lambda level: None,
            "_register_stack_dump": lambda: None,
            "faulthandler": SilentStacks,
            "Projector": self._projector,
            "projector_header": lambda path: None,
        }
        with ExitStack() as stack:
            enter = stack.enter_context
            enter(replaced(system, system_of(self.world)))
            enter(installed(self.library))
            enter(replaced(engine_process, process))
            enter(replaced(worker, {"Worker": SimulatedWorker}))
            watches = {
                "stepping": WatchOfProcess(self.world, loads=True),
                "encoding": WatchOfProcess(self.world, loads=False),
            }
            for module in (context, model, encoder, engine_process, worker):
                mine = {name: each for name, each in watches.items() if hasattr(module, name)}
                enter(replaced(module, mine))
            enter(replaced(draft_loading, {"Model": self._load_draft}))
            enter(replaced(constraint, {"mask": self._mask}))
            enter(replaced(trial, {"TrialProcess": partial(SimulatedTrial, self)}))
            disk = SimulatedDisk(self.world, self.happens)
            enter(replaced(disk_cache, {"os": disk}))
            enter(replaced(slot_file, {"os": disk, "open": disk.open_file}))
            enter(replaced(planning, {"_place": lambda options, *sizes: None}))
            enter(replaced(vocabulary, {"Vocabulary": shared_vocabulary}))
            enter(replaced(startup, {"resume_gc": lambda: None}))
            own = {"setswitchinterval": lambda seconds: None, "argv": [*sys.argv]}
            enter(replaced(sys, own))
            for helper in HELPERS.values():
                enter(replaced(helper, {"take_over": self._take_over}))
            enter(replaced(link, {"limit_memory": lambda n: None, "set_alarm": lambda n: None}))
            thread = SimulatedPool(self.world, 1, "run_in_thread")
            enter(replaced(run_in_thread, {"_thread": thread}))
            enter(replaced(generation, {"AHEAD": FEW_EVENTS}))
            enter(replaced(block_hashes, {"BLOCK": SHORT_BLOCK}))
            enter(replaced(idle, {"MIN_CELLS": FEW_CELLS}))
            enter(replaced(Engine, {"step": step, "digest": digest}))
            enter(replaced(Embedder, {"step": embed}))
            enter(replaced(EngineClient, {"dispatch": dispatch}))
            enter(replaced(Scheduler, {"shift": shift, "advance": advance}))
            enter(replaced(SlotTable, {"submit": submit}))
            enter(replaced(MediaEncoder, {"order": order, "release": release}))
            enter(counted(self.world))
            yield


class SilentStacks:
    """Replaces `faulthandler`."""

    @staticmethod
    def dump_traceback() -> None:
        """Does nothing, because there are no real threads."""


class WatchOfProcess:
    """Replaces `ThreadWatch`, with one object for each process."""

    def __init__(self, world: World, *, loads: bool) -> None:
        self._world = world
        self._loads = loads
        self._watches: dict[Process, ThreadWatch] = {}

    def __getattr__(self, name: str) -> Any:
        process = self._world.current.process
        if process not in self._watches:
            self._watches[process] = ThreadWatch(lambda: 0, loads=self._loads)
        return getattr(self._watches[process], name)


class SimulatedTrial:
    """Replaces `TrialProcess`."""

    pid = 0

    def __init__(self, machine: Machine, memory: int, seconds: float) -> None:
        self._machine = machine
        self._is_killed = False

    def takes(self, vocabulary: Vocabulary) -> bool:
        return True

    def ask(self, job: TrialJob, vocabulary: Vocabulary) -> Answer:
        """Returns the answer to a job. Raises EndedError if the simulated process dies."""
        machine = self._machine
        answer = trial_answer(job, vocabulary)
        machine.world.sleep(machine.world.random.choice([1e-3, 1e-3, 0.1]))
        if self._is_killed or machine.happens("trial"):
            raise EndedError
        if machine.happens("costly"):
            return Costly()
        machine.has_relaxed |= job.leniently
        return answer

    def kill(self) -> None:
        self._is_killed = True

    def close(self) -> None:
        """Does nothing, because there are no pipes."""


def run_in(world: World, machine: Machine, main: Callable[[], Any]) -> None:
    """Runs the coroutine of `main` in an event loop of `world`, to its end. Raises its
    exception."""
    loop = EventLoop(world, machine.program, machine.happens)
    outcome: list[BaseException | None] = []

    def serve() -> None:
        try:
            loop.run_until_complete(main())
        except BaseException as error:
            outcome.append(error)
        else:
            outcome.append(None)

    gc.disable()  # the times of garbage collection must not depend on earlier histories
    try:
        signals = replaced(system, {"send_signal": loop.send_signal})
        with machine.installed(), signals, world.closing():
            world.start(serve, "event loop", world.server)
            world.run(lambda: bool(outcome))
    finally:
        loop.abandon()
        gc.enable()
    (error,) = outcome
    if error is not None:
        raise error
