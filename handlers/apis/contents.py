"""Contents of messages in every API: texts, media, and results of tools.

A tool doesn't choose its results for this server, and its client sends each result again with every
later request. A medium that this server would refuse from a user is therefore replaced by a line of
text in a result.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specllama.engine.chat.request import MessagePart
from specllama.engine.errors import EngineError
from specllama.handlers.running.media import unshown

Part = str | MessagePart
"""A text, or an image, a sound or a document (`handlers.running.media`)."""


def joined(parts: Sequence[Part]) -> str | list[MessagePart]:
    """Returns a message's content: one text, or a list of parts, which some templates accept."""
    if len(parts) == 1 and isinstance(parts[0], str):
        return parts[0]
    return typed(parts)


def typed(parts: Sequence[Part]) -> list[MessagePart]:
    """Returns all `parts` in the form of chat templates."""
    return [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]


def plain(part: MessagePart) -> Part:
    """Returns the text of a text part, and any other part unchanged."""
    return str(part["text"]) if part["type"] == "text" else part


def result_part(read: Callable[[], MessagePart], kind: str, name: str | None = None) -> MessagePart:
    """Returns the part of a result that `read` returns; if it raises EngineError
    (not_supported_error), a line of text with `kind` and `name` instead."""
    try:
        return read()
    except EngineError as e:
        if e.info.type != "not_supported_error":
            raise
        return unshown(kind, name)


def tool_reference(part: Any) -> str | None:
    """Returns the name of the tool in a part of the type `tool_reference`, which a search for
    tools returns; None for any other part."""
    if not isinstance(part, Mapping) or part.get("type") != "tool_reference":
        return None
    name = part.get("tool_name") or part.get("name")
    return name if isinstance(name, str) else None
