"""Errors in the form of Anthropic's API, as its client libraries read them.

{"type": "error", "error": {"type": <str>, "message": <str>, "code": <HTTP status>, ...},
 "request_id": <str>}

The types are those of https://docs.anthropic.com/en/api/errors.
"""

from collections.abc import Mapping
from typing import Any, Literal

from starlette.types import Scope

from specllama.engine.errors import ErrorInfo
from specllama.handlers.http.log_fields import log_fields_of
from specllama.handlers.http.streams import sse_event

ErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "timeout_error",
    "request_too_large",
    "api_error",
    "overloaded_error",
]
_TYPE: dict[int, ErrorType] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    501: "invalid_request_error",  # the server is well, the request has to change
    503: "overloaded_error",
}


PING = sse_event({"type": "ping"}, "ping")
"""The event in the silences of a stream."""


def anthropic_request_id(scope: Scope) -> str:
    """The request's id as this API writes it."""
    id = log_fields_of(scope).id
    return id if id.startswith("req_") else f"req_{id}"


def anthropic_error(
    status: int, info: ErrorInfo, request_id: str, details: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The JSON body, also the data of an `error` event in a stream."""
    other: ErrorType = "invalid_request_error" if status < 500 else "api_error"
    kind = _TYPE.get(status, other)
    error: dict[str, Any] = {"type": kind, "message": info.message, "code": status}
    if info.n_prompt_tokens is not None:
        # Agents know by these words that it is time to shorten the conversation.
        counts = f"{info.n_prompt_tokens} tokens > {info.n_ctx} maximum"
        error["message"] = f"prompt is too long: {counts}; {info.message}"
        error |= {"n_prompt_tokens": info.n_prompt_tokens, "n_ctx": info.n_ctx}
        if info.n_prompt_tokens_is_lower_bound:
            error["n_prompt_tokens_is_lower_bound"] = True
    if details:
        error["details"] = details
    return {"type": "error", "error": error, "request_id": request_id}


def error_headers(request_id: str) -> dict[str, str]:
    return {"request-id": request_id}
