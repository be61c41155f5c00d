"""Requests that the server makes of itself, on behalf of the client of another request.

Such a request passes all middlewares: it is logged, checked, validated and admitted like a request
of the same client over the network.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specllama.handlers.http.current import current_scope
from specllama.handlers.http.log_fields import HEADER, log_fields

_STATE = "subrequests"
_OWN_HEADERS = frozenset(
    {b"content-type", b"content-length", b"content-encoding", b"transfer-encoding", b"expect"}
    | {b"accept-encoding", b"connection", b"upgrade", b"sec-websocket-key"}
    | {b"sec-websocket-version", b"sec-websocket-extensions", b"sec-websocket-protocol"}
    | {b"x-conversation-id", HEADER}
)
"""Headers of a request that only this request has: about its body, its connection, its id, and its
stream."""


class Subanswer(NamedTuple):
    """An answer with its content, which is incomplete if it `is_cut`: it was too large."""

    status: int
    media_type: str
    content: bytes
    is_cut: bool = False


class Subrequests:
    """Makes requests for the client of `scope`, by the application `app` of all middlewares.
    `operations` are the paths of the operations that may be requested, by their names."""

    def __init__(self, app: ASGIApp, scope: Scope, base: str, operations: dict[str, str]) -> None:
        self._app = app
        self._scope = {**scope, "state": {**scope["state"]}}
        self._base = base
        self.operations = operations

    def attach(self, scope: Scope) -> None:
        """Makes this object the one of the request of `scope`."""
        scope["state"][_STATE] = self

    async def post(self, path: str, body: bytes, take: Callable[[int], bool]) -> Subanswer:
        """Returns the answer to a request with a JSON body. `take` gets the size of each part of
        the answer, and returns whether there is room for it. Must be called in a task of its own:
        the request becomes the current one of the task."""
        where = self._base + path
        scope = {
            **self._scope,
            "method": "POST",
            "path": where,
            "raw_path": where.encode(),
            "headers": [*json_headers(self._scope, body), (HEADER, log_fields().id.encode())],
            "state": {**self._scope["state"]},
        }
        answer = _Collected(take)
        try:
            await self._app(scope, _receiving(body), answer.send)
        except Exception:
            if not answer.status:  # otherwise a middleware has logged the exception, and answered
                raise
        return Subanswer(answer.status, answer.media_type, bytes(answer.content), answer.is_cut)


def json_headers(scope: Scope, body: bytes) -> list[tuple[bytes, bytes]]:
    """Returns the headers of a request with a JSON `body`, on behalf of the client of `scope`."""
    kept = [field for field in scope["headers"] if field[0] not in _OWN_HEADERS]
    length = (b"content-length", str(len(body)).encode())
    return [*kept, (b"content-type", b"application/json"), length]


def subrequests() -> Subrequests | None:
    """Returns the object for requests on behalf of the current one, if it may make any."""
    found: Subrequests | None = current_scope()["state"].get(_STATE)
    return found


def _receiving(body: bytes) -> Receive:
    """Returns the channel of a client that sends `body` and stays."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await asyncio.get_running_loop().create_future()  # until this task is cancelled
        raise AssertionError("nothing sets the result")

    return receive


class _Collected:
    """The answer, as far as there is room for it."""

    def __init__(self, take: Callable[[int], bool]) -> None:
        self._take = take
        self.status = 0
        self.media_type = ""
        self.content = bytearray()
        self.is_cut = False

    @property
    def send(self) -> Send:
        return self._send

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            for name, value in message["headers"]:
                if name.lower() == b"content-type":
                    self.media_type = value.decode("latin-1").partition(";")[0].strip()
        elif not self.is_cut and (part := message.get("body", b"")):
            if self._take(len(part)):
                self.content += part
            else:
                self.is_cut, self.content = True, bytearray()
