"""Connexion's middlewares, without the work that they repeat for every request.

For each request, Connexion tries all routes, builds parsers of parameters, matches media types
against patterns, and searches all possible places for the handler's arguments. This module does
that once for operations that need only a JSON body. Other requests, and invalid ones, take
Connexion's own path.
"""

import inspect
from collections.abc import Callable
from functools import cached_property
from typing import Any

from connexion.apps.asynchronous import AsyncApi, AsyncOperation
from connexion.decorators import StarletteDecorator
from connexion.decorators.response import AsyncResponseDecorator
from connexion.frameworks.starlette import Starlette
from connexion.middleware.abstract import ROUTING_CONTEXT
from connexion.middleware.context import ContextMiddleware
from connexion.middleware.exceptions import ExceptionMiddleware
from connexion.middleware.lifespan import LifespanMiddleware
from connexion.middleware.request_validation import (
    RequestValidationAPI,
    RequestValidationMiddleware,
    RequestValidationOperation,
)
from connexion.middleware.routing import RoutingMiddleware
from connexion.middleware.server_error import ServerErrorMiddleware
from connexion.operations import AbstractOperation
from connexion.spec import Specification
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.routing import Match, Mount, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from specllama.handlers.binding.errors import METHODS
from specllama.handlers.binding.middleware import (
    JSON,
    Bodies,
    Cors,
    Leases,
    RateLimits,
    RequestTimer,
)
from specllama.handlers.binding.security import Security
from specllama.handlers.binding.validation import JsonBody
from specllama.handlers.binding.vertex import Vertex
from specllama.handlers.http.api_keys import is_known
from specllama.handlers.http.current import Current
from specllama.handlers.http.hosts import Hosts
from specllama.handlers.http.own_files import OwnFiles
from specllama.handlers.http.request_log import RequestLog
from specllama.handlers.http.websocket import WebSockets


class AnyPath(PathConvertor):
    """A parameter with the format `path`. Starlette's own convertor doesn't match line breaks, and
    a model may have any name."""

    regex = "(?s:.*)"


register_url_convertor("path", AnyPath())

# Connexion's classes have no types.


class Routing(RoutingMiddleware):  # type: ignore[misc]
    """Finds paths without parameters in a table, also with a trailing slash. Connexion's routes
    handle all other paths."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(app)
        self._known: dict[tuple[str, str], dict[str, str]] = {}  # by method and path

    def add_api(
        self, specification: Specification, base_path: str | None = None, **options: Any
    ) -> None:
        super().add_api(specification, base_path, **options)
        base = specification.base_path if base_path is None else base_path
        for path, item in specification["paths"].items():
            for method in {each.upper() for each in item.keys() & METHODS}:
                if (context := self._context(method, base + path)) is not None:
                    self._known.setdefault((method, base + path), context)

    def _context(self, method: str, path: str) -> dict[str, str] | None:
        """Returns Connexion's routing context for the inner middlewares; None if the routes don't
        lead from `path` to an operation."""
        scope = {"type": "http", "method": method, "path": path, "root_path": ""}
        app: Any = self.router
        while isinstance(app, Router):
            app = _first_match(app, scope)
        if app is None:
            return None
        return {"api_base_path": scope["root_path"], "operation_id": app.operation_id}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not scope.get("root_path"):
            context = self._known.get((scope["method"], scope["path"]))
            if context is None and (path := _without_slash(scope["path"])):
                context = self._known.get((scope["method"], path))
            if context is not None:
                scope.setdefault("path_params", {})
                scope.setdefault("extensions", {}).setdefault(ROUTING_CONTEXT, {}).update(context)
                await self.app(scope, receive, send)
                return
        if scope["type"] == "http" and _has_trailing_slash(scope):
            # Starlette would redirect to the path without the slash, but the slash may be the last
            # character of a parameter.
            raise HTTPException(404 if is_known(scope) else 401)
        await super().__call__(scope, receive, send)


def _without_slash(path: str) -> str:
    """Returns `path` without its trailing slash; "" unless it has exactly one."""
    return path[:-1] if path.endswith("/") and not path.endswith("//") else ""


def _has_trailing_slash(scope: Scope) -> bool:
    path = str(scope["path"])
    return path.endswith("/") and path.removeprefix(scope.get("root_path", "")) != "/"


def _first_match(router: Router, scope: Scope) -> ASGIApp | None:
    """Returns the endpoint to which Starlette's router would send `scope`, and updates `scope` as
    its route does."""
    for route in router.routes:
        match, changes = route.matches(scope)
        if match is Match.FULL and isinstance(route, Route | Mount):
            scope.update(changes)
            return route.app
    return None


class _ValidatedOperation(RequestValidationOperation):  # type: ignore[misc]
    """The validation of one operation. A request with a JSON body and no parameters needs no
    preparation per request."""

    @cached_property
    def _json_body(self) -> JsonBody:
        operation = self._operation
        body: JsonBody = self._validator_map["body"]["application/json"](
            schema=operation.body_schema("application/json"),
            required=operation.request_body.get("required", False),
        )
        return body

    @cached_property
    def _headers(self) -> set[bytes]:
        """The names of headers that are parameters."""
        parameters = self._operation.parameters
        return {each["name"].lower().encode() for each in parameters if each["in"] == "header"}

    @cached_property
    def _expects(self) -> bool:
        """True if the operation has a required parameter."""
        return any(each.get("required") for each in self._operation.parameters)

    def _has_parameters(self, scope: Scope) -> bool:
        """True if the request has parameters, or requires some."""
        return (
            self._expects
            or bool(scope["query_string"])
            or any(name in self._headers for name, _ in scope["headers"])
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        operation = self._operation
        if self._has_parameters(scope):
            await super().__call__(scope, receive, send)
            return
        if operation.consumes:
            kinds = [value for name, value in scope["headers"] if name == b"content-type"]
            if kinds != [JSON] or "application/json" not in operation.consumes:
                await super().__call__(scope, receive, send)
                return
            receive, scope = await self._json_body.wrap_receive(receive, scope=scope)
        await self.next_app(scope, receive, send)


class _ValidationApi(RequestValidationAPI):  # type: ignore[misc]
    def make_operation(self, operation: AbstractOperation) -> _ValidatedOperation:
        return _ValidatedOperation(
            self.next_app,
            operation=operation,
            strict_validation=self.strict_validation,
            validator_map=self.validator_map,
        )


class Validation(RequestValidationMiddleware):  # type: ignore[misc]
    """Validates requests. Most of the preparation is done once per operation."""

    api_cls = _ValidationApi


class _Decorator(StarletteDecorator):  # type: ignore[misc]
    """Decorates a handler once. Connexion's own class does so for every request, with the same
    result."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._decorated: Callable[..., Any] | None = None

    def decorate(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if self._decorated is None:
            self._decorated = super().decorate(function)
        return self._decorated


class _Operation(AsyncOperation):  # type: ignore[misc]
    """One handler, and the conversion of a request to its arguments and of its result to a
    response."""

    @cached_property
    def fn(self) -> Callable[..., Any]:
        decorator = _Decorator(pythonic_params=self.pythonic_params, jsonifier=self.jsonifier)
        decorated: Callable[..., Any] = decorator(self._fn)
        return decorated


class _BodyOperation(_Operation):
    """A handler whose only argument is the validated body, from the request's context."""

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(inspect.signature(self._fn).parameters)

    @cached_property
    def fn(self) -> Callable[..., Any]:
        respond = AsyncResponseDecorator(framework=Starlette, jsonifier=self.jsonifier)
        responding: Callable[..., Any] = respond(self._fn)
        return responding

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = scope["extensions"].get("connexion_context", {})
        arguments = {name: context[name] for name in self._names if name in context}
        response = await self.fn(**arguments)
        await response(scope, receive, send)


def _needs_only_body(operation: AbstractOperation) -> bool:
    function = operation.function
    arguments = inspect.signature(function).parameters
    kinds = {argument.kind for argument in arguments.values()}
    return (
        inspect.iscoroutinefunction(function)
        and kinds <= {inspect.Parameter.POSITIONAL_OR_KEYWORD}
        and set(operation.consumes) <= {"application/json", "multipart/form-data"}
        and not any(parameter["name"] in arguments for parameter in operation.parameters)
    )


class Api(AsyncApi):  # type: ignore[misc]
    """Connexion's application inside of all middlewares."""

    def make_operation(self, operation: AbstractOperation) -> _Operation:
        kind = _BodyOperation if _needs_only_body(operation) else _Operation
        made: _Operation = kind.from_operation(
            operation, pythonic_params=self.pythonic_params, jsonifier=self.jsonifier
        )
        return made


MIDDLEWARES = [
    Vertex,
    WebSockets,
    RequestLog,
    ServerErrorMiddleware,
    Leases,
    RequestTimer,
    Cors,
    RateLimits,
    ExceptionMiddleware,
    Hosts,
    OwnFiles,
    Routing,
    Bodies,
    Security,
    Validation,
    LifespanMiddleware,
    ContextMiddleware,
    Current,
]
"""The middlewares of every server, from the outermost on. Connexion's middlewares that serve the
description and validate answers are left out: a handler serves the description, and the contract
tests validate answers."""


def middlewares(*, traced: bool) -> list[Any]:
    """Returns all middlewares, from the outermost to the innermost; `traced`: with that for
    traces."""
    if not traced:
        return [*MIDDLEWARES]
    from specllama.handlers.binding.tracing import Tracing

    return [Vertex, WebSockets, RequestLog, Tracing, *MIDDLEWARES[3:]]
