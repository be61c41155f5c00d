"""Reads the bodies of OpenAI's completions of texts and of chats.

Bodies have passed validation against the description.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specllama.engine.chat.request import ChatRequest
from specllama.engine.options import Options
from specllama.handlers.apis.generate import NO_IMAGES, Prompts, Supported
from specllama.handlers.apis.native.request import CompletionRequest, parse_prompts
from specllama.handlers.apis.openai.messages import chat_messages
from specllama.handlers.apis.parameters import generation_params, ping_of, shows_queue
from specllama.handlers.apis.probabilities import chat_probabilities, text_probabilities
from specllama.handlers.apis.thinking import template_variables, thinking_budget
from specllama.handlers.apis.tools import Choice, Tool, chosen, offered
from specllama.handlers.apis.wishes import wishes_in
from specllama.handlers.http import schemas
from specllama.handlers.running.choices import candidates, texts_per_prompt

SUPPORTED: Supported = {
    **NO_IMAGES,
    "modalities": [[], ["text"], ["text", "audio"], ["audio", "text"]],
}
"""The accepted values in chat completions."""


@dataclass(frozen=True, kw_only=True)
class TextCompletionRequest(CompletionRequest):
    """A request for a text completion. The best `n_best` of the `n` texts for each prompt are
    returned."""

    id: str
    n_best: int


def read_text_completion(
    body: schemas.OpenAICompletionRequest, options: Options
) -> TextCompletionRequest:
    """Raises EngineError (invalid_request_error)."""
    params = generation_params(body, options.engine.generation_defaults())
    prompts = Prompts(
        texts=parse_prompts(body["prompt"], images=body.get("image_data")),
        suffix=body.get("suffix") or "",
        echo=bool(body.get("echo")),
    )
    n_best = texts_per_prompt(body, len(prompts.texts))
    params, probabilities = text_probabilities(body, params)
    n, params = candidates(body, n_best, len(prompts.texts), params)
    return TextCompletionRequest(
        params=params,
        what=prompts,
        n=n,
        n_best=n_best,
        probabilities=probabilities,
        id=answer_id(),
        ping=ping_of(body, options),
        wishes=wishes_in(body),
        shows_queue=shows_queue(body),
        verbose=body.get("verbose"),
        reasoning_format=options.chat.reasoning_format,
        response_fields=body.get("response_fields") or (),
    )


@dataclass(frozen=True, kw_only=True)
class ChatCompletionRequest(CompletionRequest):
    """A request for a chat completion. With `old_calls`, calls have the old form of
    `functions`."""

    id: str
    include_usage: bool
    old_calls: bool


def read_chat_completion(
    body: schemas.ChatCompletionRequest, options: Options
) -> ChatCompletionRequest:
    """Raises EngineError as `chat_request` does."""
    params = generation_params(body, options.engine.generation_defaults())
    params, probabilities = chat_probabilities(body, params)
    n = texts_per_prompt(body)
    request = chat_request(body, options)
    return ChatCompletionRequest(
        params=params,
        what=request,
        n=n,
        probabilities=probabilities,
        id=answer_id(),
        ping=ping_of(body, options),
        wishes=wishes_in(body),
        shows_queue=shows_queue(body),
        verbose=body.get("verbose"),
        reasoning_format=request.reasoning_format,
        response_fields=body.get("response_fields") or (),
        include_usage=bool((body.get("stream_options") or {}).get("include_usage")),
        old_calls=uses_functions(body),
    )


def answer_id() -> str:
    """Returns a new id."""
    return "chatcmpl-" + secrets.token_urlsafe(24)


_SWITCH = {"enabled": True, "disabled": False}
"""The meaning of `thinking.type`."""


def chat_request(body: schemas.ChatCompletionRequest, options: Options) -> ChatRequest:
    """Returns the conversation of `body`. The server's options are the default for missing fields.

    Raises EngineError: invalid_request_error, or not_supported_error for parts and tools that are
    unavailable here.
    """
    tools: Sequence[Tool] = body.get("tools") or []
    wanted: Choice = body.get("tool_choice")
    parallel = body.get("parallel_tool_calls")
    if uses_functions(body):
        functions = body.get("functions") or []
        tools = [{"type": "function", "function": function} for function in functions]
        wanted, parallel = _old_choice(body.get("function_call")), False
    choice = chosen(offered(tools), wanted)
    goes_on = body.get("continue_final_message")
    return ChatRequest(
        messages=chat_messages(body["messages"]),
        tools=choice.tools,
        tool_choice=choice.how,
        tool_name=choice.name,
        free_text=choice.free_text,
        parallel_tool_calls=parallel,
        parse_tool_calls=body.get("parse_tool_calls") is not False,
        reasoning_format=body.get("reasoning_format") or options.chat.reasoning_format,
        thinking_budget=thinking_budget(body, options, body.get("thinking_budget_tokens")),
        thinking_forced_open=bool(body.get("thinking_forced_open")),
        add_generation_prompt=body.get("add_generation_prompt"),
        continue_final_message=goes_on,
        # A client that sends `continue_final_message` with `stream` already shows that text.
        repeat_given=not (goes_on and body.get("stream")) or bool(body.get("echo")),
        prefill=options.chat.prefill_assistant,
        template_variables=_template_variables(body, options),
    )


def uses_functions(body: schemas.ChatCompletionRequest) -> bool:
    """Whether `body` has tools in OpenAI's old form only; the answer has that form then, too."""
    return bool(body.get("functions")) and not body.get("tools")


def _old_choice(choice: schemas.FunctionChoice) -> Choice:
    if choice is None or isinstance(choice, str):
        return choice
    return {"type": "function", "function": choice}


def _template_variables(body: schemas.ChatCompletionRequest, options: Options) -> dict[str, Any]:
    """Raises EngineError (invalid_request_error)."""
    reasoning, thinking = body.get("reasoning") or {}, body.get("thinking") or {}
    switch = _SWITCH.get(thinking.get("type") or "")
    variables = template_variables(
        options,
        body.get("chat_template_kwargs"),
        effort=body.get("reasoning_effort") or reasoning.get("effort"),
        thinks=(body.get("enable_thinking"), reasoning.get("enabled"), switch),
    )
    if documents := body.get("documents"):
        variables["documents"] = documents
    return variables
