"""OpenAI's client."""

import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

MODEL = "specllama-tiny"
MESSAGES: list[Any] = [{"role": "user", "content": "How is the weather in Lima?"}]
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Lima", "Quito"]}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION = {"name": "weather", "description": "The weather of a city", "parameters": PARAMETERS}


class City(BaseModel):
    name: Literal["Lima", "Quito"]
    coastal: bool


@pytest.fixture
def client(url: str) -> Iterator[Any]:
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_models(client: Any) -> None:
    assert [each.id for each in client.models.list()] == [MODEL]


def test_models_retrieve(client: Any) -> None:
    assert client.models.retrieve(MODEL).id == MODEL


def test_chat(client: Any) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_completion_tokens=12, temperature=0
    )
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert 0 < answer.usage.completion_tokens <= 12


def test_chat_responses(client: Any) -> None:
    answer = client.responses.create(
        model=MODEL, input="Tell me about llamas.", max_output_tokens=12, temperature=0
    )
    assert answer.output_text


def test_chat_completions(client: Any) -> None:
    answer = client.completions.create(model=MODEL, prompt="Once", max_tokens=6, temperature=0)
    assert answer.choices[0].text


def test_stream(client: Any) -> None:
    *chunks, last = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_completion_tokens=12,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    assert "".join(each.choices[0].delta.content or "" for each in chunks)
    assert chunks[-1].choices[0].finish_reason
    assert last.usage is not None


def test_stream_responses(client: Any) -> None:
    with client.responses.stream(
        model=MODEL, input="Which city?", text_format=City, temperature=0
    ) as stream:
        text = "".join(each.delta for each in stream if each.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text
    assert isinstance(final.output_parsed, City)


def test_tools(client: Any) -> None:
    tools: Any = [{"type": "function", "function": FUNCTION}]
    answer = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        tools=tools,
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
    )
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "tool_calls"
    [call] = message.tool_calls
    assert call.type == "function"
    assert json.loads(call.function.arguments)["city"] in ("Lima", "Quito")
    result: Any = {"role": "tool", "tool_call_id": call.id, "content": '{"degrees": 20}'}
    again = client.chat.completions.create(
        model=MODEL,
        messages=[*MESSAGES, message.to_dict(), result],
        tools=tools,
        tool_choice="none",
        max_completion_tokens=12,
        temperature=0,
    )
    assert again.choices[0].message.content


def test_tools_streamed(client: Any) -> None:
    with client.chat.completions.stream(
        model=MODEL,
        messages=MESSAGES,
        tools=[openai.pydantic_function_tool(City)],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
    ) as stream:
        final = stream.get_final_completion()
    [call] = final.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, City)


def test_tools_responses(client: Any) -> None:
    answer = client.responses.create(
        model=MODEL,
        input="How is the weather in Lima?",
        tools=[{"type": "function", "strict": True, **FUNCTION}],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
    )
    [call] = [each for each in answer.output if each.type == "function_call"]
    assert json.loads(call.arguments)["city"] in ("Lima", "Quito")


def test_structured_output(client: Any) -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, response_format=City, temperature=0
    )
    assert isinstance(answer.choices[0].message.parsed, City)


def test_structured_output_responses(client: Any) -> None:
    answer = client.responses.parse(
        model=MODEL, input="Which city?", text_format=City, temperature=0
    )
    assert isinstance(answer.output_parsed, City)


def test_embeddings(embeddings_url: str) -> None:
    with OpenAI(base_url=f"{embeddings_url}/v1", api_key="none", max_retries=0) as client:
        answer = client.embeddings.create(model=MODEL, input=["a llama", "a city"])
    first, second = answer.data
    assert len(first.embedding) == len(second.embedding) > 0
    assert first.embedding != second.embedding


def test_error(client: Any) -> None:
    long: Any = [{"role": "user", "content": "llama " * 9000}]
    with pytest.raises(openai.BadRequestError, match="exceeds the available context size"):
        client.chat.completions.create(model=MODEL, messages=long)
