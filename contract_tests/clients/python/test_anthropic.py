"""Anthropic's client."""

from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import pytest
from anthropic import Anthropic
from pydantic import BaseModel

MODEL = "specllama-tiny"
MESSAGES: list[Any] = [{"role": "user", "content": "How is the weather in Lima?"}]
GREEDY = {"temperature": 0}  # Anthropic's newest models reject it
ONE: Any = {"type": "any", "disable_parallel_tool_use": True}
TOOL: Any = {
    "name": "weather",
    "description": "The weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Lima", "Quito"]}},
        "required": ["city"],
    },
}


class City(BaseModel):
    name: Literal["Lima", "Quito"]
    coastal: bool


@pytest.fixture
def client(url: str) -> Iterator[Anthropic]:
    with Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def test_models(client: Anthropic) -> None:
    assert [each.id for each in client.models.list()] == [MODEL]


def test_models_retrieve(client: Anthropic) -> None:
    assert client.models.retrieve(MODEL).id == MODEL


def test_chat(client: Anthropic) -> None:
    answer = client.messages.create(
        model=MODEL, messages=MESSAGES, max_tokens=12, extra_body=GREEDY, system="Be brief."
    )
    assert answer.content[0].type == "text"
    assert answer.content[0].text
    assert 0 < answer.usage.output_tokens <= 12


def test_chat_tokens_counted(client: Anthropic) -> None:
    assert client.messages.count_tokens(model=MODEL, messages=MESSAGES).input_tokens > 0


def test_stream(client: Anthropic) -> None:
    with client.messages.stream(
        model=MODEL, messages=MESSAGES, max_tokens=12, extra_body=GREEDY
    ) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text
    assert final.content[0].type == "text"
    assert final.content[0].text == text


def test_tools(client: Anthropic) -> None:
    options: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": 200,
        "extra_body": GREEDY,
        "tools": [TOOL],
    }
    answer = client.messages.create(messages=MESSAGES, tool_choice=ONE, **options)
    assert answer.stop_reason == "tool_use"
    [use] = [each for each in answer.content if each.type == "tool_use"]
    assert use.input["city"] in ("Lima", "Quito")
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "20 degrees"}
    history: list[Any] = [
        *MESSAGES,
        {"role": "assistant", "content": [each.to_dict() for each in answer.content]},
        {"role": "user", "content": [result]},
    ]
    again = client.messages.create(
        messages=history, tool_choice={"type": "none"}, **{**options, "max_tokens": 12}
    )
    assert again.content


def test_tools_streamed(client: Anthropic) -> None:
    with client.messages.stream(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=200,
        extra_body=GREEDY,
        tools=[TOOL],
        tool_choice={"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
    ) as stream:
        final = stream.get_final_message()
    [use] = [each for each in final.content if each.type == "tool_use"]
    assert use.input["city"] in ("Lima", "Quito")


def test_structured_output(client: Anthropic) -> None:
    answer = client.messages.parse(
        model=MODEL, messages=MESSAGES, max_tokens=200, extra_body=GREEDY, output_format=City
    )
    assert isinstance(answer.parsed_output, City)


def test_error(client: Anthropic) -> None:
    long: Any = [{"role": "user", "content": "llama " * 9000}]
    with pytest.raises(anthropic.BadRequestError, match="exceeds the available context size"):
        client.messages.create(model=MODEL, messages=long, max_tokens=8)
