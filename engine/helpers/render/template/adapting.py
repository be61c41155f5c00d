"""Adapts the messages of a conversation to a particular template.

Templates differ in their input: content as text or in parts, arguments as objects or as JSON, one
call in a message or several, ids of a fixed length. Messages are converted to the template's form
if the meaning stays the same. The template itself rejects what it can't express.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from specllama.engine.helpers.render.template.caps import ROLES, Traits
from specllama.engine.helpers.render.template.conversation import text_of

_ID_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_SHORT_ID = 9
_INSTRUCTING = ("system", "developer")
_MARKED = "<system>\n{}\n</system>"
"""The form of a system message within the user's turn."""
_BETWEEN = "\n\n"
INVALID_JSON = "INVALID_JSON"  # as Anthropic recommends to its clients for such arguments


def adapted(messages: Sequence[dict[str, Any]], traits: Traits) -> list[dict[str, Any]]:
    """Returns `messages` in the form that a template with these traits renders."""
    result = list(messages)
    if not traits.developer_role:
        result = [
            {**message, "role": "system"} if message["role"] == "developer" else message
            for message in result
        ]
    caps = traits.caps
    result = _with_systems_placed(result, traits)
    if traits.text_hides_calls:
        result = [part for message in result for part in _calls_alone(message)]
    if traits.text_behind_results:
        result = [_text_as_thought(message) for message in result]
    if traits.results_in_call:
        result = _results_in_calls(result)
    if caps["supports_tool_calls"] and not caps["supports_parallel_tool_calls"]:
        result = _one_call_each(result)
    return [_adapted(message, traits) for message in result]


def short_id(id: str) -> str:
    """Returns `id` as nine letters and digits, which only depend on `id`."""
    if len(id) == _SHORT_ID and id.isascii() and id.isalnum():
        return id
    number = int.from_bytes(hashlib.sha256(id.encode()).digest())
    letters = []
    for _ in range(_SHORT_ID):
        number, letter = divmod(number, len(_ID_LETTERS))
        letters.append(_ID_LETTERS[letter])
    return "".join(letters)


def _adapted(message: dict[str, Any], traits: Traits) -> dict[str, Any]:
    new = {**message, "content": _content(message, traits)}
    if traits.short_ids and "tool_call_id" in new:
        new["tool_call_id"] = short_id(new["tool_call_id"])
    if "tool_calls" in new:
        new["tool_calls"] = [_call(call, traits) for call in new["tool_calls"]]
        if traits.null_content and not new["content"]:
            new["content"] = None
    if traits.thoughts_in_parts and "reasoning_content" in new:
        said = new["content"]
        parts = [{"type": "text", "text": said}] if isinstance(said, str) and said else said
        part = {"type": "thinking", "thinking": new.pop("reasoning_content")}
        new["content"] = [part, *(parts or [])]
    elif traits.reasoning_key != "reasoning_content" and "reasoning_content" in new:
        thoughts = new.pop("reasoning_content")
        if traits.thoughts_or_content and "tool_calls" in new and new["content"]:
            thoughts = f"{thoughts}\n{text_of(new['content'])}"
            new["content"] = ""
        new[traits.reasoning_key] = thoughts
    return new


def _content(message: Mapping[str, Any], traits: Traits) -> Any:
    content, caps = message["content"], traits.caps
    if message["role"] != "user":  # parts are needed for media, which only users send
        text = text_of(content)
        role = "system" if message["role"] == "developer" else message["role"]
        return text if role in traits.text_roles or role not in ROLES else _parts(text)
    if isinstance(content, str):
        if caps["supports_string_content"] or not caps["supports_typed_content"]:
            return content
        return _parts(content)
    return content if caps["supports_typed_content"] else text_of(content)


def _parts(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}]


def _call(call: Mapping[str, Any], traits: Traits) -> dict[str, Any]:
    new = dict(call)
    if traits.short_ids:
        new["id"] = short_id(new["id"])
    function = new["function"]
    arguments = function["arguments"]
    if traits.caps["supports_object_arguments"]:
        new["function"] = {**function, "arguments": object_arguments(arguments)}
    elif not isinstance(arguments, str):
        new["function"] = {**function, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return new


def object_arguments(arguments: Any) -> dict[str, Any]:
    """Returns the arguments of a call as an object; an empty text stands for an empty object.

    The text may be incomplete, or no object, if the model was cut off or made an error. It then
    becomes the only member of an object, with the name INVALID_JSON.
    """
    value = arguments
    if isinstance(arguments, str):
        try:
            value = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            value = None
    return value if isinstance(value, dict) else {INVALID_JSON: arguments}


def _calls_alone(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns a message with text and calls as two messages."""
    if "tool_calls" not in message or not message["content"]:
        return [message]
    said = {key: value for key, value in message.items() if key != "tool_calls"}
    calls = {"role": message["role"], "content": "", "tool_calls": message["tool_calls"]}
    return [said, calls]


def _text_as_thought(message: dict[str, Any]) -> dict[str, Any]:
    """Moves the text before calls to the end of the message's reasoning, which the template shows
    before the calls. Shown after the results, the text would end the turn that the model has to
    continue."""
    if "tool_calls" not in message or not message["content"]:
        return message
    thoughts = (message.get("reasoning_content"), text_of(message["content"]))
    return {**message, "content": "", "reasoning_content": "\n".join(filter(None, thoughts))}


def _one_call_each(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns messages in which parallel calls are made one after the other."""
    result: list[dict[str, Any]] = []
    index = 0
    while index < len(messages):
        message = messages[index]
        index += 1
        calls = message.get("tool_calls", [])
        if len(calls) < 2:
            result.append(message)
            continue
        results: dict[str, list[dict[str, Any]]] = {}
        while index < len(messages) and messages[index]["role"] == "tool":
            results.setdefault(messages[index]["tool_call_id"], []).append(messages[index])
            index += 1
        for number, call in enumerate(calls):
            if number:
                message = {"role": message["role"], "content": ""}
            result += [{**message, "tool_calls": [call]}, *results.pop(call["id"], [])]
        result += [late for answers in results.values() for late in answers]
    return result


def _results_in_calls(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Moves results, and the answer that follows them, into the message with the calls."""
    result: list[dict[str, Any]] = []
    for message in messages:
        asking = result[-1] if result and "tool_calls" in result[-1] else None
        if asking is None or asking.get("_said"):
            result.append(dict(message))
        elif message["role"] == "tool":
            response = {"name": message["name"], "response": _parsed(message["content"])}
            asking.setdefault("tool_responses", []).append(response)
        elif message["role"] == "assistant" and "tool_calls" not in message and message["content"]:
            asking["content"] = message["content"]
            asking["_said"] = True
        else:
            result.append(dict(message))
    for message in result:
        message.pop("_said", None)
    return result


def _parsed(content: str | list[dict[str, Any]]) -> Any:
    text = text_of(content)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _with_systems_placed(
    messages: Sequence[dict[str, Any]], traits: Traits
) -> list[dict[str, Any]]:
    """Places system messages where the template shows them, in their order. Those at the beginning
    are joined if the template accepts only one. Later ones that the template can't show become a
    marked part of the adjacent user's turn."""
    n_first = 0
    while n_first < len(messages) and messages[n_first]["role"] in _INSTRUCTING:
        n_first += 1
    first, result = list(messages[:n_first]), list[dict[str, Any]]()
    if n_first > 1 and not traits.several_systems:
        said = (text_of(message["content"]) for message in first)
        first = [{**first[0], "content": _BETWEEN.join(filter(None, said))}]
    late: list[dict[str, Any]] = []
    for message in messages[n_first:]:
        if message["role"] in _INSTRUCTING:
            late.append(message)
            continue
        if late and not (message["role"] == "tool" and not traits.system_before_result):
            beside = _place(late, result, message, traits)
            late = []
            if beside:
                message = _with_text_before(message, beside, _BETWEEN)
        result.append(message)
    if late:
        _place(late, result, None, traits)
    is_alone = not result and not traits.system_alone
    if first and (is_alone or not traits.caps["supports_system_role"]):
        text = "\n".join(text_of(message["content"]) for message in first)
        if result and result[0]["role"] == "user":
            result[0] = _with_text_before(result[0], text, "\n")
        else:
            result.insert(0, {"role": "user", "content": text})
        first = []
    return first + result


def _place(
    late: Sequence[dict[str, Any]],
    before: list[dict[str, Any]],
    after: dict[str, Any] | None,
    traits: Traits,
) -> str:
    """Appends system messages to `before`. Returns the text to add to the user's message `after`
    instead; "" if there is none."""
    if traits.late_system:
        before += late
        return ""
    text = _BETWEEN.join(_MARKED.format(text_of(message["content"])) for message in late)
    if after is not None and after["role"] == "user":
        return text
    last = before[-1] if before else {"role": ""}
    if last["role"] == "user" or (last["role"] == "tool" and not traits.user_after_result):
        before[-1] = _with_text_after(last, text, _BETWEEN)
    else:
        before.append({"role": "user", "content": text})
    return ""


def _with_text_before(message: dict[str, Any], text: str, between: str) -> dict[str, Any]:
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": between.join(filter(None, (text, content)))}
    return {**message, "content": [*_parts(text), *content]}


def _with_text_after(message: dict[str, Any], text: str, between: str) -> dict[str, Any]:
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": between.join(filter(None, (content, text)))}
    return {**message, "content": [*content, *_parts(text)]}
