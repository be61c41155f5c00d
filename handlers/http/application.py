"""Puts a Connexion application together: the one way in which every launch gets its server."""

import dataclasses
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from connexion import AsyncApp
from connexion.middleware.main import API

from specllama.handlers.http.errors import HANDLED, answer
from specllama.handlers.http.security import SECURITY_MAP
from specllama.handlers.http.specification import Resolved
from specllama.handlers.http.stack import MIDDLEWARES, Api
from specllama.handlers.http.validation import validator_map

Lifespan = Callable[[Any], AbstractAsyncContextManager[dict[str, Any]]]


def application(lifespan: Lifespan) -> AsyncApp:
    """An application without operations; `lifespan` yields `{"runtime": Runtime}`."""
    app = AsyncApp(
        __name__,
        lifespan=lifespan,
        middlewares=list(MIDDLEWARES),
        validator_map=validator_map(),
        security_map=SECURITY_MAP,
    )
    app._middleware_app.api_cls = Api
    for exception in HANDLED:
        app.add_error_handler(exception, answer)
    return app


def serve_description(path: Path, base_path: str, lifespan: Lifespan) -> AsyncApp:
    """The application that serves the description at `path` below `base_path`."""
    app = application(lifespan)
    options = dataclasses.replace(app.middleware.options)
    app.middleware.apis.append(
        API(Resolved.at(path), base_path=base_path.rstrip("/"), **vars(options))
    )
    return app


def serve_again(app: AsyncApp, apis: list[API]) -> None:
    """Lets `app` serve what another Connexion application was asked to serve."""
    for api in apis:
        ours = {
            name: getattr(app.middleware.options, name)
            for name in ("validator_map", "security_map")
        }
        app.middleware.apis.append(
            API(api.specification, base_path=api.base_path, **{**api.kwargs, **ours})
        )
