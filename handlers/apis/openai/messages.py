"""Converts messages of OpenAI's chat API to those of `ChatRequest`.

Clients send back answers of any server, with parts that a prompt can't contain. Every part with a
text is read. In an assistant's message, parts of other unknown types are left out. In a tool's
result, a line of text replaces a part that the model can't read. In any other message, such a part
is refused. Images and sounds are not decoded here (`handlers.running.media`).
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from specllama.engine.chat.request import FREE_TEXT, Message, MessageCall, MessagePart
from specllama.engine.errors import invalid_request, not_supported
from specllama.handlers.apis.contents import result_part, tool_reference
from specllama.handlers.http import schemas
from specllama.handlers.http.log_fields import warn_ignored
from specllama.handlers.running.media import (
    PART,
    Kind,
    MediaInput,
    document_part,
    media_part,
    unshown,
)

_OPAQUE = ("redacted_thinking",)
_MEDIA: Mapping[str, tuple[Kind, tuple[str, ...]]] = {
    "image_url": ("image", ("url",)),
    "input_audio": ("audio", ("data", "url")),
    "input_video": ("video", ("data", "url")),
    "video_url": ("video", ("data", "url")),
}
"""By a part's type: the kind of medium, and the fields of its object that may have the data."""
_FILE = "file"
_MCP: Mapping[Any, Kind] = {"image": "image", "audio": "audio"}
"""Types of media in the form of the Model Context Protocol, which some clients send as results."""
_TOOLS = ("tool", "function")
_OTHER_MEDIA = ("image", "input_image", "audio_url", _FILE)


def chat_messages(messages: Sequence[schemas.ChatMessage]) -> list[Message]:
    """Returns `messages` with the fields of templates: a role, a content, thoughts, calls, and the
    id of the call that a result belongs to. Raises EngineError: not_supported_error for unsupported
    parts, invalid_request_error for media without a source."""
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _message(message: schemas.ChatMessage, where: str) -> Message:
    role = message["role"]
    thoughts = message.get("reasoning_content") or message.get("reasoning")
    content, more = _content(message.get("content"), role, f"{where}.content")
    made: Message = {"role": role, "content": content}
    if thoughts := thoughts if isinstance(thoughts, str) and thoughts else more:
        made["reasoning_content"] = thoughts
    if isinstance(name := message.get("name"), str) and name:
        made["name"] = name
    if isinstance(id := message.get("tool_call_id"), str | int) and id != "":
        made["tool_call_id"] = str(id)
    if calls := [_call(call) for call in message.get("tool_calls") or [] if _is_read(call)]:
        made["tool_calls"] = calls
    elif function := message.get("function_call"):
        made["tool_calls"] = [_function_call(function)]
    if role == "function":  # in OpenAI's old form: the result of the call before it
        made["role"] = "tool"
    return made


def content_parts(content: Any, where: str) -> list[MessagePart]:
    """Returns the texts and media of a content that isn't the model's."""
    parts, _ = _content(content, "user", where)
    return parts if isinstance(parts, list) else [{"type": "text", "text": parts or ""}]


# ---- contents ----------------------------------------------------------------------------


def _content(content: Any, role: str, where: str) -> tuple[str | list[MessagePart] | None, str]:
    """Returns the content as parts of text and media, and the thoughts among its parts."""
    if content is None or isinstance(content, str):
        return content, ""
    parts: list[MessagePart] = []
    thoughts: list[str] = []
    for index, part in enumerate(content):
        if (medium := _medium(part, role, f"{where}[{index}]")) is not None:
            parts.append(medium)
        elif role in _TOOLS and (name := tool_reference(part)) is not None:
            parts.append({"type": "text", "text": name})
        elif (text := _text(part)) is not None:
            parts.append({"type": "text", "text": text})
        elif isinstance(thought := part.get("thinking"), str):
            thoughts.append(thought)
        elif role == "assistant" and part.get("type") not in _OTHER_MEDIA:
            if part.get("type") not in _OPAQUE:
                warn_ignored(
                    "%s[%d]: a part of the type %s is left out", where, index, part.get("type")
                )
        elif role in _TOOLS:
            kind = str(part.get("type") or "content").removeprefix("input_").removesuffix("_url")
            parts.append(unshown("document" if kind == _FILE else kind))
        else:
            kind = part.get("type") or "a part without a text"
            raise not_supported(f"{where}[{index}]: this server doesn't support {kind} yet")
    return parts, "\n".join(thoughts)


def _medium(part: str | Mapping[str, Any], role: str, where: str) -> MessagePart | None:
    """Returns a medium in the form of `handlers.running.media`; None for any other part."""
    if isinstance(part, str):
        return None
    if isinstance(part.get(PART), MediaInput):
        return cast(MessagePart, part)  # another API's reader has already converted it
    type_ = part.get("type")
    if type_ == _FILE and role != "assistant":
        file = part.get(_FILE)
        if role not in _TOOLS:
            return _file(file, where)
        name = file.get("filename") if isinstance(file, Mapping) else None
        return result_part(lambda: _file(file, where), "document", name)
    if role in _TOOLS and type_ in _MCP and isinstance(part.get("data"), str):
        return media_part(part["data"], where, _MCP[type_])
    if not isinstance(type_, str) or type_ not in _MEDIA:
        return None
    kind, names = _MEDIA[type_]
    given = part.get(type_)
    if isinstance(given, Mapping):
        given = next((given[name] for name in names if given.get(name) is not None), None)
    return media_part(given, where, kind)


def _file(file: Any, where: str) -> MessagePart:
    fields = file if isinstance(file, Mapping) else {}
    given, name = fields.get("file_data"), fields.get("filename")
    if isinstance(given, str):
        return document_part(given, where, name if isinstance(name, str) else "")
    if fields.get("file_id"):
        raise not_supported(f"{where}: this server keeps no files; send the file itself")
    raise invalid_request(f"{where}: file_data is missing in this file")


def _text(part: str | Mapping[str, Any]) -> str | None:
    """Returns the text of a part of any type; None if it has no text."""
    if isinstance(part, str):
        return part
    if part.get("type") in _OTHER_MEDIA:
        return None
    return next((part[key] for key in ("text", "refusal") if isinstance(part.get(key), str)), None)


# ---- calls -------------------------------------------------------------------------------


def _is_read(call: Mapping[str, Any]) -> bool:
    if call.get("function") or call.get("custom"):
        return True
    warn_ignored("messages: a call of the type %s is left out", call.get("type"))
    return False


def _call(call: Mapping[str, Any]) -> MessageCall:
    if custom := call.get("custom"):
        function = {"name": custom["name"], "arguments": {FREE_TEXT: custom.get("input") or ""}}
        made = _function_call(function)
    else:
        made = _function_call(call["function"])
    if isinstance(id := call.get("id"), str | int) and id != "":
        made["id"] = str(id)
    return made


def _function_call(function: Mapping[str, Any]) -> MessageCall:
    arguments = function.get("arguments")
    if not isinstance(arguments, str | dict):
        arguments = "{}" if arguments is None else json.dumps(arguments)
    return {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
