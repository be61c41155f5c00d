"""The tools of a request to Anthropic's Messages API: those that the model may be shown by now.

A conversation can change them: a `tool_addition` in it brings a tool or shows a deferred one, a
`tool_removal` takes one away, and a `tool_reference` is what the client's search has found.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specllama.engine.errors import invalid_request
from specllama.handlers.apis.tool_results import tool_reference

Tool = Mapping[str, Any]
Block = Mapping[str, Any]

_HOSTED_SEARCH = "tool_search_tool"
"""How the types of Anthropic's own searches for tools begin."""
_CHANGES = {"tool_addition": "added", "tool_removal": "removed"}


def shown_tools(body: Mapping[str, Any]) -> list[Tool]:
    """The tools of `body` at the end of its conversation. Deferred ones are left out until they are
    found, unless nothing here could find them."""
    tools: list[Tool] = list(body.get("tools") or ())
    found, removed = set[str](), set[str]()
    for block in _blocks(body["messages"]):
        if (name := tool_reference(block)) is not None:
            found.add(name)
        elif (name := changed_tool(block)) is not None:
            if block["type"] == "tool_removal":
                removed.add(name)
                continue
            removed.discard(name)
            found.add(name)
            if (definition := block["tool"].get("definition")) is not None:
                tools = [tool for tool in tools if tool.get("name") != name]
                tools.append(definition)
    if wanted := (body.get("tool_choice") or {}).get("name"):
        found.add(wanted)
    searched = all(not (tool.get("type") or "").startswith(_HOSTED_SEARCH) for tool in tools)
    deferred = searched and any(not tool.get("defer_loading") for tool in tools)
    return [
        tool
        for tool in tools
        if tool.get("name") not in removed
        and not (deferred and tool.get("defer_loading") and tool.get("name") not in found)
    ]


def changed_tool(block: Block) -> str | None:
    """The name of the tool that a block adds or takes away; None for any other block. Raises
    EngineError (invalid_request_error) for such a block without a name."""
    if block.get("type") not in _CHANGES:
        return None
    tool = block.get("tool")
    if isinstance(tool, Mapping):
        definition = tool.get("definition")
        name = (definition if isinstance(definition, Mapping) else tool).get("name")
        if isinstance(name, str):
            return name
    raise invalid_request(f"messages: a {block['type']} without the name of a tool")


def change_line(block: Block) -> str | None:
    """What the model reads in the place of a block that changes the tools; None for others."""
    name = changed_tool(block)
    return None if name is None else f"Tool {_CHANGES[block['type']]}: {name}"


def _blocks(messages: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    """Those of all messages, and those in results of tools."""
    for message in messages:
        content = message.get("content")
        for block in content if isinstance(content, list) else ():
            yield block
            inner = block.get("content") if block.get("type") == "tool_result" else None
            yield from inner if isinstance(inner, list) else ()
