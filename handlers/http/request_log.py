"""The outermost middleware: an id for every request, and a line about it in the log.

POST /v1/chat/completions 200 key=me model=tiny in=12 cached=4 missed=new out=32 ms=45.2 id=req_...
"""

import logging
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specllama.engine import system
from specllama.handlers.http.errors import RequestError
from specllama.handlers.http.log_fields import (
    HEADER,
    RELAXED_HEADER,
    LogFields,
    begin_log_fields,
    relaxed_header,
    request_id,
)

log = logging.getLogger("http")

CLIENT_GONE = 499  # nginx' status for a client that disconnects before the answer
MAX_ERROR = 300  # characters of an error's message in the log
MAX_PATH = 200
_POLLED = ("health", "metrics", "slots", "queue", "loads", "get_load")
"""The ends of paths that programs and pages request every few seconds."""
_AS_EVER = (200, 503, CLIENT_GONE)  # their usual statuses, also while the server starts or ends


class RequestLog:
    """Adds `X-Request-Id` to every answer, and `X-Specllama-Relaxed` if a schema is not fully
    enforced. Logs one line for every request."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        collected = begin_log_fields(scope)
        header = (HEADER, collected.id.encode())
        status, complete = 0, False

        async def send_with_headers(message: Message) -> None:
            nonlocal status, complete
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], header]
                if collected.relaxed:
                    relaxed = relaxed_header(collected.relaxed).encode()
                    message["headers"].append((RELAXED_HEADER, relaxed))
            else:
                complete = not message.get("more_body", False)
            await send(message)

        try:
            return await self.app(scope, receive, send_with_headers)
        finally:
            ms = 1000 * (system.now() - collected.arrived)
            if not status or collected.gone:
                status, complete = CLIENT_GONE, False
            level = _level(scope, status, collected)
            if log.isEnabledFor(level):
                fields = request_fields(scope, status, ms, collected, complete=complete)
                log.log(level, "%s", request_line(fields), extra={"fields": fields})


def _level(scope: Scope, status: int, collected: LogFields) -> int:
    if 500 in (status, collected.status):
        return logging.WARNING  # a fault of the server, unlike 501 and 503
    of_page = scope["path"].rpartition("/")[0].endswith("/ui")
    if (is_polled(scope) and status in _AS_EVER) or (of_page and status in (200, 304)):
        return logging.DEBUG
    return logging.INFO


def is_polled(scope: Scope) -> bool:
    """Returns whether programs send such a request again and again."""
    return scope["path"].rpartition("/")[2] in _POLLED or scope["method"] == "OPTIONS"


def request_fields(
    scope: Scope, status: int, ms: float, collected: LogFields, *, complete: bool
) -> dict[str, Any]:
    """Returns the fields of the line, without empty ones."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    fields: dict[str, Any] = {
        "method": scope["method"],
        "path": escaped(raw.decode("latin-1"), MAX_PATH),
        "status": status,
    }
    if collected.key:
        fields["key"] = collected.key
    if collected.model:
        fields["model"] = collected.model
    if collected.n_prompt:
        fields["tokens_in"] = collected.n_prompt
        fields["tokens_cached"] = collected.n_cached
    if collected.missed:
        fields["cache_miss_reason"] = collected.missed
    if collected.n_predicted:
        fields["tokens_out"] = collected.n_predicted
    fields["ms"] = round(ms, 1)
    if collected.predicted_per_second:
        fields["tokens_per_second"] = round(collected.predicted_per_second, 1)
    if collected.relaxed:
        fields["relaxed"] = relaxed_header(collected.relaxed)
    fields["request_id"] = collected.id
    if collected.trace is not None:
        fields["trace_id"] = collected.trace.trace_id
    if not complete:
        fields["client_gone"] = True
    if collected.error:
        fields["error"] = escaped(collected.error, MAX_ERROR)
    return fields


_NAMES = {
    "tokens_in": "in",
    "tokens_cached": "cached",
    "cache_miss_reason": "missed",
    "tokens_out": "out",
    "tokens_per_second": "tokens/s",
    "request_id": "id",
}


def request_line(fields: dict[str, Any]) -> str:
    """Returns the line as text."""
    words = [fields["method"], fields["path"], str(fields["status"])]
    for name, value in fields.items():
        if name == "client_gone":
            words.append("client=gone")
        elif name in ("key", "model", "error", "relaxed"):
            words.append(f"{name}={_quoted(value)}")
        elif name not in ("method", "path", "status"):
            words.append(f"{_NAMES.get(name, name)}={value}")
    return " ".join(words)


def _quoted(text: str) -> str:
    """Returns `text` as one word: in quotes if it contains a space, a quote or `=`."""
    if text.isprintable() and not any(char in text for char in ' "='):
        return text
    inner = escaped(text.replace("\\", "\\\\").replace('"', '\\"'))
    return f'"{inner}"'


def escaped(text: str, limit: int | None = None) -> str:
    """Returns the first `limit` characters of `text`, with control characters, line breaks and
    marks of the text's direction escaped."""
    if limit is not None and len(text) > limit:
        text = text[:limit] + "..."
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


# ---- Refusals of connections whose head is invalid, too large, or doesn't arrive.


def refusal(error: RequestError) -> bytes:
    """Returns a whole HTTP answer with the error's envelope, after which the connection is closed,
    and logs its line."""
    failure, id = error.failure, request_id(())
    fields = {
        "method": "-",
        "path": "-",
        "status": failure.status,
        "request_id": id,
        "error": failure.info.message,
    }
    log.info("%s", request_line(fields), extra={"fields": fields})
    body = msgspec.json.encode(failure.envelope())
    head = (
        f"HTTP/1.1 {failure.status} {HTTPStatus(failure.status).phrase}\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n"
        f"X-Request-Id: {id}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body
