"""OpenAI's Responses API: from bodies to messages, from deltas to items and events."""

import asyncio
import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import OpenAI

from contract_tests.kit import contract
from contract_tests.kit.events import read_events
from engine.chat.output import CallArguments, CallStart, ChatDelta, ChatMessage, Content, Reasoning
from engine.chat.request import ChatRequest
from engine.errors import EngineError, ErrorInfo
from engine.options import Options
from engine.params import GenerationParams
from engine.protocol.messages import Delta, Finished, Timings, TokenProbs
from handlers.apis.native.probabilities import Probabilities
from handlers.apis.responses.format import (
    Output,
    Status,
    failed_response,
    finished_response,
    new_response,
)
from handlers.apis.responses.items import input_items, messages
from handlers.apis.responses.request import request_items, response_chat_request, response_params
from handlers.apis.responses.stream import ResponsesFormat
from handlers.apis.responses.truncation import room_for_answer, truncated
from handlers.http.errors import Failure
from handlers.running.chat_batch import ChatEvent
from handlers.running.response_store import ResponseStore

TIMINGS = Timings(cache_n=3, prompt_n=4, prompt_ms=1.0, predicted_n=9, predicted_ms=2.0)
USER = {"role": "user", "content": "Hello"}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "11 degrees"}
THOUGHT = {
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": "short"}],
    "content": [{"type": "reasoning_text", "text": "Let me see."}],
    "encrypted_content": "gibberish",
}
TOOL = {"type": "function", "name": "f", "description": "It does.", "parameters": None}


def said(text: str, role: str = "assistant") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "output_text", "text": text}]}


def translated(*items: dict[str, Any]) -> list[dict[str, Any]]:
    return messages(input_items(items))


# ---- items to messages -----------------------------------------------------------------------


def test_a_text_is_the_user_s() -> None:
    assert messages(input_items("Hello")) == [USER]


def test_parts() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "refusal", "refusal": "b"}]
    [message] = translated({"role": "developer", "content": parts})
    assert message == {
        "role": "developer",
        "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
    }
    assert translated({"role": "user", "content": parts[:1]}) == [{"role": "user", "content": "a"}]
    assert translated({"role": "user", "content": []}) == [{"role": "user", "content": ""}]


def test_what_the_model_did_in_a_row_is_one_message() -> None:
    function = {"name": "f", "arguments": '{"a": 1}'}
    call = {"id": "c1", "type": "function", "function": function}
    assert translated(USER, THOUGHT, said("I look."), CALL, RESULT, said("It is 11.")) == [
        USER,
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Let me see.",
            "tool_calls": [call],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "11 degrees"},
        {"role": "assistant", "content": "It is 11."},
    ]
    second = {**CALL, "call_id": "c2"}
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    _, both, _, last = translated(USER, CALL, second, RESULT, {**RESULT, "output": parts})
    assert [each["id"] for each in both["tool_calls"]] == ["c1", "c2"]
    assert both["content"] == ""
    assert [part["text"] for part in last["content"]] == ["a", "b"]
    [thoughtless] = translated({"type": "reasoning", "summary": THOUGHT["summary"]}, said("So."))
    assert "reasoning_content" not in thoughtless


@pytest.mark.parametrize(
    ("items", "type_", "message"),
    [
        ([USER, CALL], "invalid_request_error", "'c1' of a function has no output"),
        (
            [USER, {"role": "user", "content": [{"type": "input_image"}]}],
            "not_supported_error",
            r"input\[1\].content\[0\].*input_image",
        ),
        (
            [CALL, {**RESULT, "output": [{"type": "input_file"}]}],
            "not_supported_error",
            r"input\[1\].output\[0\].*input_file",
        ),
    ],
)
def test_items_that_don_t_fit(items: list[Any], type_: str, message: str) -> None:
    with pytest.raises(EngineError, match=message) as caught:
        translated(*items)
    assert caught.value.info.type == type_


def test_items_of_other_services_are_left_out() -> None:
    others = [{"type": "web_search_call"}, {"type": "new", "role": "x"}, {"type": ""}]
    assert translated(*others, USER) == translated(USER)
    assert translated(*others) == []
    unknown = {"role": "assistant", "content": [{"type": "x"}, {"type": "y", "text": "So."}]}
    assert translated(USER, unknown)[1]["content"] == "So."


def test_an_output_whose_call_was_cut_off_stays() -> None:
    assert translated(USER, RESULT)[1]["tool_call_id"] == "c1"


def test_tools_that_take_a_plain_text() -> None:
    call = {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": 'a "b"'}
    output = {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"}
    _, asking, result = translated(USER, call, output)
    [made] = asking["tool_calls"]
    assert json.loads(made["function"]["arguments"]) == {"input": 'a "b"'}
    assert result == {"role": "tool", "tool_call_id": "c1", "content": "ok"}
    kept = input_items([call, output])
    assert [item["id"].split("_")[0] for item in kept] == ["ctc", "ctco"]
    patch = {"type": "custom", "name": "patch"}
    asked = request({"tools": [patch], "tool_choice": patch})
    assert (asked.free_text, asked.tool_name) == (["patch"], "patch")


def test_a_thousand_items_keep_their_order() -> None:
    many = [{"role": "user", "content": str(i)} if i % 2 else said(str(i)) for i in range(1000)]
    made = translated(*many)
    assert [message["content"] for message in made] == [str(i) for i in range(1000)]
    assert len({item["id"] for item in input_items(many)}) == 1000


# ---- bodies to requests ----------------------------------------------------------------------


def request(body: dict[str, Any], **options: Any) -> ChatRequest:
    items = input_items(body.get("input", "Hello"))
    return response_chat_request(body, items, Options(**options))


def test_options_of_the_server_hold_for_thoughts() -> None:
    options = Options(reasoning_budget=0, reasoning_format="none")
    asked = response_chat_request({}, input_items("Hello"), options)
    assert (asked.reasoning_budget, asked.reasoning_format) == (0, "none")


def test_instructions_tools_and_variables() -> None:
    made = request(
        {
            "instructions": "Be short.",
            "tools": [TOOL],
            "reasoning": {"effort": "high"},
            "chat_template_kwargs": {"a": 1},
            "parallel_tool_calls": False,
        },
        chat_template_kwargs={"a": 2, "b": 3},
    )
    assert made.messages == [{"role": "system", "content": "Be short."}, USER]
    [tool] = made.tools
    assert tool["function"]["name"] == "f"
    assert tool["function"]["parameters"] == {"type": "object", "properties": {}}
    assert made.template_variables == {"a": 1, "b": 3, "reasoning_effort": "high"}
    assert (made.tool_choice, made.tool_name, made.parallel_tool_calls) == ("auto", None, False)
    assert request({"reasoning": {"effort": "none"}}).template_variables == {
        "enable_thinking": False
    }


def test_choices_of_tools() -> None:
    tools = [{**TOOL, "name": name} for name in "abc"]

    def chosen(choice: Any) -> tuple[list[str], str, str | None]:
        made = request({"tools": tools, "tool_choice": choice})
        names = [tool["function"]["name"] for tool in made.tools]
        return names, made.tool_choice, made.tool_name

    every = ["a", "b", "c"]
    for choice in ("auto", "none", "required"):
        assert chosen(choice) == (every, choice, None)
    assert chosen({"type": "function", "name": "b"}) == (every, "required", "b")
    allowed = [{"type": "function", "name": name} for name in "ca"]
    for mode in ("auto", "required"):
        assert chosen({"type": "allowed_tools", "mode": mode, "tools": allowed}) == (
            ["a", "c"], mode, None,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("body", "type_"),
    [
        ({"tools": [{**TOOL, "parameters": {"type": "array"}}]}, "invalid_request_error"),
        (
            {"tool_choice": {"type": "function", "name": "g"}, "tools": [TOOL]},
            "invalid_request_error",
        ),
        (
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "auto",
                    "tools": [{"type": "function", "name": "g"}],
                },
                "tools": [TOOL],
            },
            "invalid_request_error",
        ),
        ({"tools": [{"type": "mcp"}], "tool_choice": "required"}, "not_supported_error"),
        ({"tool_choice": {"type": "file_search"}}, "not_supported_error"),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "required",
                             "tools": [{"type": "mcp"}]}},
            "not_supported_error",
        ),
    ],
)  # fmt: skip
def test_tools_that_don_t_fit(body: dict[str, Any], type_: str) -> None:
    with pytest.raises(EngineError, match="tool") as caught:
        request(body)
    assert caught.value.info.type == type_


def test_parameters() -> None:
    defaults = GenerationParams(temperature=0.5)
    params, probabilities = response_params({"max_output_tokens": 5, "top_p": 0.2}, defaults)
    assert (params.n_predict, params.temperature, params.top_p) == (5, 0.5, 0.2)
    assert probabilities is None
    assert response_params({"max_output_tokens": 5, "n_predict": 3}, defaults)[0].n_predict == 3
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    for form, expected in (
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "json_schema", "name": "x", "schema": schema}, schema),
    ):
        made, _ = response_params({"text": {"format": form}}, defaults)
        assert (made.json_schema and json.loads(made.json_schema)) == expected
    for wrong in (
        {"n": 2},
        {"n_cmpl": 3},
        {"text": {"format": {"type": "json_object"}}, "grammar": 'root ::= "a"'},
        {"text": {"format": {"type": "json_object"}}, "response_format": {"type": "json_object"}},
    ):
        with pytest.raises(EngineError):
            response_params(wrong, defaults)


def test_probabilities_are_asked_for_in_three_ways() -> None:
    asked = (
        ({"include": ["message.output_text.logprobs"]}, 1, 0),
        ({"top_logprobs": 3}, 3, 3),
        ({"top_logprobs": 0, "n_probs": 2}, 2, 2),
    )
    probs = TokenProbs(5, b"a", -1.0, [(5, b"a", -1.0), (6, b"b", -2.0), (7, b"c", -3.0)])
    for body, n_probs, n_top in asked:
        params, probabilities = response_params(body, GenerationParams())
        assert params.n_probs == n_probs
        assert probabilities is not None
        [token] = probabilities.content([probs])
        assert len(token["top_logprobs"]) == n_top
    encrypted = {"include": ["reasoning.encrypted_content"], "top_logprobs": 0}
    assert response_params(encrypted, GenerationParams())[1] is None


def test_what_is_stored_comes_before_what_is_new() -> None:
    async def run() -> None:
        store = ResponseStore()
        old = input_items([USER])
        output = input_items([said("Hi")])
        await store.save({"id": "resp_1", "previous_response_id": None, "output": output}, old)
        reference = {"type": "item_reference", "id": old[0]["id"]}
        body = {"input": [reference, USER], "previous_response_id": "resp_1"}
        history, new = await request_items(body, store)
        assert history == [*old, *output]
        assert new[0] == old[0]
        for wrong in (
            {"input": "a", "previous_response_id": "resp_2"},
            {"input": [{**reference, "id": "msg_0"}]},
        ):
            with pytest.raises(EngineError, match="there is no") as caught:
                await request_items(wrong, store)
            assert caught.value.info.type == "invalid_request_error"
        store.close()

    asyncio.run(run())


# ---- truncation ------------------------------------------------------------------------------


@settings(max_examples=100)
@given(st.lists(st.sampled_from("uatt"), max_size=12), st.integers(0, 3), st.integers(0, 40))
def test_truncation_keeps_the_end_and_whole_turns(roles: list[str], n: int, n_max: int) -> None:
    names = {"u": "user", "a": "assistant", "t": "tool"}
    head = [{"role": "system", "content": "x"}] * n
    rest = [{"role": names[role], "content": i} for i, role in enumerate("u" + "".join(roles))]
    counted: list[int] = []

    async def count(request: ChatRequest) -> int:
        counted.append(len(request.messages))
        return 2 * len(request.messages)

    made = asyncio.run(truncated(ChatRequest(messages=[*head, *rest]), n_max, count)).messages
    assert made[:n] == head
    kept = made[n:]
    assert kept == rest[len(rest) - len(kept) :]
    assert kept[0]["role"] == "user"
    starts = [i for i, each in enumerate(rest) if each["role"] == "user"]
    fitting = [i for i in starts if 2 * (n + len(rest) - i) <= n_max]
    assert len(rest) - len(kept) == (fitting[0] if fitting else starts[-1])
    assert len(counted) <= 2 + len(starts).bit_length()


def test_room_for_the_answer() -> None:
    found = [room_for_answer(100, limit) for limit in (None, 10, 90)]
    assert found == [25, 10, 50]


# ---- deltas to items and events --------------------------------------------------------------


def finished(stop_type: Any = "eos", **changes: Any) -> Finished:
    base = msgspec.structs.asdict(FINISHED)
    return Finished(**{**base, "stop_type": stop_type, **changes})


FINISHED = Finished(
    id=1,
    id_slot=0,
    text="",
    tokens=[],
    stop_type="eos",
    stopping_word="",
    truncated=False,
    n_prompt=7,
    n_decoded=9,
    has_new_line=False,
    prompt="",
    params=GenerationParams(),
    timings=TIMINGS,
)


def delta(*probs: TokenProbs) -> Delta:
    return Delta(id=1, id_slot=0, text="", tokens=[], timings=TIMINGS, probs=list(probs))


BODY = {
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
    pieces: list[list[ChatDelta]], end: Finished, failure: Failure | None = None
) -> tuple[list[dict[str, Any]], bytes]:
    """The events of a stream, validated against the description, and as they were sent."""
    response = new_response(BODY, "model", GenerationParams())
    output = Output()

    async def complete(status: Status, finished: Finished) -> dict[str, Any]:
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


def test_the_whole_sequence_of_events() -> None:
    documents, _ = streamed(ALL, finished())
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
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 4},
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
    documents, _ = streamed(made, finished("limit" if cut else "eos"))
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
        ([Reasoning("t")], [probs("<t>"), probs("t")]),
        ([], [probs("</t"), probs(">\n"), probs("a")]),
        ([Content("ab")], [probs("b")]),
        ([Content("c")], [probs("c")]),
        ([], [probs("")]),
    ]
    told: list[str] = []
    for deltas, entries in feed:
        for event in output.feed(ChatEvent(0, deltas, delta(*entries), message)):
            told += [token["token"] for token in event.get("logprobs", [])]
    output.finish("completed")
    _, said = output.items
    assert told == ["a", "b", "c"]
    assert [token["token"] for token in said["content"][0]["logprobs"]] == [*told, ""]


def test_a_failure_ends_the_stream_in_two_ways() -> None:
    failure = Failure(500, ErrorInfo("server_error", "The engine stopped."))
    documents, _ = streamed(ALL[:2], FINISHED, failure)
    failed, error = documents[-2:]
    assert failed["type"] == "response.failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "The engine stopped."}
    assert [item["status"] for item in failed["response"]["output"]] == ["completed", "in_progress"]
    assert error["error"]["code"] == 500
    bad = Failure(400, ErrorInfo("invalid_request_error", "x"))
    response = failed_response(failed["response"], [], bad)
    assert response["error"]["code"] == "invalid_prompt"


# ---- OpenAI's own reader ---------------------------------------------------------------------


@contextlib.contextmanager
def openai_client(raw: bytes) -> Iterator[OpenAI]:
    """OpenAI's client, connected to a server that answers everything with the stream `raw`."""

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
            with OpenAI(api_key="none", base_url=url, max_retries=0) as client:
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
    failure = Failure(500, ErrorInfo("server_error", "The engine stopped."))
    _, raw = streamed(ALL[:2], FINISHED, failure)
    with openai_client(raw) as client:
        stream = client.responses.create(model="m", input="Hello", stream=True)
        with pytest.raises(openai.APIError, match="The engine stopped"):
            list(stream)
