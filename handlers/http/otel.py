"""Traces of requests for OpenTelemetry (`--otel`).

No other module imports OpenTelemetry, which is an optional dependency, and this one is imported
only with `--otel`. The SDK reads the standard variables (`OTEL_...`), keeps at most
`OTEL_BSP_MAX_QUEUE_SIZE` spans in memory, drops further ones, and exports them in a thread.
"""

import logging
import time
from collections.abc import Callable, Iterable
from typing import Self

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import (
    SERVICE_NAME,
    SERVICE_VERSION,
    OTELResourceDetector,
    Resource,
)
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from specllama.engine import system
from specllama.handlers.http.build_info import server_version
from specllama.handlers.http.log_fields import LogFields
from specllama.handlers.http.request_trace import RequestTrace, Value
from specllama.handlers.http.streams import in_thread_within

PATH = "/v1/traces"  # of OTLP over HTTP, after the collector's address
STOP_SECONDS = 3.0
"""The limit for exporting the last spans when the server stops."""
_CARRIED = ("traceparent", "tracestate")


class RequestSpan:
    """The span of a request that is being served. `trace` collects what `end` exports."""

    def __init__(self, tracer: "Tracer", span: Span, *, has_parent: bool) -> None:
        self._tracer = tracer
        self._span = span
        self._offset = time.time() - system.now()  # from durations' clock to the time of day
        context = span.get_span_context()
        self.has_parent = has_parent  # the client's
        self.trace = RequestTrace(f"{context.trace_id:032x}", system.now())
        self.response_header = "-".join(
            ("00", self.trace.trace_id, f"{context.span_id:016x}", f"{context.trace_flags:02x}")
        ).encode()
        """The value of the header `traceresponse`, in the form of `traceparent`."""

    def end(self, name: str, attributes: dict[str, Value], fields: LogFields, status: int) -> None:
        """Ends the span and adds those of the request's stages. `status` is the one that was
        sent."""
        if not self._span.is_recording():
            return
        now = system.now()
        self._span.update_name(name)
        self._span.set_attributes(attributes | self.trace.attributes | _of_fields(fields))
        if (failed := fields.status or status) >= 500:
            self._span.set_attribute("error.type", str(failed))
            self._span.set_status(Status(StatusCode.ERROR))
        self._tracer.add_stages(self._span, self.trace, self._nanoseconds)
        self._span.end(self._nanoseconds(now))

    def _nanoseconds(self, at: float) -> int:
        return int((at + self._offset) * 1e9)


def _of_fields(fields: LogFields) -> dict[str, Value]:
    """Returns the attributes with names of the conventions for generative AI. They are part of the
    request's own span."""
    found: dict[str, Value] = {"specllama.request.id": fields.id}
    if fields.model:
        found["gen_ai.request.model"] = fields.model
        found["gen_ai.response.model"] = fields.model
        found["gen_ai.provider.name"] = "specllama"
    if fields.n_prompt:
        found["gen_ai.usage.input_tokens"] = fields.n_prompt
        found["gen_ai.usage.cache_read.input_tokens"] = fields.n_cached
    if fields.n_predicted:
        found["gen_ai.usage.output_tokens"] = fields.n_predicted
    if fields.gone:
        found["specllama.client_gone"] = True
    return found


class Tracer:
    """Makes the spans of one server, and exports them through `processor`."""

    def __init__(self, processor: SpanProcessor) -> None:
        self._processor = processor
        given = OTELResourceDetector().detect()  # OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES
        ours = {SERVICE_NAME: "specllama", SERVICE_VERSION: server_version() or "unknown"}
        resource = Resource.create(ours).merge(given)
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(processor)
        self._tracer = provider.get_tracer("specllama", server_version())
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def to_collector(cls, endpoint: str) -> Self:
        """Returns a tracer that exports to the collector at the address `endpoint`; "": to that of
        the standard variables, or else to this machine. Raises ValueError for invalid values of
        the variables."""
        # Otherwise each attempt to reach a collector that is down would be in the log.
        logging.getLogger("opentelemetry.exporter").setLevel(logging.ERROR)
        url = endpoint.rstrip("/") + PATH if endpoint else None
        return cls(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))

    def begin(self, headers: Iterable[tuple[bytes, bytes]]) -> RequestSpan:
        """Begins the span of a request, in the trace that its `headers` name, or in a new one."""
        carrier = {
            name.decode(): value.decode("latin-1")
            for name, value in headers
            if name.decode("latin-1") in _CARRIED
        }
        parent = self._propagator.extract(carrier)
        span = self._tracer.start_span("request", context=parent, kind=SpanKind.SERVER)
        return RequestSpan(self, span, has_parent="traceparent" in carrier)

    def add_stages(self, span: Span, trace: RequestTrace, at: Callable[[float], int]) -> None:
        """Adds the spans of a request's stages to its `span`. `at` converts times to nanoseconds
        since 1970."""
        parent = set_span_in_context(span)
        for stage in trace.stages:
            child = self._tracer.start_span(
                stage.name, parent, attributes=stage.attributes, start_time=at(stage.begin)
            )
            child.end(at(max(stage.begin, stage.end)))

    async def stop(self) -> None:
        """Exports the last spans, for at most `STOP_SECONDS`; then they are lost."""
        await in_thread_within(STOP_SECONDS, self._processor.shutdown, "otel-stop")
