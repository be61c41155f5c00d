"""Puts a Connexion application together: the one way in which every launch gets its server."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import cached_property
from pathlib import Path
from typing import Any

from connexion import AsyncApp
from connexion.apps.asynchronous import AsyncApi, AsyncOperation
from connexion.decorators import StarletteDecorator
from connexion.middleware import MiddlewarePosition
from connexion.middleware.main import API
from connexion.operations import AbstractOperation
from connexion.options import SwaggerUIOptions

from handlers.http.errors import HANDLED, answer
from handlers.http.middleware import Bodies, Cors, Leases, Measure
from handlers.http.security import SECURITY_MAP
from handlers.http.validation import validator_map

Lifespan = Callable[[Any], AbstractAsyncContextManager[dict[str, Any]]]


class _Decorator(StarletteDecorator):  # type: ignore[misc]  # connexion has no types
    """Connexion decorates a handler anew for every request, always with the same result."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._decorated: Callable[..., Any] | None = None

    def decorate(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if self._decorated is None:
            self._decorated = super().decorate(function)
        return self._decorated


class _Operation(AsyncOperation):  # type: ignore[misc]  # connexion has no types
    @cached_property
    def fn(self) -> Callable[..., Any]:
        decorator = _Decorator(pythonic_params=self.pythonic_params, jsonifier=self.jsonifier)
        decorated: Callable[..., Any] = decorator(self._fn)
        return decorated


class _Api(AsyncApi):  # type: ignore[misc]  # connexion has no types
    def make_operation(self, operation: AbstractOperation) -> _Operation:
        made: _Operation = _Operation.from_operation(
            operation, pythonic_params=self.pythonic_params, jsonifier=self.jsonifier
        )
        return made


def application(lifespan: Lifespan) -> AsyncApp:
    """An application without operations; `lifespan` yields `{"runtime": Runtime}`."""
    app = AsyncApp(
        __name__,
        lifespan=lifespan,
        swagger_ui_options=SwaggerUIOptions(serve_spec=False, swagger_ui=False),
        validator_map=validator_map(),
        security_map=SECURITY_MAP,
    )
    app._middleware_app.api_cls = _Api
    app.add_middleware(Leases, MiddlewarePosition.BEFORE_EXCEPTION)
    app.add_middleware(Measure, MiddlewarePosition.BEFORE_EXCEPTION)
    app.add_middleware(Cors, MiddlewarePosition.BEFORE_EXCEPTION)
    app.add_middleware(Bodies, MiddlewarePosition.BEFORE_SWAGGER)
    for exception in HANDLED:
        app.add_error_handler(exception, answer)
    return app


def serve_description(path: Path, base_path: str, lifespan: Lifespan) -> AsyncApp:
    """The application that serves the description at `path` below `base_path`."""
    app = application(lifespan)
    app.add_api(path, base_path=base_path.rstrip("/"))
    return app


def serve_again(app: AsyncApp, apis: list[API]) -> None:
    """Lets `app` serve what another Connexion application was told to serve."""
    for api in apis:
        ours = {
            name: getattr(app.middleware.options, name)
            for name in ("swagger_ui_options", "validator_map", "security_map")
        }
        app.middleware.apis.append(
            API(api.specification, base_path=api.base_path, **{**api.kwargs, **ours})
        )
