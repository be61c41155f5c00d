"""Connexion's error handler: the error envelope in the form of the path's API.

A path with `x-error-envelope: anthropic`, `gemini` or `ollama` in the description has the form of
that API. A path with `either` has Ollama's form, unless the request is from a client of OpenAI's
API (`handlers.http.envelopes.ollama`).
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from http import HTTPStatus
from typing import Any

import msgspec
from connexion.exceptions import ProblemException
from connexion.lifecycle import ConnexionRequest, ConnexionResponse
from connexion.spec import Specification
from starlette.exceptions import HTTPException
from starlette.routing import compile_path
from starlette.types import Scope

from specllama.handlers.http.envelopes.anthropic import (
    anthropic_error,
    anthropic_request_id,
    error_headers,
)
from specllama.handlers.http.envelopes.gemini import VERSION, gemini_error
from specllama.handlers.http.envelopes.ollama import UNSERVED, ollama_error, wants_ollama_errors
from specllama.handlers.http.errors import HttpFailure, RequestError, describe

METHODS = frozenset({"get", "put", "post", "delete", "options", "head", "patch", "trace"})
"""The keys of a path item that are operations."""

_DOCUMENTS: Mapping[str | None, Callable[[HttpFailure, Scope], Mapping[str, Any]]] = {
    None: lambda failure, _: failure.envelope(),
    "anthropic": lambda failure, scope: anthropic_error(
        failure.status, failure.info, anthropic_request_id(scope), failure.details
    ),
    "gemini": lambda failure, _: gemini_error(failure),
    "ollama": lambda failure, _: ollama_error(failure.info),
}
"""By the name of an envelope: a function that makes the JSON body of an error."""
LONGEST_RETRY = 120
"""The longest wait in seconds after which OpenAI's libraries retry a request."""
_UNDESCRIBED = {VERSION: "gemini", **{f"/api/{name}": "ollama" for name in UNSERVED}}
"""The envelopes of undescribed paths, by their prefix."""


async def answer(request: ConnexionRequest, error: Exception) -> ConnexionResponse:
    """Returns the answer for any exception. It is Connexion's error handler."""
    failure = describe(_explained(error, request.scope), request.scope)
    headers = dict(failure.headers)
    is_long = failure.info.retry_after > LONGEST_RETRY
    if failure.info.final or is_long or failure.status == HTTPStatus.NOT_IMPLEMENTED:
        # Without it, OpenAI's and Anthropic's libraries retry every request with a status >= 500
        # or 429, and Anthropic's wait for as long as `Retry-After` says.
        headers["X-Should-Retry"] = "false"
    if failure.info.retry_after:
        headers["Retry-After"] = str(failure.info.retry_after)
    envelope = _envelope_name(request.scope)
    if envelope == "anthropic":
        headers |= error_headers(anthropic_request_id(request.scope))
    return ConnexionResponse(
        status_code=failure.status,
        mimetype="application/json",
        body=msgspec.json.encode(_DOCUMENTS[envelope](failure, request.scope)),
        headers=headers,
    )


HANDLED = (HTTPException, ProblemException, Exception)
"""The exceptions for which `answer` has to be registered, because Connexion has default handlers
for them."""


def _explained(error: Exception, scope: Scope) -> Exception:
    """Returns `error`, or a RequestError with a better message: Connexion's own detail, or, for
    405, the allowed methods."""
    match error:
        case HTTPException(status_code=401):
            return error  # doesn't reveal what is wrong with the key
        case ProblemException(status=status, detail=detail) if status < 500 and detail:
            return RequestError(status, detail)
        case HTTPException(status_code=405):
            allowed = ", ".join(_allowed_methods(scope))
            message = f"{scope['method']} is not allowed here, only {allowed}."
            return RequestError(405, message, {"Allow": allowed})
    return error


def _allowed_methods(scope: Scope) -> list[str]:
    """Returns the methods that the description has for the path of a request.

    Starlette's own `Allow` has the methods of only one operation.
    """
    path = _path(scope)
    methods: set[str] = set()
    for template, item in _described(scope):
        if _leads_to(path, template, item):
            methods.update(key.upper() for key in item if key in METHODS)
    return sorted(methods | {"HEAD"} if "GET" in methods else methods)


def _leads_to(path: str, template: str, item: Mapping[str, Any]) -> bool:
    return _pattern(_route(template, item)).fullmatch(path) is not None


@cache
def _pattern(route: str) -> re.Pattern[str]:
    regex, _, _ = compile_path(route)
    return re.compile(regex.pattern, re.DOTALL)  # a parameter may contain line breaks


def _route(template: str, item: Mapping[str, Any]) -> str:
    """Returns `template` in Starlette's form, in which a parameter of the format `path` may contain
    slashes."""
    for operation in (item[key] for key in item if key in METHODS):
        for each in operation.get("parameters", ()):
            if each["in"] == "path" and each["schema"].get("format") == "path":
                template = template.replace(f"{{{each['name']}}}", f"{{{each['name']}:path}}")
    return template


def _envelope_name(scope: Scope) -> str | None:
    """Returns the `x-error-envelope` of the request's path. It also applies to unknown paths below
    a described one, and to paths of these APIs that this server doesn't have, because their clients
    read the same form."""
    path = _path(scope)
    for template, item in _described(scope):
        name = item.get("x-error-envelope")
        if name and (_is_below(path, template) or _leads_to(path, template, item)):
            if name == "either":
                return "ollama" if wants_ollama_errors(scope) else None
            return str(name)
    for api in scope["app"].apis:
        for place, name in _UNDESCRIBED.items():
            if _is_below(path, _base(api) + place):
                return name
    return None


def _is_below(path: str, place: str) -> bool:
    return f"{path}/".startswith(f"{place}/")


def _path(scope: Scope) -> str:
    """Returns the path without a proxy's prefix, but with the API prefix. Routing adds the API
    prefix to `root_path`, and saves the original in `app_root_path`."""
    root_path = scope.get("app_root_path", scope.get("root_path", ""))
    return str(scope["path"].removeprefix(root_path))


def _described(scope: Scope) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields (path template with the API prefix, path item) of the whole description."""
    for api in scope["app"].apis:
        for template, item in api.specification["paths"].items():
            yield _base(api) + template, item


def _base(api: Any) -> str:
    specification: Specification = api.specification
    return str(specification.base_path if api.base_path is None else api.base_path)
