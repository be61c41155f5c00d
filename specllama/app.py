"""The ASGI application: the description, its handlers, and the engines."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.types import ASGIApp

from specllama.engine.catalog.catalog import Catalog
from specllama.handlers.binding.application import serve_description
from specllama.handlers.binding.vertex import check_routes
from specllama.handlers.description import description_path
from specllama.handlers.http.description import bundled
from specllama.handlers.http.log_fields import WithTraceId
from specllama.handlers.options import ServerOptions
from specllama.handlers.running.runtime import OWN_PARTS, ServerParts, lifespan
from specllama.progress import show_progress


def create_app(
    options: ServerOptions,
    catalog: Catalog,
    on_fatal: Callable[[str], None] | None = None,
    parts: ServerParts = OWN_PARTS,
) -> ASGIApp:
    """Returns an application that starts its engines in the ASGI lifespan, which the ASGI server
    must run (uvicorn: `lifespan="on"`).

    If the only model of a server can't be loaded, `on_fatal` is called once, with the reason.
    """

    @asynccontextmanager
    async def states(_: Any) -> AsyncIterator[dict[str, Any]]:
        if options.vertex.is_on():
            check_routes(options.vertex, bundled(description_path())["paths"])
        async with lifespan(options, catalog, on_fatal, parts) as runtime:
            if runtime.tracer is not None:
                for handler in logging.getLogger().handlers:
                    handler.addFilter(WithTraceId())
            if options.log.log_disable:
                yield {"runtime": runtime}
                return
            showing = asyncio.create_task(show_progress(runtime.pool, catalog.entries))
            try:
                yield {"runtime": runtime}
            finally:
                showing.cancel()
                await asyncio.wait({showing})

    app: ASGIApp = serve_description(
        description_path(), options.http.api_prefix, states, traced=options.tracing.is_on()
    )
    return app
