"""What tools returned, whichever API it comes by.

A tool can't know what a server takes, and its client sends the result again with each request: what
this server would refuse from a user is a line of text in a result.
"""

from collections.abc import Callable, Mapping
from typing import Any

from specllama.engine.chat.request import MessagePart
from specllama.engine.errors import EngineError
from specllama.handlers.running.media import unshown


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
