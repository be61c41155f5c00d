"""Uses the server with the Python client that openapi-generator generates."""

import json
import os

import pytest
from specllama_client import ApiClient, Configuration
from specllama_client.api.chat_api import ChatApi
from specllama_client.api.completion_api import CompletionApi
from specllama_client.api.embeddings_api import EmbeddingsApi
from specllama_client.api.models_api import ModelsApi
from specllama_client.api.slots_api import SlotsApi
from specllama_client.exceptions import BadRequestException
from specllama_client.models.chat_completion_chunk import ChatCompletionChunk
from specllama_client.models.chat_completion_request import ChatCompletionRequest
from specllama_client.models.chat_message import ChatMessage
from specllama_client.models.completion_request import CompletionRequest
from specllama_client.models.completion_result import CompletionResult
from specllama_client.models.context_size_error import ContextSizeError
from specllama_client.models.embedding_input import EmbeddingInput
from specllama_client.models.embedding_list_part import EmbeddingListPart
from specllama_client.models.function_tool import FunctionTool
from specllama_client.models.function_tool_call import FunctionToolCall
from specllama_client.models.message_content import MessageContent
from specllama_client.models.model import Model
from specllama_client.models.open_ai_embedding_request import OpenAIEmbeddingRequest
from specllama_client.models.open_ai_embedding_response import OpenAIEmbeddingResponse
from specllama_client.models.prompt import Prompt
from specllama_client.models.tool import Tool
from specllama_client.models.tool_choice import ToolChoice
from specllama_client.models.tool_choice_mode import ToolChoiceMode

MODEL = "specllama-tiny"
QUESTION = "How is the weather in Lima?"
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Lima", "Quito"]}},
    "required": ["city"],
}


def texts(name: str) -> ApiClient:
    return ApiClient(Configuration(host=f"{os.environ['SERVER_URL']}/{name}"))


def user(text: str) -> list[ChatMessage]:
    return [ChatMessage(role="user", content=MessageContent(text))]


def short() -> ChatCompletionRequest:
    return ChatCompletionRequest(
        model=MODEL, messages=user(QUESTION), max_completion_tokens=8, temperature=0
    )


def test_models() -> None:
    answer = ModelsApi(texts("models")).list_openai_models()
    [model] = [each.actual_instance for each in answer.data]
    assert isinstance(model, Model)
    assert model.id == MODEL


def test_slots() -> None:
    slot = SlotsApi(texts("slots")).list_slots()[0].actual_instance
    assert slot is not None
    assert slot.is_processing is False


def test_completion() -> None:
    body = CompletionRequest(prompt=Prompt("A llama"), n_predict=8, temperature=0)
    answer = CompletionApi(texts("completion")).create_completion(body).actual_instance
    assert isinstance(answer, CompletionResult)
    assert answer.content
    assert answer.tokens_predicted == 8


def test_chat() -> None:
    answer = ChatApi(texts("chat")).create_chat_completion(short())
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens == 8


def test_tools() -> None:
    weather = FunctionTool(name="weather", parameters=PARAMETERS)
    body = ChatCompletionRequest(
        model=MODEL,
        messages=user(QUESTION),
        temperature=0,
        tools=[Tool(type="function", function=weather)],
        tool_choice=ToolChoice(ToolChoiceMode.REQUIRED),
        parallel_tool_calls=False,
    )
    answer = ChatApi(texts("tools")).create_chat_completion(body)
    assert answer.choices[0].message.tool_calls
    call = answer.choices[0].message.tool_calls[0].actual_instance
    assert isinstance(call, FunctionToolCall)
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in ("Lima", "Quito")


def test_stream() -> None:
    api = ChatApi(texts("stream"))
    body = short()
    body.stream = True
    response = api.create_chat_completion_without_preload_content(body)
    lines = [line.decode() for line in response if line.startswith(b"data: ")]
    assert lines.pop() == "data: [DONE]\n"
    text = ""
    for line in lines:
        chunk = ChatCompletionChunk.from_json(line.removeprefix("data: "))
        assert chunk is not None
        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
    assert text


def test_embeddings() -> None:
    client = ApiClient(Configuration(host=f"{os.environ['EMBEDDINGS_URL']}/embeddings"))
    parts = [EmbeddingListPart("a llama"), EmbeddingListPart("a city")]
    body = OpenAIEmbeddingRequest(model=MODEL, input=EmbeddingInput(parts))
    answer = EmbeddingsApi(client).create_openai_embeddings(body).actual_instance
    assert isinstance(answer, OpenAIEmbeddingResponse)
    assert len(answer.data) == 2
    assert answer.data[0].embedding


def test_error() -> None:
    body = ChatCompletionRequest(model=MODEL, messages=user("llama " * 9000))
    with pytest.raises(BadRequestException) as caught:
        ChatApi(texts("error")).create_chat_completion(body)
    assert caught.value.data is not None
    error = caught.value.data.actual_instance
    assert isinstance(error, ContextSizeError)
    assert "exceeds the available context size" in error.error.message
