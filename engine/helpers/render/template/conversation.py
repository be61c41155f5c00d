"""Checks and completes the messages of a request, independently of the template.

It joins parts of contents, adds missing ids of calls and names of results, and splits off a last
answer that is to be continued. `engine.helpers.render.template.adapting` then adapts the messages
to a particular template.
"""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import msgspec

from specllama.engine.chat.request import Continuation
from specllama.engine.errors import invalid_request, not_supported

_PARAGRAPHS = "\n\n"  # between the parts of a continued answer, as in llama-server
_OPTIONAL = ("tool_calls", "reasoning_content", "tool_call_id", "name")


class Conversation(msgspec.Struct, frozen=True):
    """Messages, each with a content of text or of text parts, and the beginning of the answer to
    them, if given. Every call has an id, every tool's result the id and the name of its call."""

    messages: list[dict[str, Any]]
    add_generation_prompt: bool = True
    continuation: Continuation | None = None


def conversation(
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool | None = None,
    continue_final_message: bool | str | None = None,
    prefill: bool = True,
) -> Conversation:
    """Checks `messages` and splits off a last message of the assistant, if the model has to
    continue it: always with `continue_final_message`, otherwise if `prefill` allows it.

    `continue_final_message` as a text names the part of the message to continue; else it is the
    content, or the reasoning if there is no content yet. `add_generation_prompt` is on by default.
    An empty list of messages is accepted; the template decides whether it is valid.

    Raises EngineError: invalid_request_error for messages that can't be continued as requested,
    not_supported_error for media.
    """
    plain = _with_ids([_plain(message, index) for index, message in enumerate(messages)])
    is_answer = bool(plain) and plain[-1]["role"] == "assistant"
    if continue_final_message:
        if not is_answer:
            raise invalid_request("continue_final_message: the last message is not the assistant's")
        if add_generation_prompt:
            raise invalid_request(
                "continue_final_message: can't be used together with add_generation_prompt"
            )
    elif not (is_answer and prefill):
        return Conversation(plain, add_generation_prompt is not False)
    last = plain.pop()
    if plain and plain[-1]["role"] == "assistant":
        raise invalid_request("messages: there are two messages of the assistant at the end")
    if "tool_calls" in last:
        raise invalid_request("messages: an answer with tool calls can't be continued")
    return Conversation(plain, True, _continuation(last, continue_final_message))


def text_of(content: str | list[dict[str, Any]], between: str = "\n") -> str:
    """Returns a content as one text; parts become lines."""
    if isinstance(content, str):
        return content
    return between.join(part["text"] for part in content)


def pairs(messages: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Returns (role, text) of each message, for template engines without other fields."""
    return [
        ("system" if role == "developer" else role, text_of(message["content"]))
        for message in messages
        for role in [message["role"]]
    ]


def _continuation(last: Mapping[str, Any], part: bool | str | None) -> Continuation:
    content, reasoning = text_of(last["content"], _PARAGRAPHS), last.get("reasoning_content", "")
    if part == "reasoning_content":
        if content:
            raise invalid_request(
                "continue_final_message: the reasoning can't be continued, as the content has "
                "already begun"
            )
        return Continuation(reasoning=reasoning, thinks=True)
    thinks = part != "content" and bool(reasoning) and not content
    return Continuation(content, reasoning, thinks)


def _plain(message: Mapping[str, Any], index: int) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, list):
        for number, part in enumerate(content):
            if part["type"] != "text":
                where = f"messages[{index}].content[{number}]"
                raise not_supported(f"{where}: this server doesn't support {part['type']} yet")
        content = [{"type": "text", "text": part["text"]} for part in content]
    # Many templates check whether a field exists, not whether it is empty.
    plain = {key: value for key, value in message.items() if value or key not in _OPTIONAL}
    # An empty text instead of null, as most templates append the content without a check.
    return {**plain, "content": content or ""}


def _with_ids(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns `messages` in which each result has the id and the name of its call.

    A result with a call's id belongs to the latest call with that id. Without one, it answers the
    first call without a result. A result without a call is kept, as the beginning of the
    conversation may be missing.
    """
    calls: dict[str, str] = {}  # names of calls by id
    waiting: dict[str, str] = {}  # unanswered calls of the last turn with calls
    unnamed: set[str] = set()  # generated ids
    result: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "assistant" and "tool_calls" in message:
            waiting = {}
            made = []
            for call in message["tool_calls"]:
                id = call.get("id")
                if not id:
                    numbered = (f"call{number:05}" for number in count(len(calls)))
                    id = next(id for id in numbered if id not in calls)
                    unnamed.add(id)
                calls[id] = waiting[id] = call["function"]["name"]
                made.append({**call, "id": id})
            message = {**message, "tool_calls": made}
        elif message["role"] == "tool":
            id = message.get("tool_call_id")
            if id not in calls:
                id = _first_waiting(waiting, message, unnamed) or id
            if id in calls:
                waiting.pop(id, None)
                message = {"name": calls[id], **message}
            message = {**message, "tool_call_id": id or f"call{len(calls):05}"}
        result.append(message)
    return result


def _first_waiting(
    waiting: Mapping[str, str], message: Mapping[str, Any], unnamed: set[str]
) -> str | None:
    """Returns the id of the call that a tool's result answers although it has another id; None if
    there is no such call."""
    given, name = message.get("tool_call_id"), message.get("name")
    open_calls = {id: n for id, n in waiting.items() if not given or id in unnamed}
    named = (id for id, n in open_calls.items() if n == name)
    return next(named, next(iter(open_calls), None))
