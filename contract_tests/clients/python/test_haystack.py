"""Haystack's components."""

import json
from typing import Any, Literal

import openai
import pytest
from haystack.components.embedders import OpenAITextEmbedder
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage, StreamingChunk
from haystack.tools import Tool
from haystack.utils import Secret
from pydantic import BaseModel

MODEL = "specllama-tiny"
MESSAGES = [ChatMessage.from_user("How is the weather in Lima?")]
KEY = Secret.from_token("none")
SECONDS = 1800.0  # for tests that hang; the default is 30
WEATHER = Tool(
    name="weather",
    description="The weather of a city",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Lima", "Quito"]}},
        "required": ["city"],
    },
    function=lambda city: f"20 degrees in {city}",
)


class City(BaseModel):
    name: Literal["Lima", "Quito"]
    coastal: bool


def _generator(url: str, **options: Any) -> Any:
    return OpenAIChatGenerator(
        api_key=KEY,
        model=MODEL,
        api_base_url=f"{url}/v1",
        max_retries=0,
        timeout=SECONDS,
        generation_kwargs={"temperature": 0, **options},
    )


def test_chat(url: str) -> None:
    [reply] = _generator(url, max_completion_tokens=12).run(MESSAGES)["replies"]
    assert reply.text


def test_stream(url: str) -> None:
    chunks: list[StreamingChunk] = []
    generator = _generator(url, max_completion_tokens=12)
    [reply] = generator.run(MESSAGES, streaming_callback=chunks.append)["replies"]
    assert "".join(each.content for each in chunks) == reply.text
    assert reply.text


def test_tools(url: str) -> None:
    generator = _generator(url, tool_choice="required", parallel_tool_calls=False)
    [reply] = generator.run(MESSAGES, tools=[WEATHER])["replies"]
    [call] = reply.tool_calls
    assert call.arguments["city"] in ("Lima", "Quito")
    result = ChatMessage.from_tool(WEATHER.invoke(**call.arguments), origin=call)
    telling = _generator(url, tool_choice="none", max_completion_tokens=12)
    [reply] = telling.run([*MESSAGES, reply, result], tools=[WEATHER])["replies"]
    assert reply.text


def test_structured_output(url: str) -> None:
    [reply] = _generator(url, response_format=City).run(MESSAGES)["replies"]
    assert City.model_validate(json.loads(reply.text))


def test_embeddings(embeddings_url: str) -> None:
    embedder = OpenAITextEmbedder(
        api_key=KEY, model=MODEL, api_base_url=f"{embeddings_url}/v1", timeout=SECONDS
    )
    assert len(embedder.run("a llama")["embedding"]) > 0


def test_error(url: str) -> None:
    with pytest.raises(openai.BadRequestError, match="exceeds the available context size"):
        _generator(url).run([ChatMessage.from_user("llama " * 9000)])
