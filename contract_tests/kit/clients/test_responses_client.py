"""The Responses API with OpenAI's client library."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response
from pydantic import BaseModel

from contract_tests.kit.clients.openai_client import MODEL, client_of
from contract_tests.kit.server import SECONDS, OwnServer, Server, Start, wait_until

UNTHINKING: Any = {"effort": "none"}
"""Turns reasoning off, because it may be as long as the answer's limit."""
OPTIONS: dict[str, Any] = {"model": MODEL, "max_output_tokens": 200, "reasoning": UNTHINKING}
SEED = {"seed": 5}


class Fruit(BaseModel):
    colour: Literal["red", "green"]
    ripe: bool


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with client_of(server) as client:
        yield client


def test_create(client: OpenAI) -> None:
    response = client.responses.create(
        model=MODEL,
        instructions="Be short.",
        input="Hello",
        max_output_tokens=8,
        reasoning=UNTHINKING,
    )
    assert response.object == "response"
    assert response.status in ("completed", "incomplete")
    assert response.usage is not None
    assert response.usage.output_tokens <= 8
    assert response.model == client.models.list().data[0].id
    [item] = response.output
    assert item.type == "message"
    part = item.content[0]
    assert part.type == "output_text"
    assert response.output_text == part.text


def test_events(client: OpenAI) -> None:
    options: dict[str, Any] = {
        "model": MODEL,
        "input": "Hello",
        "max_output_tokens": 8,
        "extra_body": SEED,
    }
    plain = client.responses.create(**options)
    stream = client.responses.create(**options, stream=True)
    found = list(stream)
    text = "".join(each.delta for each in found if each.type == "response.output_text.delta")
    assert text == plain.output_text
    assert found[-1].type == f"response.{plain.status}"
    assert [each.sequence_number for each in found] == list(range(len(found)))


def test_the_stream_helper(client: OpenAI) -> None:
    with client.responses.stream(**OPTIONS, input="A fruit?", text_format=Fruit) as stream:
        kinds = {each.type for each in stream}
        final = stream.get_final_response()
    assert {"response.output_text.delta", "response.output_text.done"} <= kinds
    assert isinstance(final.output_parsed, Fruit)
    assert Fruit.model_validate_json(final.output_text) == final.output_parsed
    again = client.responses.retrieve(final.id)
    assert again.output_text == final.output_text


def test_parse(client: OpenAI) -> None:
    response = client.responses.parse(**OPTIONS, input="A fruit?", text_format=Fruit)
    assert isinstance(response.output_parsed, Fruit)


def test_a_conversation(client: OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="My name is Ann.", max_output_tokens=4)
    second = client.responses.create(
        model=MODEL, input="What is it?", max_output_tokens=4, previous_response_id=first.id
    )
    assert second.previous_response_id == first.id
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens
    by_hand: Any = [
        {"role": "user", "content": "My name is Ann."},
        *(item.to_dict() for item in first.output),
        {"role": "user", "content": "What is it?"},
    ]
    third = client.responses.create(model=MODEL, input=by_hand, max_output_tokens=4)
    assert third.usage is not None
    assert third.usage.input_tokens == second.usage.input_tokens


def test_conversations(client: OpenAI) -> None:
    talk = client.conversations.create(
        metadata={"topic": "names"},
        items=[{"type": "message", "role": "user", "content": "My name is Ann."}],
    )
    assert (talk.object, talk.metadata) == ("conversation", {"topic": "names"})
    first = client.responses.create(**OPTIONS, input="What is it?", conversation=talk.id)
    assert first.conversation is not None
    assert first.conversation.id == talk.id
    stream = client.responses.create(
        **OPTIONS, input="Again?", conversation={"id": talk.id}, stream=True
    )
    second = list(stream)[-1]
    assert second.type in ("response.completed", "response.incomplete")
    items = list(client.conversations.items.list(talk.id, order="asc", limit=2))
    assert [each.id for each in items[2:]] == [
        *(each.id for each in first.output),
        items[2 + len(first.output)].id,
        *(each.id for each in second.response.output),
    ]
    assert first.usage is not None
    by_hand = client.responses.create(
        **OPTIONS,
        input=[{"role": "user", "content": t} for t in ("My name is Ann.", "What is it?")],
    )
    assert by_hand.usage is not None
    assert by_hand.usage.input_tokens == first.usage.input_tokens
    added = client.conversations.items.create(
        talk.id,
        items=[{"role": "user", "content": "Bye"}],
        include=["message.input_image.image_url"],
    )
    found = client.conversations.items.retrieve(added.first_id, conversation_id=talk.id)
    assert found.type == "message"
    assert client.conversations.items.delete(found.id, conversation_id=talk.id).id == talk.id
    with pytest.raises(openai.NotFoundError):
        client.conversations.items.retrieve(found.id, conversation_id=talk.id)
    assert client.conversations.update(talk.id, metadata={"a": "b"}).metadata == {"a": "b"}
    assert client.conversations.retrieve(talk.id).metadata == {"a": "b"}
    deleted = client.conversations.delete(talk.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (talk.id, "conversation.deleted", True)
    for call in (
        lambda: client.conversations.retrieve(talk.id),
        lambda: client.responses.create(**OPTIONS, input="Hello", conversation=talk.id),
    ):
        with pytest.raises(openai.NotFoundError):
            call()
    assert client.responses.retrieve(first.id).conversation == first.conversation


def test_compaction(client: OpenAI) -> None:
    """The item of a compacted conversation is sent on in the place of the conversation."""
    compacted = client.responses.compact(model=MODEL, input="The code word is slate.")
    [item] = compacted.output
    assert item.type == "compaction"
    assert compacted.usage.output_tokens > 0
    sent: Any = [item.model_dump(), {"role": "user", "content": "Which word?"}]
    response = client.responses.create(**OPTIONS, input=sent)
    assert response.output_text
    sent[0]["encrypted_content"] = "c" * len(item.encrypted_content)
    with pytest.raises(openai.BadRequestError, match="has changed"):
        client.responses.create(**OPTIONS, input=sent)


def test_sealed_reasoning(client: OpenAI, server: Server) -> None:
    """Codex sends reasoning back without its text."""
    options: Any = {"model": MODEL, "store": False, "include": ["reasoning.encrypted_content"]}
    thinking = {**SEED, "reasoning_budget_tokens": 8, "thinking_forced_open": True}
    made = client.responses.create(
        **options, input="Hello", max_output_tokens=48, extra_body=thinking
    )
    thoughts = [each for each in made.output if each.type == "reasoning"]
    if not thoughts:
        assert not isinstance(server, OwnServer), "its thoughts are forced"
        pytest.skip("the model has not reasoned")
    [thought] = thoughts
    assert thought.encrypted_content
    text = thought.to_dict()

    def counted(**changes: Any) -> int:
        item = {**text, **changes}
        answer = {"role": "assistant", "content": "Hi"}
        input: Any = [{"role": "user", "content": "Hello"}, item, answer]
        return client.responses.input_tokens.count(model=MODEL, input=input).input_tokens

    sealed = thought.encrypted_content
    whole = counted()
    assert counted(content=None) == counted(encrypted_content=None) == whole
    forged = sealed[:-6] + ("AAAAAA" if sealed[-6:] != "AAAAAA" else "BBBBBB")
    assert counted(content=None, encrypted_content=forged) == counted(
        content=None, encrypted_content=None
    )


def test_in_the_background(client: OpenAI) -> None:
    made = client.responses.create(
        model=MODEL, input="Hello", max_output_tokens=8, background=True, extra_body=SEED
    )
    assert made.status == "queued"

    def whole() -> Response:
        return client.responses.retrieve(made.id)

    wait_until(lambda: whole().status in ("completed", "incomplete"), "the response ends")
    plain = client.responses.create(
        model=MODEL, input="Hello", max_output_tokens=8, extra_body=SEED
    )
    assert whole().output_text == plain.output_text
    assert client.responses.cancel(made.id).status == whole().status
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(plain.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.cancel("resp_0")


def test_stored_responses(client: OpenAI) -> None:
    items: Any = [{"role": "user", "content": str(n)} for n in range(7)]
    made = client.responses.create(model=MODEL, input=items, max_output_tokens=2)
    assert client.responses.retrieve(made.id).output_text == made.output_text
    listed: Any = client.responses.input_items.list(made.id, limit=3, order="asc")
    texts = [each.content[0].text for each in listed]
    assert texts == [str(n) for n in range(7)]
    newest: Any = client.responses.input_items.list(made.id, limit=2).data
    assert [each.content[0].text for each in newest] == ["6", "5"]
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.delete(made.id)
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        client.responses.create(model=MODEL, input="a", previous_response_id=made.id)


def test_input_tokens(client: OpenAI) -> None:
    counted = client.responses.input_tokens.count(model=MODEL, input="Hello", instructions="Hi")
    made = client.responses.create(
        model=MODEL, input="Hello", instructions="Hi", max_output_tokens=1
    )
    assert made.usage is not None
    assert counted.input_tokens == made.usage.input_tokens
    assert counted.object == "response.input_tokens"


def test_probabilities(client: OpenAI) -> None:
    response = client.responses.create(
        model=MODEL,
        input="Hello",
        max_output_tokens=4,
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        reasoning=UNTHINKING,
    )
    [item] = response.output
    assert item.type == "message"
    part = item.content[0]
    assert part.type == "output_text"
    tokens = part.logprobs
    assert tokens
    for token in tokens:
        assert token.logprob <= 0
        assert len(token.top_logprobs) == 2


# ---- tools -----------------------------------------------------------------------------------

TOOL: Any = {
    "type": "function",
    "name": "temperature",
    "description": "How warm it is.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Cusco", "Puno"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
RESULTS = {"Cusco": "11 degrees", "Puno": "9 degrees"}


@pytest.mark.parametrize("kept", [True, False])
def test_an_agent_that_calls_a_function(kept: bool, client: OpenAI) -> None:
    options: Any = {"model": MODEL, "tools": [TOOL], "store": kept, "reasoning": UNTHINKING}
    question: Any = [{"role": "user", "content": "How warm is it in Cusco?"}]
    first = client.responses.create(
        **options, input=question, tool_choice="required", parallel_tool_calls=False
    )
    [call] = [item for item in first.output if item.type == "function_call"]
    assert (first.status, call.status, call.name) == ("completed", "completed", "temperature")
    arguments = json.loads(call.arguments)
    output: Any = {
        "type": "function_call_output",
        "call_id": call.call_id,
        "output": RESULTS[arguments["city"]],
    }
    if kept:
        more: Any = {"input": [output], "previous_response_id": first.id}
    else:
        more = {"input": [*question, *(item.to_dict() for item in first.output), output]}
    second = client.responses.create(**options, **more, tool_choice="none", max_output_tokens=8)
    assert [item.type for item in second.output][-1] == "message"
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens
    other: Any = {**output, "call_id": "other"}
    assert client.responses.create(**options, input=[other], max_output_tokens=8).output


def test_a_streamed_call(client: OpenAI) -> None:
    choice: Any = {"type": "function", "name": "temperature"}
    with client.responses.stream(
        **OPTIONS,
        input="How warm is it in Puno?",
        tools=[TOOL],
        tool_choice=choice,
        parallel_tool_calls=False,
    ) as stream:
        found = list(stream)
        final = stream.get_final_response()
    [call] = [item for item in final.output if item.type == "function_call"]
    deltas = [e.delta for e in found if e.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == call.arguments
    arguments: Any = call.parsed_arguments
    assert arguments["city"] in RESULTS


def test_a_call_that_is_cut_off_is_incomplete(client: OpenAI) -> None:
    response = client.responses.create(
        model=MODEL, input="Hello", tools=[TOOL], tool_choice="required", max_output_tokens=1
    )
    assert response.status == "incomplete"


def test_a_tool_that_takes_a_plain_text(client: OpenAI) -> None:
    """A coding agent's request, with tools that only OpenAI has."""
    patch: Any = {"type": "custom", "name": "apply_patch", "format": {"type": "text"}}
    tools: Any = [{"type": "local_shell"}, patch, {"type": "web_search"}]
    agent: Any = {
        "model": MODEL,
        "instructions": "Be short.",
        "tools": tools,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "parallel_tool_calls": False,
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"verbosity": "low"},
        "max_output_tokens": 200,
        "extra_body": SEED,
    }
    chosen: Any = {"type": "custom", "name": "apply_patch"}
    first = client.responses.create(input="Patch it.", tool_choice=chosen, **agent)
    [call] = [item for item in first.output if item.type == "custom_tool_call"]
    assert call.name == "apply_patch"
    assert [each.type for each in first.tools] == ["custom"]
    events = list(
        client.responses.create(input="Patch it.", tool_choice=chosen, stream=True, **agent)
    )
    deltas = [e.delta for e in events if e.type == "response.custom_tool_call_input.delta"]
    [done] = [e for e in events if e.type == "response.custom_tool_call_input.done"]
    assert "".join(deltas) == done.input == call.input
    history: Any = [
        {"role": "developer", "content": "Be short."},
        {"role": "user", "content": "Patch it."},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        *(item.model_dump(exclude_none=True) for item in first.output),
        {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "done"},
    ]
    second = client.responses.create(input=history, tool_choice="none", **agent)
    assert all(item.type != "custom_tool_call" for item in second.output)


def test_asynchronous_client(server: Server) -> None:
    async def run() -> None:
        key = server.api_key or "none"
        async with AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key=key, timeout=SECONDS, max_retries=0
        ) as client:
            plain, parsed, counted = await asyncio.gather(
                client.responses.create(
                    model=MODEL, input="Hello", max_output_tokens=6, extra_body=SEED
                ),
                client.responses.parse(**OPTIONS, input="A fruit?", text_format=Fruit),
                client.responses.input_tokens.count(model=MODEL, input="Hello"),
            )
            assert isinstance(parsed.output_parsed, Fruit)
            assert plain.usage is not None
            assert counted.input_tokens == plain.usage.input_tokens
            stream = await client.responses.create(
                model=MODEL, input="Hello", max_output_tokens=6, extra_body=SEED, stream=True
            )
            text = [e.delta async for e in stream if e.type == "response.output_text.delta"]
            assert "".join(text) == plain.output_text
            async with client.responses.stream(
                **OPTIONS, input="A fruit?", text_format=Fruit, previous_response_id=plain.id
            ) as helper:
                final = await helper.get_final_response()
            assert isinstance(final.output_parsed, Fruit)
            assert (await client.responses.retrieve(final.id)).previous_response_id == plain.id
            items = [each async for each in client.responses.input_items.list(final.id, limit=1)]
            assert len(items) == 1
            await client.responses.delete(final.id)
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(final.id)

    asyncio.run(run())


def test_errors(client: OpenAI) -> None:
    hot: Any = "hot"
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="temperature"):
            client.responses.create(model=MODEL, input="Hello", temperature=hot, stream=stream)
    with pytest.raises(openai.InternalServerError, match="web_search") as caught:
        client.responses.create(
            model=MODEL,
            input="Hello",
            tools=[{"type": "web_search"}],
            tool_choice="required",
        )
    assert caught.value.status_code == 501


def test_an_engine_that_dies(own_server: Start) -> None:
    server = own_server("-np", "1")
    with client_of(server) as client:
        stream = client.responses.create(
            model=MODEL, input="Hello", max_output_tokens=6000, stream=True,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        seen = [next(stream)]
        server.kill_engine()
        with pytest.raises(openai.APIError, match="engine"):
            seen += stream
        assert client.responses.create(model=MODEL, input="Hello", max_output_tokens=2).output
