"""LlamaIndex' models for OpenAI-like servers and Ollama."""

from typing import Any, Literal

import openai
import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.ollama import Ollama
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

MODEL = "specllama-tiny"
SECONDS = 1800.0  # for tests that hang; the defaults are 30 and 60
MESSAGES = [ChatMessage(role="user", content="How is the weather in Lima?")]


class City(BaseModel):
    """A city."""

    name: Literal["Lima", "Quito"]
    coastal: bool


def weather(city: Literal["Lima", "Quito"]) -> str:
    """The weather of a city."""
    return f"20 degrees in {city}"


def _model(url: str, **options: Any) -> Any:
    return OpenAILike(
        api_base=f"{url}/v1",
        api_key="none",
        model=MODEL,
        is_chat_model=True,
        is_function_calling_model=True,
        context_window=8192,
        max_retries=0,
        timeout=SECONDS,
        temperature=0,
        **options,
    )


def _ollama(url: str) -> Any:
    more: Any = {"additional_kwargs": {"num_predict": 12}, "request_timeout": SECONDS}
    return Ollama(base_url=url, model=MODEL, temperature=0, **more)


def test_chat(url: str) -> None:
    assert _model(url, max_tokens=12).chat(MESSAGES).message.content


def test_chat_completions(url: str) -> None:
    model = OpenAILike(
        api_base=f"{url}/v1",
        api_key="none",
        model=MODEL,
        is_chat_model=False,
        timeout=SECONDS,
        max_tokens=6,
        temperature=0,
    )
    assert model.complete("Once upon a time").text


def test_chat_ollama(url: str) -> None:
    assert _ollama(url).chat(MESSAGES).message.content


def test_stream(url: str) -> None:
    *_, last = _model(url, max_tokens=12).stream_chat(MESSAGES)
    assert last.message.content


def test_stream_ollama(url: str) -> None:
    *_, last = _ollama(url).stream_chat(MESSAGES)
    assert last.message.content


def test_tools(url: str) -> None:
    model = _model(url)
    tools = [FunctionTool.from_defaults(weather)]
    answer = model.chat_with_tools(
        tools, chat_history=MESSAGES, tool_required=True, allow_parallel_tool_calls=False
    )
    [call] = model.get_tool_calls_from_response(answer)
    assert call.tool_kwargs["city"] in ("Lima", "Quito")


def test_structured_output(url: str) -> None:
    """This method forces a call."""
    prompt = PromptTemplate("Which city?")
    assert isinstance(_model(url).structured_predict(City, prompt), City)


def test_structured_output_schema(url: str) -> None:
    """This method uses a model with support for schemas."""
    prompt = PromptTemplate("Which city?")
    model = _model(url, should_use_structured_outputs=True)
    assert isinstance(model.structured_predict(City, prompt), City)


def test_structured_output_ollama(url: str) -> None:
    model = Ollama(base_url=url, model=MODEL, temperature=0, request_timeout=SECONDS)
    assert isinstance(model.structured_predict(City, PromptTemplate("Which city?")), City)


def test_embeddings(embeddings_url: str) -> None:
    model = OpenAILikeEmbedding(
        model_name=MODEL, api_base=f"{embeddings_url}/v1", api_key="none", timeout=SECONDS
    )
    first, second = model.get_text_embedding_batch(["a llama", "a city"])
    assert len(first) == len(second) > 0


def test_error(url: str) -> None:
    long = [ChatMessage(role="user", content="llama " * 9000)]
    with pytest.raises(openai.BadRequestError, match="exceeds the available context size"):
        _model(url).chat(long)
