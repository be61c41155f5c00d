"""LangChain's models for OpenAI, Anthropic and Ollama."""

from typing import Any, Literal

import openai
import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel

MODEL = "specllama-tiny"
QUESTION = "How is the weather in Lima?"


class City(BaseModel):
    """A city."""

    name: Literal["Lima", "Quito"]
    coastal: bool


def _weather(city: Literal["Lima", "Quito"]) -> str:
    """The weather of a city."""
    return f"20 degrees in {city}"


WEATHER = tool("weather")(_weather)


def _chat(url: str, **options: Any) -> Any:
    return ChatOpenAI(
        base_url=f"{url}/v1",
        api_key="none",
        model=MODEL,
        max_retries=0,
        **{"temperature": 0, **options},
    )


def _anthropic(url: str) -> Any:
    # The class rejects sampling options for models with unknown names.
    return ChatAnthropic(base_url=url, api_key="none", model=MODEL, max_tokens=200, max_retries=0)


def _ollama(url: str, **options: Any) -> Any:
    return ChatOllama(base_url=url, model=MODEL, temperature=0, **options)


def test_chat(url: str) -> None:
    answer = _chat(url, max_completion_tokens=12).invoke(QUESTION)
    assert answer.content
    assert answer.usage_metadata["output_tokens"] > 0


def test_chat_responses(url: str) -> None:
    answer = _chat(url, max_completion_tokens=12, use_responses_api=True).invoke(QUESTION)
    assert answer.text


def test_chat_completions(url: str) -> None:
    model = OpenAI(base_url=f"{url}/v1", api_key="none", model=MODEL, max_tokens=6, temperature=0)
    assert model.invoke("Once upon a time")


def test_chat_anthropic(url: str) -> None:
    assert isinstance(_anthropic(url).invoke(QUESTION), AIMessage)


def test_chat_ollama(url: str) -> None:
    assert _ollama(url, num_predict=12).invoke(QUESTION).content


def test_stream(url: str) -> None:
    model = _chat(url, max_completion_tokens=12, stream_usage=True)
    first, *rest = model.stream(QUESTION)
    whole = sum(rest, first)
    assert whole.content
    assert whole.usage_metadata["output_tokens"] > 0


def test_stream_anthropic(url: str) -> None:
    first, *rest = _anthropic(url).stream(QUESTION)
    assert sum(rest, first).usage_metadata["output_tokens"] > 0


def test_stream_ollama(url: str) -> None:
    first, *rest = _ollama(url, num_predict=12).stream(QUESTION)
    assert sum(rest, first).content


def test_tools(url: str) -> None:
    options = {"parallel_tool_calls": False}
    question = HumanMessage(QUESTION)
    calling = _chat(url).bind_tools([WEATHER], tool_choice="any", **options)
    answer = calling.invoke([question])
    [call] = answer.tool_calls
    assert call["args"]["city"] in ("Lima", "Quito")
    result = ToolMessage(WEATHER.invoke(call["args"]), tool_call_id=call["id"])
    telling = _chat(url, max_completion_tokens=12).bind_tools([WEATHER], tool_choice="none")
    assert telling.invoke([question, answer, result]).content


def test_tools_anthropic(url: str) -> None:
    calling = _anthropic(url).bind_tools(
        [WEATHER], tool_choice="weather", parallel_tool_calls=False
    )
    [call] = calling.invoke(QUESTION).tool_calls
    assert call["args"]["city"] in ("Lima", "Quito")


def test_structured_output(url: str) -> None:
    model = _chat(url).with_structured_output(City, method="json_schema")
    assert isinstance(model.invoke(QUESTION), City)


def test_structured_output_function(url: str) -> None:
    model = _chat(url).with_structured_output(City, method="function_calling")
    assert isinstance(model.invoke(QUESTION), City)


def test_structured_output_ollama(url: str) -> None:
    model = _ollama(url).with_structured_output(City, method="json_schema")
    assert isinstance(model.invoke(QUESTION), City)


def test_embeddings(embeddings_url: str) -> None:
    """The client splits long texts into tokens, and sends their numbers."""
    model = OpenAIEmbeddings(
        base_url=f"{embeddings_url}/v1",
        api_key="none",
        model=MODEL,
        check_embedding_ctx_length=False,
    )
    first, second = model.embed_documents(["a llama", "a city"])
    assert len(first) == len(second) > 0


def test_embeddings_ollama(embeddings_url: str) -> None:
    model = OllamaEmbeddings(base_url=embeddings_url, model=MODEL)
    first, second = model.embed_documents(["a llama", "a city"])
    assert len(first) == len(second) > 0


def test_error(url: str) -> None:
    with pytest.raises(openai.BadRequestError, match="exceeds the available context size"):
        _chat(url).invoke("llama " * 9000)
