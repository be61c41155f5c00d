"""Deltas become items and events, which OpenAI's library reads."""

import asyncio
import contextlib
import http.server
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import OpenAI

from contract_tests.kit import contract
from contract_tests.kit.events import read_events
from contract_tests.kit.server import SECONDS
from specllama.engine.chat.output import (
    CallArguments,
    CallStart,
    ChatDelta,
    ChatMessage,
    Content,
    Reasoning,
)
from specllama.engine.errors import ErrorInfo
from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import Finished, TokenProbs
from specllama.handlers.apis.probabilities import Probabilities
from specllama.handlers.apis.responses.format import (
    failed_response,
    finished_response,
    new_response,
)
from specllama.handlers.apis.responses.items import input_items
from specllama.handlers.apis.responses.output import Output, Status
from specllama.handlers.apis.responses.stream import ResponsesFormat
from specllama.handlers.http.errors import HttpFailure
from specllama.handlers.running.chat_batch import ChatEvent
from specllama.handlers.running.sealing import Seal
from tests.support.factories import delta, finished

pytestmark = pytest.mark.slow

TOOL = {"type": "function", "name": "f", "description": "It does.", "parameters": None}


BODY: Any = {
    "input": "Hello",
    "instructions": "Be short.",
    "metadata": {"a": "b"},
    "tools": [TOOL],
    "tool_choice": {"type": "function", "name": "f"},
    "text": {"format": {"type": "json_schema", "schema": {}}},
    "reasoning": {"effort": "high", "summary": "auto"},
    "max_output_tokens": 9,
    "previous_response_id": "resp_0",
}


def streamed(
    pieces: list[list[ChatDelta]],
    end: Finished,
    failure: HttpFailure | None = None,
    seal: Seal | None = None,
) -> tuple[list[dict[str, Any]], bytes]:
    """Returns the events of a stream as they were sent, validated against the description."""
    response = new_response(BODY, "model", GenerationParams(), "resp_0")
    output = Output(seal=seal)

    async def complete(status: Status, finished: Finished) -> Any:
        return finished_response(response, output.items, status, finished, 2)

    stream = ResponsesFormat(response, output, complete, timings_per_token=True)
    message = ChatMessage()
    made = [ChatEvent(0, deltas, delta(), message) for deltas in pieces]
    if failure is None:
        made.append(ChatEvent(0, [], end, message))
    raw = stream.begin(made[0]) + b"".join(map(stream.event, made))
    raw += asyncio.run(stream.end()) if failure is None else stream.failed(failure)
    events = list(read_events([raw]))
    documents = contract.check_stream(contract.operations()["create_response"], events)
    assert [each.event for each in events] == [each["type"] for each in documents]
    assert [each["sequence_number"] for each in documents] == list(range(len(documents)))
    return documents, raw


ALL: list[list[ChatDelta]] = [
    [Reasoning("Let me ")],
    [Reasoning("see."), Content("I ")],
    [],
    [Content("look.")],
    [CallStart(0, "c1", "f"), CallArguments(0, '{"a"')],
    [CallArguments(0, ": 1}"), CallStart(1, "c2", "g")],
    [CallArguments(1, "{}")],
]


def test_reasoning_is_sealed_when_it_is_complete() -> None:
    seal = Seal(b"k" * 32)
    documents, _ = streamed(ALL, finished(n_decoded=9), seal=seal)
    items = [each["item"] for each in documents if each["type"] == "response.output_item.done"]
    sealed = [item.pop("encrypted_content", None) for item in items]
    assert sealed[1:] == [None] * (len(items) - 1)
    assert seal.open("reasoning", sealed[0]) == b"Let me see."
    assert documents[-1]["response"]["output"][0]["encrypted_content"] == sealed[0]
    sent: Any = [{**items[0], "content": None, "encrypted_content": sealed[0]}]
    [back] = input_items(sent, seal)
    assert back == items[0]


def test_the_whole_sequence_of_events() -> None:
    documents, _ = streamed(ALL, finished(n_decoded=9))
    assert [each["type"].removeprefix("response.") for each in documents] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    response = documents[-1]["response"]
    assert response["output"] == [
        each["item"] for each in documents if each["type"] == "response.output_item.done"
    ]
    reasoning, message, first, second = response["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Let me see."}]
    assert message["content"][0]["text"] == "I look."
    assert (first["name"], first["call_id"], first["arguments"]) == ("f", "c1", '{"a": 1}')
    assert (second["name"], second["call_id"], second["arguments"]) == ("g", "c2", "{}")
    assert {item["status"] for item in response["output"]} == {"completed"}
    assert response["usage"] == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3},
        "output_tokens": 9,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 16,
    }
    assert response["reasoning"] == {"effort": "high", "summary": None}
    assert response["instructions"] == "Be short."


pieces = st.lists(
    st.builds(Content, st.text(max_size=3)) | st.builds(Reasoning, st.text(max_size=3)), max_size=6
)


@settings(max_examples=60, deadline=None)
@given(st.lists(pieces, max_size=4), st.lists(st.text(max_size=4), max_size=3), st.booleans())
def test_deltas_add_up_to_the_items(
    texts: list[list[ChatDelta]], calls: list[str], cut: bool
) -> None:
    made = [*texts]
    for index, arguments in enumerate(calls):
        made.append([CallStart(index, f"c{index}", "f")])
        made += [[CallArguments(index, letter)] for letter in arguments]
    documents, _ = streamed(made, finished(stop_type="limit" if cut else "eos"))
    message = ChatMessage()
    for each in made:
        for one in each:
            message.add(one)
    response = documents[-1]["response"]
    items = response["output"]
    assert items, "an answer is never without an item"

    def text(type_: str) -> str:
        return "".join(i["content"][0]["text"] for i in items if i["type"] == type_)

    assert (text("message"), text("reasoning")) == (message.content, message.reasoning)
    found = [i["arguments"] for i in items if i["type"] == "function_call"]
    assert found == [call.arguments for call in message.calls]
    *before, last = [item["status"] for item in items]
    assert last == response["status"] == ("incomplete" if cut else "completed")
    assert set(before) <= {"completed"}
    for kind in ("output_text", "reasoning_text", "function_call_arguments"):
        sent = "".join(e["delta"] for e in documents if e["type"] == f"response.{kind}.delta")
        done = "".join(
            e.get("text", e.get("arguments", ""))
            for e in documents
            if e["type"] == f"response.{kind}.done"
        )
        assert sent == done


def test_probabilities_belong_to_the_message() -> None:
    def probs(piece: str) -> TokenProbs:
        return TokenProbs(1, piece.encode(), -0.5, [])

    output = Output(Probabilities(0, post_sampling=False))
    message = ChatMessage()
    feed: list[tuple[list[ChatDelta], list[TokenProbs]]] = [
        ([Reasoning("t")], []),
        ([], []),
        ([Content("ab")], [probs("a"), probs("b")]),
        ([Content("c")], [probs("c")]),
        ([], []),
    ]
    probable: list[str] = []
    for deltas, entries in feed:
        events: Any = output.feed(ChatEvent(0, deltas, delta(), message, entries))
        for event in events:
            probable += [token["token"] for token in event.get("logprobs", [])]
    output.finish("completed")
    said: Any = output.items[1]
    assert probable == ["a", "b", "c"]
    assert [token["token"] for token in said["content"][0]["logprobs"]] == probable


def test_a_failure_ends_the_stream_in_two_ways() -> None:
    failure = HttpFailure(500, ErrorInfo("server_error", "The engine stopped."))
    documents, _ = streamed(ALL[:2], finished(), failure)
    failed, error = documents[-2:]
    assert failed["type"] == "response.failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "The engine stopped."}
    assert [item["status"] for item in failed["response"]["output"]] == ["completed", "in_progress"]
    assert error["error"]["code"] == 500
    bad = HttpFailure(400, ErrorInfo("invalid_request_error", "x"))
    response = failed_response(failed["response"], [], bad)
    assert response["error"] == {"code": "invalid_prompt", "message": "x"}


# ---- OpenAI's own reader ---------------------------------------------------------------------


@contextlib.contextmanager
def openai_client(raw: bytes) -> Iterator[OpenAI]:
    """Returns OpenAI's client for a server that answers each request with the stream `raw`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the name that the library calls
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        try:
            with OpenAI(api_key="none", base_url=url, max_retries=0, timeout=SECONDS) as client:
                yield client
        finally:
            server.shutdown()
            thread.join()


def test_openai_s_library_reads_it_all() -> None:
    documents, raw = streamed(ALL, finished())
    with (
        openai_client(raw) as client,
        client.responses.stream(model="m", input="Hello") as stream,
    ):
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds == [each["type"] for each in documents]
    assert final.output_text == "I look."
    assert [item.type for item in final.output] == [
        "reasoning", "message", "function_call", "function_call",
    ]  # fmt: skip
    assert final.usage is not None
    assert final.usage.output_tokens_details.reasoning_tokens == 2


def test_openai_s_library_raises_an_error_in_mid_stream() -> None:
    failure = HttpFailure(500, ErrorInfo("server_error", "The engine stopped."))
    _, raw = streamed(ALL[:2], finished(), failure)
    with openai_client(raw) as client:
        stream = client.responses.create(model="m", input="Hello", stream=True)
        with pytest.raises(openai.APIError, match="The engine stopped"):
            list(stream)
