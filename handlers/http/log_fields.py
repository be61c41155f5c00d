"""What the line in the log says of one request, collected while the request is served.

The fields lie in the state of the ASGI scope, where the middleware puts them that writes the line
(`handlers.http.request_log`). Nothing in them is content.
"""

import logging
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from starlette.types import Scope

from specllama.handlers.http.current import current_scope

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
    """Counts are tokens of all prompts and texts of the request."""

    id: str
    model: str = ""  # by its name in the catalog
    n_prompt: int = 0  # cached ones included
    n_cached: int = 0
    n_predicted: int = 0
    predicted_per_second: float = 0.0
    status: int = 0  # of the failure: in a stream, the answer's own was sent long before
    relaxed: Sequence[str] = ()  # keywords of schemas that are not in force
    error: str = ""  # why it failed, without anything that the client sent as content
    gone: bool = False  # the client went away before its answer was complete

    def failed(self, status: int, error: str) -> None:
        self.status, self.error = status, error


def begin_log_fields(scope: Scope) -> LogFields:
    """New fields of the request of `scope`, with the id that it brings along, or a new one."""
    fields = scope["state"][_STATE] = LogFields(request_id(scope["headers"]))
    return fields


def log_fields_of(scope: Scope) -> LogFields:
    fields: LogFields = scope["state"][_STATE]
    return fields


def log_fields() -> LogFields:
    """The fields of the current request."""
    return log_fields_of(current_scope())


def request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The first `X-Request-Id` if it is of at most `MAX_ID` visible ASCII characters, else a
    new one."""
    for name, value in headers:
        if name == HEADER:
            if _ID.fullmatch(value):
                return value.decode("ascii")
            break
    return "req_" + secrets.token_urlsafe(18)


def relaxed_header(keywords: Sequence[str]) -> str:
    """The value of `RELAXED_HEADER`: URI references, so of ASCII without spaces and commas."""
    told = [
        quote(each[:MAX_KEYWORD], safe="/#$~:@+", errors="replace")
        for each in keywords[:MAX_RELAXED]
    ]
    return ", ".join([*told, "..."] if len(keywords) > MAX_RELAXED else told)


def warn_ignored(text: str, *values: Any) -> None:
    """Logs a warning about a part of the current request that is ignored, because the answer is
    still useful without it. `values` are formatted into `text` as by `logging`."""
    log.warning(text, *map(_one_line, values))


def _one_line(value: Any) -> Any:
    """A text as the first `MAX_VALUE` characters of it, with escapes for line breaks."""
    return repr(value[:MAX_VALUE])[1:-1] if isinstance(value, str) else value
