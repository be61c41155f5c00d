"""Tools, structured outputs and agents with OpenAI's client library."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from contract_tests.kit.chat import N_TOKENS, SWITCH, named, tool
from contract_tests.kit.clients.openai_client import MODEL, client_of
from contract_tests.kit.server import SECONDS, Server

QUESTION: list[Any] = [{"role": "user", "content": "Light in the hall, please."}]
AT_ONCE = {"reasoning_budget_tokens": 0, "cache_prompt": False}
"""No reasoning, because an untrained model's has no end, and no cache, because it changes the
rounding."""
OPTIONS: dict[str, Any] = {
    "model": MODEL,
    "messages": QUESTION,
    "max_tokens": N_TOKENS,
    "seed": 3,
    "extra_body": AT_ONCE,
}
CALLING: dict[str, Any] = {
    **OPTIONS,
    "tools": [tool()],
    "tool_choice": "required",
    "parallel_tool_calls": False,
}


class Fruit(BaseModel):
    colour: Literal["red", "green"]
    ripe: bool


class Dim(BaseModel):
    """Dims the light."""

    percent: Literal[20, 50, 80]
    warm: bool


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with client_of(server) as client:
        yield client


def arguments_of(call: Any) -> Any:
    assert call.type == "function"
    assert call.id
    arguments = json.loads(call.function.arguments)
    assert set(arguments) == set(SWITCH["required"])
    return arguments


def test_a_call(client: OpenAI) -> None:
    answer = client.chat.completions.create(**CALLING)
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    [call] = choice.message.tool_calls or []
    assert call.function.name == "switch"
    assert arguments_of(call)["room"] in ("hall", "attic")


def test_a_streamed_call(client: OpenAI) -> None:
    plain = client.chat.completions.create(**CALLING).choices[0].message.tool_calls
    pieces: list[Any] = []
    reasons = []
    for chunk in client.chat.completions.create(**CALLING, stream=True):
        [choice] = chunk.choices
        pieces += choice.delta.tool_calls or []
        reasons += [choice.finish_reason] if choice.finish_reason else []
    assert reasons == ["tool_calls"]
    assert {piece.index for piece in pieces} == {0}
    assert [piece.function.name for piece in pieces if piece.function.name] == ["switch"]
    assert len([piece.id for piece in pieces if piece.id]) == 1
    assert len(pieces) > 2, "the arguments are sent in one piece"
    text = "".join(piece.function.arguments for piece in pieces)
    assert text == plain[0].function.arguments


def test_choices(client: OpenAI) -> None:
    tools = [tool(), tool("other")]
    answer = client.chat.completions.create(
        **{**CALLING, "tools": tools, "tool_choice": named("other")}
    )
    assert [call.function.name for call in answer.choices[0].message.tool_calls] == ["other"]
    allowed = {"mode": "required", "tools": [named("other")]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    answer = client.chat.completions.create(**{**CALLING, "tools": tools, "tool_choice": choice})
    assert [call.function.name for call in answer.choices[0].message.tool_calls] == ["other"]
    answer = client.chat.completions.create(**{**CALLING, "tool_choice": "none", "max_tokens": 6})
    assert answer.choices[0].message.tool_calls is None
    with pytest.raises(openai.BadRequestError, match="missing"):
        client.chat.completions.create(**{**CALLING, "tool_choice": named("missing")})
    nameless: Any = [{"type": "custom", "custom": {}}]
    with pytest.raises(openai.BadRequestError, match="tools"):
        client.chat.completions.create(**{**CALLING, "tools": nameless})


def test_a_tool_that_takes_a_plain_text(client: OpenAI) -> None:
    custom: Any = {"type": "custom", "custom": {"name": "code", "description": "Runs Python."}}
    asked = {**CALLING, "tools": [tool(), custom], "tool_choice": custom}
    answer = client.chat.completions.create(**asked)
    assert answer.choices[0].finish_reason in ("tool_calls", "length")
    [call] = answer.choices[0].message.tool_calls
    assert (call.type, call.custom.name) == ("custom", "code")
    pieces = []
    for chunk in client.chat.completions.create(**asked, stream=True):
        for delta in chunk.choices[0].delta.tool_calls or () if chunk.choices else ():
            assert delta.index == 0
            pieces.append(delta.custom)
    assert pieces[0] == {"name": "code", "input": ""}
    assert "".join(piece["input"] for piece in pieces) == call.custom.input
    sent_back = [
        *asked["messages"],
        answer.choices[0].message.model_dump(),
        {"role": "tool", "tool_call_id": call.id, "content": "done"},
    ]
    after = {**asked, "messages": sent_back, "tool_choice": "none", "max_tokens": 4}
    assert client.chat.completions.create(**after).choices[0].message.tool_calls is None


def test_the_old_form_of_tools(client: OpenAI) -> None:
    asked = {key: value for key, value in CALLING.items() if key not in ("tools", "tool_choice")}
    function = tool()["function"]
    asked |= {"functions": [function], "function_call": {"name": function["name"]}}
    message = client.chat.completions.create(**asked).choices[0].message
    assert message.tool_calls is None
    assert message.function_call.name == function["name"]
    pieces = [
        chunk.choices[0].delta.function_call
        for chunk in client.chat.completions.create(**asked, stream=True)
        if chunk.choices and chunk.choices[0].delta.function_call
    ]
    assert pieces[0].name == function["name"]
    assert "".join(piece.arguments for piece in pieces) == message.function_call.arguments
    sent_back = [
        *asked["messages"],
        message.model_dump(exclude_none=True),
        {"role": "function", "name": function["name"], "content": "done"},
    ]
    after = {**asked, "messages": sent_back, "function_call": "none", "max_tokens": 4}
    assert client.chat.completions.create(**after).choices[0].finish_reason in ("stop", "length")


def test_the_stream_helper_with_a_tool(client: OpenAI) -> None:
    tools = [openai.pydantic_function_tool(Dim)]
    with client.chat.completions.stream(**{**CALLING, "tools": tools}) as stream:
        found = list(stream)
        final = stream.get_final_completion()
    deltas = [e for e in found if e.type == "tool_calls.function.arguments.delta"]
    [done] = [e for e in found if e.type == "tool_calls.function.arguments.done"]
    assert "".join(e.arguments_delta for e in deltas) == done.arguments
    assert isinstance(done.parsed_arguments, Dim)
    [call] = final.choices[0].message.tool_calls or []
    assert call.function.parsed_arguments == done.parsed_arguments
    assert final.choices[0].finish_reason == "tool_calls"


def test_the_stream_helper_with_a_form(client: OpenAI) -> None:
    with client.chat.completions.stream(**OPTIONS, response_format=Fruit) as stream:
        found = list(stream)
        final = stream.get_final_completion()
    [done] = [each for each in found if each.type == "content.done"]
    assert isinstance(done.parsed, Fruit)
    assert final.choices[0].message.parsed == done.parsed
    assert final.choices[0].finish_reason == "stop"


def test_parse(client: OpenAI) -> None:
    answer = client.chat.completions.parse(**OPTIONS, response_format=Fruit)
    assert isinstance(answer.choices[0].message.parsed, Fruit)
    tools = [openai.pydantic_function_tool(Dim)]
    answer = client.chat.completions.parse(**{**CALLING, "tools": tools})
    [call] = answer.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Dim)
    cut = {**OPTIONS, "max_tokens": 1}
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(**cut, response_format=Fruit)


def test_forms(client: OpenAI) -> None:
    schema: Any = {
        "type": "json_schema",
        "json_schema": {"name": "switch", "strict": True, "schema": SWITCH},
    }
    answer = client.chat.completions.create(**OPTIONS, response_format=schema)
    assert set(json.loads(answer.choices[0].message.content or "")) == {"on", "room"}
    schema["json_schema"]["schema"] = {"type": "nothing"}
    with pytest.raises(openai.BadRequestError, match="nothing"):
        client.chat.completions.create(**OPTIONS, response_format=schema)


def test_an_agent(client: OpenAI) -> None:
    """Two tools, one of them called twice, then an answer. The messages are sent back unchanged."""
    lamps = {"hall": False, "attic": False}
    dimmed = []

    def switch(on: bool, room: str) -> str:
        lamps[room] = on
        return json.dumps(lamps)

    def dim(percent: int, warm: bool) -> str:
        dimmed.append(percent)
        return f"{percent} %{', warm' * warm}"

    functions: dict[str, Any] = {"switch": switch, "Dim": dim}
    options: dict[str, Any] = {**CALLING, "tools": [tool(), openai.pydantic_function_tool(Dim)]}
    messages = [*QUESTION]
    n_tokens = 0
    for choice in ("required", named("switch"), named("Dim"), "none"):
        options |= {"messages": messages, "tool_choice": choice}
        if choice == "none":
            options["max_tokens"] = 12
        answer = client.chat.completions.create(**options)
        assert answer.usage.prompt_tokens > n_tokens
        n_tokens = answer.usage.prompt_tokens
        message = answer.choices[0].message
        messages.append(message)
        for call in message.tool_calls or ():
            output = functions[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": output})
    assert dimmed
    assert message.tool_calls is None
    assert isinstance(message.content, str)
    assert len(messages) == 8


def test_asynchronous_client(server: Server) -> None:
    async def run() -> None:
        key = server.api_key or "none"
        async with AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key=key, timeout=SECONDS, max_retries=0
        ) as client:
            plain, parsed = await asyncio.gather(
                client.chat.completions.create(**CALLING),
                client.chat.completions.parse(**OPTIONS, response_format=Fruit),
            )
            [call] = plain.choices[0].message.tool_calls
            arguments_of(call)
            assert isinstance(parsed.choices[0].message.parsed, Fruit)
            text = ""
            async for chunk in await client.chat.completions.create(**CALLING, stream=True):
                for piece in chunk.choices[0].delta.tool_calls or ():
                    text += piece.function.arguments
            assert json.loads(text)
            tools = [openai.pydantic_function_tool(Dim)]
            async with client.chat.completions.stream(**{**CALLING, "tools": tools}) as stream:
                kinds = {event.type async for event in stream}
                final = await stream.get_final_completion()
            assert "tool_calls.function.arguments.done" in kinds
            [made] = final.choices[0].message.tool_calls or []
            assert isinstance(made.function.parsed_arguments, Dim)

    asyncio.run(run())
