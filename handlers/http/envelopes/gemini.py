"""Errors in the form of Google's APIs, as the client libraries of its Gemini API read them.

{"error": {"code": <HTTP status>, "message": <str>, "status": <str>}}

The statuses are the names of gRPC's codes: https://google.aip.dev/193.
"""

from collections.abc import Mapping
from typing import TypedDict

from specllama.engine.errors import ErrorInfo
from specllama.handlers.http.errors import HttpFailure

VERSION = "/v1beta"
"""The prefix of all paths of the Gemini API, also of paths that this server doesn't have."""

_STATUSES: Mapping[int, str] = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    429: "RESOURCE_EXHAUSTED",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
}
"""Statuses other than INVALID_ARGUMENT and INTERNAL."""


class GeminiStatus(TypedDict):
    """The content of an error. `code` is the HTTP status, `status` the name of gRPC's code for
    it."""

    code: int
    message: str
    status: str


class GeminiError(TypedDict):
    """The form of all errors of Google's APIs."""

    error: GeminiStatus


def gemini_error(failure: HttpFailure) -> GeminiError:
    """Returns the JSON body, which is also the last piece of a failed stream."""
    code = failure.status
    fault = "INVALID_ARGUMENT" if code < 500 else "INTERNAL"
    status = _STATUSES.get(code, fault)
    return {"error": {"code": code, "message": _message(failure.info), "status": status}}


def _message(info: ErrorInfo) -> str:
    """Returns the message. For a prompt that is too long, it has Google's words, by which programs
    recognize the error."""
    if info.n_prompt_tokens is None or info.n_ctx is None:
        return info.message
    return (
        f"The input token count ({info.n_prompt_tokens}) exceeds the maximum number of tokens "
        f"allowed ({info.n_ctx}); {info.message}"
    )
