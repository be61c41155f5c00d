"""Converts the items of a response to messages in the form of the Chat Completions API."""

import json
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TypeAlias

from specllama.engine.chat.request import (
    FREE_TEXT,
    CallOfFunction,
    Message,
    MessageCall,
    MessagePart,
)
from specllama.engine.errors import invalid_request
from specllama.handlers.apis.contents import result_part
from specllama.handlers.apis.responses.items import Item, Media, Part
from specllama.handlers.apis.tools import SEARCH, known, qualified
from specllama.handlers.http import schemas
from specllama.handlers.running.media import document_part, media_part

_Call: TypeAlias = (
    schemas.ResponseFunctionCall | schemas.ResponseCustomCall | schemas.ResponseSearchCall
)


def messages(items: Sequence[Item]) -> list[Message]:
    """Returns `items` as messages in the form of the Chat Completions API.

    Consecutive items of the model, which are texts, reasoning and calls, become one message. Only
    the `content` of reasoning is used; `summary` and `encrypted_content` are not for models that
    read plain text.

    Raises EngineError (invalid_request_error) if the conversation ends with a call that has no
    output, or for files that are neither base64 nor a URL.
    """
    made: list[Message] = []
    for index, item in enumerate(items):
        _add(made, item, f"input[{index}]")
    for message in made:
        if isinstance(parts := message["content"], list):
            message["content"] = _plain(parts)
    if made and (calls := made[-1].get("tool_calls")):
        raise invalid_request(f"input: the call {calls[-1]['id']!r} of a function has no output")
    return made


def _add(made: list[Message], item: Item, where: str) -> None:
    """Adds the contents of `item` to the messages `made` so far."""
    match item["type"]:
        case "message":
            parts = _contents(item["content"], f"{where}.content")
            if item["role"] == "assistant":
                turn = _turn(made)
                said = turn["content"]
                turn["content"] = [*said, *parts] if isinstance(said, list) else parts
            else:
                made.append({"role": item["role"], "content": parts})
        case "reasoning":
            if text := "".join(part["text"] for part in item["content"]):
                turn = _turn(made)
                turn["reasoning_content"] = turn.get("reasoning_content", "") + text
        case "function_call" | "custom_tool_call" | "tool_search_call":
            function: CallOfFunction = {"name": _name(item), "arguments": _arguments(item)}
            call: MessageCall = {"id": item["call_id"], "type": "function", "function": function}
            _turn(made).setdefault("tool_calls", []).append(call)
        case "function_call_output" | "custom_tool_call_output":
            made.append(_tool_message(item, f"{where}.output"))
        case "tool_search_output":
            made.append(_search_message(item))


def _turn(made: list[Message]) -> Message:
    """Returns the assistant's message at the end of `made`, which is a new one if needed."""
    if not made or made[-1]["role"] != "assistant":
        made.append({"role": "assistant", "content": []})
    return made[-1]


def _name(call: _Call) -> str:
    """Returns the name of the called tool in the prompt."""
    if call["type"] == "tool_search_call":
        return SEARCH
    return qualified(call["name"], call.get("namespace"))


def _arguments(call: _Call) -> str:
    """Returns the arguments of a call, as JSON."""
    match call["type"]:
        case "function_call":
            return call["arguments"]
        case "custom_tool_call":
            return json.dumps({FREE_TEXT: call["input"]}, ensure_ascii=False)
        case "tool_search_call":
            given = call["arguments"]
            return given if isinstance(given, str) else json.dumps(given or {}, ensure_ascii=False)


def _tool_message(item: schemas.ResponseStoredFunctionOutput, where: str) -> Message:
    output = item["output"]
    content = output if isinstance(output, str) else _results(output, where)
    return {"role": "tool", "tool_call_id": item["call_id"], "content": content}


def _search_message(item: schemas.ResponseStoredSearchOutput) -> Message:
    """Returns the result of a search for tools: their names. The prompt's list of tools has their
    definitions."""
    content = "\n".join(known(item["tools"])) or "There is no such tool."
    return {"role": "tool", "tool_call_id": item["call_id"], "content": content}


def _contents(parts: Iterable[Part], where: str) -> list[MessagePart]:
    """Returns the texts of parts, and their media for `handlers.running.media`."""
    return [_content(part, f"{where}[{index}]") for index, part in enumerate(parts)]


def _results(parts: Iterable[Part], where: str) -> list[MessagePart]:
    made: list[MessagePart] = []
    for index, part in enumerate(parts):
        at = f"{where}[{index}]"
        if part["type"] == "input_file":
            made.append(result_part(partial(_file, part, at), "document", part.get("filename")))
        else:
            made.append(_content(part, at))
    return made


def _content(part: Part, where: str) -> MessagePart:
    match part["type"]:
        case "refusal":
            return {"type": "text", "text": part["refusal"]}
        case "input_text" | "output_text":
            return {"type": "text", "text": part["text"]}
        case "input_image":
            return media_part(part.get("image_url"), where, "image")
        case "input_audio":
            audio = part.get("input_audio")
            return media_part(audio and audio["data"], where, "audio")
        case "input_file":
            return _file(part, where)


def _file(part: Media, where: str) -> MessagePart:
    given = part.get("file_data") or part.get("file_url") or ""
    return document_part(given, where, part.get("filename") or "")


def _plain(parts: list[MessagePart]) -> str | list[MessagePart]:
    """Returns a content: a text if `parts` is empty or just one text, otherwise the parts."""
    if not parts:
        return ""
    if len(parts) == 1 and (text := parts[0].get("text")) is not None:
        return text
    return parts
