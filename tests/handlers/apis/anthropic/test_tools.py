"""The tools of a conversation that changes them."""

from typing import Any

import pytest

from specllama.engine.errors import EngineError
from specllama.handlers.apis.anthropic.tools import change_line, shown_tools

USER = {"role": "user", "content": "Hello"}
PLAIN = {"name": "plain", "input_schema": {}}
LATE = {"name": "late", "input_schema": {}, "defer_loading": True}
HOSTED = {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}
FOUND = {"type": "tool_reference", "tool_name": "late"}


def addition(name: str, **definition: Any) -> Any:
    if definition:
        tool = {"type": "tool_definition", "definition": {"name": name, **definition}}
    else:
        tool = {"type": "tool_reference", "name": name}
    return {"type": "tool_addition", "tool": tool}


def removal(name: str) -> Any:
    return {"type": "tool_removal", "tool": {"type": "tool_reference", "name": name}}


def shown(tools: list[Any], *blocks: Any, **body: Any) -> list[str | None]:
    messages = [USER, {"role": "system", "content": list(blocks)}]
    asked: Any = {"tools": tools, "messages": messages, **body}
    return [tool["name"] for tool in shown_tools(asked)]


def test_deferred_tools_wait_until_they_are_found() -> None:
    assert shown([PLAIN, LATE]) == ["plain"]
    assert shown([PLAIN, LATE], FOUND) == ["plain", "late"]
    assert shown([PLAIN, LATE], {"type": "tool_result", "content": [FOUND]}) == ["plain", "late"]
    assert shown([PLAIN, LATE], {"type": "tool_result", "content": "late"}) == ["plain"]
    assert shown([PLAIN, LATE], addition("late")) == ["plain", "late"]
    assert shown([PLAIN, LATE], tool_choice={"type": "tool", "name": "late"}) == ["plain", "late"]


def test_deferred_tools_that_nothing_here_could_find() -> None:
    assert shown([LATE]) == ["late"]
    assert shown([PLAIN, HOSTED, LATE]) == ["plain", HOSTED["name"], "late"]


def test_tools_come_and_go() -> None:
    assert shown([PLAIN], removal("plain")) == []
    assert shown([PLAIN], removal("plain"), addition("plain")) == ["plain"]
    assert shown([PLAIN], addition("new", input_schema={})) == ["plain", "new"]
    assert shown([PLAIN], addition("new", input_schema={}), removal("new")) == ["plain"]
    change = {"role": "system", "content": [addition("plain", description="More.")]}
    changed: Any = {"tools": [PLAIN], "messages": [change]}
    assert shown_tools(changed) == [{"name": "plain", "description": "More."}]
    none: Any = {"messages": [USER, {"role": "user"}]}
    assert shown_tools(none) == []


def test_changes_as_the_model_reads_them() -> None:
    assert change_line(addition("a")) == "Tool added: a"
    assert change_line(addition("a", input_schema={})) == "Tool added: a"
    assert change_line(removal("a")) == "Tool removed: a"
    assert change_line({"type": "text", "text": "a"}) is None


@pytest.mark.parametrize("tool", [None, {}, {"name": None}, {"definition": {}}])
def test_a_change_needs_a_name(tool: Any) -> None:
    with pytest.raises(EngineError, match="tool_addition without the name") as error:
        shown([PLAIN], {"type": "tool_addition", "tool": tool})
    assert error.value.info.type == "invalid_request_error"
