"""A collector of traces: a small HTTP server that reads OTLP as protobuf messages."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

PLAIN = ("string_value", "int_value", "double_value", "bool_value")


class ReceivedSpan:
    """A span as the collector has received it."""

    def __init__(self, message: Any) -> None:
        self.name: str = message.name
        self.kind: int = message.kind
        self.trace_id: str = message.trace_id.hex()
        self.id: str = message.span_id.hex()
        self.parent: str = message.parent_span_id.hex()
        self.begin: int = message.start_time_unix_nano
        self.end: int = message.end_time_unix_nano
        self.failed: bool = message.status.code == 2
        self.attributes = _values(message.attributes)


class Collector:
    """The spans that have arrived, and the attributes of their senders."""

    def __init__(self) -> None:
        self.url = ""
        self.paths: set[str] = set()
        self.resources: list[dict[str, Any]] = []
        self.spans: list[ReceivedSpan] = []

    def receive(self, path: str, body: bytes) -> None:
        self.paths.add(path)
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append(_values(group.resource.attributes))
            for scope in group.scope_spans:
                self.spans += map(ReceivedSpan, scope.spans)

    def named(self, name: str) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.name == name]

    def children(self, span: ReceivedSpan) -> dict[str, ReceivedSpan]:
        """The stages of a request's span, by name."""
        return {each.name: each for each in self.spans if each.parent == span.id}


def _values(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    if value.HasField("array_value"):
        return [_value(each) for each in value.array_value.values]
    return next(getattr(value, name) for name in PLAIN if value.HasField(name))


@contextmanager
def collecting() -> Iterator[Collector]:
    """Yields a running collector."""
    collector = Collector()

    class Receiving(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.receive(self.path, body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiving) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        collector.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
