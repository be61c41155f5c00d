"""Traces of a server with `--otel`, at a collector."""

import json
from collections.abc import Iterator

import pytest

from contract_tests.kit.server import API_KEY, SECONDS, OwnServer, Start, wait_until
from contract_tests.own.servers import start
from tests.support.collector import Collector, ReceivedSpan, collecting

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
PROMPT = "cherimoya"
"""A text that must not occur in a span."""
STAGES = {"prepare", "queue", "prefill", "decode"}
CHAT = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 4, "temperature": 0}
TOOL = {
    "type": "function",
    "function": {
        "name": "lookup",
        "parameters": {
            "type": "object",
            "properties": {"way": {"type": "string", "enum": ["north"]}},
            "required": ["way"],
        },
    },
}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


@pytest.fixture(scope="module")
def server(module_server: Start, collector: Collector) -> OwnServer:
    return module_server(
        *("--otel-endpoint", collector.url, "--log-format", "json", "-c", "2048"),
        api_key=API_KEY,
        variables={"OTEL_SERVICE_NAME": "of the test", "OTEL_BSP_SCHEDULE_DELAY": "50"},
    )


def span_of(collector: Collector, header: str) -> ReceivedSpan:
    """The span that `traceresponse` names."""
    _, trace, id, _ = header.split("-")

    def find() -> ReceivedSpan | None:
        return next((each for each in collector.spans if each.id == id), None)

    span = wait_until(find, "the collector has the span")
    assert span.trace_id == trace
    return span


def asked(server: OwnServer, collector: Collector, path: str, body: object) -> ReceivedSpan:
    answer = server.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return span_of(collector, answer.headers["traceresponse"])


def test_a_whole_answer(server: OwnServer, collector: Collector) -> None:
    span = asked(server, collector, "/v1/chat/completions", CHAT)
    stages = collector.children(span)
    assert stages.keys() == STAGES | {"format"}
    for stage in stages.values():
        assert span.begin <= stage.begin <= stage.end <= span.end
        assert stage.trace_id == span.trace_id
    assert (span.name, span.kind) == ("POST /v1/chat/completions", 2)
    found = span.attributes
    assert found["gen_ai.operation.name"] == "chat"
    assert found["gen_ai.request.model"] == "specllama-tiny"
    assert found["gen_ai.request.max_tokens"] == 4
    assert found["gen_ai.usage.output_tokens"] <= 4
    assert len(found["gen_ai.response.finish_reasons"]) == 1
    assert found["http.response.status_code"] == 200
    assert collector.paths == {"/v1/traces"}
    assert collector.resources[0]["service.name"] == "of the test"


def test_a_stream(server: OwnServer, collector: Collector) -> None:
    span = asked(server, collector, "/v1/chat/completions", {**CHAT, "stream": True, "n": 2})
    assert collector.children(span).keys() == STAGES
    assert span.attributes["gen_ai.request.stream"] is True
    assert span.attributes["gen_ai.request.choice.count"] == 2
    assert len(span.attributes["gen_ai.response.finish_reasons"]) == 2


def test_a_call_of_a_tool(server: OwnServer, collector: Collector) -> None:
    body = {**CHAT, "tools": [TOOL], "tool_choice": "required", "max_tokens": 200}
    span = asked(server, collector, "/v1/chat/completions", body)
    assert span.attributes["gen_ai.response.finish_reasons"] == ["tool_calls"]


def test_a_completion_of_several_prompts(server: OwnServer, collector: Collector) -> None:
    body = {"prompt": [PROMPT, PROMPT], "n_predict": 2}
    span = asked(server, collector, "/completion", body)
    assert collector.children(span).keys() == STAGES | {"format"}
    assert span.attributes["gen_ai.operation.name"] == "text_completion"


def test_a_failure(server: OwnServer, collector: Collector) -> None:
    answer = server.post("/embedding", json={"content": PROMPT})
    assert answer.status_code == 501
    span = span_of(collector, answer.headers["traceresponse"])
    assert span.failed
    assert span.attributes["error.type"] == "501"
    assert collector.children(span) == {}


def test_the_clients_trace_and_the_log(server: OwnServer, collector: Collector) -> None:
    parent = f"00-{TRACE}-{PARENT}-01"
    answer = server.http.post(
        "/v1/chat/completions", json=CHAT, headers={"traceparent": parent, "tracestate": "a=b"}
    )
    span = span_of(collector, answer.headers["traceresponse"])
    assert (span.trace_id, span.parent) == (TRACE, PARENT)

    def line() -> dict[str, object] | None:
        lines = server.log.read_text("utf-8").splitlines(keepends=True)
        found = (json.loads(each) for each in lines if TRACE in each and each.endswith("\n"))
        return next((each for each in found if each["logger"] == "http"), None)

    logged = wait_until(line, "the request is in the log")
    assert logged["trace_id"] == TRACE
    assert logged["request_id"] == answer.headers["x-request-id"]


def test_web_pages_may_read_the_header(server: OwnServer) -> None:
    answer = server.http.get("/v1/models", headers={"Origin": "https://a.example"})
    assert "traceresponse" in answer.headers["access-control-expose-headers"]


def test_spans_contain_neither_texts_nor_keys(server: OwnServer, collector: Collector) -> None:
    answer = server.post(f"/v1/chat/completions?key={API_KEY}", json=CHAT)
    span_of(collector, answer.headers["traceresponse"])
    every = str([[each.name, each.attributes] for each in collector.spans])
    assert PROMPT not in every
    assert API_KEY not in every


def test_a_collector_that_is_down(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Requests are answered, and the server ends with success within its usual time."""
    with collecting() as collector:
        url = collector.url
    server = start(tmp_path_factory.mktemp("down"), "--otel-endpoint", url)
    try:
        for _ in range(3):
            assert server.post("/v1/chat/completions", json=CHAT).status_code == 200
        server.process.terminate()
        assert server.process.wait(SECONDS) == 0
    finally:
        server.close()
