"""Anthropic's Messages API, with its official client library, and event by event."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic

from contract_tests.kit import contract, lint
from contract_tests.kit.bodies import MESSAGES, MODEL, body, with_text
from contract_tests.kit.events import Event
from contract_tests.kit.server import SECONDS, Server, Start, needs_key

PATH = "/v1/messages"
UNTHINKING: Any = {"type": "disabled"}
"""Turns reasoning off, because it may be as long as the answer's limit."""
OPTIONS: dict[str, Any] = {
    "model": MODEL,
    "messages": MESSAGES,
    "max_tokens": 8,
    "thinking": UNTHINKING,
}
SEED: Any = {"seed": 1}
TOOL: Any = {
    "name": "set_light",
    "description": "Switches a light.",
    "input_schema": {
        "type": "object",
        "properties": {"on": {"type": "boolean"}, "room": {"enum": ["kitchen", "hall"]}},
        "required": ["on", "room"],
        "additionalProperties": False,
    },
}


def client_of(server: Server, api_key: str | None = None) -> Anthropic:
    key = api_key or server.api_key or "none"
    return Anthropic(base_url=server.url, api_key=key, max_retries=0, timeout=SECONDS)


@pytest.fixture
def client(server: Server) -> Iterator[Anthropic]:
    with client_of(server) as client:
        yield client


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


# ---- the client library ----------------------------------------------------------------------


def test_message(client: Anthropic) -> None:
    message = client.messages.create(**OPTIONS, extra_body=SEED)
    assert (message.type, message.role, message.model) == (
        "message",
        "assistant",
        client.models.list().data[0].id,
    )
    assert message.stop_reason in ("end_turn", "max_tokens")
    assert message.stop_sequence is None
    assert 0 < message.usage.output_tokens <= 8
    again = client.messages.create(**OPTIONS, extra_body=SEED)
    assert text_of(again) == text_of(message) != ""
    assert again.id != message.id
    assert again._request_id is not None


def test_stream(client: Anthropic) -> None:
    plain = client.messages.create(**OPTIONS, extra_body=SEED)
    kinds = []
    pieces = []
    for event in client.messages.create(**OPTIONS, extra_body=SEED, stream=True):
        kinds.append(event.type)
        if event.type == "content_block_delta" and event.delta.type == "text_delta":
            pieces.append(event.delta.text)
    assert "".join(pieces) == text_of(plain)
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]


def test_stream_helper(client: Anthropic) -> None:
    plain = client.messages.create(**OPTIONS, extra_body=SEED)
    with client.messages.stream(**OPTIONS, extra_body=SEED) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert text == text_of(message) == text_of(plain)
    assert message.stop_reason == plain.stop_reason
    assert message.usage.output_tokens == plain.usage.output_tokens
    assert message.id.startswith("msg_")


def test_asynchronous_client(server: Server) -> None:
    async def run() -> tuple[str, str, int]:
        key = server.api_key or "none"
        async with AsyncAnthropic(
            base_url=server.url, api_key=key, max_retries=0, timeout=SECONDS
        ) as client:
            plain, counted = await asyncio.gather(
                client.messages.create(**OPTIONS, extra_body=SEED),
                client.messages.count_tokens(model=MODEL, messages=MESSAGES),
            )
            async with client.messages.stream(**OPTIONS, extra_body=SEED) as stream:
                pieces = [piece async for piece in stream.text_stream]
                await stream.get_final_message()
            return text_of(plain), "".join(pieces), counted.input_tokens

    plain, streamed, n = asyncio.run(run())
    assert plain == streamed
    assert n > 0


def test_tokens_are_counted_as_they_are_used(client: Anthropic) -> None:
    conversation = [
        *MESSAGES,
        {"role": "assistant", "content": "They hum."},
        {"role": "user", "content": [{"type": "text", "text": "Why?"}]},
    ]
    system = [{"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}}]
    options: dict[str, Any] = {"model": MODEL, "messages": conversation, "system": system}
    n = client.messages.count_tokens(**options).input_tokens
    assert n > client.messages.count_tokens(model=MODEL, messages=MESSAGES).input_tokens
    for _ in range(2):  # the second time most of the prompt is cached
        usage = client.messages.create(**options, max_tokens=2).usage
        assert usage.cache_creation_input_tokens == 0
        assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == n
    assert usage.cache_read_input_tokens == n - 1


def test_system_and_blocks_reach_the_prompt(server: Server, client: Anthropic) -> None:
    document: Any = {
        "type": "document",
        "source": {"type": "text", "media_type": "text/plain", "data": "a herd"},
        "title": "Llamas",
    }
    translated = client.messages.count_tokens(
        model=MODEL,
        system="Be short.",
        messages=[
            {"role": "user", "content": [document]},
            {"role": "assistant", "content": [{"type": "text", "text": "Seen."}]},
            {"role": "user", "content": "Good."},
        ],
    )
    rendered = server.ask(
        "/apply-template",
        {
            "messages": [
                {"role": "system", "content": "Be short."},
                {"role": "user", "content": "Llamas\na herd"},
                {"role": "assistant", "content": "Seen."},
                {"role": "user", "content": "Good."},
            ]
        },
    )["prompt"]
    tokens = server.ask("/tokenize", {"content": rendered, "add_special": True})["tokens"]
    assert translated.input_tokens == len(tokens)


def test_prefill(server: Server, client: Anthropic) -> None:
    start = {"role": "assistant", "content": "The best answer is ( "}
    greedy = {"temperature": 0}
    conversation = [*MESSAGES, start]
    message = client.messages.create(
        model=MODEL, messages=conversation, max_tokens=6, extra_body=greedy
    )
    chat = {**greedy, "max_tokens": 6, "messages": conversation}
    expected = server.ask("/v1/chat/completions", chat)["choices"][0]["message"]["content"]
    assert text_of(message) == expected


def test_stop_sequence(client: Anthropic) -> None:
    options: dict[str, Any] = {**OPTIONS, "max_tokens": 30}
    endless: dict[str, Any] = {"extra_body": {"temperature": 0, "ignore_eos": True}}
    whole = text_of(client.messages.create(**options, **endless))
    word = whole[len(whole) // 2 :][:4]
    message = client.messages.create(**options, **endless, stop_sequences=["\x00", word])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", word)
    assert text_of(message) == whole[: whole.index(word)]
    with client.messages.stream(**options, **endless, stop_sequences=[word]) as stream:
        streamed = stream.get_final_message()
    assert (streamed.stop_reason, streamed.stop_sequence) == ("stop_sequence", word)
    assert text_of(streamed) == text_of(message)


def test_structured_output(client: Anthropic) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "size": {"enum": ["small", "large"]}},
        "required": ["ok", "size"],
        "additionalProperties": False,
    }
    form: Any = {"type": "json_schema", "schema": schema}
    options: dict[str, Any] = {**OPTIONS, "max_tokens": 128}
    message = client.messages.create(**options, output_config={"format": form})
    assert message.stop_reason == "end_turn"
    assert json.loads(text_of(message)).keys() == {"ok", "size"}
    older = client.messages.create(**options, extra_body={"output_format": form})
    assert json.loads(text_of(older)).keys() == {"ok", "size"}


def test_a_prompt_without_an_answer(client: Anthropic) -> None:
    message = client.messages.create(model=MODEL, messages=MESSAGES, max_tokens=0)
    assert (message.content, message.stop_reason) == ([], "max_tokens")
    with client.messages.stream(model=MODEL, messages=MESSAGES, max_tokens=0) as stream:
        assert stream.get_final_message().content == []


# ---- tools -----------------------------------------------------------------------------------


CALLING: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Light in the kitchen, please."}],
    "tools": [TOOL],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    "max_tokens": 256,
    "thinking": UNTHINKING,
}


def check_call(block: Any) -> None:
    assert (block.type, block.name) == ("tool_use", TOOL["name"])
    assert block.id.startswith("toolu_")
    assert not list(lint.errors(TOOL["input_schema"], block.input))


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": TOOL["name"]}])
def test_a_forced_call(client: Anthropic, choice: Any) -> None:
    options: dict[str, Any] = {
        **CALLING,
        "tool_choice": {**choice, "disable_parallel_tool_use": True},
    }
    message = client.messages.create(**options)
    assert message.stop_reason == "tool_use"
    [call] = [block for block in message.content if block.type == "tool_use"]
    check_call(call)


def test_a_streamed_call(server: Server, client: Anthropic) -> None:
    with client.messages.stream(**CALLING, extra_body=SEED) as stream:
        partial = [event.partial_json for event in stream if event.type == "input_json"]
        message = stream.get_final_message()
    [call] = [block for block in message.content if block.type == "tool_use"]
    check_call(call)
    assert json.loads("".join(partial)) == call.input
    assert message.stop_reason == "tool_use"
    check_order(server.events(PATH, CALLING))


def test_no_call(client: Anthropic) -> None:
    options: dict[str, Any] = {**CALLING, "tool_choice": {"type": "none"}, "max_tokens": 16}
    message = client.messages.create(**options)
    assert {block.type for block in message.content} <= {"text", "thinking"}
    assert message.stop_reason != "tool_use"


def test_an_agent_loop(client: Anthropic) -> None:
    conversation: list[Any] = list(CALLING["messages"])
    n = 0
    for _ in range(2):
        message = client.messages.create(**{**CALLING, "messages": conversation})
        results = []
        for block in message.content:
            if block.type == "tool_use":
                check_call(block)
                result = {"type": "tool_result", "tool_use_id": block.id, "content": "done"}
                results.append(result)
        assert results
        conversation += [{"role": "assistant", "content": message.content}]
        conversation += [{"role": "user", "content": [*results, {"type": "text", "text": "And?"}]}]
        used = message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)
        assert used > n, "the result has not reached the prompt"
        n = used
    last = {**CALLING, "messages": conversation, "tool_choice": {"type": "none"}, "max_tokens": 8}
    assert client.messages.create(**last).stop_reason in ("end_turn", "max_tokens")


def test_the_client_s_own_tool_runner(client: Anthropic) -> None:
    switched: list[bool] = []

    @anthropic.beta_tool
    def set_light(on: bool) -> str:
        """Switches the light.

        Args:
            on: whether it shall shine
        """
        switched.append(on)
        return "done"

    options: dict[str, Any] = {**CALLING, "tools": [set_light]}
    runner = client.beta.messages.tool_runner(**options, max_iterations=2)
    messages = list(runner)
    assert [message.stop_reason for message in messages] == ["tool_use", "tool_use"]
    assert len(switched) >= 1


# ---- errors ------------------------------------------------------------------------------------


def test_a_wrong_key(server: Server) -> None:
    needs_key(server)
    with client_of(server, "wrong") as client:
        for stream in (False, True):
            with pytest.raises(anthropic.AuthenticationError) as caught:
                client.messages.create(**OPTIONS, stream=stream)
            assert caught.value.type == "authentication_error"
            body: Any = caught.value.body
            assert caught.value.request_id == body["request_id"]


@pytest.mark.parametrize("key_in", ["api_key", "auth_token"])
def test_either_form_of_a_key(server: Server, key_in: str) -> None:
    keys: dict[str, Any] = {"api_key": None, "auth_token": None, key_in: server.api_key or "none"}
    with Anthropic(base_url=server.url, max_retries=0, timeout=SECONDS, **keys) as client:
        assert client.messages.count_tokens(model=MODEL, messages=MESSAGES).input_tokens > 0


def test_a_bad_request(client: Anthropic) -> None:
    for stream in (False, True):
        with pytest.raises(anthropic.BadRequestError) as caught:
            client.messages.create(**OPTIONS, extra_body={"temperature": "hot"}, stream=stream)
        assert caught.value.type == "invalid_request_error"
        assert "temperature" in str(caught.value)


def test_not_found(client: Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.messages.batches.list()
    assert caught.value.type == "not_found_error"


def test_features_that_only_anthropic_has(client: Anthropic) -> None:
    search: Any = {"type": "web_search_20250305", "name": "web_search"}
    shell: Any = {"type": "bash_20250124", "name": "bash"}
    for tools in ([search], [TOOL, search, shell]):
        assert client.messages.create(**OPTIONS, tools=tools).usage.output_tokens
    retrying = client.with_options(max_retries=5)  # retries would take long
    must: Any = {"type": "any"}
    with pytest.raises(anthropic.InternalServerError, match="web_search_20250305") as caught:
        retrying.messages.create(**OPTIONS, tools=[search], tool_choice=must)
    assert caught.value.status_code == 501
    assert caught.value.response.headers["x-should-retry"] == "false"


def test_kept_conversations_are_refused_so_that_the_client_sends_all(client: Anthropic) -> None:
    thread = client.beta.messages.thread(
        model=MODEL, max_tokens=4, unsupported_request_behavior="continue_unthreaded"
    )
    n = 0
    for _ in range(2):
        usage = thread.send({"role": "user", "content": "More."}).usage
        used = usage.input_tokens + (usage.cache_read_input_tokens or 0)
        assert used > n + 2, "the model has not seen the messages before"
        n = used


def test_too_long_a_prompt(own_server: Start) -> None:
    server = own_server("-c", "256")
    long: list[Any] = [{"role": "user", "content": "word " * 256}]
    with client_of(server) as client:
        for stream in (False, True):
            with pytest.raises(anthropic.BadRequestError, match="prompt is too long") as caught:
                client.messages.create(model=MODEL, messages=long, max_tokens=2, stream=stream)
            body: Any = caught.value.body
            assert body["error"]["n_ctx"] == 256


def test_an_engine_that_dies(own_server: Start) -> None:
    server = own_server("-np", "1")
    with client_of(server) as client:
        endless: dict[str, Any] = {
            "model": MODEL, "messages": MESSAGES, "max_tokens": 6000,
            "extra_body": {"ignore_eos": True}, "stream": True,
        }  # fmt: skip
        stream = client.messages.create(**endless)
        next(stream)
        server.kill_engine()
        with pytest.raises(anthropic.APIStatusError, match="engine") as caught:
            list(stream)
        assert caught.value.type == "api_error"
        with server.stream(PATH, body("create_message", max_tokens=6000, ignore_eos=True)) as (
            response, events,
        ):  # fmt: skip
            first = next(events)
            server.kill_engine()
            received = [first, *events]
        documents = contract.check_stream(contract.find("POST", PATH), received)
        assert received[-1].event == "error"
        assert documents[-1]["request_id"] == response.headers["request-id"]


# ---- event by event ------------------------------------------------------------------------------


def check_order(events: list[Event]) -> list[Any]:
    """Validates every event, and their order. Returns the documents without pings."""
    documents: list[Any] = contract.check_stream(contract.find("POST", PATH), events)
    assert [event.event for event in events] == [document["type"] for document in documents]
    assert "ping" in {document["type"] for document in documents}
    documents = [document for document in documents if document["type"] != "ping"]
    first, *middle, delta, last = documents
    assert first["type"] == "message_start"
    assert (delta["type"], last["type"]) == ("message_delta", "message_stop")
    index, is_open = -1, False
    for document in middle:
        match document["type"]:
            case "content_block_start":
                assert not is_open
                is_open, index = True, index + 1
            case "content_block_delta":
                assert is_open
            case "content_block_stop":
                assert is_open
                is_open = False
        assert document["index"] == index
    assert not is_open
    return documents


def test_order_of_events(server: Server) -> None:
    for n in (0, 1, 16):
        request = body("create_message", max_tokens=n)
        documents = check_order(server.events(PATH, request))
        first, last = documents[0]["message"]["usage"], documents[-2]["usage"]
        for name in ("input_tokens", "cache_read_input_tokens"):
            assert first[name] == last[name]
        assert last["output_tokens"] <= n


def test_a_long_prompt_is_announced_before_it_is_read(server: Server) -> None:
    text = " ".join(f"word{i}" for i in range(400))
    request = {"messages": [{"role": "user", "content": text}], "max_tokens": 1}
    documents = check_order(server.events(PATH, {**request, "cache_prompt": False}))
    n = server.ask(f"{PATH}/count_tokens", request)["input_tokens"]
    assert documents[0]["message"]["usage"]["input_tokens"] == n


# ---- bad input -----------------------------------------------------------------------------------

USE = {"type": "tool_use", "id": "toolu_1", "name": "set_light", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "done"}
USER = MESSAGES[0]
NO_BUDGET: tuple[Any, ...] = (-2, "many", 0.5, 1e30, True, [])


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"messages": None}, "messages"),
        ({"messages": "Hello"}, "messages"),
        ({"messages": [{"role": "narrator", "content": "a"}]}, "narrator"),
        ({"messages": [{"role": "user", "content": 5}]}, "content"),
        ({"messages": [{"content": "a"}]}, "role"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use"}]}]}, "content"),
        ({"messages": [USER, {"role": "assistant", "content": [USE]}]}, "tool call"),
        ({"system": 5}, "system"),
        ({"system": [{"type": "image"}]}, "system"),
        *(
            ({"thinking": {"type": "enabled", "budget_tokens": nonsense}}, "budget_tokens")
            for nonsense in NO_BUDGET
        ),
        ({"tools": [{"type": "custom"}]}, "tools[0]"),
        ({"tools": [{"name": "", "input_schema": {}}]}, "name"),
        ({"tools": [{"name": "a", "input_schema": {"type": "array"}}]}, "tools[0]"),
        ({"tools": {"name": "a"}}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "a"}}, "tool_choice"),
    ],
)
def test_a_request_that_makes_no_sense(changes: Any, word: str, server: Server) -> None:
    for where in (PATH, f"{PATH}/count_tokens"):
        error = contract.check(server.post(where, {**body("create_message"), **changes}), 400)
        assert word in error["error"]["message"], error


@pytest.mark.parametrize(
    "changes",
    [
        {"stop_sequences": "a"},
        {"stop_sequences": [1]},
        {"max_tokens": -2},
        {"max_tokens": "many"},
        {"n": 2},
        {"output_format": {"type": "json_schema"}},
        {"output_format": {"type": "json_schema", "schema": {"type": "nonsense"}}},
        {
            "output_format": {"type": "json_schema", "schema": {}},
            "output_config": {"format": {"type": "json_schema", "schema": {}}},
        },
        {"output_format": {"type": "json_schema", "schema": {}}, "grammar": 'root ::= "a"'},
    ],
)
def test_answers_that_are_impossible(changes: Any, server: Server) -> None:
    for stream in (False, True):
        request = body("create_message", **changes, stream=stream)
        contract.check(server.post(PATH, request), 400)


def test_a_text_of_10_megabytes(server: Server) -> None:
    request = with_text("create_message", "lorem ipsum " * 850_000)
    n = server.ask(f"{PATH}/count_tokens", request)["input_tokens"]
    assert n > 1_000_000
    for stream in (False, True):
        error = contract.check(server.post(PATH, {**request, "stream": stream}), 400)["error"]
        assert error["n_prompt_tokens"] == n


def test_tolerated_requests(server: Server) -> None:
    tolerated: list[dict[str, Any]] = [
        {"messages": [USER, USER, USER]},
        {"messages": [USER, {"role": "assistant", "content": "a \n"}]},
        {"messages": [USER, *({"role": "assistant", "content": "a"} for _ in range(2))]},
        {"messages": [{"role": "user", "content": ""}]},
        {"messages": [{"role": "user", "content": []}]},
        {"messages": [{"role": "system", "content": []}]},
        {"messages": [{"role": "assistant", "content": "Once"}]},
        {"messages": [{"role": "user", "content": "a"}] * 1000, "max_tokens": 1},
        {"system": ""},
        {"system": None, "thinking": None, "tools": None, "metadata": None, "max_tokens": None},
        {"metadata": {"user_id": "a"}, "service_tier": "auto", "context_management": {}},
        {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}},
        {"tools": [], "mcp_servers": []},
        {"mcp_servers": [{"type": "url", "url": "http://a.example"}], "container": {"skills": []}},
        {"tools": [{"name": "a"}, TOOL, TOOL], "tool_choice": {"type": "auto"}},
        {"tool_choice": {"type": "any"}, "thinking": {"type": "sometimes"}},
        {"messages": [{"role": "user", "content": None}, {"role": "assistant"}, USER]},
        {"messages": [{"role": "user", "content": [RESULT, {"type": "video"}]}]},
        {"messages": [USER, {"role": "assistant", "content": [{**USE, "input": '{"on'}]}, USER]},
        {
            "messages": [
                USER,
                {"role": "assistant", "content": [{"type": "server_tool_use"}, USE]},
                {"role": "user", "content": [{**RESULT, "tool_use_id": "toolu_2"}]},
            ]
        },
        # From a coding agent.
        {
            "system": [{"type": "text", "text": "Be short.", "cache_control": {"ttl": "1h"}}],
            "thinking": {"type": "enabled", "budget_tokens": 2},
            "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
            "metadata": {"user_id": "a"},
            "tools": [TOOL, {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}],
            "stream": True,
        },
    ]
    for changes in tolerated:
        contract.check(server.post(PATH, body("create_message", **changes)))
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "a,b"}
    contract.check(server.post(PATH, body("create_message"), headers=headers))
