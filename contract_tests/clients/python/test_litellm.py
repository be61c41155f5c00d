"""LiteLLM, with its providers for OpenAI-like servers, llama-server, Anthropic and Ollama."""

import json
from typing import Any, Literal

import litellm
import pytest
from pydantic import BaseModel

NAME = "specllama-tiny"
MESSAGES = [{"role": "user", "content": "How is the weather in Lima?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Lima", "Quito"]}},
            "required": ["city"],
        },
    },
}


class City(BaseModel):
    name: Literal["Lima", "Quito"]
    coastal: bool


def _options(url: str, **options: Any) -> dict[str, Any]:
    return {
        "model": f"openai/{NAME}",
        "api_base": f"{url}/v1",
        "api_key": "none",
        "messages": MESSAGES,
        "temperature": 0,
        "num_retries": 0,
        **options,
    }


def test_models(url: str) -> None:
    found = litellm.get_valid_models(
        check_provider_endpoint=True,
        custom_llm_provider="openai",
        api_base=url,
        api_key="none",
    )
    assert any(NAME in each for each in found)


def test_chat(url: str) -> None:
    answer = litellm.completion(**_options(url, max_tokens=12))
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens > 0


def test_chat_llama_server(url: str) -> None:
    """Its provider for llama-server."""
    answer = litellm.completion(**_options(url, model=f"llamafile/{NAME}", max_tokens=12))
    assert answer.choices[0].message.content


def test_chat_anthropic(url: str) -> None:
    answer = litellm.completion(
        **_options(url, model=f"anthropic/{NAME}", api_base=url, max_tokens=12)
    )
    assert answer.choices[0].message.content


def test_chat_ollama(url: str) -> None:
    answer = litellm.completion(
        **_options(url, model=f"ollama_chat/{NAME}", api_base=url, max_tokens=12)
    )
    assert answer.choices[0].message.content


def test_chat_completions(url: str) -> None:
    answer = litellm.text_completion(
        model=f"text-completion-openai/{NAME}",
        api_base=f"{url}/v1",
        api_key="none",
        prompt="Once upon a time",
        max_tokens=6,
        temperature=0,
    )
    assert answer.choices[0].text


def test_chat_responses(url: str) -> None:
    answer = litellm.responses(
        model=f"openai/{NAME}",
        api_base=f"{url}/v1",
        api_key="none",
        input="Tell me about llamas.",
        max_output_tokens=12,
        temperature=0,
    )
    assert answer.output_text


def test_stream(url: str) -> None:
    chunks = list(
        litellm.completion(
            **_options(url, max_tokens=12, stream=True, stream_options={"include_usage": True})
        )
    )
    whole = litellm.stream_chunk_builder(chunks)
    assert whole.choices[0].message.content
    assert whole.usage.completion_tokens > 0


def test_tools(url: str) -> None:
    answer = litellm.completion(
        **_options(url, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    )
    message = answer.choices[0].message
    [call] = message.tool_calls
    assert json.loads(call.function.arguments)["city"] in ("Lima", "Quito")
    result = {"role": "tool", "tool_call_id": call.id, "content": "20 degrees"}
    history = [*MESSAGES, message.model_dump(), result]
    again = litellm.completion(
        **_options(url, messages=history, tools=[TOOL], tool_choice="none", max_tokens=12)
    )
    assert again.choices[0].message.content


def test_tools_anthropic(url: str) -> None:
    answer = litellm.completion(
        **_options(
            url,
            model=f"anthropic/{NAME}",
            api_base=url,
            tools=[TOOL],
            tool_choice="required",
            parallel_tool_calls=False,
            max_tokens=200,
        )
    )
    [call] = answer.choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["city"] in ("Lima", "Quito")


def test_structured_output(url: str) -> None:
    answer = litellm.completion(**_options(url, response_format=City))
    assert City.model_validate_json(answer.choices[0].message.content)


def test_embeddings(embeddings_url: str) -> None:
    answer = litellm.embedding(
        model=f"openai/{NAME}",
        api_base=f"{embeddings_url}/v1",
        api_key="none",
        input=["a llama", "a city"],
    )
    first, second = (each["embedding"] for each in answer.data)
    assert len(first) == len(second) > 0


def test_error(url: str) -> None:
    long = [{"role": "user", "content": "llama " * 9000}]
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**_options(url, messages=long))
