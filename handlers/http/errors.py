"""The error envelope: the form of the answers to failed requests.

{"error": {"code": <HTTP status>, "message": <str>, "type": <str>, ...}}

Paths of other APIs have other forms (`handlers.binding.errors`).
"""

import logging
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Scope

from specllama.engine.errors import EngineError, ErrorInfo, ErrorType
from specllama.engine.formats.schema_errors import Sentence
from specllama.handlers.http import schemas
from specllama.handlers.http.log_fields import log_fields_of

log = logging.getLogger(__name__)

STATUS: dict[ErrorType, int] = {
    "invalid_request_error": 400,
    "exceed_context_size_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "feature_disabled": 403,
    "not_found_error": 404,
    "rate_limit_error": 429,
    "server_error": 500,
    "not_supported_error": 501,
    "unavailable_error": 503,
}
_TYPE: dict[int, ErrorType] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    501: "not_supported_error",
    503: "unavailable_error",
}


class HttpFailure(msgspec.Struct, frozen=True):
    """An error for the client. `details` are for programs, in APIs whose envelope has them.
    `discreet` is the message without the client's own values, if the message contains any."""

    status: int
    info: ErrorInfo
    headers: dict[str, str] = {}
    details: schemas.AnthropicErrorDetails | None = None
    discreet: str = ""

    def envelope(self) -> dict[str, Any]:
        """Returns the JSON body, which is also the data of an error event in a stream."""
        error = {"code": self.status, "message": self.info.message, "type": self.info.type}
        more = msgspec.to_builtins(self.info)
        for in_header in ("final", "retry_after", "n_tokens"):
            more.pop(in_header, None)
        return {"error": error | more}


class RequestError(Exception):
    """Ends a request with an HTTP status that EngineError can't express (408, 413, ...), or with
    `details`."""

    def __init__(
        self,
        status: int,
        message: str,
        headers: dict[str, str] | None = None,
        *,
        details: schemas.AnthropicErrorDetails | None = None,
    ) -> None:
        super().__init__(message)
        self.failure = _failure(status, message, headers, details)


def _failure(
    status: int,
    message: str,
    headers: dict[str, str] | None = None,
    details: schemas.AnthropicErrorDetails | None = None,
) -> HttpFailure:
    """Returns a failure with an HTTP status, which determines its type."""
    other: ErrorType = "invalid_request_error" if status < 500 else "server_error"
    info = ErrorInfo(_TYPE.get(status, other), str(message))
    discreet = message.discreet if isinstance(message, Sentence) else ""
    return HttpFailure(status, info, headers or {}, details, discreet)


def describe(error: Exception, scope: Scope) -> HttpFailure:
    """Returns the failure for an exception that ended the request of `scope`, and sets the log
    fields.

    An unforeseen exception is logged, but not shown to the client.
    """
    failure, fields = _describe(error, scope), log_fields_of(scope)
    fields.failed(failure.status, failure.discreet or failure.info.message)
    fields.gone |= isinstance(error, ClientDisconnect)
    return failure


def _describe(error: Exception, scope: Scope) -> HttpFailure:
    match error:
        case EngineError(info=info):
            return HttpFailure(STATUS[info.type], info)
        case RequestError(failure=failure):
            return failure
        case ClientDisconnect():
            return _failure(400, "the client disconnected before the answer was ready")
        case HTTPException(status_code=401):  # doesn't reveal what is wrong with the key
            return _failure(401, "Invalid API Key", {"WWW-Authenticate": "Bearer"})
        case HTTPException(status_code=404):
            return _failure(404, _unknown(scope))
        case HTTPException(status_code=status, headers=headers) if status < 500:
            return _failure(status, HTTPStatus(status).phrase, dict(headers or {}))
    log.error("a request failed unexpectedly", exc_info=error)
    return _failure(500, "the server failed to answer this request; its log says why")


def _unknown(scope: Scope) -> str:
    path = scope["path"]
    return f"there is no path {path if len(path) <= 100 else path[:100] + '...'}"
