"""From the messages of a request to what a chat template can render.

Chat APIs allow more than templates expect: contents in parts, a `developer` role, system
messages for models that know none, tool arguments as JSON text, and a last answer that is to be
continued. All of that is made plain here, before the template sees it.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from engine.chat.caps import Caps
from engine.errors import invalid_request, not_supported


class Conversation(msgspec.Struct, frozen=True):
    """Messages, each with a content of text or of text parts, and the beginning of the answer
    to them: text that the prompt ends with and that the model goes on from, mostly "".
    """

    messages: list[dict[str, Any]]
    add_generation_prompt: bool = True
    continuation: str = ""


def conversation(
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool | None = None,
    continue_final_message: bool | str | None = None,
) -> Conversation:
    """Check `messages` and split off a last message of the assistant, which is an answer that
    the model is to go on with.

    `continue_final_message` insists on there being one; as a text it tells which part of the
    answer goes on. `add_generation_prompt` is on by default.

    Raises EngineError: invalid_request_error for messages that can't be continued as wished,
    not_supported_error for media and for reasoning to be continued.
    """
    plain = [_plain(message, index) for index, message in enumerate(messages)]
    if continue_final_message:
        if plain[-1]["role"] != "assistant":
            raise invalid_request("continue_final_message: the last message is not the assistant's")
        if add_generation_prompt:
            raise invalid_request("continue_final_message: not with add_generation_prompt")
        if continue_final_message == "reasoning_content":
            raise not_supported("continue_final_message: this server can't go on with reasoning")
    if plain[-1]["role"] != "assistant":
        return Conversation(plain, add_generation_prompt is not False)
    last = plain.pop()
    if plain and plain[-1]["role"] == "assistant":
        raise invalid_request("messages: there are two messages of the assistant at the end")
    if last.get("tool_calls"):
        raise invalid_request("messages: an answer with tool calls can't be continued")
    if last.get("reasoning_content"):
        raise not_supported("messages: this server can't continue an answer with reasoning yet")
    return Conversation(plain, True, text_of(last["content"]))


def text_of(content: str | list[dict[str, Any]]) -> str:
    """A content as one text; parts become lines."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content)


def pairs(messages: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(role, text) of each message, for template engines that know no more."""
    return [
        ("system" if role == "developer" else role, text_of(message["content"]))
        for message in messages
        for role in [message["role"]]
    ]


def adapted(messages: Sequence[dict[str, Any]], caps: Caps, source: str) -> list[dict[str, Any]]:
    """`messages` in the form that the template `source` with these capabilities renders.

    Raises EngineError (invalid_request_error) for tool arguments that are not JSON.
    """
    # Only templates with channels give developers a voice of their own.
    developer = "developer" if "<|channel|>" in source else "system"
    renamed = [
        {**message, "role": developer} if message["role"] == "developer" else message
        for message in messages
    ]
    if not caps["supports_system_role"]:
        renamed = _without_system(renamed)
    return [_adapted(message, caps) for message in renamed]


def _adapted(message: dict[str, Any], caps: Caps) -> dict[str, Any]:
    new = {**message, "content": _adapted_content(message["content"], caps)}
    if caps["supports_object_arguments"] and message.get("tool_calls"):
        new["tool_calls"] = [_with_object_arguments(call) for call in message["tool_calls"]]
    return new


def _plain(message: Mapping[str, Any], index: int) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, list):
        for number, part in enumerate(content):
            if part["type"] != "text":
                where = f"messages[{index}].content[{number}]"
                raise not_supported(f"{where}: this server can't take {part['type']} yet")
        content = [{"type": "text", "text": part["text"]} for part in content]
    # An empty text for null: most templates add the content to a text without a look at it.
    return {**message, "content": content or ""}


def _adapted_content(content: str | list[dict[str, Any]], caps: Caps) -> Any:
    if isinstance(content, str):
        if caps["supports_string_content"] or not caps["supports_typed_content"]:
            return content
        return [{"type": "text", "text": content}]
    return content if caps["supports_typed_content"] else text_of(content)


def _with_object_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return dict(call)
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError) as e:
        raise invalid_request(f"messages: the arguments of a tool call are not JSON: {e}") from e
    return {**call, "function": {**function, "arguments": arguments}}


def _without_system(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What system messages say, at the head of the message after them."""
    result: list[dict[str, Any]] = []
    pending: list[str] = []
    for message in messages:
        if message["role"] == "system":
            pending.append(text_of(message["content"]))
        elif pending:
            pending.append(text_of(message["content"]))
            result.append({**message, "content": "\n".join(pending)})
            pending = []
        else:
            result.append(message)
    if pending:
        result.append({"role": "user", "content": "\n".join(pending)})
    return result
