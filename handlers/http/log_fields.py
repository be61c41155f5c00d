"""The fields of a request's log line, which are set while the request is served.

The middleware that writes the line (`handlers.http.request_log`) adds them to the state of the ASGI
scope. They contain no text of prompts or answers.
"""

import logging
import re
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from starlette.types import Scope

from specllama.engine import system
from specllama.handlers.http.current import current_scope
from specllama.handlers.http.request_trace import RequestTrace

HEADER = b"x-request-id"
RELAXED_HEADER = b"x-specllama-relaxed"
MAX_RELAXED = 20  # keywords in the header
MAX_KEYWORD = 200  # characters of each
MAX_ID = 128  # characters
MAX_VALUE = 64  # characters of a client's text in a warning
_ID = re.compile(rb"[\x21-\x7e]{1,%d}" % MAX_ID)
_STATE = "log_fields"

log = logging.getLogger(__name__)


@dataclass(slots=True)
class LogFields:
    """The fields of one request. Counts are sums over all its prompts and texts, in tokens."""

    id: str
    arrived: float = 0.0  # when the head of the request was complete (`system.now`)
    key: str = ""  # the name of the request's API key
    model: str = ""  # by its name in the catalog
    n_prompt: int = 0  # cached ones included
    n_cached: int = 0
    missed: str = ""  # why a token wasn't cached: the reason of the first prompt that has one
    n_predicted: int = 0
    predicted_per_second: float = 0.0
    status: int = 0  # of a failure; a failed stream has already sent another status
    relaxed: Sequence[str] = ()  # keywords of schemas that are not enforced
    error: str = ""  # the reason for a failure, without the client's own values
    gone: bool = False  # the client disconnected before the answer was complete
    trace: RequestTrace | None = None  # None if the server exports no trace of this request

    def failed(self, status: int, error: str) -> None:
        self.status, self.error = status, error


def begin_log_fields(scope: Scope) -> LogFields:
    """Returns new fields for the request of `scope`, with the id from its header or a new one."""
    fields = scope["state"][_STATE] = LogFields(request_id(scope["headers"]), system.now())
    return fields


def log_fields_of(scope: Scope) -> LogFields:
    fields: LogFields = scope["state"][_STATE]
    return fields


def log_fields() -> LogFields:
    """Returns the fields of the current request."""
    return log_fields_of(current_scope())


def request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Returns the first `X-Request-Id` if it has at most `MAX_ID` visible ASCII characters,
    otherwise a new id."""
    for name, value in headers:
        if name == HEADER:
            if _ID.fullmatch(value):
                return value.decode("ascii")
            break
    return "req_" + secrets.token_urlsafe(18)


def relaxed_header(keywords: Sequence[str]) -> str:
    """Returns the value of `RELAXED_HEADER`: URI references, which are ASCII without spaces and
    commas."""
    shown = [
        quote(each[:MAX_KEYWORD], safe="/#$~:@+", errors="replace")
        for each in keywords[:MAX_RELAXED]
    ]
    return ", ".join([*shown, "..."] if len(keywords) > MAX_RELAXED else shown)


def warn_ignored(text: str, *values: Any) -> None:
    """Logs a warning about a part of the current request that is ignored, because the answer is
    still useful without it. `values` are formatted into `text` as by `logging`."""
    log.warning(text, *map(_one_line, values))


class WithTraceId(logging.Filter):
    """Adds the `trace_id` of the current request to log records; drops none."""

    def filter(self, record: logging.LogRecord) -> bool:
        with suppress(LookupError):
            if (trace := log_fields().trace) is not None:
                record.trace_id = trace.trace_id
        return True


def _one_line(value: Any) -> Any:
    """Returns the first `MAX_VALUE` characters of a text, with line breaks escaped; any other value
    unchanged."""
    return repr(value[:MAX_VALUE])[1:-1] if isinstance(value, str) else value
