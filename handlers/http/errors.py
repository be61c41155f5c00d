"""The error envelope: every way in which a request can fail, as one kind of answer.

{"error": {"code": <HTTP status>, "message": <str>, "type": <str>, ...}}

A path whose description says `x-error-envelope: anthropic`, or `ollama`, has the form of that API
instead; one that says `either` has Ollama's unless the request is OpenAI's
(`handlers.http.envelopes.ollama`).
"""

import logging
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from connexion.exceptions import ProblemException
from connexion.lifecycle import ConnexionRequest, ConnexionResponse
from connexion.spec import Specification
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import compile_path
from starlette.types import Scope

from specllama.engine.errors import EngineError, ErrorInfo, ErrorType
from specllama.handlers.http.envelopes.anthropic import (
    anthropic_error,
    anthropic_request_id,
    error_headers,
)
from specllama.handlers.http.envelopes.ollama import UNSERVED, ollama_error, wants_ollama_errors
from specllama.handlers.http.notes import notes_of
from specllama.handlers.http.validation_messages import Sentence

log = logging.getLogger(__name__)

STATUS: dict[ErrorType, int] = {
    "invalid_request_error": 400,
    "exceed_context_size_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "feature_disabled": 403,
    "not_found_error": 404,
    "server_error": 500,
    "not_supported_error": 501,
    "unavailable_error": 503,
}
_TYPE: dict[int, ErrorType] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    501: "not_supported_error",
    503: "unavailable_error",
}
_METHODS = frozenset({"get", "put", "post", "delete", "options", "head", "patch", "trace"})


class Failure(msgspec.Struct, frozen=True):
    """An error on its way to the client. `details` are for programs to act on, in APIs whose
    envelope has a place for them. `discreet` is the message without the client's own values,
    where it has some."""

    status: int
    info: ErrorInfo
    headers: dict[str, str] = {}
    details: dict[str, Any] = {}
    discreet: str = ""

    def envelope(self) -> dict[str, Any]:
        """The JSON body, also the data of an error event in a stream."""
        error = {"code": self.status, "message": self.info.message, "type": self.info.type}
        told = msgspec.to_builtins(self.info)
        for said_by_header in ("final", "retry_after"):
            told.pop(said_by_header, None)
        return {"error": error | told}


class RequestError(Exception):
    """Ends a request with an HTTP status that no engine error stands for (408, 413, ...), or
    with `details`."""

    def __init__(
        self,
        status: int,
        message: str,
        headers: dict[str, str] | None = None,
        *,
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.failure = _failure(status, message, headers, details)


def _failure(
    status: int,
    message: str,
    headers: dict[str, str] | None = None,
    details: dict[str, Any] | None = None,
) -> Failure:
    """The failure with an HTTP status; its type follows from that."""
    other: ErrorType = "invalid_request_error" if status < 500 else "server_error"
    info = ErrorInfo(_TYPE.get(status, other), message)
    return Failure(status, info, headers or {}, details or {})


def describe(error: Exception, scope: Scope) -> Failure:
    """The answer to the client of `scope` about an exception that ended its request; noted for the
    line in the log as well.

    An unforeseen exception goes to the log, and no word of it to the client.
    """
    failure, noted = _describe(error, scope), notes_of(scope)
    noted.failed(failure.status, failure.discreet or failure.info.message)
    noted.gone |= isinstance(error, ClientDisconnect)
    return failure


def _describe(error: Exception, scope: Scope) -> Failure:
    match error:
        case EngineError(info=info):
            return Failure(STATUS[info.type], info)
        case RequestError(failure=failure):
            return failure
        case ClientDisconnect():
            return _failure(400, "the client went away before the answer was ready")
        case HTTPException(status_code=401):  # of whichever kind: what was wrong stays secret
            return _failure(401, "Invalid API Key", {"WWW-Authenticate": "Bearer"})
        case ProblemException(status=status, detail=detail) if status < 500 and detail:
            failure = _failure(status, str(detail))
            if isinstance(detail, Sentence):
                failure = msgspec.structs.replace(failure, discreet=detail.discreet)
            return failure
        case HTTPException(status_code=404):
            return _failure(404, _unknown(scope))
        case HTTPException(status_code=405):
            allowed = ", ".join(_allowed_methods(scope))
            message = f"{scope['method']} is not allowed here, only {allowed}."
            return _failure(405, message, {"Allow": allowed})
        case HTTPException(status_code=status, headers=headers) if status < 500:
            return _failure(status, HTTPStatus(status).phrase, dict(headers or {}))
    log.error("a request failed unexpectedly", exc_info=error)
    return _failure(500, "the server failed to answer this request; its log says why")


def _unknown(scope: Scope) -> str:
    path = scope["path"]
    return f"there is no path {path if len(path) <= 100 else path[:100] + '...'}"


def _allowed_methods(scope: Scope) -> list[str]:
    """The methods that the description has for the path of a request.

    Starlette's own `Allow` names those of one operation only.
    """
    path = _path(scope)
    methods: set[str] = set()
    for template, item in _described(scope):
        regex, _, _ = compile_path(_route(template, item))
        if regex.fullmatch(path):
            methods.update(key.upper() for key in item if key in _METHODS)
    return sorted(methods | {"HEAD"} if "GET" in methods else methods)


def _route(template: str, item: Mapping[str, Any]) -> str:
    """`template` as routing reads it: a parameter of the format `path` may have slashes."""
    for operation in (item[key] for key in item if key in _METHODS):
        for each in operation.get("parameters", ()):
            if each["in"] == "path" and each["schema"].get("format") == "path":
                template = template.replace(f"{{{each['name']}}}", f"{{{each['name']}:path}}")
    return template


def _envelope_name(scope: Scope) -> str | None:
    """The `x-error-envelope` of the request's path. It holds for all that is below a path,
    too: who asks for what isn't there speaks the same language. So it is with Ollama's paths that
    this server doesn't have."""
    path = _path(scope)
    for template, item in _described(scope):
        if (name := item.get("x-error-envelope")) and f"{path}/".startswith(f"{template}/"):
            if name == "either":
                return "ollama" if wants_ollama_errors(scope) else None
            return str(name)
    return "ollama" if _is_ollamas(scope, path) else None


def _is_ollamas(scope: Scope, path: str) -> bool:
    return any(
        f"{path}/".startswith(f"{_base(api)}/api/{name}/")
        for api in scope["app"].apis
        for name in UNSERVED
    )


def _path(scope: Scope) -> str:
    """The path behind what a proxy has put before it. Routing counts the API prefix in with
    that, and notes what it was without."""
    root_path = scope.get("app_root_path", scope.get("root_path", ""))
    return str(scope["path"].removeprefix(root_path))


def _described(scope: Scope) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(path template behind the API prefix, path item) of everything that is described."""
    for api in scope["app"].apis:
        for template, item in api.specification["paths"].items():
            yield _base(api) + template, item


def _base(api: Any) -> str:
    specification: Specification = api.specification
    return str(specification.base_path if api.base_path is None else api.base_path)


async def answer(request: ConnexionRequest, error: Exception) -> ConnexionResponse:
    """Connexion's error handler for every class of exception."""
    failure = describe(error, request.scope)
    headers = dict(failure.headers)
    if failure.info.final or failure.status == HTTPStatus.NOT_IMPLEMENTED:
        # OpenAI's and Anthropic's libraries send whatever is 500 or more again, unless told so.
        headers["X-Should-Retry"] = "false"
    if failure.info.retry_after:
        headers["Retry-After"] = str(failure.info.retry_after)
    envelope = _envelope_name(request.scope)
    if envelope == "anthropic":
        request_id = anthropic_request_id(request.scope)
        document = anthropic_error(failure.status, failure.info, request_id, failure.details)
        headers |= error_headers(request_id)
    elif envelope == "ollama":
        document = ollama_error(failure.info)
    else:
        document = failure.envelope()
    return ConnexionResponse(
        status_code=failure.status,
        mimetype="application/json",
        body=msgspec.json.encode(document),
        headers=headers,
    )


HANDLED = (HTTPException, ProblemException, Exception)
"""The exceptions that `answer` has to be registered for: Connexion brings handlers of its own for
these."""
