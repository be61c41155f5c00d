"""The tools of a request to Anthropic's Messages API: those that the model may be shown by now.

A conversation can change them: a `tool_addition` in it brings a tool or shows a deferred one, a
`tool_removal` takes one away, and a `tool_reference` is what the client's search has found.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeGuard

from specllama.engine.errors import invalid_request
from specllama.handlers.apis.contents import tool_reference
from specllama.handlers.http import schemas

Tool = schemas.MessagesTool
Block = schemas.InputBlock

_HOSTED_SEARCH = "tool_search_tool"
"""How the types of Anthropic's own searches for tools begin."""
_CHANGES = ("tool_addition", "tool_removal")


def shown_tools(body: schemas.MessagesInput) -> list[Tool]:
    """The tools of `body` at the end of its conversation. Deferred ones are left out until they are
    found, unless nothing here could find them."""
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
    """The tool of this `name` is added, with its `definition` if it is a new one, or removed."""

    name: str
    definition: Tool | None
    removes: bool


def change_line(block: Block) -> str | None:
    """What the model reads in the place of a block that changes the tools; None for others. Raises
    EngineError (invalid_request_error) for such a block without the name of a tool."""
    if (change := _change(block)) is None:
        return None
    return f"Tool {'removed' if change.removes else 'added'}: {change.name}"


def _change(block: Block) -> _Change | None:
    """What a block does to the tools; None if it doesn't change them."""
    if not _is_change(block):
        return None
    tool = block.get("tool") or {}
    definition = tool.get("definition")
    name = (tool if definition is None else definition).get("name")
    if name is None:
        raise invalid_request(f"messages: a {block['type']} without the name of a tool")
    return _Change(name, definition, block["type"] == "tool_removal")


# ---- The types of blocks. The pattern of `OtherBlock` rules out those that other schemas have.


def _is_change(block: Block) -> TypeGuard[schemas.OtherBlock]:
    return block.get("type") in _CHANGES


def is_result(block: Block) -> TypeGuard[schemas.ToolResultBlock]:
    """Whether `block` is what a tool returned."""
    return block.get("type") == "tool_result"


def _blocks(messages: Sequence[schemas.MessagesMessage]) -> Iterator[Block]:
    """Those of all messages, and those in results of tools."""
    for message in messages:
        content = message.get("content")
        for block in content if isinstance(content, list) else ():
            yield block
            inner = block.get("content") if is_result(block) else None
            yield from inner if isinstance(inner, list) else ()
