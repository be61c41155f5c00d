"""Middlewares of our own: CORS, time measurements, leases of models, limits of bodies.

Limits and timeouts are those of the running server, from the lifespan's state.
"""

import re
import time
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
from specllama.handlers.http.rate_limits import (
    NAMES,
    Header,
    RateLimit,
    anthropic_headers,
    openai_headers,
)
from specllama.handlers.http.streams import within
from specllama.handlers.options import ServerOptions
from specllama.handlers.options.tables.http import HttpOptions
from specllama.handlers.running.admission import has_quotas, rate_limits

JSON = b"application/json"
"""The content type of a JSON body for the inner middlewares."""

_FIELD_NAMES = re.compile(rb"[\w!#$%&'*+.^`|~-]+(?:[ \t]*,[ \t]*[\w!#$%&'*+.^`|~-]+)*")
"""Names of header fields, with commas between (RFC 9110, 5.6.2)."""
_MAX_DIGITS = 20  # of Content-Length; the largest number of 64 bits has 20 digits


class Cors:
    """Lets pages of the origins in --cors-origins, by default all, use the server.

    Answers preflight requests itself. It is outside of the error handlers, so that pages can read
    errors, too.
    """

    _EXPOSED = (
        b"access-control-expose-headers",
        ", ".join(
            ["X-Request-Id", "X-Specllama-Relaxed", "traceresponse", "Retry-After", *NAMES]
        ).encode(),
    )

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
        """Returns the headers that let a page of `origin` read the answer; only a header for caches
        if the page may not read it."""
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
        """Returns the headers of the answer to a preflight request. For requests with credentials,
        browsers regard `*` as the name of a field, so the requested names replace it."""
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


class RateLimits:
    """Adds the limits of the request's API key to every answer, if the key has limits: in
    Anthropic's headers below the paths of that API, otherwise in OpenAI's."""

    _ANTHROPIC = "/v1/messages"

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not has_quotas(scope):
            return await self.app(scope, receive, send)

        async def send_limited(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [each for limit in await rate_limits(scope) for each in form(limit)]
                message["headers"] = [*message["headers"], *headers]
            await send(message)

        form = self._anthropic if self._is_anthropic(scope) else openai_headers
        return await self.app(scope, receive, send_limited)

    def _is_anthropic(self, scope: Scope) -> bool:
        prefix = scope["state"]["runtime"].options.http.api_prefix
        path = str(scope["path"]).removeprefix(scope.get("root_path", "")).removeprefix(prefix)
        return f"{path}/".startswith(f"{self._ANTHROPIC}/")

    @staticmethod
    def _anthropic(limit: RateLimit) -> list[Header]:
        return anthropic_headers(limit, time.time())


class RequestTimer:
    """Reports the duration of each request to the server's metrics, if it has any."""

    CLIENT_GONE = 499  # nginx' status for a client that disconnects before the answer

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        metrics = scope["state"]["runtime"].metrics if scope["type"] == "http" else None
        if metrics is None:
            return await self.app(scope, receive, send)
        extensions = scope.setdefault("extensions", {})  # where Connexion puts the operation
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
    """Releases a request's leases of models when its answer is complete."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        with ExitStack() as scope["state"]["leases"]:
            return await self.app(scope, receive, send)


class Bodies(SpecMiddleware):  # type: ignore[misc]
    """Limits the size of request bodies and the wait for them, and sets their content type.

    A compressed body is decompressed first; the limits apply to the decompressed body. They are
    --max-body-size and the `x-max-body-size` of the operation. All bodies share a budget; each is
    in memory until its answer is complete.

    A body is treated as JSON if it has no content type, that of `curl -d`, or that of plain text,
    with which web pages avoid a preflight request. The content type of JSON is then always spelled
    `application/json`, since Connexion's choice of a validator is case-sensitive.
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
        """Returns the limit for the body of a request, in bytes. `most` is the server's limit, in
        MiB."""
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
            named = (b"content-encoding", b"content-length")  # of the compressed body
            scope = {**scope, "headers": [f for f in scope["headers"] if f[0] not in named]}
        if kind != JSON and self._essence(kind) in self._TAKEN_FOR_JSON:
            kept = [field for field in scope["headers"] if field[0] != b"content-type"]
            scope = {**scope, "headers": [*kept, (b"content-type", JSON)]}
        body = _Body(receive, limit, options.http, self._budget, scope)
        if self._essence(kind) == b"multipart/form-data":
            body.values = None  # a form has no JSON values to count
        try:
            return await self.app(scope, body.receive, send)
        finally:
            body.give_back()

    @staticmethod
    def _essence(kind: bytes) -> bytes:
        return kind.split(b";", 1)[0].strip().lower()


def _length(field: bytes) -> int:
    if len(field) > _MAX_DIGITS:  # including leading zeros; Python limits the digits of an int
        raise RequestError(400, f"Content-Length has more than {_MAX_DIGITS} digits")
    return int(field) if field.isdigit() else 0


def _too_large(limit: int) -> RequestError:
    # The connection stays open, and the server drops the rest of the body. Closing it now would
    # reset it, and a client that is still sending would not get the answer.
    return RequestError(413, f"the body is larger than {limit} bytes")


class _Body:
    """The messages of one request's body, of at most `limit` bytes."""

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
        """Returns the next message. Raises RequestError for a body that is too large, and if the
        client doesn't send the next part in time."""
        if self._complete:  # the only further message is that the client has disconnected
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
            if self._complete:  # a small body in one part isn't counted; its bytes are a bound
                self._state["n_values"] = self.values.n or self._size
        return message

    def give_back(self) -> None:
        self._budget.give(self._taken)
