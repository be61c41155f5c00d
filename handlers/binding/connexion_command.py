"""Makes `connexion run openapi/server.yaml` the same server as `specllama`.

Connexion's command line builds its own application, and has no hook for error handlers, middleware
or a lifespan. It only imports the functions that the description names, while it builds the stack,
on the first ASGI call. The description names functions of this module for checking credentials
(`x-bearerInfoFunc`, `x-apikeyInfoFunc`); our own security handlers don't use these names. So only
Connexion's command line imports this module, and calls `install` at its end. The first message that
the outermost middleware then gets (uvicorn's lifespan) replaces Connexion's application by ours,
with the same description and options. So both commands run the same code.

Our own applications, which have a lifespan, and applications with other handlers are not replaced.
"""

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from connexion.middleware import ConnexionMiddleware
from connexion.middleware.server_error import ServerErrorMiddleware
from starlette.types import Receive, Scope, Send

from specllama.engine.catalog.catalog import open_catalog
from specllama.engine.helpers.download.downloader import find_remote_preset
from specllama.handlers.binding.application import application, serve_again
from specllama.handlers.binding.security import api_key_info, bearer_info
from specllama.handlers.options import from_environ, given
from specllama.handlers.running.runtime import lifespan

__all__ = ["api_key_info", "bearer_info", "install"]

_CONTROLLER = "x-openapi-router-controller"


def install() -> None:
    """Patches Connexion's outermost middleware, once per process. Removes queries, which may
    contain API keys, from uvicorn's log of requests."""
    original = ServerErrorMiddleware.__call__
    if original.__module__ == __name__:
        return
    logging.getLogger("uvicorn.access").addFilter(without_query)

    async def call(self: ServerErrorMiddleware, scope: Scope, receive: Receive, send: Send) -> None:
        launched: ConnexionMiddleware = scope["app"]
        if launched.lifespan is None and _serves_our_handlers(launched):
            launched.app = await _replacement(launched)
            await launched.app(scope, receive, send)
        else:
            await original(self, scope, receive, send)

    ServerErrorMiddleware.__call__ = call


def without_query(record: logging.LogRecord) -> bool:
    """Removes the query from uvicorn's log record of a request. Returns True."""
    if isinstance(record.args, tuple) and len(record.args) == 5:
        client, method, path, *rest = record.args
        record.args = (client, method, str(path).partition("?")[0], *rest)
    return True


def _serves_our_handlers(app: ConnexionMiddleware) -> bool:
    return any(
        isinstance(operation, dict)
        and operation.get(_CONTROLLER, "").startswith("specllama.handlers.")
        for api in app.apis
        for item in api.specification["paths"].values()
        for operation in item.values()
    )


async def _replacement(launched: ConnexionMiddleware) -> Any:
    options = from_environ(os.environ)
    remote = await find_remote_preset(options.model, os.environ)
    catalog = open_catalog(options.model, options.router, given([], os.environ), remote)
    base_paths = {api.specification.base_path for api in launched.apis}
    prefix = options.http.api_prefix.rstrip("/")

    @asynccontextmanager
    async def states(_: Any) -> AsyncIterator[dict[str, Any]]:
        if prefix and base_paths != {prefix}:
            raise ValueError(
                f"the API prefix {prefix} is given in the environment, but Connexion's command "
                f"line also needs it as an option: --base-path {prefix}"
            )
        async with lifespan(options, catalog) as runtime:
            yield {"runtime": runtime}

    app = application(states, traced=options.tracing.is_on())
    serve_again(app, launched.apis)
    return app


install()
