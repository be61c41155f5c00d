"""Reads the bodies of Google's Gemini API.

Bodies have passed validation against the description.
"""

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from specllama.engine.chat.request import (
    CallOfFunction,
    ChatRequest,
    Message,
    MessageCall,
    MessagePart,
    ThinkingBudget,
)
from specllama.engine.errors import invalid_request, not_supported
from specllama.engine.media.source import is_address, is_data_url
from specllama.engine.options import Options
from specllama.engine.params import GenerationParams
from specllama.handlers.apis.contents import Part, joined, plain, result_part, typed
from specllama.handlers.apis.gemini.schema import json_schema
from specllama.handlers.apis.generate import GenerationRequest, Supported
from specllama.handlers.apis.parameters import generation_params, ping_of
from specllama.handlers.apis.probabilities import Probabilities
from specllama.handlers.apis.thinking import template_variables, thinking_budget
from specllama.handlers.apis.tools import Choice, Tool, chosen, offered
from specllama.handlers.apis.wishes import wishes_in
from specllama.handlers.http import schemas
from specllama.handlers.http.log_fields import warn_ignored
from specllama.handlers.running.choices import texts_per_prompt
from specllama.handlers.running.media import Kind, document_part, media_part

SUPPORTED: Supported = {"cachedContent": []}
PING = b"\n"
"""The keep-alive frame of a stream. Google's client library ignores an empty line, which is also
valid in an array, but would parse a comment as a piece of the answer."""
JSON, ENUM, TEXT = "application/json", "text/x.enum", "text/plain"
_EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high"}
_KINDS: Mapping[str, Kind] = {"image": "image", "audio": "audio", "video": "video"}
_OUTPUTS = ("output", "result")
"""The field of a function's result that has the value if it is the only field."""


@dataclass(frozen=True, kw_only=True)
class ContentRequest(GenerationRequest):
    """A request for an answer, whole or in pieces. With `shows_thoughts`, thoughts are parts of the
    answer. With `is_enum`, the model writes a JSON string, and the client gets the string's
    value."""

    shows_thoughts: bool
    is_enum: bool


def read_content(
    body: schemas.GeminiRequest, options: Options, *, stream: bool = False
) -> ContentRequest:
    """Raises EngineError as `content_request` and `content_params` do, and not_supported_error for
    an answer without text."""
    config = body.get("generationConfig") or {}
    thinking = config.get("thinkingConfig") or {}
    _check_modalities(config.get("responseModalities"))
    params, probabilities = content_params(config, options.engine.generation_defaults())
    return ContentRequest(
        what=content_request(body, body["contents"], options, thinking),
        params=msgspec.structs.replace(params, stream=stream),
        n=texts_per_prompt({"n": config.get("candidateCount")}),
        probabilities=probabilities,
        ping=ping_of({}, options, PING),
        wishes=wishes_in(_scheduling(config)),
        shows_thoughts=bool(thinking.get("includeThoughts")),
        is_enum=config.get("responseMimeType") == ENUM,
    )


def read_content_input(body: schemas.GeminiCountRequest, options: Options) -> GenerationRequest:
    """Returns a request to count tokens. Raises EngineError as `content_request` does, and
    invalid_request_error if there is no conversation."""
    asked: schemas.GeminiCountedRequest = body.get("generateContentRequest") or body
    if not (contents := asked.get("contents")):
        raise invalid_request("contents: the conversation is missing")
    thinking = (asked.get("generationConfig") or {}).get("thinkingConfig") or {}
    return GenerationRequest(
        what=content_request(asked, contents, options, thinking),
        params=options.engine.generation_defaults(),
    )


def content_request(
    context: schemas.GeminiContext | schemas.GeminiCountedRequest,
    contents: Sequence[schemas.GeminiContent],
    options: Options,
    thinking: schemas.GeminiThinkingConfig,
) -> ChatRequest:
    """Returns the conversation of `contents` in its `context`. The server's options are the default
    for missing fields.

    Raises EngineError: invalid_request_error for faults that the schema can't rule out,
    not_supported_error for features of Google's server that can't be left out.
    """
    config = (context.get("toolConfig") or {}).get("functionCallingConfig") or {}
    choice = chosen(offered([*_tools(context.get("tools") or ())]), _choice(config))
    return ChatRequest(
        messages=[*_system(context.get("systemInstruction")), *_turns(contents)],
        tools=choice.tools,
        tool_choice=choice.how,
        tool_name=choice.name,
        reasoning_format=options.chat.reasoning_format,
        thinking_budget=_thinking_budget(thinking, options),
        repeat_given=False,
        prefill=options.chat.prefill_assistant,
        template_variables=_variables(thinking, options),
    )


# ---- parameters --------------------------------------------------------------------------


def content_params(
    config: schemas.GeminiGenerationConfig, defaults: GenerationParams
) -> tuple[GenerationParams, Probabilities | None]:
    """Returns the parameters for an answer, and the form of its probabilities. Raises EngineError
    (invalid_request_error)."""
    fields: dict[str, Any] = {
        "temperature": config.get("temperature"),
        "top_p": config.get("topP"),
        "top_k": config.get("topK"),
        "n_predict": config.get("maxOutputTokens"),
        "stop": config.get("stopSequences"),
        "seed": config.get("seed"),
        "presence_penalty": config.get("presencePenalty"),
        "frequency_penalty": config.get("frequencyPenalty"),
        **_constraint(config),
    }
    params = generation_params(fields, defaults)
    if not config.get("responseLogprobs"):
        return msgspec.structs.replace(params, n_probs=0), None
    n_top = int(config.get("logprobs") or 0)
    # The engine's 0 means no probabilities at all.
    params = msgspec.structs.replace(params, n_probs=max(n_top, 1), post_sampling_probs=False)
    return params, Probabilities(n_top, post_sampling=False)


def _scheduling(config: schemas.GeminiGenerationConfig) -> dict[str, Any]:
    """Returns the priority and the time limits of a request by their native names."""
    return {
        "priority": config.get("priority"),
        "timeout_ms": config.get("timeoutMs"),
        "t_max_prompt_ms": config.get("tMaxPromptMs"),
    }


def _constraint(config: schemas.GeminiGenerationConfig) -> dict[str, Any]:
    """Returns the constraint on the answer's text, as fields of a native request."""
    kind = config.get("responseMimeType") or TEXT
    if kind not in (JSON, ENUM, TEXT):
        raise invalid_request(
            f"generationConfig.responseMimeType: {kind!r} is neither {TEXT}, {JSON} nor {ENUM}"
        )
    schema = config.get("responseJsonSchema")
    if schema is None and (given := config.get("responseSchema")) is not None:
        schema = json_schema(given)
    if kind == ENUM:
        return {"json_schema": _one_of((schema or {}).get("enum"))}
    if schema is not None:
        return {"json_schema": schema}
    return {"response_format": {"type": "json_object"}} if kind == JSON else {}


def _one_of(texts: Any) -> dict[str, Any]:
    """Returns the schema that allows any one of the texts. Raises EngineError
    (invalid_request_error) unless `texts` is a list of at least one text."""
    if not isinstance(texts, list) or not texts or not all(isinstance(each, str) for each in texts):
        raise invalid_request(f"generationConfig.responseSchema: {ENUM} needs an enum of texts")
    return {"type": "string", "enum": texts}


def _check_modalities(wanted: Sequence[str] | None) -> None:
    if wanted and "TEXT" not in [each.upper() for each in wanted]:
        raise not_supported("generationConfig.responseModalities: this server supports only TEXT")


def _thinking_budget(thinking: schemas.GeminiThinkingConfig, options: Options) -> ThinkingBudget:
    budget, tokens = thinking_budget({}, options), thinking.get("thinkingBudget")
    if tokens is None or tokens < 0:
        return budget
    return msgspec.structs.replace(budget, tokens=int(tokens))


def _variables(thinking: schemas.GeminiThinkingConfig, options: Options) -> dict[str, Any]:
    tokens = thinking.get("thinkingBudget")
    thinks = None if tokens is None or tokens < 0 else tokens > 0
    effort = _EFFORTS.get((thinking.get("thinkingLevel") or "").lower())
    return template_variables(options, None, effort=effort, thinks=(thinks,))


# ---- tools -------------------------------------------------------------------------------


def _tools(tools: Sequence[schemas.GeminiTool]) -> Iterable[Tool]:
    """Yields the functions in OpenAI's form; for tools that only Google's server runs, just their
    type."""
    for tool in tools:
        for name, value in tool.items():
            if name != "functionDeclarations" and value is not None:
                yield {"type": name}
        for function in tool.get("functionDeclarations") or ():
            yield {"type": "function", "function": _function(function)}


def _function(function: schemas.GeminiFunctionDeclaration) -> Tool:
    parameters = function.get("parametersJsonSchema")
    if parameters is None and (given := function.get("parameters")) is not None:
        parameters = json_schema(given)
    return {
        "name": function["name"],
        "description": function.get("description"),
        "parameters": parameters,
    }


_Mode = Literal["auto", "required"]


def _choice(config: schemas.GeminiFunctionCallingConfig) -> Choice:
    """Raises EngineError (invalid_request_error) for an unknown mode."""
    names = config.get("allowedFunctionNames") or ()
    match (mode := config.get("mode") or "AUTO").upper():
        case "AUTO" | "MODE_UNSPECIFIED":
            return "auto"
        case "NONE":
            return "none"
        case "ANY":
            return _among(names, "required")
        case "VALIDATED":
            return _among(names, "auto")
    raise invalid_request(
        f"toolConfig.functionCallingConfig.mode: {mode!r} is neither AUTO, ANY, NONE nor VALIDATED"
    )


def _among(names: Sequence[str], mode: _Mode) -> Choice:
    if not names:
        return mode
    tools = [{"type": "function", "name": name} for name in names]
    return {"type": "allowed_tools", "mode": mode, "tools": tools}


# ---- contents ----------------------------------------------------------------------------


def _system(instruction: schemas.GeminiInstruction | None) -> list[Message]:
    """Returns the system message; an empty list if the instructions have no text."""
    parts = instruction["parts"] if instruction else ()
    texts = [text for part in parts if (text := part.get("text"))]
    return [{"role": "system", "content": joined(texts)}] if texts else []


class _Calls:
    """Ids for calls without one, since templates require ids. They are numbered through the
    conversation, so that a prompt has the same prefix as the one before it."""

    def __init__(self) -> None:
        self._n = 0
        self._open: dict[str, deque[str]] = {}  # calls without a result, by the function's name

    def made(self, call: schemas.GeminiFunctionCall) -> str:
        """Returns the id of a call."""
        id = call.get("id") or f"call_{self._n}"
        self._n += 1
        self._open.setdefault(call["name"], deque()).append(id)
        return id

    def returned(self, response: schemas.GeminiFunctionResponse) -> str:
        """Returns the id of the call that a result belongs to."""
        waiting = self._open.get(response["name"]) or deque()
        if not (id := response.get("id")):
            return waiting.popleft() if waiting else ""  # the client has dropped the call
        if id in waiting:
            waiting.remove(id)
        return id


def _turns(contents: Sequence[schemas.GeminiContent]) -> list[Message]:
    """Returns all contents as messages in OpenAI's form. Consecutive contents of one role become
    one message, since most templates require the roles to alternate."""
    turns: list[Message] = []
    said: list[Part] = []  # of the user's turn that is not in `turns` yet
    calls = _Calls()

    def end_user_turn() -> None:
        if said:
            turns.append({"role": "user", "content": joined(said)})
            said.clear()

    for index, content in enumerate(contents):
        where = f"contents[{index}].parts"
        match role := content.get("role") or "user":
            case "user" | "function" | "tool":
                results, parts = _user(content["parts"], where, calls)
                turns += results  # before the user's own texts, in any order of the parts
                said += parts or ([] if results else [""])
            case "model" | "assistant":
                end_user_turn()
                _add_answer(turns, content["parts"], where, calls)
            case _:
                end_user_turn()
                other = _parts(content["parts"], where) or [""]
                turns.append({"role": role, "content": joined(other)})
    end_user_turn()
    return turns


def _user(
    parts: Sequence[schemas.GeminiPart], where: str, calls: _Calls
) -> tuple[list[Message], list[Part]]:
    """Returns the messages of tools, and the user's own parts."""
    results: list[Message] = []
    said: list[Part] = []
    for index, part in enumerate(parts):
        at = f"{where}[{index}]"
        if response := part.get("functionResponse"):
            results.append(
                {
                    "role": "tool",
                    "tool_call_id": calls.returned(response),
                    "name": response["name"],
                    "content": _result(response, at),
                }
            )
        elif (read := _part(part, at)) is not None:
            said.append(read)
    return results, said


def _result(response: schemas.GeminiFunctionResponse, where: str) -> str | list[MessagePart]:
    """Returns the result of a function, as the content of a message."""
    value: Any = response.get("response") or {}
    if len(value) == 1 and (alone := [value[name] for name in _OUTPUTS if name in value]):
        [value] = alone
    parts = response.get("parts") or ()
    media = [_returned(part, f"{where}.parts[{index}]") for index, part in enumerate(parts)]
    if media and not value:
        return joined(media)
    text = value if isinstance(value, str) else _json(value, f"{where}.functionResponse")
    return joined([text, *media])


def _returned(part: schemas.GeminiResponsePart, where: str) -> Part:
    """Returns a medium, or a line of text if it isn't supported (`result_part`)."""

    def read() -> MessagePart:
        if (medium := _medium(part, where)) is None:
            raise invalid_request(f"{where}: inlineData or fileData is missing")
        return typed([medium])[0]

    given = part.get("inlineData") or part.get("fileData")
    kind, name = ("", None) if given is None else (given.get("mimeType"), given.get("displayName"))
    return plain(result_part(read, _KINDS.get(_family(kind), "document"), name))


def _add_answer(
    turns: list[Message], parts: Sequence[schemas.GeminiPart], where: str, calls: _Calls
) -> None:
    """Appends a message of the assistant to `turns`, or adds it to the last turn if that is also
    the assistant's."""
    if not turns or turns[-1]["role"] != "assistant":
        turns.append({"role": "assistant", "content": ""})
    turn = turns[-1]
    texts: list[str] = []
    for index, part in enumerate(parts):
        if call := part.get("functionCall"):
            turn.setdefault("tool_calls", []).append(_call(call, calls))
        elif part.get("thought"):
            thoughts = turn.get("reasoning_content", "")
            turn["reasoning_content"] = thoughts + (part.get("text") or "")
        elif part.get("inlineData") or part.get("fileData"):
            warn_ignored("%s[%d]: media that the model has generated are left out", where, index)
        else:
            texts.append(_text(part, f"{where}[{index}]") or "")
    turn["content"] = "".join((str(turn["content"]), *texts))


def _call(call: schemas.GeminiFunctionCall, calls: _Calls) -> MessageCall:
    arguments = _json(call.get("args") or {}, "functionCall")
    function: CallOfFunction = {"name": call["name"], "arguments": arguments}
    return {"id": calls.made(call), "type": "function", "function": function}


def _json(value: Any, what: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise invalid_request(f"{what} is nested too deep") from None


def _parts(parts: Sequence[schemas.GeminiPart], where: str) -> list[Part]:
    read = (_part(part, f"{where}[{index}]") for index, part in enumerate(parts))
    return [part for part in read if part is not None]


def _part(part: schemas.GeminiPart, where: str) -> Part | None:
    """Returns the part of the prompt; None for a part without text or medium. Raises EngineError:
    not_supported_error for files that only Google's server stores, invalid_request_error for
    invalid data."""
    medium = _medium(part, where)
    return _text(part, where) if medium is None else medium


def _text(part: schemas.GeminiPart, where: str) -> str | None:
    """Returns the text of a part; None if it has no text."""
    if (text := part.get("text")) is not None:
        return text
    if (code := part.get("executableCode")) is not None:
        return code.get("code")
    if (result := part.get("codeExecutionResult")) is not None:
        return result.get("output")
    warn_ignored("%s: a part of %s is left out", where, ", ".join(part) or "nothing")
    return None


# ---- media -------------------------------------------------------------------------------


def _medium(part: schemas.GeminiPart | schemas.GeminiResponsePart, where: str) -> Part | None:
    """Returns the image, sound or document of a part; None if it has no such data."""
    if (blob := part.get("inlineData")) is not None:
        return _data(blob["data"], blob, f"{where}.inlineData")
    if (file := part.get("fileData")) is None:
        return None
    if not is_address(file["fileUri"]) and not is_data_url(file["fileUri"]):
        raise not_supported(f"{where}.fileData: this server keeps no files; send the data itself")
    return _data(file["fileUri"], file, f"{where}.fileData")


def _data(given: str, about: schemas.GeminiBlob | schemas.GeminiFile, where: str) -> Part:
    if (kind := _KINDS.get(_family(about.get("mimeType")))) is not None:
        return media_part(given, where, kind)
    return plain(document_part(given, where, about.get("displayName") or ""))


def _family(media_type: str | None) -> str:
    return (media_type or "").partition("/")[0].lower()
