"""Compares the description with the types of the official client libraries, field by field and
value by value. Each difference is listed here with its reason."""

import itertools
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any, Literal, Required, TypedDict

import anthropic.types
import ollama._types  # it has the types of requests
import openai.types
import pydantic
import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from openai.types import (
    chat,
    completion_create_params,
    conversations,
    embedding_create_params,
    responses,
)
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.conversations import (
    conversation_create_params,
    conversation_update_params,
    item_create_params,
)
from openai.types.responses import (
    input_token_count_params,
    input_token_count_response,
    response_create_params,
)

from contract_tests.kit import contract, lint
from contract_tests.own.client_types import answer_differences, forms_of, request_differences

REQUESTS: dict[str, dict[str, Any]] = {
    "openai": {
        "create_chat_completion": chat_create_params.CompletionCreateParams,
        "create_openai_completion": completion_create_params.CompletionCreateParams,
        "create_openai_embeddings": embedding_create_params.EmbeddingCreateParams,
    },
    "responses": {
        "create_response": response_create_params.ResponseCreateParams,
        "count_response_tokens": input_token_count_params.InputTokenCountParams,
        "create_conversation": conversation_create_params.ConversationCreateParams,
        "update_conversation": conversation_update_params.ConversationUpdateParams,
        "create_conversation_items": item_create_params.ItemCreateParams,
    },
    "anthropic": {
        "create_message": message_create_params.MessageCreateParams,
        "count_message_tokens": message_count_tokens_params.MessageCountTokensParams,
    },
    "ollama": {
        "create_ollama_chat": ollama._types.ChatRequest,
        "create_ollama_generation": ollama._types.GenerateRequest,
        "embed_ollama_inputs": ollama._types.EmbedRequest,
        "embed_ollama_prompt": ollama._types.EmbeddingsRequest,
        "show_ollama_model": ollama._types.ShowRequest,
        "pull_ollama_model": ollama._types.PullRequest,
    },
}


class Page(pydantic.BaseModel):
    """A list of models as OpenAI's client reads it."""

    object: str
    data: list[openai.types.Model]


ANSWERS: dict[str, dict[str, Any]] = {
    "openai": {
        "create_chat_completion": chat.ChatCompletion,
        "create_openai_completion": openai.types.Completion,
        "create_openai_embeddings": openai.types.CreateEmbeddingResponse,
        "list_openai_models": Page,
        "get_model": openai.types.Model,
    },
    "responses": {
        "create_response": responses.Response,
        "get_response": responses.Response,
        "cancel_response": responses.Response,
        "count_response_tokens": input_token_count_response.InputTokenCountResponse,
        "list_response_input_items": responses.ResponseItemList,
        "create_conversation": conversations.Conversation,
        "get_conversation": conversations.Conversation,
        "update_conversation": conversations.Conversation,
        "delete_conversation": conversations.ConversationDeletedResource,
        "list_conversation_items": conversations.ConversationItemList,
        "create_conversation_items": conversations.ConversationItemList,
        "get_conversation_item": conversations.ConversationItem,
        "delete_conversation_item": conversations.Conversation,
    },
    "anthropic": {
        "create_message": anthropic.types.Message,
        "count_message_tokens": anthropic.types.MessageTokensCount,
    },
    "ollama": {
        "create_ollama_chat": ollama._types.ChatResponse,
        "create_ollama_generation": ollama._types.GenerateResponse,
        "embed_ollama_inputs": ollama._types.EmbedResponse,
        "embed_ollama_prompt": ollama._types.EmbeddingsResponse,
        "show_ollama_model": ollama._types.ShowResponse,
        "list_ollama_models": ollama._types.ListResponse,
        "list_ollama_processes": ollama._types.ProcessResponse,
    },
}
PIECES: dict[str, dict[str, Any]] = {
    "openai": {
        "create_chat_completion": chat.ChatCompletionChunk,
        "create_openai_completion": openai.types.Completion,
    },
    "responses": {"create_response": responses.ResponseStreamEvent},
    "anthropic": {"create_message": anthropic.types.RawMessageStreamEvent},
    "ollama": {
        "create_ollama_chat": ollama._types.ChatResponse,
        "create_ollama_generation": ollama._types.GenerateResponse,
        "pull_ollama_model": ollama._types.ProgressResponse,
    },
}
"""The types of events and lines of streams."""

OTHER_FORMS = {
    "create_ollama_chat": "ChatCompletionResponse",
    "create_openai_embeddings": "EmbeddingResponse",
}
"""Answers in another API's format, which only requests in that format get."""

IGNORED = "ignored, as every unknown field is"
ELSEWHERE = "of a tool or an item that this server lacks: left out, or rejected by name"
EXCEPTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "openai": {
        "there would be nothing to continue; it is refused": ("*.prompt as NoneType",),
        "nothing is archived": ("ChatCompletion.metadata is never there",),
        "nothing is checked": ("*.moderation is never there",),
        "there are no classes of service": ("*.service_tier is never there",),
        "events aren't padded": ("*.obfuscation is never there",),
        "the web isn't searched": ("*.annotations is never there",),
        "answers are texts": ("*.audio is never there",),
        "a model that won't answer says so in its content": ("*.refusal is never there",),
        "such tools in streams are newer than the type": ('ChoiceDeltaToolCall.type is "custom"',),
        "other names with `post_sampling_probs`, which OpenAI hasn't": (
            "*Logprob.logprob isn't always there",
            "*Logprob.top_logprobs isn't always there",
        ),
        "nothing stands before the first token of a prompt": (
            "Logprobs.token_logprobs is null",
            "Logprobs.top_logprobs is null",
        ),
        "only cached tokens are counted separately": (
            "CompletionUsage.completion_tokens_details is never there",
            "PromptTokensDetails.* is never there",
        ),
        "the client has one type for answers and for pieces": (
            "CompletionChoice.finish_reason is null",
        ),
        "base64, which the client asks for and decodes itself": ("Embedding.embedding is string",),
        "a model here has none": ("Model.shutdown_date is never there",),
    },
    "responses": {
        IGNORED: (
            "*.async",
            "*.caller",
            "*.namespace",
            "*.allowed_callers",
            "*.output_schema",
            "*.prompt_cache_breakpoint",
            "FunctionCallOutput.name",
            "Reasoning.context",
            "Reasoning.mode",
            "Reasoning.generate_summary",
            "ResponseOutputTextParam.*",
            "InputTokenCountParams.personality",
            "ResponseCreateParams*.access_programs",
            "ResponseCreateParams*.image",
            "ToolChoiceMcpParam.*",
        ),
        ELSEWHERE: (
            "ToolCodeInterpreter.*",
            "ToolImageGeneration.*",
            "ToolMcp.*",
            "FileSearchTool.* is never there",
            "FunctionShellTool.* is never there",
            "ApplyPatchCall*.*",
            "CodeInterpreter.*",
            "CompactionTrigger.*",
            "Computer*.*",
            "FileSearchToolParam.*",
            "FunctionShellToolParam.environment",
            "ImageGeneration*.*",
            "LocalShellCall*.*",
            "Mcp*.*",
            "Program*.*",
            "ResponseCodeInterpreterToolCallParam.*",
            "ResponseComputerToolCallParam.*",
            "ResponseConfigurationUpdateItemParamParam.*",
            "ResponseFileSearchToolCallParam.*",
            "ResponseFunctionWebSearchParam.*",
            "ShellCall*.*",
            "WebSearch*.*",
        ),
        "images, files and recordings share one schema, without OpenAI's breakpoints": (
            "ResponseInputFile*.*",
            "ResponseInputImage*.*",
        ),
        "it is a parameter of the query": ("ItemCreateParams.include",),
        "an output belongs to a call": ("FunctionCallOutput.call_id as NoneType",),
        "such things are OpenAI's own": (
            "*.allowed_callers is never there",
            "*.async is never there",
            "*.caller is never there",
            "*.created_by is never there",
            "*.defer_loading is never there",
            "*.namespace is never there",
            "*.output_schema is never there",
            "*.phase is never there",
            "*.prompt_cache_breakpoint is never there",
            "InputTokensDetails.cache_write_tokens_details is never there",
            "Reasoning.context is never there",
            "Reasoning.generate_summary is never there",
            "Reasoning.mode is never there",
            "Response.* is never there",
            "ResponseError.* is never there",
            "ResponseFunctionToolCallOutputItem.name is never there",
        ),
        "other names with `post_sampling_probs`, which OpenAI hasn't": (
            "Logprob*.*logprob* isn't always there",
        ),
        "what the request had, which may be more than OpenAI takes": (
            "Grammar.* is never there",
            "Message.phase is string",
            "Message.role is string",
            "Reasoning.effort is string",
            "Response.tool_choice is *",
            "ResponseFormatText*",
            "ResponseInputMessageItem.role is string",
            "ResponseInputText.type is *",
            "ResponseTextConfig.verbosity is string",
            "Text.type *",
            "ToolChoice* is *",
        ),
        "the client has no type for a custom tool's result with this name": (
            'ResponseFunctionToolCallOutputItem.type is "custom_tool_call_output"',
            'ResponseCustomToolCallOutput.type is "function_call_output"',
        ),
        "an empty page begins and ends nowhere": (
            "ResponseItemList.*_id is null",
            "ConversationItemList.*_id is null",
        ),
    },
    "anthropic": {
        IGNORED: (
            "*.caller",
            "*.toolset_name",
            "*.user_profile_id",
            "*.workspace_id",
            "ImageBlockParam.transformations",
            "SearchResultBlockParam.*",
        ),
        ELSEWHERE: (
            "*CodeExecutionToolResultBlock*.*",
            "*Toolset*.configs",
            "BrowserStateBlockParam.*",
            "ContainerUploadBlock*.*",
            "ServerToolUseBlock*.*",
            "ToolReferenceBlockParam.*",
            "ToolSearchToolResultBlock*.*",
            "ToolTextEditor*.max_characters",
            "Web*.*",
        ),
        "such a document isn't read; it is answered with 501": (
            "ContentBlockSourceParam.content as ImageBlockParam",
        ),
        "such things are Anthropic's own": (
            "Message.diagnostics is never there",
            "ToolUseBlock.toolset_name is never there",
            "Usage.speed is never there",
        ),
        "the client passes over such events itself": ('RawMessageStopEvent.type is "ping"',),
    },
    "ollama": {
        "the client leaves out what is None": ("*.messages as NoneType",),
        "a function has a name": ("Function.name as NoneType",),
        "the client writes them as base64": ("*.images as Image",),
        "no pictures are made": (
            "GenerateRequest.height",
            "GenerateRequest.steps",
            "GenerateRequest.width",
            "GenerateResponse.completed is never there",
            "GenerateResponse.image is never there",
            "GenerateResponse.total is never there",
            "Message.images is never there",
        ),
        "a message of the model answers no call": ("Message.tool_name is never there",),
        "other names with `post_sampling_probs`, which Ollama hasn't": (
            "*Logprob.logprob isn't always there",
        ),
        "Ollama's own server doesn't answer them either": ("EmbedResponse.* is never there",),
    },
}
"""The differences as patterns, by reason."""


def is_expected(api: str, difference: str) -> bool:
    patterns = itertools.chain.from_iterable(EXCEPTIONS[api].values())
    return any(fnmatchcase(difference, pattern) for pattern in patterns)


@pytest.mark.parametrize("api", EXCEPTIONS)
def test_the_description_and_the_types_agree(api: str) -> None:
    found = {
        f"{name}: {difference}"
        for name, differences in _differences(api)
        for difference in differences
        if not is_expected(api, difference)
    }
    assert not found, "\n".join(sorted(found))


@pytest.mark.parametrize("api", EXCEPTIONS)
def test_every_exception_is_needed(api: str) -> None:
    found = {each for _, differences in _differences(api) for each in differences}
    for pattern in itertools.chain.from_iterable(EXCEPTIONS[api].values()):
        assert any(fnmatchcase(each, pattern) for each in found), pattern


def _differences(api: str) -> Iterator[tuple[str, set[str]]]:
    """Yields the differences of each operation."""
    for name, hint in REQUESTS[api].items():
        body = contract.operations()[name].definition["requestBody"]
        yield name, request_differences(hint, body["content"][contract.JSON]["schema"])
    for name, hint in ANSWERS[api].items():
        content = contract.answers(contract.operations()[name], 200)
        yield name, answer_differences(_own(name, content[contract.JSON]["schema"]), hint)
    for name, hint in PIECES[api].items():
        content = contract.answers(contract.operations()[name], 200)
        lines = api == "ollama"  # it also answers requests in OpenAI's format, with events
        schema = (
            content[lint.LINES]["x-line-schema"]
            if lines
            else content[lint.EVENT_STREAM]["x-event-data-schema"]
        )
        yield name, answer_differences(_own(name, schema), hint)


def _own(name: str, schema: Any) -> Any:
    """Returns the schema without errors, which clients raise, and without other formats."""
    forms = [
        form
        for form in forms_of(schema)
        if form.get("title") != OTHER_FORMS.get(name) and "error" not in form.get("required", ())
    ]
    return {"anyOf": forms}


# ---- the comparison itself -------------------------------------------------------------------


class Part(TypedDict, total=False):
    kind: Required[Literal["part"]]
    text: str
    size: Literal["small", "large"]


class Piece(pydantic.BaseModel):
    kind: Literal["piece"]
    size: Literal["small"]
    text: str | None = None


PART: Any = {
    "type": "object",
    "required": ["kind"],
    "properties": {
        "kind": {"type": "string", "enum": ["part"]},
        "text": {"type": "string"},
        "size": {"type": "string", "enum": ["small", "large"]},
    },
}


def _changed(name: str, schema: Any) -> Any:
    return {**PART, "properties": {**PART["properties"], name: schema}}


def test_a_request_that_is_described_has_no_differences() -> None:
    assert request_differences(Part, PART) == set()
    assert request_differences(Part, {"anyOf": [{"type": "string"}, PART]}) == set()


def test_differences_of_requests() -> None:
    small = {"type": "string", "enum": ["small"]}
    fields = {name: PART["properties"][name] for name in ("kind", "size")}
    assert request_differences(Part, {**PART, "properties": fields}) == {"Part.text"}
    assert request_differences(Part, _changed("size", small)) == {'Part.size = "large"'}
    assert request_differences(Part, _changed("text", {"type": "integer"})) == {"Part.text as str"}
    assert request_differences(Part, _changed("kind", small)) == {" as Part"}
    assert request_differences(list[Part], {"type": "string"}) == {" as a list"}
    assert request_differences(str | None, {"type": "string"}) == {" as NoneType"}


def test_differences_of_answers() -> None:
    piece = _changed("kind", {"type": "string", "enum": ["piece"]})
    piece["required"] = ["kind", "size"]
    assert answer_differences(piece, Piece) == {'Piece.size is "large"'}
    piece["required"] = ["kind"]
    assert answer_differences(piece, Piece) >= {"Piece.size isn't always there"}
    piece["properties"].pop("text")
    assert answer_differences(piece, Piece) >= {"Piece.text is never there"}
    piece["properties"]["size"] = {"type": "string", "nullable": True, "enum": ["small", None]}
    assert answer_differences(piece, Piece) >= {"Piece.size is null"}
    assert answer_differences({"type": "integer"}, str) == {" is integer"}
    assert answer_differences({"type": "integer"}, float) == set()
