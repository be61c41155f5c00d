"""Ollama's client."""

from typing import Any, Literal

import ollama
import pytest
from ollama import Client
from pydantic import BaseModel

MODEL = "specllama-tiny"
MESSAGES: list[Any] = [{"role": "user", "content": "How is the weather in Lima?"}]
SHORT: Any = {"num_predict": 12, "temperature": 0}
LONG: Any = {"temperature": 0, "num_predict": 200}  # enough for a whole call


class City(BaseModel):
    name: Literal["Lima", "Quito"]
    coastal: bool


def weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: The name of the city
    """
    return f"20 degrees in {city}"


@pytest.fixture
def client(url: str) -> Client:
    return Client(url)


def test_models(client: Client) -> None:
    assert [each.model for each in client.list().models] == [MODEL]


def test_models_show(client: Client) -> None:
    shown = client.show(MODEL)
    assert shown.details is not None
    assert "completion" in (shown.capabilities or ())


def test_models_running(client: Client) -> None:
    client.chat(MODEL, MESSAGES, options=SHORT)
    assert [each.model for each in client.ps().models] == [MODEL]


def test_chat(client: Client) -> None:
    answer = client.chat(MODEL, MESSAGES, options=SHORT)
    assert answer.message.content
    assert answer.done


def test_chat_generate(client: Client) -> None:
    assert client.generate(MODEL, "Once upon a time", options=SHORT).response


def test_stream(client: Client) -> None:
    *chunks, last = client.chat(MODEL, MESSAGES, options=SHORT, stream=True)
    assert "".join(each.message.content or "" for each in (*chunks, last))
    assert last.done


def test_stream_generate(client: Client) -> None:
    *chunks, last = client.generate(MODEL, "Once upon a time", options=SHORT, stream=True)
    assert "".join(each.response or "" for each in chunks)
    assert last.done


def test_tools(client: Client) -> None:
    """Ollama's API can't force a call, so an answer without a call is fine, too."""
    call: Any = {"function": {"name": "weather", "arguments": {"city": "Lima"}}}
    history = [
        *MESSAGES,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_name": "weather", "content": weather("Lima")},
    ]
    for messages in (MESSAGES, history):
        answer = client.chat(MODEL, messages, tools=[weather], options=LONG)
        assert answer.message.content or answer.message.tool_calls


def test_structured_output(client: Client) -> None:
    options: Any = {"temperature": 0}
    answer = client.chat(MODEL, MESSAGES, format=City.model_json_schema(), options=options)
    assert City.model_validate_json(answer.message.content or "")


def test_embeddings(embeddings_url: str) -> None:
    first, second = Client(embeddings_url).embed(MODEL, ["a llama", "a city"]).embeddings
    assert len(first) == len(second) > 0


def test_error(client: Client) -> None:
    long: Any = [{"role": "user", "content": "llama " * 9000}]
    with pytest.raises(ollama.ResponseError, match="exceeds the available context size"):
        client.chat(MODEL, long)
