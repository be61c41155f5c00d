"""Errors that end a request, as plain data that crosses the process boundary."""

from typing import Literal

import msgspec

ErrorType = Literal[
    "invalid_request_error",
    "exceed_context_size_error",
    "authentication_error",
    "permission_error",
    "feature_disabled",
    "not_found_error",
    "server_error",
    "rate_limit_error",
    "not_supported_error",
    "unavailable_error",
]


class ErrorInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """The error of one request. `n_prompt_tokens` and `n_ctx` belong to exceed_context_size_error.
    With `n_prompt_tokens_is_lower_bound`, the prompt was too long to be counted completely.
    `final`: the same request would fail again, regardless of the type. `retry_after`: seconds after
    which a retry may succeed; 0: unknown. `estimated_wait_ms`: how long the request would wait for
    a slot, for an unavailable_error of the queue. `n_tokens`: how many tokens the request may use,
    for a rate_limit_error of the engine. `reason`: what is wrong, for programs, if the type alone
    doesn't say it."""

    type: ErrorType
    message: str
    n_prompt_tokens: int | None = None
    n_ctx: int | None = None
    final: bool = False
    retry_after: int = 0
    n_prompt_tokens_is_lower_bound: bool = False
    estimated_wait_ms: int | None = None
    n_tokens: int = 0
    reason: Literal["", "previous_response_not_found"] = ""


class BackendError(Exception):
    """An error of llama.cpp, or of a file for it. The message is one line for the administrator."""


class EngineError(Exception):
    """Ends a request with `info`, which the handlers turn into the HTTP error envelope."""

    def __init__(self, info: ErrorInfo) -> None:
        super().__init__(info.message)
        self.info = info

    @classmethod
    def of(cls, type: ErrorType, message: str) -> "EngineError":
        return cls(ErrorInfo(type=type, message=message))


def invalid_request(message: str) -> EngineError:
    return EngineError.of("invalid_request_error", message)


def not_supported(message: str) -> EngineError:
    return EngineError.of("not_supported_error", message)


def unavailable(message: str) -> EngineError:
    return EngineError.of("unavailable_error", message)


def server_error(message: str, *, final: bool = False) -> EngineError:
    return EngineError(ErrorInfo(type="server_error", message=message, final=final))
