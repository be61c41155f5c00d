"""What the handlers share while the server runs: its options and its engine.

A `Runtime` lives in the state of the ASGI lifespan, which the server copies into the scope of
every request; so several applications can live in one process.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from connexion import context

from engine.chat.renderer import Renderer
from engine.embedded import MODEL_NAME
from engine.options import OptionError, Options
from engine.supervisor import Supervisor
from handlers.http.exposition import Metrics
from handlers.responses_store import ResponseStore, StoreError


@dataclass(frozen=True)
class Runtime:
    """One running server. `api_keys` is empty for a server that is open to everybody;
    `metrics` is None without `--metrics`; `responses` are those of the Responses API that
    clients may come back to."""

    options: Options
    supervisor: Supervisor
    started: int  # seconds since 1970
    model_id: str
    aliases: list[str]
    responses: ResponseStore
    api_keys: tuple[bytes, ...] = ()
    renderer: Renderer = field(default_factory=Renderer)
    metrics: Metrics | None = None

    @classmethod
    def of(cls, options: Options) -> "Runtime":
        """For a server that starts now; its engine is not started yet.

        Raises OptionError if the file of API keys can't be read, and if the database of
        responses can't be opened.
        """
        aliases = options.aliases()
        api_keys = tuple(key.encode() for key in options.api_keys())
        try:
            responses = ResponseStore(options.responses_db)
        except StoreError as error:
            raise OptionError(f"--responses-db {error}") from error
        return cls(
            options=options,
            supervisor=Supervisor(options),
            started=int(time.time()),
            model_id=aliases[0] if aliases else options.model or MODEL_NAME,
            aliases=aliases,
            responses=responses,
            api_keys=api_keys,
            metrics=Metrics() if options.metrics else None,
        )


def runtime() -> Runtime:
    """The server that the current request came to."""
    current: Runtime = context.scope["state"]["runtime"]
    return current


@asynccontextmanager
async def lifespan(
    options: Options, on_fatal: Callable[[str], None] | None = None
) -> AsyncIterator[Runtime]:
    """Starts the engine and, at the end, stops it and the template processes.

    `on_fatal` is called with the reason if the model can't be loaded: what to do then (end,
    most likely) is the launcher's business. Until then, requests are answered with 503.
    """
    current = Runtime.of(options)
    try:
        await current.supervisor.start()
        watcher = asyncio.create_task(_watch_loading(current.supervisor, on_fatal))
        try:
            yield current
        finally:
            watcher.cancel()
            await asyncio.gather(current.supervisor.stop(), current.renderer.stop())
    finally:
        current.responses.close()


async def _watch_loading(supervisor: Supervisor, on_fatal: Callable[[str], None] | None) -> None:
    await supervisor.loaded()
    if supervisor.state == "failed" and on_fatal is not None:
        on_fatal(supervisor.failure)
