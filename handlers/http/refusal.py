"""The answer to what never becomes a request: its head can't be read, is too large, or doesn't
come."""

import logging
from http import HTTPStatus

import msgspec

from specllama.handlers.http.errors import RequestError
from specllama.handlers.http.notes import request_id
from specllama.handlers.http.request_log import request_line

log = logging.getLogger("http")


def refusal(error: RequestError) -> bytes:
    """A whole answer with the error's envelope, behind which the connection ends; noted in the
    log like any other."""
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
