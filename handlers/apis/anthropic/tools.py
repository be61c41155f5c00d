"""The tools of a request to Anthropic's Messages API that the template shows to the model.

Blocks of the conversation change them: a `tool_addition` adds a tool or shows a deferred one, a
`tool_removal` removes one, and a `tool_reference` shows a tool that the client's search found.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeGuard

from specllama.engine.errors import invalid_request
from specllama.handlers.apis.contents import tool_reference
from specllama.handlers.http import schemas

Tool = schemas.MessagesTool
Block = schemas.InputBlock

_HOSTED_SEARCH = "tool_search_tool"
"""The prefix of the types of Anthropic's own searches for tools."""
_CHANGES = ("tool_addition", "tool_removal")


def shown_tools(body: schemas.MessagesInput) -> list[Tool]:
    """Returns the tools of `body` at the end of its conversation. Deferred tools are left out until
    a search finds them. They are all shown if no search can find them: if the search is one of
    Anthropic's own, or if all tools are deferred."""
    tools = list(body.get("tools") or ())
    found, removed = set[str](), set[str]()
    for block in _blocks(body["messages"]):
        if (name := tool_reference(block)) is not None:
            found.add(name)
        elif (change := _change(block)) is not None:
            if change.removes:
                removed.add(change.name)
                continue
            removed.discard(change.name)
            found.add(change.name)
            if change.definition is not None:
                tools = [tool for tool in tools if tool.get("name") != change.name]
                tools.append(change.definition)
    if (choice := body.get("tool_choice")) and (wanted := choice.get("name")):
        found.add(wanted)
    searched = all(not (tool.get("type") or "").startswith(_HOSTED_SEARCH) for tool in tools)
    deferred = searched and any(not tool.get("defer_loading") for tool in tools)
    return [
        tool
        for tool in tools
        if tool.get("name") not in removed
        and not (deferred and tool.get("defer_loading") and tool.get("name") not in found)
    ]


class _Change(NamedTuple):
    """The addition of the tool `name`, with its `definition` if it is new, or its removal."""

    name: str
    definition: Tool | None
    removes: bool


def change_line(block: Block) -> str | None:
    """Returns the text for the model that replaces a block which changes the tools; None for other
    blocks. Raises EngineError (invalid_request_error) for such a block without a tool's name."""
    if (change := _change(block)) is None:
        return None
    return f"Tool {'removed' if change.removes else 'added'}: {change.name}"


def _change(block: Block) -> _Change | None:
    """Returns the change that a block makes to the tools; None if it makes none."""
    if not _is_change(block):
        return None
    tool = block.get("tool") or {}
    definition = tool.get("definition")
    name = (tool if definition is None else definition).get("name")
    if name is None:
        raise invalid_request(f"messages: a {block['type']} without the name of a tool")
    return _Change(name, definition, block["type"] == "tool_removal")


# ---- types of blocks: the pattern of `OtherBlock` excludes the types with schemas of their own


def _is_change(block: Block) -> TypeGuard[schemas.OtherBlock]:
    return block.get("type") in _CHANGES


def is_result(block: Block) -> TypeGuard[schemas.ToolResultBlock]:
    """Whether `block` is the result of a tool."""
    return block.get("type") == "tool_result"


def _blocks(messages: Sequence[schemas.MessagesMessage]) -> Iterator[Block]:
    """Yields the blocks of all messages, and the blocks in results of tools."""
    for message in messages:
        content = message.get("content")
        for block in content if isinstance(content, list) else ():
            yield block
            inner = block.get("content") if is_result(block) else None
            yield from inner if isinstance(inner, list) else ()
