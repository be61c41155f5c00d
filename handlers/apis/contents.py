"""Contents of messages, whichever API they come by: texts and media, and what tools returned.

A tool can't know what a server takes, and its client sends the result again with each request: what
this server would refuse from a user is a line of text in a result.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specllama.engine.chat.request import MessagePart
from specllama.engine.errors import EngineError
from specllama.handlers.running.media import unshown

Part = str | MessagePart
"""A text, or an image, a sound or a document (`handlers.running.media`)."""


def joined(parts: Sequence[Part]) -> str | list[MessagePart]:
    """A content: one text, or parts for templates that know them."""
    if len(parts) == 1 and isinstance(parts[0], str):
        return parts[0]
    return typed(parts)


def typed(parts: Sequence[Part]) -> list[MessagePart]:
    """All `parts` in the form that templates know."""
    return [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]


def plain(part: MessagePart) -> Part:
    """The text of a part; a medium as it is."""
    return str(part["text"]) if part["type"] == "text" else part


def result_part(read: Callable[[], MessagePart], kind: str, name: str | None = None) -> MessagePart:
    """The part of a result that `read` gives; a line with `kind` and `name` if that raises
    EngineError (not_supported_error)."""
    try:
        return read()
    except EngineError as e:
        if e.info.type != "not_supported_error":
            raise
        return unshown(kind, name)


def tool_reference(part: Any) -> str | None:
    """The name of the tool that a part of the type `tool_reference` stands for, which is what a
    search for tools returns; None for any other part."""
    if not isinstance(part, Mapping) or part.get("type") != "tool_reference":
        return None
    name = part.get("tool_name") or part.get("name")
    return name if isinstance(name, str) else None
