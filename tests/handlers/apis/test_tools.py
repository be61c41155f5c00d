"""Tools that a request offers, and the choice among them."""

import logging
from typing import Any

import pytest

from specllama.engine.errors import EngineError
from specllama.engine.options import Options
from specllama.handlers.apis.openai.request import chat_request, uses_functions
from specllama.handlers.apis.tools import MAX_TOOLS, Chosen, Place, chosen, offered

F: dict[str, Any] = {"type": "function", "function": {"name": "f", "description": "d"}}
PATCH: dict[str, Any] = {"type": "custom", "custom": {"name": "patch"}}
SEARCH: dict[str, Any] = {"type": "web_search"}
USER = {"role": "user", "content": "Hello"}


def choose(choice: Any, *tools: dict[str, Any]) -> Chosen:
    return chosen(offered(tools), choice)


@pytest.mark.parametrize(
    "tool",
    [
        F,
        {"function": F["function"]},
        {"type": "function", "name": "f", "description": "d", "parameters": None},
    ],
)
def test_forms_of_a_function(tool: dict[str, Any]) -> None:
    [made] = offered([tool]).tools
    assert made["function"] == {
        "name": "f",
        "description": "d",
        "parameters": {"type": "object", "properties": {}},
    }


def test_other_tools_are_left_out_with_a_remark(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        offer = offered([SEARCH, F, {"type": "new\n" * 50, "name": "n"}, F])
    assert offer.names == ["f"]
    assert len(caplog.records) == 3
    assert "web_search" in caplog.text
    assert all("\n" not in each.getMessage() for each in caplog.records)
    assert all(len(each.getMessage()) < 200 for each in caplog.records)


def test_a_tool_that_takes_a_plain_text_is_a_function_to_the_model() -> None:
    grammar = {"syntax": "lark", "definition": "start: /.+/"}
    for form in ({"type": "grammar", **grammar}, {"type": "grammar", "grammar": grammar}):
        tool = {"type": "custom", "name": "patch", "description": "Patches.", "format": form}
        offer = offered([F, tool])
        assert list(offer.free_text) == ["patch"]
        function = offer.tools[1]["function"]
        assert function["parameters"]["required"] == ["input"]
        lines = ["Patches.", "The input follows this lark:", "start: /.+/"]
        assert function["description"].split("\n") == lines
    assert offered([{**F, "function": {"name": "patch"}}, PATCH]).free_text == {}


@pytest.mark.parametrize("tool", [{}, {"type": "function"}, {"type": "custom"}])
def test_a_tool_needs_a_name(tool: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match=r"tools\[0\]") as error:
        offered([tool])
    assert error.value.info.type == "invalid_request_error"


@pytest.mark.parametrize(
    ("choice", "how", "name"),
    [
        (None, "auto", None),
        ("none", "none", None),
        ("required", "required", None),
        ({"type": "auto"}, "auto", None),
        ({"type": "any"}, "required", None),
        ({"type": "function", "function": {"name": "f"}}, "required", "f"),
        ({"type": "function", "name": "f"}, "required", "f"),
        ({"type": "custom", "custom": {"name": "patch"}}, "required", "patch"),
    ],
)
def test_choices(choice: Any, how: str, name: str | None) -> None:
    made = choose(choice, F, PATCH, SEARCH)
    assert (made.how, made.name, len(made.tools)) == (how, name, 2)


def test_allowed_tools() -> None:
    allowed = {"mode": "required", "tools": [F, SEARCH]}
    for choice in ({"type": "allowed_tools", "allowed_tools": allowed},
                   {"type": "allowed_tools", **allowed}):  # fmt: skip
        made = choose(choice, F, PATCH)
        assert [tool["function"]["name"] for tool in made.tools] == ["f"]
        assert made.how == "required"
    assert choose({"type": "allowed_tools", "mode": "auto", "tools": [SEARCH]}, F).tools == []


def test_required_without_tools_has_no_effect() -> None:
    assert choose("required").how == "auto"


@pytest.mark.parametrize(
    ("choice", "type_"),
    [
        ({"type": "function", "function": {"name": "g"}}, "invalid_request_error"),
        ({"type": "function"}, "invalid_request_error"),
        ({"type": "web_search"}, "not_supported_error"),
        ({"type": "function", "name": "web_search"}, "not_supported_error"),
        ({"type": "allowed_tools", "mode": "required", "tools": [SEARCH]}, "not_supported_error"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{**F, "function": {"name": "g"}}]},
         "invalid_request_error"),
    ],
)  # fmt: skip
def test_choices_that_can_t_be(choice: Any, type_: str) -> None:
    with pytest.raises(EngineError, match="tool_choice") as error:
        choose(choice, F, SEARCH)
    assert error.value.info.type == type_


def test_a_demand_for_tools_that_were_left_out() -> None:
    with pytest.raises(EngineError, match="web_search") as error:
        choose("required", SEARCH)
    assert error.value.info.type == "not_supported_error"


def test_a_grammar_of_a_text_is_lark() -> None:
    def grammar_of(form: Any) -> str:
        tool = {"type": "custom", "name": "patch", "format": form}
        return offered([tool]).free_text["patch"]

    regex = {"type": "grammar", "syntax": "regex", "definition": r"a/b\/\d+"}
    assert grammar_of(regex) == r"start: /a\/b\/\d+/"
    assert grammar_of({"type": "grammar", "grammar": regex}) == r"start: /a\/b\/\d+/"
    lark = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
    assert grammar_of(lark) == "start: /.+/"
    assert [grammar_of(form) for form in (None, {"type": "text"}, {"type": "grammar"})] == [""] * 3


# ---- namespaces --------------------------------------------------------------------------

NOTES: dict[str, Any] = {
    "type": "namespace",
    "name": "mcp__notes",
    "description": "About notes.",
    "tools": [
        {"type": "function", "name": "find", "description": "Finds.", "parameters": None},
        {"type": "custom", "name": "write"},
        {"type": "web_search"},
    ],
}
TASKS = {"type": "namespace", "name": "tasks__", "tools": [{"type": "function", "name": "find"}]}
CLIENTS_SEARCH = {"type": "tool_search", "execution": "client", "description": "Searches."}


def test_tools_in_namespaces() -> None:
    offer = offered([F, NOTES, TASKS, CLIENTS_SEARCH])
    names = ["f", "mcp__notes__find", "mcp__notes__write", "tasks__find", "tool_search"]
    assert offer.names == names
    assert offer.places == {
        "mcp__notes__find": Place("find", "mcp__notes"),
        "mcp__notes__write": Place("write", "mcp__notes"),
        "tasks__find": Place("find", "tasks__"),
        "tool_search": Place("tool_search"),
    }
    assert list(offer.free_text) == ["mcp__notes__write"]
    assert offer.left_out == ["web_search", "web_search"]
    descriptions = [tool["function"]["description"] for tool in offer.tools[1:3]]
    assert descriptions == ["Finds.\n\nAll tools named mcp__notes__*: About notes.", ""]


def test_a_tool_of_the_same_name_comes_first(caplog: pytest.LogCaptureFixture) -> None:
    own = {"type": "function", "name": "mcp__notes__find"}
    offer = offered([own, NOTES])
    assert "mcp__notes__find" not in offer.places
    assert "tools[1].tools[0]" in caplog.text
    assert offered([{"type": "tool_search"}]).left_out == ["tool_search", "tool_search"]


@pytest.mark.parametrize(
    ("tools", "where"),
    [
        ([F, {"type": "namespace", "tools": []}], "tools[1]: the name of the namespace is missing"),
        ([{**NOTES, "tools": [{"type": "function"}]}], "tools[0].tools[0]: the name of the"),
        ([{**NOTES, "tools": [{"name": "a", "parameters": {"type": "array"}}]}],
         "tools[0].tools[0]: the parameters"),
        ([{**NOTES, "tools": [{"name": str(n)} for n in range(MAX_TOOLS + 1)]}],
         "tools: more than 4096 are not supported"),
    ],
)  # fmt: skip
def test_namespaces_that_can_t_be(tools: list[Any], where: str) -> None:
    with pytest.raises(EngineError) as error:
        offered(tools)
    assert error.value.info.type == "invalid_request_error"
    assert error.value.info.message.startswith(where)


@pytest.mark.parametrize(
    ("choice", "name", "n"),
    [
        ({"type": "function", "name": "find", "namespace": "mcp__notes"}, "mcp__notes__find", 5),
        ({"type": "function", "name": "mcp__notes__find"}, "mcp__notes__find", 5),
        ({"type": "custom", "name": "write"}, "mcp__notes__write", 5),
        ({"type": "tool_search"}, "tool_search", 5),
        ({"type": "namespace", "name": "mcp__notes"}, None, 2),
    ],
)
def test_a_choice_within_namespaces(choice: Any, name: str | None, n: int) -> None:
    made = choose(choice, F, NOTES, TASKS, CLIENTS_SEARCH)
    assert (made.how, made.name, len(made.tools)) == ("required", name, n)
    assert made.places


def test_allowed_tools_within_namespaces() -> None:
    tools = [
        {"type": "namespace", "name": "tasks__"},
        {"type": "custom", "name": "write", "namespace": "mcp__notes"},
        {"type": "tool_search"},
    ]
    made = choose(
        {"type": "allowed_tools", "mode": "auto", "tools": tools}, F, NOTES, TASKS, CLIENTS_SEARCH
    )
    names = [tool["function"]["name"] for tool in made.tools]
    assert names == ["mcp__notes__write", "tasks__find", "tool_search"]


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "name": "find"},  # in two namespaces
        {"type": "function", "name": "f", "namespace": "mcp__notes"},
        {"type": "namespace", "name": "none"},
        {"type": "namespace"},
    ],
)
def test_choices_that_are_in_no_namespace(choice: Any) -> None:
    with pytest.raises(EngineError, match="tool_choice: there is no") as error:
        choose(choice, F, NOTES, TASKS)
    assert error.value.info.type == "invalid_request_error"


# ---- requests ----------------------------------------------------------------------------


def test_the_old_form_of_tools() -> None:
    old: Any = {"messages": [USER], "functions": [F["function"]], "function_call": {"name": "f"}}
    made = chat_request(old, Options())
    assert [tool["function"]["name"] for tool in made.tools] == ["f"]
    assert (made.tool_choice, made.tool_name, made.parallel_tool_calls) == ("required", "f", False)
    assert uses_functions(old)
    new: Any = {**old, "tools": [PATCH]}
    assert not uses_functions(new)
    assert chat_request(new, Options()).free_text == {"patch": ""}
    none: Any = {**old, "function_call": "none"}
    assert chat_request(none, Options()).tool_choice == "none"


@pytest.mark.parametrize(
    ("body", "repeats"),
    [
        ({}, True),
        ({"stream": True}, True),
        ({"continue_final_message": True}, True),
        ({"continue_final_message": True, "stream": True}, False),
        ({"continue_final_message": True, "stream": True, "echo": True}, True),
    ],
)
def test_when_the_beginning_of_an_answer_is_repeated(body: dict[str, Any], repeats: bool) -> None:
    asked: Any = {"messages": [USER], **body}
    assert chat_request(asked, Options()).repeat_given is repeats
