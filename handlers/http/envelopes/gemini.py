"""Errors in the form of Google's APIs, as the client libraries of its Gemini API read them.

{"error": {"code": <HTTP status>, "message": <str>, "status": <str>}}

The statuses are the names of gRPC's codes: https://google.aip.dev/193.
"""

from collections.abc import Mapping
from typing import TypedDict

from specllama.engine.errors import ErrorInfo
from specllama.handlers.http.errors import HttpFailure

VERSION = "/v1beta"
"""What all paths of the Gemini API are below, also those that this server doesn't have."""

_STATUSES: Mapping[int, str] = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
}
"""Those of which the request or the server isn't simply at fault."""


class GeminiStatus(TypedDict):
    """What went wrong. `code` is the HTTP status, `status` the name of gRPC's code for it."""

    code: int
    message: str
    status: str


class GeminiError(TypedDict):
    """An error in the form that all of Google's have."""

    error: GeminiStatus


def gemini_error(failure: HttpFailure) -> GeminiError:
    """The JSON body, also the last piece of a stream that fails."""
    code = failure.status
    fault = "INVALID_ARGUMENT" if code < 500 else "INTERNAL"
    status = _STATUSES.get(code, fault)
    return {"error": {"code": code, "message": _message(failure.info), "status": status}}


def _message(info: ErrorInfo) -> str:
    """What is wrong. Programs know a prompt that is too long by Google's words for it."""
    if info.n_prompt_tokens is None or info.n_ctx is None:
        return info.message
    return (
        f"The input token count ({info.n_prompt_tokens}) exceeds the maximum number of tokens "
        f"allowed ({info.n_ctx}); {info.message}"
    )
