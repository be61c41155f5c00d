"""The items of OpenAI's Responses API: how they are kept, and the messages that they amount to.

An item is a message, a call of a tool, the output of one, or the model's reasoning. The model's
output has the same form as the input, so that a conversation is one list of items.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from specllama.engine.chat.request import FREE_TEXT
from specllama.engine.errors import invalid_request, not_supported
from specllama.handlers.apis.openai.tools import SEARCH, known, qualified
from specllama.handlers.apis.tool_results import result_part, tool_reference
from specllama.handlers.apis.unsupported import remark
from specllama.handlers.running.media import document_part, media_part, unshown

Item = dict[str, Any]

_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "tool_search_call": "tsc",
    "tool_search_output": "tso",
    "additional_tools": "at",
    "reasoning": "rs",
}
_CLIENTS_SEARCH = ("tool_search_call", "tool_search_output")
"""Items of a search for tools, if it is the client that searches."""
REFERENCE = "item_reference"
_MEDIA = {
    "input_image": ("image_url", "detail"),
    "input_audio": ("input_audio",),
    "input_file": ("file_data", "file_url", "filename"),
}
"""The fields of parts that are no text, by their types."""
_SOURCES = {
    "input_image": ("image_url",),
    "input_audio": ("input_audio",),
    "input_file": ("file_data", "file_url"),
}
"""Those of which one has to be there."""
_KINDS = {"input_image": "image", "input_audio": "audio", "input_file": "document"}


def new_id(prefix: str) -> str:
    """An id that can't be guessed: it is all that is needed to read what it stands for."""
    return f"{prefix}_{secrets.token_hex(24)}"


def input_items(input: str | Sequence[Mapping[str, Any]]) -> list[Item]:
    """The items of a request's `input`, each with an id, a type and a status; contents are
    lists of parts. References to stored items stay as they are; items that have to do with tools
    of OpenAI's own are left out.

    Media stay as they came, so that the conversation can be kept. Raises EngineError
    (not_supported_error) for parts that this server can't serve.
    """
    if isinstance(input, str):
        input = [{"role": "user", "content": input}]
    read = (_item(item, f"input[{index}]") for index, item in enumerate(input))
    return [item for item in read if item is not None]


def _item(item: Mapping[str, Any], where: str) -> Item | None:
    type_ = "message" if item.get("type") is None else item["type"]
    if type_ == REFERENCE:
        return dict(item)
    of_server = type_ in _CLIENTS_SEARCH and not (
        item.get("execution") == "client" and item.get("call_id")
    )
    if type_ not in _PREFIXES or of_server:
        remark("%s: an item of the type %s is left out", where, type_)
        return None
    head = {"id": item.get("id") or new_id(_PREFIXES[type_]), "type": type_, "status": "completed"}
    match type_:
        case "message":
            role = item["role"]
            content = _parts(item["content"], role, f"{where}.content")
            return {**head, "role": role, "content": content}
        case "function_call":
            fields = {key: item[key] for key in ("call_id", "name", "arguments")}
            return {**head, **fields, **_namespace(item)}
        case "custom_tool_call":
            fields = {key: item[key] for key in ("call_id", "name", "input")}
            return {**head, **fields, **_namespace(item)}
        case "tool_search_call":
            fields = {"call_id": item["call_id"], "arguments": item.get("arguments")}
            return {**head, "execution": "client", **fields}
        case "tool_search_output":
            fields = {"call_id": item["call_id"], "tools": item.get("tools") or []}
            return {**head, "execution": "client", **fields}
        case "additional_tools":
            return {**head, "role": "developer", "tools": item.get("tools") or []}
        case "function_call_output" | "custom_tool_call_output":
            output = item["output"]
            if not isinstance(output, str):
                output = _parts(output, "tool", f"{where}.output")
            return {**head, "call_id": item["call_id"], "output": output}
        case _:
            summary, content = item.get("summary") or [], item.get("content") or []
            return {**head, "summary": summary, "content": content}


def _namespace(item: Mapping[str, Any]) -> dict[str, Any]:
    return {"namespace": item["namespace"]} if item.get("namespace") else {}


def _parts(
    content: str | Sequence[Mapping[str, Any]] | None, role: str, where: str
) -> list[dict[str, Any]]:
    if isinstance(content, str):
        content = [{"type": "input_text", "text": content}]
    read = (_part(part, role, f"{where}[{index}]") for index, part in enumerate(content or ()))
    return [part for part in read if part is not None]


def _part(part: Mapping[str, Any], role: str, where: str) -> dict[str, Any] | None:
    type_ = part.get("type")
    if isinstance(part.get("refusal"), str):
        return {"type": "refusal", "refusal": part["refusal"]}
    if role == "tool" and (name := tool_reference(part)) is not None:
        return {"type": "input_text", "text": name}
    if type_ in _MEDIA and role == "tool":
        made = result_part(lambda: _media_part(part, where), _KINDS[type_], part.get("filename"))
        return made if made["type"] in _MEDIA else {**made, "type": "input_text"}
    if type_ in _MEDIA and role != "assistant":
        return _media_part(part, where)
    if type_ in _MEDIA or not isinstance(part.get("text"), str):
        if role == "tool":
            return {**unshown(type_ or "content"), "type": "input_text"}
        if role != "assistant":
            kind = type_ or "a part without a text"
            raise not_supported(f"{where}: this server can't take {kind} yet")
        remark("%s: a part of the type %s is left out", where, type_)
        return None
    if role == "assistant":
        return {"type": "output_text", "text": part["text"], "annotations": []}
    return {"type": "input_text", "text": part["text"]}


def _media_part(part: Mapping[str, Any], where: str) -> dict[str, Any]:
    type_ = part["type"]
    kept = {name: part[name] for name in _MEDIA[type_] if part.get(name) is not None}
    if kept.keys().isdisjoint(_SOURCES[type_]):
        if part.get("file_id"):
            raise not_supported(f"{where}: this server can't reach the file_id of an {type_}")
        raise invalid_request(f"{where}: {_SOURCES[type_][0]} is missing in this {type_}")
    return {"type": type_, **kept}


def messages(items: Sequence[Item]) -> list[dict[str, Any]]:
    """The messages, in the form of the Chat Completions API, that `items` amount to.

    What the model says, thinks and calls without being interrupted is one message. Of its
    reasoning the `content` counts; `summary` and `encrypted_content` say nothing to a model
    that reads plain text.

    Raises EngineError: invalid_request_error if the conversation ends with a call that has no
    output, or for files that are neither base64 nor a URL.
    """
    made: list[dict[str, Any]] = []
    for index, item in enumerate(items):
        match item["type"]:
            case "message" if item["role"] == "assistant":
                _turn(made)["content"] += _contents(item["content"], f"input[{index}].content")
            case "message":
                content = _plain(_contents(item["content"], f"input[{index}].content"))
                made.append({"role": item["role"], "content": content})
            case "reasoning":
                text = "".join(part["text"] for part in item["content"] or ())
                if text:
                    turn = _turn(made)
                    turn.setdefault("reasoning_content", []).append(text)
            case "function_call" | "custom_tool_call" | "tool_search_call":
                function = {"name": _name(item), "arguments": _arguments(item)}
                call = {"id": item["call_id"], "type": "function", "function": function}
                _turn(made).setdefault("tool_calls", []).append(call)
            case "function_call_output" | "custom_tool_call_output":
                made.append(_tool_message(item, f"input[{index}].output"))
            case "tool_search_output":
                made.append(_search_message(item))
    for message in made:
        if message["role"] == "assistant":
            message["content"] = _plain(message["content"])
            if "reasoning_content" in message:
                message["reasoning_content"] = "".join(message["reasoning_content"])
    if made and (calls := made[-1].get("tool_calls")):
        raise invalid_request(f"input: the call {calls[-1]['id']!r} of a function has no output")
    return made


def _turn(made: list[dict[str, Any]]) -> dict[str, Any]:
    """The message of the assistant that is being put together."""
    if not made or made[-1]["role"] != "assistant":
        made.append({"role": "assistant", "content": []})
    return made[-1]


def _name(call: Item) -> str:
    """The name by which the model knows the tool that it has called."""
    return qualified(call["name"], call.get("namespace")) if "name" in call else SEARCH


def _arguments(call: Item) -> str:
    """What the model has written as the arguments of a call, in JSON."""
    if call["type"] == "function_call":
        return str(call["arguments"])
    if call["type"] == "tool_search_call":
        given = call["arguments"]
        return given if isinstance(given, str) else json.dumps(given or {}, ensure_ascii=False)
    return json.dumps({FREE_TEXT: call["input"]}, ensure_ascii=False)


def _tool_message(item: Item, where: str) -> dict[str, Any]:
    output = item["output"]
    content = output if isinstance(output, str) else _plain(_results(output, where))
    return {"role": "tool", "tool_call_id": item["call_id"], "content": content}


def _contents(parts: Sequence[Mapping[str, Any]], where: str) -> list[str | dict[str, Any]]:
    """The texts of parts, and their media for `handlers.running.media`."""
    return [_content(part, f"{where}[{index}]") for index, part in enumerate(parts)]


def _search_message(item: Item) -> dict[str, Any]:
    """What a search for tools has found: their names. The model is shown the tools themselves where
    it is shown all of them."""
    content = "\n".join(known(item["tools"])) or "There is no such tool."
    return {"role": "tool", "tool_call_id": item["call_id"], "content": content}


def _results(parts: Sequence[Mapping[str, Any]], where: str) -> list[str | dict[str, Any]]:
    made: list[str | dict[str, Any]] = []
    for index, part in enumerate(parts):
        at = f"{where}[{index}]"
        if part["type"] == "input_file":
            made.append(result_part(partial(_file, part, at), "document", part.get("filename")))
        else:
            made.append(_content(part, at))
    return made


def _file(part: Mapping[str, Any], where: str) -> dict[str, Any]:
    given = next(part[name] for name in _SOURCES["input_file"] if part.get(name))
    return document_part(given, where, part.get("filename") or "")


def _content(part: Mapping[str, Any], where: str) -> str | dict[str, Any]:
    match part["type"]:
        case "refusal":
            return str(part["refusal"])
        case "input_image":
            return media_part(part["image_url"], where, "image")
        case "input_audio":
            return media_part(part["input_audio"]["data"], where, "audio")
        case "input_file":
            return _file(part, where)
    return str(part["text"])


def _plain(parts: Sequence[str | dict[str, Any]]) -> str | list[dict[str, Any]]:
    """A content: the text if there is just one, or nothing, else parts."""
    if not parts:
        return ""
    if len(parts) == 1 and isinstance(parts[0], str):
        return parts[0]
    return [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
