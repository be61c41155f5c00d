"""The engine process: loads one model, and serves it until the pipe closes; or only measures the
memory that a model will take.

python -m specllama.engine.worker        (started by engine.models.engine_process)
"""

import faulthandler
import logging
import os
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import specllama.engine.wire.startup as startup  # must be the first import
from specllama.engine import system
from specllama.engine.options import EngineOptions
from specllama.engine.shipped import model_file
from specllama.engine.wire.commands import STACKS_SIGNAL, STUCK
from specllama.engine.wire.engine_log import send_log
from specllama.engine.wire.link import take_over
from specllama.engine.wire.replies import Heartbeat, LoadFailed, Progress, Ready
from specllama.engine.wire.requests import Load, MeasureMemory, to_engine_decoder
from specllama.engine.worker.backend import (
    BackendError,
    Model,
    Projector,
    add_rpc_servers,
    initialize,
    reported_abort,
)
from specllama.engine.worker.backend.exactness import promised
from specllama.engine.worker.backend.projector import projector_header
from specllama.engine.worker.backend.watch import encoding, stepping
from specllama.engine.worker.fitting import fitted, measured

if TYPE_CHECKING:
    from specllama.engine.worker.embedding.embedder import Embedder
    from specllama.engine.worker.generation.engine import Engine
    from specllama.engine.worker.worker import ServerLink

log = logging.getLogger("specllama.engine.worker")

HEARTBEAT_SECONDS = 1.0
SWITCH_SECONDS = 0.0005  # the longest time that another thread keeps the GIL from the step loop


def _import_engine() -> None:
    """Import the modules that serve a loaded model. A thread does that while llama.cpp loads the
    model, outside the GIL, so only the functions that need these modules import them."""
    import specllama.engine.worker.worker  # noqa: F401


def _beat(link: "ServerLink") -> None:
    stop = system.Event()
    while not stop.wait(HEARTBEAT_SECONDS):
        try:
            link.send(Heartbeat(startup.private()))
        except OSError:  # the server has closed the pipe, perhaps before the reader thread exists
            from specllama.engine.worker.worker import LAST_STEP_SECONDS

            stop.wait(LAST_STEP_SECONDS)
            system.leave()
        for watch in (stepping, encoding):
            if (finding := watch.look(HEARTBEAT_SECONDS)) is not None:
                _end_stuck_process(finding)


def _end_stuck_process(finding: str) -> NoReturn:
    """End this process because one of its threads is stuck; write the stacks of all threads to the
    log."""
    log.error("%s: this process ends; the stacks of its threads follow", finding)
    faulthandler.dump_traceback()
    system.leave(STUCK)


def _register_stack_dump() -> None:
    """Make STACKS_SIGNAL write the stacks of all threads before it ends this process (not on
    Windows). The server sends it to a process without heartbeats. Writing needs no GIL, which a
    call that never returns may hold."""
    if STACKS_SIGNAL is not None:
        faulthandler.register(STACKS_SIGNAL, chain=True)


def _disable_debugger(log_level: int) -> None:
    """Keep a failed assertion of llama.cpp from starting a debugger, which would delay the end of
    this process by seconds. With `--verbose`, its backtrace is wanted."""
    if log_level > logging.DEBUG:
        os.environ.setdefault("GGML_NO_BACKTRACE", "1")


def _load(
    link: "ServerLink", options: EngineOptions
) -> "tuple[Engine | Embedder, EngineOptions] | None":
    """The engine, and its effective options, some of which are chosen here for this machine. None,
    after a `LoadFailed` message, if the model can't be loaded."""
    path = model_file(options.model.model)
    sent = 0.0

    def progress(fraction: float) -> None:
        nonlocal sent
        if fraction - sent >= 0.01:
            sent = fraction
            with suppress(BrokenPipeError):  # the heartbeat thread handles that
                link.send(Progress(fraction))

    try:
        remark = initialize(options.compute.numa)
        if remark and options.model.repack:  # without repacking, these kernels aren't used
            log.warning("%s", remark)
        add_rpc_servers(options.compute.rpc)
        with reported_abort(lambda message: link.send(LoadFailed(message))):
            if options.media.mmproj:  # fails early, before a large model is loaded
                projector_header(options.media.mmproj)
            options = fitted(path, promised(options))
            model = Model(path, options, progress)
            reading = system.start_thread(partial(getattr, model, "eog"), "end tokens")
            engine = _make(model, path, options)
            reading.join()
    except BackendError as error:
        link.send(LoadFailed(str(error)))
        return None
    return engine, options


def _measure(link: "ServerLink", job: MeasureMemory) -> int:
    """Answers `job`. Returns the exit status."""
    try:
        initialize(job.options.compute.numa if job.options else "")
        if job.options is not None:
            add_rpc_servers(job.options.compute.rpc)
        with reported_abort(lambda message: link.send(LoadFailed(message))):
            link.send(measured(job.options, job.limits))
    except BackendError as error:
        link.send(LoadFailed(str(error)))
        return 1
    return 0


def _make(model: Model, path: str, options: EngineOptions) -> "Engine | Embedder":
    """The engine for the model. Raises BackendError."""
    from specllama.engine.grammars.gbnf import GrammarError
    from specllama.engine.worker.embedding.embedder import Embedder
    from specllama.engine.worker.generation.engine import Engine

    if options.embedding.embeds():
        if model.has_encoder and model.has_decoder:
            raise BackendError(
                f"the model {path!r} has an encoder and a decoder: embeddings need only one"
            )
        return Embedder(model, options, _projector(model, options))
    if model.has_encoder or not model.has_decoder:
        raise BackendError(f"the model {path!r} can't generate here: it is not a pure decoder")
    engine = Engine(model, options, _projector(model, options))
    defaults = options.generation_defaults()
    try:
        relaxed = engine.preparation.compiler.guided(defaults).relaxed
    except GrammarError as error:
        raise BackendError(str(error)) from error
    if relaxed and options.sampling.strict_schemas:
        raise BackendError(f"--strict-schemas: these can't be enforced: {', '.join(relaxed)}")
    return engine


def _projector(model: Model, options: EngineOptions) -> Projector | None:
    path = options.media.mmproj
    return Projector(path, model, options) if path else None


def _serve(engine: "Engine | Embedder", link: "ServerLink", options: EngineOptions) -> None:
    """Serve the loaded model until the pipe closes."""
    from specllama.engine.worker.generation.engine import Engine
    from specllama.engine.worker.worker import Worker

    if isinstance(engine, Engine):
        generator = engine
        engine.preparation.compiler.prepare(lambda: generator.has_work or generator.is_sweeping())
    Worker(engine, link, options).run()


def main() -> int:
    """Serves the server process that started this one. Returns the exit status."""
    link: ServerLink = take_over(to_engine_decoder)
    sys.setswitchinterval(SWITCH_SECONDS)
    match link.receive():  # the server sends nothing else before `Ready`
        case [Load() | MeasureMemory() as first]:
            pass
        case _:
            return 2
    send_log(first.log_level)
    _disable_debugger(first.log_level)
    _register_stack_dump()
    stepping.begin("the start of the engine")
    system.start_thread(partial(_beat, link), "heartbeat")
    if isinstance(first, MeasureMemory):
        return _measure(link, first)
    system.start_thread(_import_engine, "imports")
    engine = None
    with suppress(BrokenPipeError):  # the server has closed the pipe
        loaded = _load(link, first.options)
        if loaded is not None:
            engine, options = loaded
            link.send(Ready(engine.info))
            stepping.loaded()
            startup.resume_gc()
            _serve(engine, link, options)
    if engine is None:
        return 1
    engine.close()
    engine.model.close()
    return 0
