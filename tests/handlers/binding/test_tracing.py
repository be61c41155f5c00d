"""The middleware for traces, around a small application."""

import asyncio
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from connexion.middleware.abstract import ROUTING_CONTEXT
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specllama.handlers.binding.stack import MIDDLEWARES, middlewares
from specllama.handlers.binding.tracing import Tracing
from specllama.handlers.http.api_keys import KeyRing
from specllama.handlers.http.log_fields import begin_log_fields, log_fields_of
from specllama.handlers.http.otel import Tracer

KEY = "secret-key"
TRACEPARENT = (b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")


def answering(status: int = 200, generated: float = 0.0) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["extensions"][ROUTING_CONTEXT] = {"operation_id": "some.module.get_thing"}
        trace = log_fields_of(scope).trace
        if trace is not None:
            trace.generated = generated
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    return app


def traced(app: ASGIApp, path: str = "/things/7", *headers: tuple[bytes, bytes]) -> Any:
    """The spans of one request, and the headers of its answer."""
    exporter = InMemorySpanExporter()
    ring = KeyRing.of_secrets([KEY])
    runtime = SimpleNamespace(tracer=Tracer(SimpleSpanProcessor(exporter)), api_keys=ring)
    scope: Scope = {
        "type": "http", "method": "GET", "path": path, "query_string": f"key={KEY}".encode(),
        "headers": [*headers], "state": {"runtime": runtime}, "client": ("10.0.0.7", 5),
        "extensions": {},
    }  # fmt: skip
    begin_log_fields(scope)
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    middleware = Tracing(app)
    described: Any = {"paths": {"/things/{id}": {"get": {"operationId": "get_thing"}}}}
    middleware.add_api(described, base_path="/llm")
    with suppress(asyncio.CancelledError):
        asyncio.run(middleware(scope, receive, send))
    return exporter.get_finished_spans(), dict(sent[0]["headers"]) if sent else {}


def test_only_a_traced_server_has_the_middleware() -> None:
    assert middlewares(traced=False) == MIDDLEWARES
    assert middlewares(traced=True) == [*MIDDLEWARES[:3], Tracing, *MIDDLEWARES[3:]]


def test_a_span_has_the_route_and_the_name_of_the_key() -> None:
    [span], headers = traced(answering())
    assert span.name == "GET /llm/things/{id}"
    assert span.attributes["http.route"] == "/llm/things/{id}"
    assert span.attributes["url.path"] == "/things/7"
    assert span.attributes["client.address"] == "10.0.0.7"
    assert span.attributes["specllama.key"] == "api-key-1"
    assert KEY not in str(span.attributes)
    assert f"{span.context.trace_id:032x}" in headers[b"traceresponse"].decode()


def test_a_whole_answer_has_a_stage_for_its_format() -> None:
    """A stream begins before the engine's last event, so it has none."""
    spans, _ = traced(answering(generated=0.5))
    assert [span.name for span in spans] == ["format", "GET /llm/things/{id}"]
    spans, _ = traced(answering())
    assert len(spans) == 1


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/loads", "/slots"])
def test_a_poll_has_a_span_only_in_a_clients_trace(path: str) -> None:
    spans, headers = traced(answering(), path)
    assert (spans, headers) == ((), {})
    [span], headers = traced(answering(), path, TRACEPARENT)
    assert headers
    assert span.parent is not None


def test_a_client_that_leaves_before_the_answer() -> None:
    async def cancelled(scope: Scope, receive: Receive, send: Send) -> None:
        raise asyncio.CancelledError

    [span], headers = traced(cancelled)
    assert span.name == "GET"
    assert span.attributes["http.response.status_code"] == 499
    assert headers == {}


def test_a_failure() -> None:
    [span], _ = traced(answering(500))
    assert not span.status.is_ok
