"""The middleware for traces, which a server without `--otel` doesn't have."""

from typing import TYPE_CHECKING

from connexion.middleware.abstract import ROUTING_CONTEXT, SpecMiddleware
from connexion.spec import Specification
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specllama.engine import system
from specllama.handlers.binding.errors import METHODS
from specllama.handlers.http.api_keys import key_of
from specllama.handlers.http.log_fields import log_fields_of
from specllama.handlers.http.request_log import CLIENT_GONE, is_polled
from specllama.handlers.http.request_trace import RequestTrace, Stage, Value

if TYPE_CHECKING:
    from specllama.handlers.http.otel import Tracer

HEADER = b"traceresponse"


class Tracing(SpecMiddleware):  # type: ignore[misc]  # connexion has no types
    """Exports a span for each request, with the stages of its work, and adds the header
    `traceresponse` to the answer. It is directly inside of the log's middleware.

    Requests that programs send again and again (health, metrics) have a span only if they belong to
    a trace of the client.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._routes: dict[str, str] = {}  # by operationId

    def add_api(
        self, specification: Specification, base_path: str | None = None, **_: object
    ) -> None:
        base = specification.base_path if base_path is None else base_path
        for path, item in specification["paths"].items():
            for method in item.keys() & METHODS:
                self._routes[item[method]["operationId"]] = base + path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        tracer: Tracer = scope["state"]["runtime"].tracer
        span = tracer.begin(scope["headers"])
        if is_polled(scope) and not span.has_parent:
            return await self.app(scope, receive, send)
        extensions = scope.setdefault("extensions", {})  # where Connexion puts the operation
        fields = log_fields_of(scope)
        fields.trace = span.trace
        status = CLIENT_GONE

        async def send_traced(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (HEADER, span.response_header)]
                _formatted(span.trace)
            await send(message)

        try:
            return await self.app(scope, receive, send_traced)
        finally:
            operation = extensions.get(ROUTING_CONTEXT, {}).get("operation_id") or ""
            route = self._routes.get(operation.rpartition(".")[2])
            name = f"{scope['method']} {route}" if route else scope["method"]
            span.end(name, _attributes(scope, route, status), fields, status)


def _formatted(trace: RequestTrace) -> None:
    """Adds the stage between the engine's last event and the answer, if there was one: a stream
    begins before the last event."""
    if trace.generated:
        trace.stages.append(Stage("format", trace.generated, system.now(), {}))


def _attributes(scope: Scope, route: str | None, status: int) -> dict[str, Value]:
    """Returns the attributes with names of the conventions for HTTP. The query is left out, since
    it may contain a key."""
    found: dict[str, Value] = {
        "http.request.method": scope["method"],
        "http.response.status_code": status,
        "url.path": scope["path"],
        "url.scheme": scope.get("scheme", "http"),
        "network.protocol.version": scope.get("http_version", "1.1"),
    }
    if route:
        found["http.route"] = route
    if server := scope.get("server"):
        found["server.address"] = server[0]
        if server[1] is not None:
            found["server.port"] = server[1]
    if client := scope.get("client"):
        found["client.address"] = client[0]
    if (key := key_of(scope)) is not None:
        found["specllama.key"] = key.name
    return found
