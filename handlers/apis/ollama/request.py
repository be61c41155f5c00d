"""Requests in Ollama's form: how they differ from OpenAI's, and their translation to OpenAI's.

The form is that of https://github.com/ollama/ollama/blob/main/docs/api.md. Bodies have passed
validation against the description.
"""

import re
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from msgspec import structs

from specllama.engine.chat.request import ChatRequest
from specllama.engine.errors import invalid_request, not_supported
from specllama.engine.options import Options
from specllama.engine.params import GenerationParams
from specllama.engine.wire.requests import Infill
from specllama.handlers.apis.generate import GenerationRequest, Prompts
from specllama.handlers.apis.native.probabilities import chat_probabilities
from specllama.handlers.apis.native.request import generation_params
from specllama.handlers.apis.openai.request import chat_request
from specllama.handlers.http import schemas
from specllama.handlers.running.media import PART, media_part

_FIELDS = ("options", "format", "think", "keep_alive")
_MESSAGE_FIELDS = ("images", "thinking", "tool_name")
_CONSTRAINTS = ("grammar", "json_schema", "response_format")
_UNCONSTRAINED = (None, "", {"type": "text"})
_ZERO = re.compile(r"[+-]?(0+(\.0*)?(ns|us|µs|ms|s|m|h)?)+")
_RENAMED = {"num_predict": "n_predict", "num_keep": "n_keep", "stop": "stop"}
SAMPLING = (
    "seed",
    "samplers",
    "temperature",
    "dynatemp_range",
    "dynatemp_exponent",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "top_n_sigma",
    "xtc_probability",
    "xtc_threshold",
    "min_keep",
    "repeat_last_n",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "adaptive_target",
    "adaptive_decay",
    "logit_bias",
    "ignore_eos",
    "backend_sampling",
    "json_whitespace",
    "jump_forward",
)
"""Fields of `options` beside Ollama's own names; a test holds them to the description."""
OPENAI_FIELDS = frozenset(GenerationParams.__struct_fields__) - {"answer", "stream", "unset"} | {
    "add_generation_prompt",
    "audio",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "echo",
    "enable_thinking",
    "function_call",
    "functions",
    "image_data",
    "max_completion_tokens",
    "max_tokens",
    "metadata",
    "modalities",
    "moderation",
    "n",
    "n_cmpl",
    "parallel_tool_calls",
    "parse_tool_calls",
    "prediction",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "reasoning",
    "reasoning_budget_end_tag",
    "reasoning_budget_end_tags",
    "reasoning_budget_message",
    "reasoning_budget_start_tag",
    "reasoning_budget_tokens",
    "reasoning_control",
    "reasoning_effort",
    "reasoning_format",
    "response_fields",
    "response_format",
    "safety_identifier",
    "service_tier",
    "speculative.n_max",
    "speculative.n_min",
    "speculative.p_min",
    "sse_ping_interval",
    "store",
    "stream_options",
    "thinking",
    "thinking_budget_tokens",
    "thinking_forced_open",
    "tool_choice",
    "user",
    "verbose",
    "verbosity",
    "web_search_options",
}
"""Fields of a body that Chat Completions takes, and Ollama's API doesn't have there; a test holds
them to the description."""


@dataclass(frozen=True, kw_only=True)
class OllamaRequest(GenerationRequest):
    """`named` is the model's name as the client has it. With `has_context`, the answer has the
    tokens of all that was said."""

    named: str | None
    has_context: bool = False


def read_ollama_chat(body: Mapping[str, Any], options: Options) -> OllamaRequest:
    """A chat. Raises EngineError as `openai_body` does."""
    return _asked(body, openai_body(body), options)


def read_ollama_generation(body: Mapping[str, Any], options: Options) -> OllamaRequest:
    """The continuation of a prompt: as a conversation, raw, or in front of a suffix. Raises
    EngineError as `generation_body` does."""
    asked = generation_body(body)
    prompt, suffix, images = body.get("prompt") or "", body.get("suffix"), body.get("images")
    if suffix:
        gap = Infill(prefix=[prompt], suffix=[suffix])
        return _asked(body, asked, options, Prompts(gap=gap, is_chat=True))
    if body.get("raw"):
        shown = [part[PART] for part in image_parts(images, "images")]
        return _asked(body, asked, options, Prompts(texts=[[*shown, prompt]], is_chat=True))
    made = _asked(body, asked, options)
    # Tokens can't say again what the images were.
    return replace(made, before=body.get("context") or (), has_context=not images)


def _asked(
    body: Mapping[str, Any],
    asked: Mapping[str, Any],
    options: Options,
    prompts: Prompts | None = None,
) -> OllamaRequest:
    """What `asked`, the `body` in the words of Chat Completions, asks for: an answer to its
    messages, or to `prompts`."""
    params = generation_params(asked, options.engine.generation_defaults())
    params, probabilities = chat_probabilities(cast(schemas.ChatOptions, asked), params)
    what: ChatRequest | Prompts = prompts or structs.replace(
        chat_request(cast(schemas.ChatCompletionRequest, asked), options), repeat_given=False
    )
    return OllamaRequest(
        params=structs.replace(params, return_progress=False),
        what=what,
        probabilities=probabilities,
        unloads=frees_memory(body.get("keep_alive")),
        named=body.get("model"),
    )


def is_in_ollama_form(body: Mapping[str, Any]) -> bool:
    """Does `body` have a field that OpenAI's API doesn't know?"""
    return any(body.get(name) is not None for name in _FIELDS) or any(
        message.get(name) is not None for message in body["messages"] for name in _MESSAGE_FIELDS
    )


def is_in_openai_form(body: Mapping[str, Any]) -> bool:
    """Does `body` have what Chat Completions takes, and Ollama's API doesn't know?"""
    return any(value is not None and name in OPENAI_FIELDS for name, value in body.items()) or any(
        _is_openai_message(message) for message in body["messages"]
    )


def _is_openai_message(message: Mapping[str, Any]) -> bool:
    return (
        message["role"] == "developer"
        or isinstance(message.get("content"), list)
        or message.get("reasoning_content") is not None
        or any(
            isinstance((call.get("function") or {}).get("arguments"), str)
            for call in message.get("tool_calls") or ()
        )
    )


def openai_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """`body` in the words of Chat Completions, with what Ollama's API has as defaults.

    `options` win over fields of the body itself. Raises EngineError (invalid_request_error) for
    what contradicts itself.
    """
    return _generation_body(body) | {"messages": openai_messages(body["messages"])}


def generation_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """A body of `POST /api/generate` in the words of Chat Completions, its prompt as a
    conversation. Raises as `openai_body` does; not_supported_error for a template as well."""
    if body.get("template"):
        raise not_supported(
            "template: this server renders the model's own chat template; send a prompt that is "
            "complete, with raw"
        )
    if body.get("raw") and (body.get("system") or body.get("context")):
        raise invalid_request("raw: there is no place for system or context beside a raw prompt")
    if body.get("suffix") and (body.get("system") or body.get("context")):
        raise invalid_request("suffix: there is no place for system or context around a gap")
    if body.get("suffix") and body.get("images"):
        raise invalid_request("images: there is no place for images around a gap (suffix)")
    messages = [{"role": "system", "content": body["system"]}] if body.get("system") else []
    content = _with_images(body.get("prompt") or "", body.get("images"), "images")
    messages.append({"role": "user", "content": content})
    return _generation_body(body) | {"messages": messages}


def frees_memory(keep_alive: Any) -> bool:
    """Does the request want the model to go when it is done? A `keep_alive` is a number of seconds
    or a duration in Go's words, like "1h30m"."""
    if isinstance(keep_alive, str):
        return _ZERO.fullmatch(keep_alive) is not None
    return keep_alive is not None and keep_alive == 0


def _generation_body(body: Mapping[str, Any]) -> dict[str, Any]:
    made = {name: value for name, value in body.items() if name not in _FIELDS}
    made["stream"] = body.get("stream") is not False
    made |= _generation_options(body.get("options") or {})
    made |= _thinking(body)
    if (form := body.get("format")) not in (None, ""):
        if any(body.get(name) not in _UNCONSTRAINED for name in _CONSTRAINTS):
            raise invalid_request(
                "format: the request also has a grammar or a schema; send one of them"
            )
        made["json_schema"] = {} if form == "json" else form
    if body.get("logprobs"):
        made["top_logprobs"] = body.get("top_logprobs") or 0
    elif not body.get("top_logprobs"):
        made.pop("top_logprobs", None)
    if any(body.get(name) not in (None, 1) for name in ("n", "n_cmpl")):
        raise invalid_request(
            "n: Ollama's format has one answer per request; send several requests"
        )
    return made


def _generation_options(options: Mapping[str, Any]) -> dict[str, Any]:
    names = {**{name: name for name in SAMPLING}, **_RENAMED}
    made = {
        names[name]: value for name, value in options.items() if name in names and value is not None
    }
    if "n_predict" in made:
        made["n_predict"] = max(made["n_predict"], -1)  # -2 fills the context: -1 does, too
    return made


def _thinking(body: Mapping[str, Any]) -> dict[str, Any]:
    think = body.get("think")
    if think in (None, ""):
        return {}
    variables = body.get("chat_template_kwargs") or {}
    made: dict[str, Any] = {
        "chat_template_kwargs": {**variables, "enable_thinking": think is not False}
    }
    if isinstance(think, str):
        made["reasoning_effort"] = think
    return made


def openai_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """`messages`, of either form, in OpenAI's. Ollama's calls have no ids: they get some, and
    each result that of the first open call of its tool.

    Images stand in front of the text, as Ollama has them.
    """
    made: list[dict[str, Any]] = []
    ids = _CallIds()
    for index, message in enumerate(messages):
        new = {name: value for name, value in message.items() if name not in _MESSAGE_FIELDS}
        where = f"messages[{index}].images"
        new["content"] = _with_images(message.get("content"), message.get("images"), where)
        if message.get("thinking") is not None:
            new["reasoning_content"] = message["thinking"]
        if message.get("tool_calls"):
            calls = message["tool_calls"]
            new["tool_calls"] = [ids.call(call) for call in calls if call.get("function")]
        if message["role"] == "tool":
            name = message.get("tool_name") or message.get("name")
            id = message.get("tool_call_id")
            new["tool_call_id"] = ids.answered(name) if id in (None, "") else id
            if name is not None:
                new["name"] = name
        made.append(new)
    return made


def image_parts(images: Sequence[str] | None, where: str) -> list[Any]:
    """The parts of a content that `images`, base64-encoded, are."""
    return [media_part(each, f"{where}[{i}]", "image") for i, each in enumerate(images or ())]


def _with_images(content: Any, images: Sequence[str] | None, where: str) -> Any:
    if not images:
        return content
    texts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    return [*image_parts(images, where), *texts]


class _CallIds:
    """The calls of one conversation that have not been answered yet, oldest first."""

    def __init__(self) -> None:
        self._count = 0
        self._open: OrderedDict[int, tuple[str, str]] = OrderedDict()  # name of the tool, id
        self._of_tool: dict[str, deque[int]] = {}

    def call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """`call` as OpenAI has it."""
        function = call["function"]
        # Nine letters and digits: what the strictest templates want of an id.
        id = str(call.get("id") or f"call{self._count:05d}")
        self._open[self._count] = (function["name"], id)
        self._of_tool.setdefault(function["name"], deque()).append(self._count)
        self._count += 1
        return {"id": id, "type": "function", "function": function}

    def answered(self, name: str | None) -> str | None:
        """The id of the call that a result of the tool `name` is for; None if there is none."""
        if not self._open:
            return None
        if name is None:
            number = next(iter(self._open))
            name = self._open[number][0]
        elif not self._of_tool.get(name):
            return None
        return self._open.pop(self._of_tool[name].popleft())[1]
