"""Ollama's official client library, and other requests to its paths."""

import asyncio
import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import httpx
import pytest
from ollama import AsyncClient, Client, ResponseError
from openai import OpenAI

from contract_tests.kit import contract, lint
from contract_tests.kit.bodies import MESSAGES, MODEL, body
from contract_tests.kit.clients.ollama_client import fails, options_of
from contract_tests.kit.server import SECONDS, OwnServer, Server, Start, needs_key

CHAT = "/api/chat"
SHORT = {"num_predict": 6, "seed": 1}
YES_OR_NO = {
    "type": "object",
    "properties": {"answer": {"type": "boolean"}},
    "required": ["answer"],
    "additionalProperties": False,
}
NATIVE = {"User-Agent": "ollama-python/0.6 (x86_64 linux) Python/3.11"}


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(**options_of(server)) as client:
        yield client


@pytest.fixture(scope="module")
def brief(module_server: Start) -> OwnServer:
    """A server whose answers are short, even for requests that can't set a limit."""
    return module_server("-n", "4")


# ---- the model ---------------------------------------------------------------------------


def test_list(client: Client, server: Server) -> None:
    [model] = client.list().models
    served = server.get("/v1/models").json()["data"][0]
    assert model.model == served["id"]
    assert model.size == served["meta"]["size"]
    assert isinstance(model.modified_at, datetime)
    assert model.modified_at.tzinfo is not None
    assert model.details is not None
    assert model.details.format == "gguf"
    assert model.details.family


def test_tags_are_public_and_the_same_as_the_models(server: Server) -> None:
    for headers in ({}, {"Authorization": ""}):
        response = server.get("/api/tags", headers=headers)
        models = server.get("/models", headers=headers)
        assert contract.check(response) == contract.check(models)


def test_show(client: Client, server: Server) -> None:
    shown = client.show(MODEL)
    props = server.get("/props").json()
    [listed] = client.list().models
    assert (shown.template or "").removesuffix("\n") == props["chat_template"]
    assert shown.details == listed.details
    assert shown.modified_at == listed.modified_at
    assert shown.modelinfo is not None
    n_ctx = props["default_generation_settings"]["n_ctx"]
    assert shown.modelinfo["llama.context_length"] == n_ctx
    architecture = shown.modelinfo["general.architecture"]
    assert shown.modelinfo[f"{architecture}.context_length"] == n_ctx
    assert shown.capabilities is not None
    assert "completion" in shown.capabilities
    assert ("tools" in shown.capabilities) == props["chat_template_caps"]["supports_tools"]
    assert shown.parameters is not None
    parameters = dict(line.split(" ", 1) for line in shown.parameters.splitlines())
    defaults = props["default_generation_settings"]["params"]
    for name in ("temperature", "top_k", "top_p", "repeat_penalty"):
        assert float(parameters[name]) == pytest.approx(defaults[name])
    assert shown.modelfile is not None
    assert shown.modelfile.startswith(f"FROM {props['model_path']}\n")


def test_show_of_a_server_with_options(own_server: Start) -> None:
    server = own_server("-c", "512", "-np", "2", "--temp", "0.25", "--seed", "5", "--alias", "m")
    with Client(**options_of(server)) as client:
        assert [model.model for model in client.list().models] == ["m"]
        shown = client.show("m")
    assert shown.parameters is not None
    assert {"num_ctx 256", "temperature 0.25", "seed 5"} <= set(shown.parameters.splitlines())
    assert shown.license == "MIT"
    assert shown.details is not None
    assert shown.details.quantization_level == "Q8_0"
    assert shown.capabilities is not None
    assert "insert" in shown.capabilities


def test_show_of_a_server_that_embeds(own_server: Start) -> None:
    server = own_server("--embeddings", "--pooling", "mean")
    assert server.ask("/api/show", {"model": MODEL})["capabilities"] == ["embedding"]


def test_show_takes_the_older_name_of_the_field(server: Server) -> None:
    shown = contract.check(server.post("/api/show", {"name": MODEL}))
    assert shown == contract.check(server.post("/api/show", {"model": "other", "verbose": True}))


# ---- chat, with the client ---------------------------------------------------------------


def test_chat(client: Client) -> None:
    answer = client.chat(MODEL, MESSAGES, options=SHORT)
    assert answer.model == MODEL
    assert answer.message.role == "assistant"
    assert isinstance(answer.message.content, str)
    assert answer.done
    assert answer.done_reason in ("stop", "length")
    assert answer.eval_count is not None
    assert 0 < answer.eval_count <= 6
    assert answer.prompt_eval_count is not None
    assert answer.prompt_eval_count > 0
    assert answer.total_duration is not None
    assert answer.eval_duration is not None
    assert 0 <= answer.eval_duration <= answer.total_duration
    assert answer.created_at is not None
    assert datetime.fromisoformat(answer.created_at).tzinfo is not None
    again = client.chat(MODEL, MESSAGES, options=SHORT)
    assert again.message.content == answer.message.content


def test_streamed_chat(client: Client) -> None:
    whole = client.chat(MODEL, MESSAGES, options=SHORT)
    *pieces, last = client.chat(MODEL, MESSAGES, options=SHORT, stream=True)
    assert not any(piece.done for piece in pieces)
    assert all(piece.message.content or piece.message.thinking for piece in pieces)
    assert all(piece.done_reason is None for piece in pieces)
    assert last.done
    assert last.message.content == ""
    assert "".join(piece.message.content or "" for piece in pieces) == whole.message.content
    assert (last.done_reason, last.eval_count) == (whole.done_reason, whole.eval_count)


def test_asynchronous_client(server: Server) -> None:
    async def talk() -> None:
        async with AsyncClient(**options_of(server)) as client:
            assert (await client.list()).models
            assert (await client.show(MODEL)).capabilities
            whole = await client.chat(MODEL, MESSAGES, options=SHORT)
            stream = await client.chat(MODEL, MESSAGES, options=SHORT, stream=True)
            pieces = [piece async for piece in stream]
            assert "".join(p.message.content or "" for p in pieces) == whole.message.content
            many = [client.chat(MODEL, MESSAGES, options=SHORT) for _ in range(4)]
            assert all(answer.done for answer in await asyncio.gather(*many))

    asyncio.run(talk())


@pytest.mark.parametrize("stream", [False, True])
def test_format(client: Client, stream: bool) -> None:
    options: dict[str, Any] = {"num_predict": 200, "temperature": 0}
    chat: Any = client.chat  # typed for each literal value of `stream`
    answer = chat(MODEL, MESSAGES, format=YES_OR_NO, think=False, options=options, stream=stream)
    pieces = list(answer) if stream else [answer]
    value = json.loads("".join(piece.message.content for piece in pieces))
    assert value.keys() == {"answer"}
    assert isinstance(value["answer"], bool)
    assert pieces[-1].done_reason == "stop"


def test_format_json(client: Client) -> None:
    asked = [{"role": "user", "content": "Write this as a JSON object: my name is Anna."}]
    options = {**SHORT, "num_predict": 64}  # white space may come first
    answer = client.chat(MODEL, asked, format="json", think=False, options=options)
    assert answer.message.content is not None
    assert answer.message.content.lstrip().startswith("{")


def test_logprobs(client: Client) -> None:
    for n in (None, 0, 3):
        asked: dict[str, Any] = {"logprobs": True, "top_logprobs": n}
        answer = client.chat(MODEL, MESSAGES, options=SHORT, **asked)
        *pieces, last = client.chat(MODEL, MESSAGES, options=SHORT, stream=True, **asked)
        assert answer.logprobs is not None
        assert len(answer.logprobs) == answer.eval_count
        assert all(len(token.top_logprobs or ()) == (n or 0) for token in answer.logprobs)
        streamed = [token for piece in (*pieces, last) for token in piece.logprobs or ()]
        assert [t.token for t in streamed] == [t.token for t in answer.logprobs]
    assert client.chat(MODEL, MESSAGES, options=SHORT).logprobs is None


def test_stop_and_thinking_are_taken(client: Client) -> None:
    options: dict[str, Any] = {**SHORT, "num_predict": 40, "temperature": 0}
    for think in (True, False, "low", None):
        answer = client.chat(
            MODEL, MESSAGES, think=think, keep_alive="5m", options={**options, "num_ctx": 4096}
        )
        assert answer.done
    plain: str = client.chat(MODEL, MESSAGES, think=False, options=options).message.content or ""
    stop = plain[len(plain) // 2 :][:4]
    stopped = client.chat(MODEL, MESSAGES, think=False, options={**options, "stop": [stop]})
    assert stopped.message.content == plain[: plain.index(stop)]
    assert stopped.done_reason == "stop"


def test_a_conversation_with_results_of_tools(client: Client) -> None:
    """The client leaves out empty fields, contents included."""
    calls = [{"function": {"name": "now", "arguments": {}}}] * 2
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Short answers."},
        {"role": "user", "content": "What is the time?"},
        {"role": "assistant", "content": "", "thinking": "I'll look.", "tool_calls": calls},
        {"role": "tool", "tool_name": "now", "content": ""},
        {"role": "tool", "tool_name": "now", "content": "12:00"},
    ]
    assert client.chat(MODEL, messages, options=SHORT).done
    messages += [{"role": "assistant", "content": ""}, {"role": "user", "content": "And now?"}]
    assert client.chat(MODEL, messages, options=SHORT).done


LAMP = {
    "type": "function",
    "function": {
        "name": "switch_lamp",
        "description": "Switches the lamp.",
        "parameters": {
            "type": "object",
            "properties": {"on": {"type": "boolean"}},
            "required": ["on"],
        },
    },
}


class Insisting(httpx.HTTPTransport):
    """Adds `tool_choice`, for which the client has no argument. The model has to call one tool
    until there is a result."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        sent = json.loads(request.content)
        answered = any(message["role"] == "tool" for message in sent["messages"])
        sent["tool_choice"] = "none" if answered else "required"
        sent["parallel_tool_calls"] = False
        headers = {k: v for k, v in request.headers.items() if k.lower() != "content-length"}
        return super().handle_request(
            httpx.Request(request.method, request.url, headers=headers, json=sent)
        )


@pytest.mark.parametrize("stream", [False, True])
def test_agent(server: Server, stream: bool) -> None:
    """Calls a tool, sends the result back, and gets an answer."""
    messages: list[Any] = [{"role": "user", "content": "Lights on, please."}]
    switched: list[bool] = []
    with Client(**options_of(server), transport=Insisting()) as client:
        for _ in range(2):
            answer: Any = client.chat(
                MODEL,
                messages,
                tools=[LAMP],
                options={"num_predict": 300, "temperature": 0},
                think=False,
                stream=stream,
            )
            pieces = list(answer) if stream else [answer]
            assert pieces[-1].done
            calls = [call for piece in pieces for call in piece.message.tool_calls or ()]
            if not calls:
                break
            messages.append({"role": "assistant", "content": "", "tool_calls": calls})
            for call in calls:
                assert call.function.name == "switch_lamp"
                assert isinstance(call.function.arguments["on"], bool)
                switched.append(call.function.arguments["on"])
                result = {"role": "tool", "tool_name": call.function.name, "content": "done"}
                messages.append(result)
    assert switched
    assert messages[-1]["role"] == "tool", "the second answer is a text"


# ---- errors ------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_texts(client: Client, stream: bool) -> None:
    def chat(messages: Any = MESSAGES, **changes: Any) -> None:
        ask: Any = client.chat  # typed for each literal value of `stream`
        list(ask(MODEL, messages, stream=stream, **changes))

    assert "options.top_k" in fails(400, lambda: chat(options={"top_k": "many"}))
    assert "options.num_predict" in fails(400, lambda: chat(options={"num_predict": 1.5}))
    assert "samplers" in fails(400, lambda: chat(options={"samplers": [7]}))
    unknown = [{"role": "x" * 65, "content": "a"}]
    assert "messages" in fails(400, lambda: chat(messages=unknown))
    assert "schema" in fails(400, lambda: chat(format={"type": "nothing"}))
    assert "top_logprobs" in fails(400, lambda: chat(top_logprobs=5))
    long = [{"role": "user", "content": "word " * 100_000}]
    assert "tokens" in fails(400, lambda: chat(messages=long))
    seeing = [{"role": "user", "content": "What is this?", "images": ["iVBORw0KGgo="]}]
    assert "messages[0].images" in fails(501, lambda: chat(messages=seeing))
    assert "/api/copy" in fails(404, lambda: client.copy(MODEL, "other"))


def test_errors_of_a_server_with_a_key(server: Server) -> None:
    needs_key(server)
    with Client(**options_of(server, "wrong")) as client:
        assert client.list().models
        for call in (lambda: client.show(MODEL), lambda: client.chat(MODEL, MESSAGES)):
            assert "Key" in fails(401, call)


JSON_TYPE = {"Content-Type": "application/json"}
OF_OPENAI: list[dict[str, str]] = [
    {"User-Agent": "OpenAI/Python 2.0"},
    {"X-Stainless-Lang": "js"},
    {"Accept": "text/event-stream"},
]


def test_which_form_errors_have(server: Server) -> None:
    """Errors have Ollama's format unless the client sends OpenAI's headers, even before the body is
    read."""
    media = {"Content-Type": "text/html"}
    for headers in ({}, NATIVE, {"Accept": "application/x-ndjson"}, {**NATIVE, **OF_OPENAI[2]}):
        for response in (
            server.post(CHAT, {"messages": 5}, headers=headers),
            server.post(CHAT, {"messages": MESSAGES, "format": "yaml"}, headers=headers),
            server.post(CHAT, content=b"{", headers={**JSON_TYPE, **headers}),
        ):
            assert isinstance(contract.check(response, 400)["error"], str)
        response = server.post(CHAT, content=b"{}", headers={**headers, **media})
        assert isinstance(contract.check(response, 415)["error"], str)
    for headers in OF_OPENAI:
        response = server.post(CHAT, {"messages": 5}, headers=headers)
        contract.check_envelope(response, 400, "invalid_request_error")
    # A path of another API never has Ollama's format.
    response = server.post("/v1/chat/completions", {}, headers=NATIVE)
    contract.check_envelope(response, 400, "invalid_request_error")


def test_errors_of_a_request_in_openai_form(server: Server) -> None:
    """Errors after the body has been parsed have the format of the answer."""
    long = [{"role": "user", "content": "word " * 100_000}]
    response = server.post(CHAT, {"messages": long, "max_tokens": 4})
    contract.check_envelope(response, 400, "exceed_context_size_error")
    response = server.post(CHAT, {"messages": long})
    assert isinstance(contract.check(response, 400)["error"], str)


def test_an_engine_that_dies_ends_a_stream_with_an_error(own_server: Start) -> None:
    server = own_server("-np", "2")
    with Client(**options_of(server)) as client:
        options = {"num_predict": 6000, "ignore_eos": True}
        stream = client.chat(MODEL, MESSAGES, stream=True, options=options)
        for _ in range(3):
            next(stream)
        server.kill_engine()
        with pytest.raises(ResponseError) as caught:
            list(stream)
        assert isinstance(caught.value.error, str)
        assert client.chat(MODEL, MESSAGES, options=SHORT).done


# ---- which format ------------------------------------------------------------------------

TALK: list[Any] = [{"role": "assistant", "content": "a"}, *MESSAGES]
CALL = {"type": "function", "id": "call00000"}
RULE: list[tuple[dict[str, str], dict[str, Any], bool]] = [
    ({}, {}, True),
    ({}, {"model": MODEL, "tools": [], "logprobs": False, "top_logprobs": None}, True),
    ({}, {"temperature": None, "max_tokens": None, "response_format": None}, True),
    ({}, {"a field": "of unknown"}, True),
    ({"User-Agent": "curl/8.5.0", "Accept": "*/*"}, {}, True),
    ({"User-Agent": "my-openai-app"}, {}, True),
    ({"Accept": "application/json"}, {}, True),
    ({}, {"messages": [{"role": "assistant"}, {"role": "user", "content": "a"}]}, True),
    ({}, {"messages": [{"role": "user", "content": "a", "images": None}]}, True),
    *((headers, {}, False) for headers in OF_OPENAI),
    ({}, {"max_tokens": 4}, False),
    ({}, {"max_completion_tokens": 4}, False),
    ({}, {"temperature": 0}, False),
    ({}, {"seed": 7}, False),
    ({}, {"n_predict": 4}, False),
    ({}, {"chat_template_kwargs": {}}, False),
    ({}, {"stream_options": {}}, False),
    ({}, {"tool_choice": "auto"}, False),
    ({}, {"user": "a"}, False),
    ({}, {"options": None, "format": None, "think": None, "temperature": 0}, False),
    ({}, {"messages": [{"role": "developer", "content": "Be terse."}, *MESSAGES]}, False),
    ({}, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}, False),
    ({}, {"messages": [{**TALK[0], "reasoning_content": "b"}, *MESSAGES]}, False),
    (
        {},
        {
            "messages": [
                *MESSAGES,
                {
                    "role": "assistant",
                    "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "{}"}}],
                },
                {"role": "tool", "tool_call_id": "call00000", "content": "1"},
            ]
        },
        False,
    ),
    (
        {},
        {
            "messages": [
                *MESSAGES,
                {
                    "role": "assistant",
                    "tool_calls": [{**CALL, "function": {"name": "f", "arguments": {}}}],
                },
                {"role": "tool", "tool_call_id": "call00000", "content": "1"},
            ]
        },
        True,
    ),
    *(
        (headers, {**changes, "max_tokens": 4}, True)
        for headers, changes in (
            (NATIVE, {}),
            ({**NATIVE, "Accept": "text/event-stream"}, {}),
            ({"User-Agent": "ollama-js/0.6.0 (arm64 darwin Node.js/v24)"}, {}),
            ({"User-Agent": "Ollama/1.0"}, {}),
            ({"Accept": "application/x-ndjson"}, {}),
            ({"Accept": "application/json, application/x-ndjson;q=0.5"}, {}),
            ({"User-Agent": "OpenAI/Python 2.0"}, {"options": {}}),
            ({}, {"format": ""}),
            ({}, {"format": "json"}),
            ({}, {"think": False}),
            ({}, {"keep_alive": 0}),
            ({}, {"messages": [{"role": "user", "content": "a", "images": []}]}),
            ({}, {"messages": [{"role": "assistant", "thinking": "b"}, *MESSAGES]}),
        )
    ),
]


@pytest.mark.parametrize(("headers", "changes", "native"), RULE, ids=str)
def test_which_format(
    headers: dict[str, str], changes: dict[str, Any], native: bool, brief: OwnServer
) -> None:
    """The path selects Ollama's format, unless the request has marks of OpenAI's clients."""
    request = {"messages": MESSAGES, **changes}
    kinds = []
    for given in ({}, {"stream": None}, {"stream": True}, {"stream": False}):
        response = brief.post(CHAT, {**request, **given}, headers=headers)
        contract.check(response)
        kinds.append(contract.media_type(response))
    if native:
        assert kinds == [lint.LINES] * 3 + [contract.JSON]
        assert "message" in response.json()
    else:
        assert kinds == [contract.JSON, contract.JSON, lint.EVENT_STREAM, contract.JSON]
        assert "choices" in response.json()


def test_openai_client_on_the_path(server: Server) -> None:
    """For the clients of OpenAI and llama-server, the path is an alias of chat completions."""
    key = server.api_key or "none"
    with OpenAI(base_url=server.url, api_key=key, max_retries=0, timeout=SECONDS) as client:
        answer = client.post(CHAT, body=body("create_ollama_chat"), cast_to=httpx.Response)
        assert contract.check(answer)["object"] == "chat.completion"
    request = body("create_chat_completion", cache_prompt=False)
    there = server.ask("/v1/chat/completions", request)
    here = server.ask(CHAT, request)
    changing = {"id", "created", "timings"}
    assert {k: v for k, v in here.items() if k not in changing} == {
        k: v for k, v in there.items() if k not in changing
    }


@pytest.mark.parametrize("stream", [False, True])
def test_both_formats_are_equal(stream: bool, server: Server) -> None:
    """Ollama's format gives the same text, whether the limit is a field of Chat Completions or is
    in `options`, which take precedence."""
    request = body("create_ollama_chat", cache_prompt=False, temperature=0, max_tokens=12)
    expected = server.ask(CHAT, request)["choices"][0]["message"]["content"]
    native = {**request, "stream": stream}
    for changes in ({"keep_alive": 1}, {"max_tokens": 3, "options": {"num_predict": 12}}):
        documents = contract.check(server.post(CHAT, {**native, **changes}))
        pieces = documents if stream else [documents]
        assert "".join(piece["message"]["content"] for piece in pieces) == expected
        assert [piece["done"] for piece in pieces] == [False] * (len(pieces) - 1) + [True]


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "json", "json_schema": {}},
        {"format": YES_OR_NO, "response_format": {"type": "json_object"}},
        {"format": "json", "grammar": 'root ::= "a"'},
        {"format": "yaml"},
        {"format": []},
        {"options": []},
        {"options": {"temperature": "hot"}},
        {"options": {"num_predict": -3}},
        {"options": {"num_ctx": -1}},
        {"options": {"stop": 1}},
        {"think": 1},
        {"keep_alive": {}},
        {"think": True, "n": 2},
        {"messages": [{"role": "unknown", "content": "a"}]},
        {"messages": [{"content": "a"}]},
        {"messages": [{"role": "user", "content": "a", "images": "b"}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"type": "x", "function": {}}]}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"type": "x"}]}]},
        {"messages": [{"role": "assistant", "function_call": 5}]},
        {"messages": [{"role": "assistant", "function_call": {"arguments": "{}"}}]},
    ],
    ids=str,
)
def test_bad_requests(changes: dict[str, Any], server: Server) -> None:
    for stream in (False, True):
        request = body("create_ollama_chat", stream=stream, **changes)
        contract.check(server.post(CHAT, request), 400)
        error = contract.check(server.post(CHAT, request, headers=NATIVE), 400)["error"]
        assert isinstance(error, str)


def test_a_client_that_leaves(server: Server) -> None:
    request = body("create_ollama_chat", keep_alive=0, n_predict=1500, ignore_eos=True)
    with server.http.stream("POST", CHAT, json=request) as response:
        next(response.iter_lines())
    server.wait_until_gone()
