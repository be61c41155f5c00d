"""A server in a `World`: the pool of models with all that is below it, over simulated processes."""

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from specllama.engine import system
from specllama.engine.models import generation
from specllama.engine.options import EngineOptions
from specllama.engine.wire import startup
from specllama.engine.wire.framing import Decoder
from specllama.engine.wire.link import Link
from specllama.engine.worker import process as engine_process
from specllama.engine.worker.backend import BackendError, Model, initialize
from specllama.engine.worker.constraints import vocabulary
from specllama.engine.worker.constraints.vocabulary import Vocabulary
from specllama.engine.worker.generation.engine import Engine
from specllama.engine.worker.worker import Worker
from tests.simulation.library import LibraryStandIn, ModelShape, Speed, installed, replaced
from tests.simulation.processes import Child, EventLoop
from tests.simulation.threads import system_of
from tests.simulation.world import Process, World
from tests.support.models import random_model
from tests.support.options_support import engine_options

FEW_EVENTS = 4
"""In the place of `generation.AHEAD`: readers that fall behind are common."""


class SharedModel(Model):
    """A real model, of which the vocabulary alone is used: all processes have the same."""

    def close(self) -> None:
        """It stays."""


@cache
def shared_model() -> Model:
    initialize()
    return SharedModel(str(random_model()), engine_options())


_vocabularies: dict[frozenset[int], Vocabulary] = {}


def shared_vocabulary(model: Model, lexemes: list[bytes], shown: frozenset[int]) -> Vocabulary:
    """In the place of `Vocabulary`, whose objects never change."""
    if shown not in _vocabularies:
        _vocabularies[shown] = Vocabulary(model, lexemes, shown)
    return _vocabularies[shown]


@dataclass(frozen=True)
class SimulatedModel:
    """What a model file stands for."""

    shape: ModelShape
    is_device: bool
    speed: Speed
    load_seconds: float


@dataclass
class Machine:
    """The engine processes of a world, and the models that they load, by path."""

    world: World
    models: dict[str, SimulatedModel]
    children: dict[Process, Child] = field(default_factory=dict)
    libraries: dict[Process, LibraryStandIn] = field(default_factory=dict)
    ready: set[Process] = field(default_factory=set)
    n_steps: int = 0
    fails_to_load: Callable[[], bool] = lambda: False

    def program(self, child: Child) -> int:
        """What an engine process runs."""
        self.children[child.process] = child
        self.libraries[child.process] = LibraryStandIn()
        return engine_process.main()

    def is_ready(self, child: Child) -> bool:
        """True once its engine exists."""
        return child.process in self.ready

    def alive(self) -> list[Child]:
        return [child for child in self.children.values() if child.get_returncode() is None]

    def library(self) -> LibraryStandIn:
        """That of the current process."""
        return self.libraries[self.world.current.process]

    def _take_over(self, decoder: Decoder[Any]) -> Link[Any, Any]:
        child = self.children[self.world.current.process]
        return Link(child.read, child.write, decoder)

    def _load(self, path: str, options: EngineOptions, progress: Callable[[float], None]) -> Model:
        """In the place of `Model`."""
        model = self.models[path]
        library = self.library()
        library.shape, library.is_device = model.shape, model.is_device
        library.speed, library.spend = model.speed, self.world.spend
        for fraction in (0.25, 0.5, 1.0):
            self.world.sleep(model.load_seconds / 3)
            progress(fraction)
        if self.fails_to_load():
            raise BackendError(f"cannot load the model {path!r}")
        return shared_model()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Meanwhile, what starts threads, processes or computations does so in the world."""

        def fitted(path: str, options: EngineOptions) -> EngineOptions:
            return options

        class SimulatedWorker(Worker):
            def __init__(self, *args: Any) -> None:
                machine.ready.add(machine.world.current.process)
                super().__init__(*args)

        machine = self

        def step(engine: Engine, *args: Any) -> Any:
            self.n_steps += 1
            return engine_step(engine, *args)

        engine_step = Engine.step
        process = {
            "take_over": self._take_over,
            "send_log": lambda level: None,
            "initialize": lambda numa: "",
            "fitted": fitted,
            "Model": self._load,
            "Worker": SimulatedWorker,
            "_die_quickly": lambda level: None,
        }
        with ExitStack() as stack:
            enter = stack.enter_context
            enter(replaced(system, system_of(self.world)))
            enter(installed(self.library))
            enter(replaced(engine_process, process))
            enter(replaced(vocabulary, {"Vocabulary": shared_vocabulary}))
            enter(replaced(startup, {"resume_gc": lambda: None}))
            enter(replaced(sys, {"setswitchinterval": lambda seconds: None}))
            enter(replaced(generation, {"AHEAD": FEW_EVENTS}))
            enter(replaced(Engine, {"step": step}))
            yield


def model_files(folder: Path, names: list[str]) -> dict[str, Path]:
    """A file for each name, all of them the same."""
    paths = {name: folder / f"{name}.gguf" for name in names}
    for path in paths.values():
        if not path.exists():
            path.symlink_to(random_model())
    return paths


def run_in(world: World, machine: Machine, main: Callable[[], Any]) -> None:
    """Runs the coroutine of `main` in an event loop of `world`, to its end. Raises what it
    raises."""
    loop = EventLoop(world, machine.program)
    outcome: list[BaseException | None] = []

    def serve() -> None:
        try:
            loop.run_until_complete(main())
        except BaseException as error:
            outcome.append(error)
        else:
            outcome.append(None)

    gc.disable()  # when objects are freed must not depend on what ran before
    try:
        with machine.installed(), world.closing():
            world.start(serve, "event loop", world.server)
            world.run(lambda: bool(outcome))
            loop.close()
    finally:
        gc.enable()
    (error,) = outcome
    if error is not None:
        raise error
