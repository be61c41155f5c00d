"""Steps before a request is routed, and after its response.

Limits and timeouts are those of the running server, from the lifespan's state.
"""

import re
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from connexion.middleware.abstract import ROUTING_CONTEXT, SpecMiddleware
from connexion.spec import Specification
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specllama.engine import system
from specllama.handlers.http.bodies import (
    FREE,
    LARGE,
    SHARE,
    BodyBudget,
    Inflated,
    ValueCount,
    coding_of,
)
from specllama.handlers.http.errors import RequestError
from specllama.handlers.http.hosts import permits
from specllama.handlers.http.streams import within
from specllama.handlers.options import ServerOptions
from specllama.handlers.options.tables.http import HttpOptions

JSON = b"application/json"
"""The spelling of a JSON body's content type behind these middlewares."""

_FIELD_NAMES = re.compile(rb"[\w!#$%&'*+.^`|~-]+(?:[ \t]*,[ \t]*[\w!#$%&'*+.^`|~-]+)*")
"""Names of header fields, with commas between (RFC 9110, 5.6.2)."""
_MAX_DIGITS = 20  # of a length, as many as 64 bits have


class Cors:
    """Lets the pages of the origins in --cors-origins use the server: all, unless told otherwise.

    Answers preflight requests itself; stands outside the error handlers, since a page has to
    be able to read the errors as well.
    """

    _EXPOSED = (b"access-control-expose-headers", b"X-Request-Id, X-Specllama-Relaxed")

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        fields = dict(scope["headers"])
        origin = fields.get(b"origin")
        if origin is None:
            return await self.app(scope, receive, send)
        options: HttpOptions = scope["state"]["runtime"].options.http
        allow = self._allowed(origin, options)

        if scope["method"] == "OPTIONS" and b"access-control-request-method" in fields:
            granted = self._preflight(options, fields, is_allowed=len(allow) > 1)
            headers = [*allow, *granted, (b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            return await send({"type": "http.response.body", "body": b""})

        async def send_allowed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *allow, self._EXPOSED]
            await send(message)

        return await self.app(scope, receive, send_allowed)

    @staticmethod
    def _allowed(origin: bytes, options: HttpOptions) -> list[tuple[bytes, bytes]]:
        """What lets a page read an answer; nothing but a hint for caches if it may not."""
        vary = (b"vary", b"Origin")
        if not permits(options.cors_origins, origin.decode("latin-1")):
            return [vary]
        allow = [(b"access-control-allow-origin", origin), vary]
        if options.cors_credentials:
            allow.append((b"access-control-allow-credentials", b"true"))
        return allow

    @staticmethod
    def _preflight(
        options: HttpOptions, asked: Mapping[bytes, bytes], *, is_allowed: bool
    ) -> list[tuple[bytes, bytes]]:
        """The fields that grant what a preflight asks for. With credentials, `*` is the name of a
        field to browsers, so the names that were asked for take its place."""
        names = ", ".join(options.cors_headers).encode()
        wished = asked.get(b"access-control-request-headers", b"")
        if names == b"*" and _FIELD_NAMES.fullmatch(wished):
            names = wished
        granted = [
            (b"access-control-allow-methods", ", ".join(options.cors_methods).encode()),
            (b"access-control-allow-headers", names),
            (b"access-control-max-age", b"86400"),
        ]
        if is_allowed and asked.get(b"access-control-request-private-network") == b"true":
            granted.append((b"access-control-allow-private-network", b"true"))
        return granted


class RequestTimer:
    """Tells the server's metrics how long each request took; does nothing without them."""

    CLIENT_GONE = 499  # as nginx calls it: no answer was begun

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        metrics = scope["state"]["runtime"].metrics if scope["type"] == "http" else None
        if metrics is None:
            return await self.app(scope, receive, send)
        extensions = scope.setdefault("extensions", {})  # where Connexion notes the operation
        status = self.CLIENT_GONE

        async def send_observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        begin = system.now()
        try:
            return await self.app(scope, receive, send_observed)
        finally:
            name = extensions.get(ROUTING_CONTEXT, {}).get("operation_id") or "none"
            operation = name.rpartition(".")[2]  # without the handler's module
            metrics.observe_request(operation, status, system.now() - begin)


class Leases:
    """Gives back what a request holds of the models, when its answer is complete."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        with ExitStack() as scope["state"]["leases"]:
            return await self.app(scope, receive, send)


class Bodies(SpecMiddleware):  # type: ignore[misc]
    """Bounds the size of request bodies and the wait for them, and settles what they are.

    A compressed body is inflated first: all bounds are of what it means.
    No body is larger than --max-body-size, nor than the `x-max-body-size` of its operation. All
    that are held, each until its answer is complete, share a budget.

    A body without a content type, with the one that `curl -d` announces, or with that of plain
    text, which spares web pages a preflight, is taken for JSON.
    JSON gets one spelling, since Connexion's choice of a validator minds the case.
    """

    _TAKEN_FOR_JSON = (JSON, b"", b"application/x-www-form-urlencoded", b"text/plain")

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._limits: dict[str, int] = {}  # MiB, by operationId
        self._budget = BodyBudget()

    def add_api(self, specification: Specification, **_: Any) -> None:
        for item in specification["paths"].values():
            for operation in item.values():
                if isinstance(operation, Mapping) and "x-max-body-size" in operation:
                    self._limits[operation["operationId"]] = operation["x-max-body-size"]

    def _limit(self, scope: Scope, most: int) -> int:
        """Bytes of the body of a request, where `most` MiB hold for all."""
        name = scope.get("extensions", {}).get(ROUTING_CONTEXT, {}).get("operation_id") or ""
        return min(most, self._limits.get(name.rpartition(".")[2], most)) << 20

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):
            return await self.app(scope, receive, send)
        options: ServerOptions = scope["state"]["runtime"].options
        limit = self._limit(scope, options.http.max_body_size)
        length = 0
        kind = coding = b""
        for name, value in scope["headers"]:
            if name == b"content-length":
                length = _length(value)
            elif name == b"content-type":
                kind = value
            elif name == b"content-encoding":
                coding = coding + b"," + value if coding else value
        if length > limit:
            raise _too_large(limit)
        if inflates := coding_of(coding):
            receive = Inflated(receive, inflates, limit).receive
            named = (b"content-encoding", b"content-length")  # of the body as it came
            scope = {**scope, "headers": [f for f in scope["headers"] if f[0] not in named]}
        if kind != JSON and self._essence(kind) in self._TAKEN_FOR_JSON:
            kept = [field for field in scope["headers"] if field[0] != b"content-type"]
            scope = {**scope, "headers": [*kept, (b"content-type", JSON)]}
        body = _Body(receive, limit, options.http, self._budget, scope)
        if self._essence(kind) == b"multipart/form-data":
            body.values = None  # it is no JSON
        try:
            return await self.app(scope, body.receive, send)
        finally:
            body.give_back()

    @staticmethod
    def _essence(kind: bytes) -> bytes:
        return kind.split(b";", 1)[0].strip().lower()


def _length(field: bytes) -> int:
    if len(field) > _MAX_DIGITS:  # zeros in front, and more digits than Python reads
        raise RequestError(400, f"Content-Length has more than {_MAX_DIGITS} digits")
    return int(field) if field.isdigit() else 0


def _too_large(limit: int) -> RequestError:
    # The connection stays open: the server drops the rest of the body. Closing it now would
    # reset it, and a client that is still sending would never see the answer.
    return RequestError(413, f"the body is larger than {limit} bytes")


class _Body:
    """One request's body on its way, of at most `limit` bytes."""

    def __init__(
        self, receive: Receive, limit: int, options: HttpOptions, budget: BodyBudget, scope: Scope
    ) -> None:
        self._receive = receive
        self._limit = limit
        self._timeout = options.timeout
        self._share = SHARE * (options.max_body_size << 20)
        self._budget = budget
        self.values: ValueCount | None = ValueCount()
        self._state = scope["state"]
        self._size = 0
        self._complete = False
        self._taken = 0

    async def receive(self) -> Message:
        """The next message. Raises RequestError for a body that is larger than it may be, and
        when the client sends nothing of it for too long."""
        if self._complete:  # from now on the only message is that the client is gone
            return await self._receive()
        try:
            message = await within(self._timeout, self._receive())
        except TimeoutError:
            late = f"the rest of the body did not come within {self._timeout} seconds"
            raise RequestError(408, late, {"Connection": "close"}) from None
        if message["type"] == "http.request":
            part = message.get("body", b"")
            self._size += len(part)
            self._complete = not message.get("more_body", False)
            if self._size > self._limit:
                raise _too_large(self._limit)
            if self._size > FREE:
                new = self._size - self._taken
                self._budget.take(new, self._share)
                self._taken += new
            if self.values is None:
                return message
            if self._size > LARGE or not self._complete:
                await self.values.add(part)
            if self._complete:  # a small body that comes at once has fewer values than bytes
                self._state["n_values"] = self.values.n or self._size
        return message

    def give_back(self) -> None:
        self._budget.give(self._taken)
