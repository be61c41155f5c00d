"""Reads the bodies of Ollama's API, and separates them from those of OpenAI's.

The form is that of https://github.com/ollama/ollama/blob/main/docs/api.md. Bodies have passed
validation against the description.
"""

import math
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
from specllama.handlers.apis.embed import EmbeddingsRequest
from specllama.handlers.apis.generate import GenerationRequest, Prompts
from specllama.handlers.apis.openai.request import chat_request
from specllama.handlers.apis.parameters import generation_params
from specllama.handlers.apis.probabilities import chat_probabilities
from specllama.handlers.apis.wishes import RANGES, wishes_in
from specllama.handlers.http import schemas
from specllama.handlers.running.media import PART, MediaInput

_FIELDS = ("options", "format", "think", "keep_alive")
_MESSAGE_FIELDS = ("images", "thinking", "tool_name")
_CONSTRAINTS = ("grammar", "json_schema", "response_format")
_UNCONSTRAINED = (None, "", {"type": "text"})
_UNITS = {
    **{"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3},
    **{"s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0},
}
_PART = re.compile(r"(\d+(?:\.\d*)?)(ns|us|µs|ms|s|m|h)?")
_DURATION = re.compile(rf"[+-]?(?:{_PART.pattern})+")
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
"""Fields of `options` besides Ollama's own names; a test compares them with the description."""
_PARAMETERS = {name: name for name in (*SAMPLING, *RANGES)} | _RENAMED
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
    "priority",
    "response_fields",
    "response_format",
    "return_queue",
    "safety_identifier",
    "service_tier",
    "speculative.n_max",
    "speculative.n_min",
    "speculative.p_min",
    "sse_ping_interval",
    "store",
    "stream_options",
    "thinking",
    "t_max_prompt_ms",
    "thinking_budget_tokens",
    "thinking_forced_open",
    "timeout_ms",
    "tool_choice",
    "user",
    "verbose",
    "verbosity",
    "web_search_options",
}
"""Fields of a body for Chat Completions that Ollama's API doesn't have; a test compares them with
the description."""


@dataclass(frozen=True, kw_only=True)
class OllamaRequest(GenerationRequest):
    """A request in Ollama's form. `named` is the model's name in the request. With `has_context`,
    the answer has the tokens of the whole conversation."""

    named: str | None
    has_context: bool = False


Body = schemas.OllamaChatRequest | schemas.OllamaGenerateRequest
Content = schemas.MessageContent
Turns = list[schemas.ChatMessage]


def read_ollama_chat(body: schemas.OllamaChatRequest, options: Options) -> OllamaRequest:
    """Returns a request for a chat. Raises EngineError as `check_chat` and `chat_request` do."""
    check_chat(body)
    return _request(body, body, openai_messages(body["messages"]), options)


def read_ollama_generation(body: schemas.OllamaGenerateRequest, options: Options) -> OllamaRequest:
    """Returns a request for the answer to a prompt. The prompt is the user's message in a
    conversation, is sent to the model as it is (`raw`), or is continued up to a `suffix`. Raises
    EngineError as `check_generation` does."""
    check_generation(body)
    made = _request(body, {}, _prompt(body), options)
    before = list(map(int, body.get("context") or ()))  # in JSON, 1.0 is an integer
    # Tokens of text can't represent the images.
    has_context = isinstance(made.what, ChatRequest) and not body.get("images")
    return replace(made, before=before, has_context=has_context)


def _request(
    body: Body, chat: schemas.ChatOptions, prompt: Prompts | Turns, options: Options
) -> OllamaRequest:
    """Returns the request in `body`. `chat` has the body's fields of Chat Completions, if any."""
    asked = {**chat, **_parameters(body)}
    params = generation_params(asked, options.engine.generation_defaults())
    wanted: schemas.ChatOptions = {
        "logprobs": asked["logprobs"],
        "top_logprobs": asked["top_logprobs"],
    }
    params, probabilities = chat_probabilities(wanted, params)
    return OllamaRequest(
        params=structs.replace(params, return_progress=False),
        what=prompt if isinstance(prompt, Prompts) else _conversation(body, chat, prompt, options),
        probabilities=probabilities,
        keep_alive=seconds_of(body.get("keep_alive")),
        named=body.get("model"),
        wishes=wishes_in(asked),
    )


def is_in_ollama_form(body: schemas.OllamaChatRequest) -> bool:
    """Whether `body` has a field that OpenAI's API doesn't have."""
    return any(body.get(name) is not None for name in _FIELDS) or any(
        message.get(name) is not None for message in body["messages"] for name in _MESSAGE_FIELDS
    )


def is_in_openai_form(body: schemas.OllamaChatRequest) -> bool:
    """Whether `body` has a field or a form of Chat Completions that Ollama's API doesn't have."""
    return any(value is not None and name in OPENAI_FIELDS for name, value in body.items()) or any(
        _is_openai_message(message) for message in body["messages"]
    )


def _is_openai_message(message: schemas.OllamaMessage) -> bool:
    return (
        message["role"] == "developer"
        or isinstance(message.get("content"), list)
        or message.get("reasoning_content") is not None
        or any(
            call["function"] is not None and isinstance(call["function"].get("arguments"), str)
            for call in message.get("tool_calls") or ()
        )
    )


def check_chat(body: schemas.OllamaChatRequest) -> None:
    """Raises EngineError (invalid_request_error) for contradictory fields, and for several
    answers."""
    has_form = body.get("format") not in (None, "")
    if has_form and any(body.get(name) not in _UNCONSTRAINED for name in _CONSTRAINTS):
        raise invalid_request(
            "format: the request also has a grammar or a schema; send only one of them"
        )
    if any(body.get(name) not in (None, 1) for name in ("n", "n_cmpl")):
        raise invalid_request(
            "n: Ollama's format has one answer per request; send several requests"
        )


def check_generation(body: schemas.OllamaGenerateRequest) -> None:
    """Raises EngineError: not_supported_error for a template, invalid_request_error for
    contradictory fields."""
    if body.get("template"):
        raise not_supported(
            "template: this server renders the model's own chat template; send a complete prompt, "
            "with raw"
        )
    if body.get("raw") and (body.get("system") or body.get("context")):
        raise invalid_request("raw: a raw prompt can't be combined with system or context")
    if body.get("suffix") and (body.get("system") or body.get("context")):
        raise invalid_request("suffix: this field can't be combined with system or context")
    if body.get("suffix") and body.get("images"):
        raise invalid_request("images: this field can't be combined with suffix")


def seconds_of(keep_alive: schemas.OllamaKeepAlive) -> float | None:
    """Returns the time for which the model stays in memory after the request; 0 to unload it. None
    if the request doesn't say, or in a form that isn't Ollama's. `keep_alive` is a number of
    seconds or a duration in Go's notation, like "1h30m"; a negative one is infinite."""
    if keep_alive is None:
        return None
    found = _duration(keep_alive) if isinstance(keep_alive, str) else float(keep_alive)
    return math.inf if found is not None and found < 0 else found


def _duration(text: str) -> float | None:
    """Returns the seconds of a duration; None for other texts."""
    if not _DURATION.fullmatch(text):
        return None
    parts = _PART.findall(text)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    return -seconds if text.startswith("-") else seconds


def _parameters(body: Body) -> dict[str, Any]:
    """Returns the values of Ollama's own fields by the native names of parameters, with the
    defaults of Ollama's API."""
    options: Mapping[str, Any] = body.get("options") or {}
    made = {
        _PARAMETERS[name]: value
        for name, value in options.items()
        if name in _PARAMETERS and value is not None
    }
    if "n_predict" in made:
        made["n_predict"] = max(made["n_predict"], -1)  # -2, to fill the context, is -1 here
    if (form := body.get("format")) not in (None, ""):
        made["json_schema"] = {} if form == "json" else form
    made["stream"] = body.get("stream") is not False
    made["logprobs"] = body.get("logprobs")
    made["top_logprobs"] = body.get("top_logprobs") or (0 if made["logprobs"] else None)
    return made


def _conversation(
    body: Body, chat: schemas.ChatOptions, messages: Turns, options: Options
) -> ChatRequest:
    """Returns the conversation. If the last message is the assistant's, the answer doesn't repeat
    it."""
    asked: schemas.ChatCompletionRequest = {**chat, "messages": messages}
    if (think := body.get("think")) not in (None, ""):
        variables = chat.get("chat_template_kwargs") or {}
        asked["chat_template_kwargs"] = {**variables, "enable_thinking": think is not False}
        if isinstance(think, str):
            asked["reasoning_effort"] = think
    return structs.replace(chat_request(asked, options), repeat_given=False)


def _prompt(body: schemas.OllamaGenerateRequest) -> Prompts | Turns:
    prompt, images = body.get("prompt") or "", _media(body.get("images"), "images")
    if suffix := body.get("suffix"):
        return Prompts(gap=Infill(prefix=[prompt], suffix=[suffix]), is_chat=True)
    if body.get("raw"):
        return Prompts(texts=[[*images, prompt]], is_chat=True)
    asked: schemas.ChatMessage = {"role": "user", "content": _with_images(prompt, images)}
    return [{"role": "system", "content": body["system"]}, asked] if body.get("system") else [asked]


def openai_messages(messages: Sequence[schemas.OllamaMessage]) -> Turns:
    """Returns `messages`, which may have either form, in OpenAI's. Calls without an id, as in
    Ollama's form, get one; a result without an id gets that of the first open call of its tool.
    Images come before the text, as in Ollama."""
    made: Turns = []
    ids = _CallIds()
    for index, message in enumerate(messages):
        calls = [ids.call(call) for call in message.get("tool_calls") or () if call["function"]]
        name, id = message.get("name"), message.get("tool_call_id")
        if message["role"] == "tool":
            name = message.get("tool_name") or name
            id = ids.answered(name) if id in (None, "") else id
        images = _media(message.get("images"), f"messages[{index}].images")
        turn: schemas.ChatMessage = {
            "role": message["role"],
            "content": _with_images(message.get("content"), images),
            "reasoning_content": _thoughts(message),
            "tool_calls": calls,
            "function_call": message.get("function_call"),
            "tool_call_id": id,
            "name": name,
        }
        made.append(turn)
    return made


def _thoughts(message: schemas.OllamaMessage) -> str | None:
    given, other = message.get("thinking"), message.get("reasoning")  # `reasoning` has any type
    thoughts = message.get("reasoning_content") if given is None else given
    return thoughts or (other if isinstance(other, str) else None)


def _with_images(content: Content, images: list[MediaInput]) -> Content:
    if not images:
        return content
    shown = [{"type": PART, PART: image} for image in images]
    texts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    # `chat_messages` converts a client's images to such parts, and accepts them, too.
    return cast("list[schemas.MessagePart]", [*shown, *texts])


def _media(images: Sequence[str] | None, where: str) -> list[MediaInput]:
    return [MediaInput(each, f"{where}[{i}]", "image") for i, each in enumerate(images or ())]


class _CallIds:
    """The calls of one conversation that have not been answered yet, oldest first."""

    def __init__(self) -> None:
        self._count = 0
        self._open: OrderedDict[int, tuple[str, str]] = OrderedDict()  # name of the tool, id
        self._of_tool: dict[str, deque[int]] = {}

    def call(self, call: schemas.OllamaToolCallInput) -> schemas.ToolCallInput:
        """Returns `call`, which has a function, in OpenAI's form."""
        function, given = call["function"], call.get("id")
        assert function is not None
        # Nine letters and digits: the strictest templates require ids of this form.
        id = f"call{self._count:05d}" if given in (None, "") else str(given)
        self._open[self._count] = (function["name"], id)
        self._of_tool.setdefault(function["name"], deque()).append(self._count)
        self._count += 1
        return {"id": id, "type": "function", "function": function}

    def answered(self, name: str | None) -> str | None:
        """Returns the id of the open call that a result of the tool `name` answers, which is then
        closed; None if there is no such call."""
        if not self._open:
            return None
        if name is None:
            number = next(iter(self._open))
            name = self._open[number][0]
        elif not self._of_tool.get(name):
            return None
        return self._open.pop(self._of_tool[name].popleft())[1]


# ---- embeddings --------------------------------------------------------------------------

AS_IT_IS, EUCLIDEAN = -1, 2
"""Values of `normalize`."""
ONE_EACH = "the model has a vector for each token (--pooling none), not one for each input"


def read_ollama_inputs(body: schemas.OllamaEmbedRequest, options: Options) -> EmbeddingsRequest:
    given = body.get("input") or []
    return EmbeddingsRequest(
        inputs=[[text] for text in ([given] if isinstance(given, str) else given)],
        dimensions=int(body.get("dimensions") or 0),
        normalize=EUCLIDEAN,
        named=body.get("model"),
        shortens=body.get("truncate") is not False,
        wishes=wishes_in(body.get("options") or {}),
        keep_alive=seconds_of(body.get("keep_alive")),
    )


def read_ollama_prompt(
    body: schemas.OllamaEmbeddingsRequest, options: Options
) -> EmbeddingsRequest:
    prompt = body.get("prompt")
    return EmbeddingsRequest(
        inputs=[[prompt]] if prompt else [],
        normalize=AS_IT_IS,
        shortens=True,
        wishes=wishes_in(body.get("options") or {}),
        keep_alive=seconds_of(body.get("keep_alive")),
    )
