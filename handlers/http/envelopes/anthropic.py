"""Errors in the form of Anthropic's API, as its client libraries read them.

{"type": "error", "error": {"type": <str>, "message": <str>, "code": <HTTP status>, ...},
 "request_id": <str>}

The types are those of https://docs.anthropic.com/en/api/errors.
"""

from typing import Literal, TypeAlias, TypedDict

from starlette.types import Scope

from specllama.engine.errors import ErrorInfo
from specllama.handlers.http import schemas
from specllama.handlers.http.log_fields import log_fields_of
from specllama.handlers.http.streams import sse_event


class UndescribedError(TypedDict):
    """An error before the request reached an operation; the description has no schema for it."""

    type: Literal["not_found_error"]
    message: str
    code: int


ErrorDetails: TypeAlias = (
    schemas.AnthropicInvalidRequestError
    | schemas.AnthropicAuthenticationError
    | schemas.AnthropicPermissionError
    | schemas.AnthropicTimeoutError
    | schemas.AnthropicTooLargeError
    | schemas.AnthropicRateLimitError
    | schemas.AnthropicApiError
    | schemas.AnthropicOverloadedError
    | UndescribedError
)


class AnthropicError(TypedDict):
    """The form of all errors of this API."""

    type: Literal["error"]
    error: ErrorDetails
    request_id: str


_PING: schemas.PingEvent = {"type": "ping"}
PING = sse_event(_PING, "ping")
"""The keep-alive event of a stream."""


def anthropic_request_id(scope: Scope) -> str:
    """Returns the request's id in the form of this API."""
    id = log_fields_of(scope).id
    return id if id.startswith("req_") else f"req_{id}"


def anthropic_error(
    status: int,
    info: ErrorInfo,
    request_id: str,
    details: schemas.AnthropicErrorDetails | None = None,
) -> AnthropicError:
    """Returns the JSON body, which is also the data of an `error` event in a stream. `details` are
    added to an `invalid_request_error`."""
    return {"type": "error", "error": _error(status, info, details), "request_id": request_id}


def _error(
    status: int, info: ErrorInfo, details: schemas.AnthropicErrorDetails | None
) -> ErrorDetails:
    match status:
        case 401:
            return {"type": "authentication_error", "message": info.message, "code": status}
        case 403:
            return {"type": "permission_error", "message": info.message, "code": status}
        case 404:
            return {"type": "not_found_error", "message": info.message, "code": status}
        case 408:
            return {"type": "timeout_error", "message": info.message, "code": status}
        case 413:
            return {"type": "request_too_large", "message": info.message, "code": status}
        case 429:
            return {"type": "rate_limit_error", "message": info.message, "code": status}
        case 503:
            return {"type": "overloaded_error", "message": info.message, "code": status}
        case _ if status >= 500 and status != 501:  # 501 is not a fault of the server
            return {"type": "api_error", "message": info.message, "code": status}
    return _invalid_request(status, info, details)


def _invalid_request(
    status: int, info: ErrorInfo, details: schemas.AnthropicErrorDetails | None
) -> schemas.AnthropicInvalidRequestError:
    """Returns the error for a request that the client has to change."""
    error: schemas.AnthropicInvalidRequestError = {
        "type": "invalid_request_error",
        "message": info.message,
        "code": status,
    }
    if info.n_prompt_tokens is not None and info.n_ctx is not None:
        # Coding agents recognize these words, and shorten the conversation.
        counts = f"{info.n_prompt_tokens} tokens > {info.n_ctx} maximum"
        error["message"] = f"prompt is too long: {counts}; {info.message}"
        error["n_prompt_tokens"] = info.n_prompt_tokens
        error["n_ctx"] = info.n_ctx
        if info.n_prompt_tokens_is_lower_bound:
            error["n_prompt_tokens_is_lower_bound"] = True
    if details:
        error["details"] = details
    return error


def error_headers(request_id: str) -> dict[str, str]:
    return {"request-id": request_id}
