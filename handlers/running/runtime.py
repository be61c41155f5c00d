"""State that the handlers share while the server runs: its options and its models.

A `Runtime` is in the state of the ASGI lifespan, which the server copies into the scope of every
request, so that several applications can run in one process.
"""

import asyncio
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from specllama.engine.catalog.catalog import Catalog
from specllama.engine.catalog.entry import wants_fetch
from specllama.engine.helpers.check.checker import Checker
from specllama.engine.helpers.inspect.inspector import MetadataReader
from specllama.engine.helpers.render.renderer import Renderer, examined
from specllama.engine.media.resolver import MediaDecoder
from specllama.engine.models.inventory import Inventory
from specllama.engine.models.measuring import MemoryMeter
from specllama.engine.models.pool import ModelPool
from specllama.engine.models.supervisor import Supervisor
from specllama.engine.options import OptionError
from specllama.engine.shipped import model_file
from specllama.handlers.http.api_keys import KeyRing
from specllama.handlers.http.current import current_scope
from specllama.handlers.options import ServerOptions
from specllama.handlers.options.tables.tools import ToolOptions
from specllama.handlers.running.admission import Admission, open_buckets
from specllama.handlers.running.buckets import BucketStore
from specllama.handlers.running.key_reload import ServerKeys
from specllama.handlers.running.ongoing import BackgroundJobs, GenerationControl, KeptStreams
from specllama.handlers.running.prompt_log import PromptLog
from specllama.handlers.running.response_store import ResponseStore, shared_secret
from specllama.handlers.running.run_in_thread import TURN
from specllama.handlers.running.sealing import Sealing, key_of_file, key_of_user
from specllama.handlers.running.sqlite_responses import SqliteResponses
from specllama.handlers.running.stores import is_redis, opened
from specllama.handlers.running.waiting import WaitingCalls

if TYPE_CHECKING:
    from specllama.handlers.http.otel import Tracer
    from specllama.handlers.running.metrics import Metrics
    from specllama.handlers.running.server_tools import ServerTools

log = logging.getLogger("specllama.handlers.running.runtime")

AFTER_LOADING = 0.5  # seconds until the files are read


def open_responses(where: str) -> ResponseStore:
    """Returns the store that `--responses-db` names: the URL of a Redis server, the path of an
    SQLite file, or "" for the memory. Raises OptionError."""

    def open_store() -> ResponseStore:
        if not is_redis(where):
            return SqliteResponses(where)
        from specllama.handlers.running.redis_responses import RedisResponses

        return RedisResponses(where)

    return opened("--responses-db", open_store)


@dataclass(frozen=True)
class ServerParts:
    """The parts of a server that a deployment on several machines replaces: its engine processes
    are elsewhere, and its stores are those of all servers. `supervise` has the arguments of
    `Supervisor`; the others get the value of their option, and raise OptionError."""

    supervise: Callable[..., Supervisor] = Supervisor
    open_responses: Callable[[str], ResponseStore] = open_responses
    open_buckets: Callable[[str], BucketStore] = open_buckets


OWN_PARTS = ServerParts()
"""Those of a server on one machine."""


@dataclass(frozen=True)
class Runtime:
    """One running server. `options` are those of the server as a whole; each model in the
    `catalog` has options of its own. `keys` are the API keys;
    `metrics` is None without `--metrics`, `tracer` without `--otel`, `prompt_log` without
    `--log-prompts-dir`. `responses` stores responses of the Responses API, `sealing` seals what its
    clients keep, `jobs` has the responses in the background, `streams` the resumable streams;
    `control` ends the thoughts of running answers. `admission` checks the quotas of the keys, and
    counts what they use. `tools` is None for a server without tools. `page_settings` are the
    initial settings of the page for chats."""

    options: ServerOptions
    catalog: Catalog
    pool: ModelPool
    inventory: Inventory
    files: MetadataReader  # the metadata of the models' files
    started: int  # seconds since 1970
    responses: ResponseStore
    sealing: Sealing
    keys: ServerKeys
    admission: Admission
    jobs: BackgroundJobs
    renderer: Renderer = field(default_factory=Renderer)
    checker: Checker = field(default_factory=Checker)
    media: MediaDecoder = field(default_factory=MediaDecoder)
    metrics: "Metrics | None" = None
    tracer: "Tracer | None" = None
    prompt_log: PromptLog | None = None
    tools: "ServerTools | None" = None
    streams: KeptStreams = field(default_factory=KeptStreams)
    control: GenerationControl = field(default_factory=GenerationControl)
    page_settings: dict[str, Any] = field(default_factory=dict)
    written_options: dict[str, tuple[list[str], str]] = field(default_factory=dict)
    """The command line and the preset of each model, cached by the first request for them."""

    @classmethod
    def of(
        cls, options: ServerOptions, catalog: Catalog, parts: ServerParts = OWN_PARTS
    ) -> "Runtime":
        """Returns the state of a server that starts now; its engines are not started yet.

        Raises OptionError if a file of keys or the file of the page's settings can't be read, a
        database can't be opened, the directory for prompts can't be created, or the standard
        variables for traces are invalid.
        """
        keys = ServerKeys(options.http)
        responses = parts.open_responses(options.responses.responses_db)
        renderer = Renderer()
        new_supervisor = partial(
            parts.supervise,
            examine=partial(examined, renderer),
            log_level=options.log.engine_level(),
        )
        pool = ModelPool(
            catalog,
            models_max=options.router.models_max,
            meter=_meter(options) if catalog.router else None,
            keep_alive_max=options.router.models_keep_alive,
            new_supervisor=new_supervisor,
        )
        return cls(
            options=options,
            catalog=catalog,
            pool=pool,
            inventory=Inventory(catalog, pool.members),
            files=MetadataReader(),
            started=int(time.time()),
            responses=responses,
            sealing=_sealing(options.responses.responses_key_file, responses),
            jobs=BackgroundJobs(responses),
            keys=keys,
            admission=Admission.of(
                options.usage, _waiting(options, catalog, pool), parts.open_buckets
            ),
            renderer=renderer,
            checker=Checker(options.http.max_body_size << 20),
            metrics=_metrics() if options.model.operations.metrics else None,
            tracer=_tracer(options.tracing.otel_endpoint) if options.tracing.is_on() else None,
            prompt_log=PromptLog(prompts) if (prompts := options.log.log_prompts_dir) else None,
            tools=_tools(options.tools) if options.tools.is_on() else None,
            page_settings=options.page.settings(),
        )

    @property
    def api_keys(self) -> KeyRing:
        """The valid keys; empty for a server without authentication."""
        return self.keys.ring


def _sealing(file: str, store: ResponseStore) -> Sealing:
    if not file:
        return Sealing(lambda: key_of_user(os.environ), partial(shared_secret, store))
    try:
        key = key_of_file(file)
    except OptionError as error:
        raise OptionError(f"--responses-key-file: {error}") from error
    return Sealing(lambda: key)


def _waiting(options: ServerOptions, catalog: Catalog, pool: ModelPool) -> WaitingCalls:
    def n_slots(model: str) -> int:
        status = pool.status(model)
        return status.info.n_slots if status.info is not None and status.value == "loaded" else 0

    context = options.model.engine.context
    return WaitingCalls.of(context, router=catalog.router, n_slots=n_slots)


def _meter(options: ServerOptions) -> MemoryMeter | None:
    router = options.router
    if not router.measures():
        return None
    return MemoryMeter(
        router.models_memory,
        router.models_memory_margin << 20,
        log_level=options.log.engine_level(),
    )


def _metrics() -> "Metrics":
    from specllama.handlers.running.metrics import Metrics  # imports Prometheus' client

    return Metrics()


def _tools(options: ToolOptions) -> "ServerTools":
    from specllama.handlers.running.server_tools import ServerTools  # rarely needed

    return ServerTools.of(options)


def _tracer(endpoint: str) -> "Tracer":
    from specllama.handlers.http.otel import Tracer  # imports OpenTelemetry

    try:
        return Tracer.to_collector(endpoint)
    except ValueError as error:
        raise OptionError(f"--otel: {error}") from error


def runtime() -> Runtime:
    """Returns the server of the current request."""
    current: Runtime = current_scope()["state"]["runtime"]
    return current


@asynccontextmanager
async def lifespan(
    options: ServerOptions,
    catalog: Catalog,
    on_fatal: Callable[[str], None] | None = None,
    parts: ServerParts = OWN_PARTS,
) -> AsyncIterator[Runtime]:
    """Starts the engines of the models that are loaded at startup. At its exit, stops all engines
    and helper processes.

    If the only model of a server can't be loaded, `on_fatal` is called with the reason; without
    `on_fatal`, the reason is logged. The caller decides whether the server ends. Until then,
    requests are answered with 503.
    """
    current = Runtime.of(options, catalog, parts)
    sys.setswitchinterval(TURN)
    try:
        await current.pool.start()
        if not options.model.engine.embedding.embeds():
            current.renderer.prepare()  # while the models load, so that the first chat needn't wait
        background = {
            asyncio.create_task(_watch_loading(current, on_fatal)),
            asyncio.create_task(_read_first_files(current)),
            asyncio.create_task(current.keys.watch()),
        }

        def look_again() -> None:
            current.written_options.clear()
            background.add(reading := asyncio.create_task(_read_files(current)))
            reading.add_done_callback(background.discard)

        current.inventory.on_change = look_again
        try:
            yield current
        finally:
            await current.jobs.stop()
            await current.inventory.stop()
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            current.streams.close()
            if current.tools is not None:
                await current.tools.stop()
            await asyncio.gather(
                current.pool.stop(),
                current.renderer.stop(),
                current.checker.stop(),
                current.media.stop(),
            )
    finally:
        await current.admission.close()
        await current.responses.close()
        if current.tracer is not None:
            await current.tracer.stop()
        if current.prompt_log is not None:
            await current.prompt_log.stop()


async def _watch_loading(current: Runtime, on_fatal: Callable[[str], None] | None) -> None:
    supervisor = current.pool.supervisor(current.catalog.default)
    if current.catalog.router or supervisor is None:
        return  # requests for a model that can't be loaded are answered with the error
    await supervisor.loaded()
    if supervisor.state != "failed":
        return
    if on_fatal is not None:
        on_fatal(supervisor.failure)
    else:
        log.error("the model could not be loaded: %s", supervisor.failure)


async def _read_first_files(current: Runtime) -> None:
    """Reads the files once the only model has been loaded and may have answered: with few cores,
    the process that reads would delay that by tenths of a second."""
    supervisor = current.pool.supervisor(current.catalog.default)
    if not current.catalog.router and supervisor is not None:
        await supervisor.loaded()
        await asyncio.sleep(AFTER_LOADING)
    await _read_files(current)


async def _read_files(current: Runtime) -> None:
    """Reads the files of models, so that `GET /models` can describe models that are not loaded."""
    there = [
        each.options for each in current.catalog.entries.values() if not wants_fetch(each.options)
    ]
    projectors = [o.engine.media.mmproj for o in there if o.engine.media.mmproj]
    await current.files.read_all([*(model_file(o.engine.model.model) for o in there), *projectors])
