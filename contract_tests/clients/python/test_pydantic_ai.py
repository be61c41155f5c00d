"""Pydantic AI's agents."""

import asyncio
from typing import Any, Literal

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ModelHTTPError, NativeOutput, RunContext, Tool, ToolDefinition
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

MODEL = "specllama-tiny"
QUESTION = "How is the weather in Lima?"
ONE: Any = {"temperature": 0, "parallel_tool_calls": False}
SHORT: Any = {"temperature": 0, "max_tokens": 12}


class City(BaseModel):
    """A city."""

    name: Literal["Lima", "Quito"]
    coastal: bool


def _model(url: str) -> Any:
    return OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))


def test_chat(url: str) -> None:
    answer = Agent(_model(url), instructions="Be brief.").run_sync(QUESTION, model_settings=SHORT)
    assert answer.output


def test_chat_responses(url: str) -> None:
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    agent = Agent(OpenAIResponsesModel(MODEL, provider=provider))
    assert agent.run_sync(QUESTION, model_settings=SHORT).output


def test_chat_anthropic(url: str) -> None:
    provider = AnthropicProvider(base_url=url, api_key="none")
    agent = Agent(AnthropicModel(MODEL, provider=provider))
    assert agent.run_sync(QUESTION, model_settings={"max_tokens": 100}).output


def test_stream(url: str) -> None:
    async def text() -> str:
        async with Agent(_model(url)).run_stream(QUESTION, model_settings=SHORT) as stream:
            return "".join([each async for each in stream.stream_text(delta=True)])

    assert asyncio.run(text())


def test_tools(url: str) -> None:
    """The model calls a tool, or the one that ends the run with its output."""
    called: list[str] = []

    def weather(city: Literal["Lima", "Quito"]) -> str:
        """The weather of a city."""
        called.append(city)
        return f"20 degrees in {city}"

    async def once(_: RunContext[None], tool: ToolDefinition) -> ToolDefinition | None:
        """Offers the tool until it is called once, because a model might call it for ever."""
        return None if called else tool

    tools = [Tool(weather, prepare=once)]
    agent = Agent(_model(url), tools=tools, output_type=City, model_settings=ONE)
    answer = agent.run_sync(QUESTION)
    assert isinstance(answer.output, City)
    assert set(called) <= {"Lima", "Quito"}


def test_structured_output(url: str) -> None:
    """A schema as the format of the answer."""
    agent = Agent(_model(url), output_type=NativeOutput(City), model_settings=ONE)
    assert isinstance(agent.run_sync("Which city?").output, City)


def test_structured_output_tool(url: str) -> None:
    """A tool that has to be called."""
    agent = Agent(_model(url), output_type=City, model_settings=ONE)
    assert isinstance(agent.run_sync("Which city?").output, City)


def test_error(url: str) -> None:
    with pytest.raises(ModelHTTPError, match="exceeds the available context size"):
        Agent(_model(url)).run_sync("llama " * 9000)
