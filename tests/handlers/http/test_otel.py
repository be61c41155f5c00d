"""Spans of requests, as OpenTelemetry's exporter gets them."""

import asyncio
import threading
from collections.abc import Sequence

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.export import SpanExportResult as Result
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from specllama.handlers.http import otel
from specllama.handlers.http.log_fields import LogFields
from specllama.handlers.http.otel import Tracer
from specllama.handlers.http.request_trace import Stage

PARENT = "b7ad6b7169203331"
TRACE = "0af7651916cd43dd8448eb211c80319c"


def headers(flags: str = "01") -> list[tuple[bytes, bytes]]:
    return [(b"host", b"a"), (b"traceparent", f"00-{TRACE}-{PARENT}-{flags}".encode())]


def tracer() -> tuple[Tracer, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    return Tracer(SimpleSpanProcessor(exporter)), exporter


def test_a_span_belongs_to_the_clients_trace() -> None:
    made, exporter = tracer()
    span = made.begin(headers())
    assert span.has_parent
    assert span.trace.trace_id == TRACE
    span.trace.stages.append(Stage("queue", span.trace.arrived, span.trace.arrived + 1, {"a": 1}))
    span.trace.attributes["gen_ai.operation.name"] = "chat"
    fields = LogFields("id-1", model="m", n_prompt=5, n_cached=2, n_predicted=3, gone=True)
    span.end("POST /a", {"http.route": "/a"}, fields, 200)
    child, parent = exporter.get_finished_spans()
    assert (parent.name, parent.kind) == ("POST /a", SpanKind.SERVER)
    assert parent.context is not None
    assert child.parent is not None
    assert parent.parent is not None
    assert child.parent.span_id == parent.context.span_id
    assert f"{parent.parent.span_id:016x}" == PARENT
    assert f"{parent.context.trace_id:032x}" == TRACE
    assert (child.name, dict(child.attributes or {})) == ("queue", {"a": 1})
    assert child.end_time is not None
    assert child.start_time is not None
    assert child.end_time - child.start_time == pytest.approx(1e9, rel=1e-3)
    expected = {
        "http.route": "/a",
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "m",
        "gen_ai.provider.name": "specllama",
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.usage.output_tokens": 3,
        "specllama.request.id": "id-1",
        "specllama.client_gone": True,
    }
    assert dict(parent.attributes or {}) == expected
    own = f"00-{TRACE}-{parent.context.span_id:016x}-01"
    assert span.response_header.decode() == own


@pytest.mark.parametrize("value", [b"", b"00-0-0-01", b"\xff" * 60, b"00-" + b"0" * 32])
def test_an_invalid_parent_begins_a_new_trace(value: bytes) -> None:
    made, exporter = tracer()
    span = made.begin([(b"traceparent", value)])
    span.end("a", {}, LogFields("i"), 200)
    [only] = exporter.get_finished_spans()
    assert only.parent is None
    assert len(span.trace.trace_id) == 32
    assert set(span.trace.trace_id) != {"0"}


def test_a_client_that_samples_nothing_gets_its_id_and_exports_nothing() -> None:
    made, exporter = tracer()
    span = made.begin(headers("00"))
    span.end("a", {}, LogFields("i"), 200)
    assert span.trace.trace_id == TRACE
    assert span.response_header.endswith(b"-00")
    assert exporter.get_finished_spans() == ()


@pytest.mark.parametrize(("sent", "failed"), [(500, 0), (200, 503)])
def test_failures_are_marked(sent: int, failed: int) -> None:
    """Also that of a stream, which has already sent another status."""
    made, exporter = tracer()
    made.begin([]).end("a", {}, LogFields("i", status=failed), sent)
    [only] = exporter.get_finished_spans()
    assert not only.status.is_ok
    assert (only.attributes or {})["error.type"] == str(failed or sent)


def test_the_resource_is_that_of_the_standard_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    made, exporter = tracer()
    made.begin([]).end("a", {}, LogFields("i"), 200)
    [only] = exporter.get_finished_spans()
    assert only.resource.attributes["service.name"] == "mine"
    assert only.resource.attributes["deployment.environment.name"] == "test"
    monkeypatch.delenv("OTEL_SERVICE_NAME")
    made, exporter = tracer()
    made.begin([]).end("a", {}, LogFields("i"), 200)
    [only] = exporter.get_finished_spans()
    assert only.resource.attributes["service.name"] == "specllama"


class Stuck(SpanExporter):
    """An exporter whose collector never answers."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> Result:
        self.released.wait()
        return Result.FAILURE


def test_a_stuck_exporter_delays_neither_requests_nor_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(otel, "STOP_SECONDS", 0)
    exporter = Stuck()
    processor = BatchSpanProcessor(exporter, max_queue_size=8, max_export_batch_size=4)
    made = Tracer(processor)
    for _ in range(100):
        made.begin([]).end("a", {}, LogFields("i"), 200)
    assert len(processor._batch_processor._queue) <= 8
    asyncio.run(made.stop())
    exporter.released.set()


def test_stopping_exports_the_last_spans() -> None:
    exporter = InMemorySpanExporter()
    made = Tracer(BatchSpanProcessor(exporter))
    made.begin([]).end("last", {}, LogFields("i"), 200)
    asyncio.run(made.stop())
    assert [each.name for each in exporter.get_finished_spans()] == ["last"]


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://here:4318", "http://here:4318/v1/traces"),
        ("https://here/otlp/", "https://here/otlp/v1/traces"),
        ("", "http://there:1/v1/traces"),
    ],
)
def test_the_path_is_added(endpoint: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://there:1")
    made = Tracer.to_collector(endpoint)
    processor = made._processor
    assert isinstance(processor, BatchSpanProcessor)
    exporter = processor.span_exporter
    assert isinstance(exporter, OTLPSpanExporter)
    assert exporter._endpoint == url
    asyncio.run(made.stop())
