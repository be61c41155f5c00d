"""Uses the server with the client that openapi-python-client generates."""

import json
import os

from specllama_client import AuthenticatedClient, Client
from specllama_client.api.chat import create_chat_completion
from specllama_client.api.completion import create_completion
from specllama_client.api.embeddings import create_openai_embeddings
from specllama_client.api.models import list_openai_models
from specllama_client.api.slots import list_slots
from specllama_client.models import (
    ChatCompletionRequest,
    ChatCompletionResponse,
    ChatMessage,
    CompletionRequest,
    CompletionResult,
    ContextSizeError,
    FunctionTool,
    FunctionToolCall,
    JsonSchema,
    ModelList,
    OpenAIEmbeddingRequest,
    OpenAIEmbeddingResponse,
    Tool,
    ToolChoiceMode,
)

MODEL = "specllama-tiny"
MESSAGES = [ChatMessage(role="user", content="How is the weather in Lima?")]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Lima", "Quito"]}},
    "required": ["city"],
}


def texts(name: str) -> AuthenticatedClient:
    """Returns a client with a key, which the generated functions also require where it is
    optional."""
    url = f"{os.environ['SERVER_URL']}/{name}"
    return AuthenticatedClient(base_url=url, token="none", timeout=None)


def test_models() -> None:
    answer = list_openai_models.sync(client=texts("models"))
    assert isinstance(answer, ModelList)
    assert [each.id for each in answer.data] == [MODEL]


def test_slots() -> None:
    answer = list_slots.sync(client=texts("slots"))
    assert isinstance(answer, list)
    assert answer[0].is_processing is False


def test_completion() -> None:
    body = CompletionRequest(prompt="A llama", n_predict=8, temperature=0)
    answer = create_completion.sync(client=texts("completion"), body=body)
    assert isinstance(answer, CompletionResult)
    assert answer.content
    assert answer.tokens_predicted == 8


def test_chat() -> None:
    body = ChatCompletionRequest(
        model=MODEL, messages=MESSAGES, max_completion_tokens=8, temperature=0
    )
    answer = create_chat_completion.sync(client=texts("chat"), body=body)
    assert isinstance(answer, ChatCompletionResponse)
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens == 8


def test_tools() -> None:
    weather = FunctionTool(name="weather", parameters=JsonSchema.from_dict(PARAMETERS))
    body = ChatCompletionRequest(
        model=MODEL,
        messages=MESSAGES,
        temperature=0,
        tools=[Tool(type_="function", function=weather)],
        tool_choice=ToolChoiceMode.REQUIRED,
        parallel_tool_calls=False,
    )
    answer = create_chat_completion.sync(client=texts("tools"), body=body)
    assert isinstance(answer, ChatCompletionResponse)
    assert answer.choices[0].message.tool_calls
    call = answer.choices[0].message.tool_calls[0]
    assert isinstance(call, FunctionToolCall)
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in ("Lima", "Quito")


def test_embeddings() -> None:
    client = Client(base_url=f"{os.environ['EMBEDDINGS_URL']}/embeddings", timeout=None)
    body = OpenAIEmbeddingRequest(model=MODEL, input_=["a llama", "a city"])
    answer = create_openai_embeddings.sync(client=client, body=body)
    assert isinstance(answer, OpenAIEmbeddingResponse)
    assert len(answer.data) == 2
    assert answer.data[0].embedding


def test_error() -> None:
    message = ChatMessage(role="user", content="llama " * 9000)
    body = ChatCompletionRequest(model=MODEL, messages=[message])
    answer = create_chat_completion.sync_detailed(client=texts("error"), body=body)
    assert answer.status_code == 400
    assert isinstance(answer.parsed, ContextSizeError)
    assert "exceeds the available context size" in answer.parsed.error.message
