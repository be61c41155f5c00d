"""The tools that a request offers its model, and whether it has to call one.

Every chat API puts its tools into the form of OpenAI's chat API first. Functions and tools that
take a plain text are offered; of those that run at other servers, or that other models were
trained for, there are none here.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from engine.chat.request import FREE_TEXT, ToolChoice
from engine.errors import invalid_request, not_supported
from handlers.apis.remarks import remark

Tool = Mapping[str, Any]
Choice = str | Mapping[str, Any] | None

_CHOICES: Mapping[str, ToolChoice] = {
    "auto": "auto",
    "none": "none",
    "required": "required",
    "any": "required",
}

_SLASH = re.compile(r"(?<!\\)/")
_OWN = ("function", "custom")
"""The types of tools that there are."""


class Offered(msgspec.Struct, frozen=True):
    """`tools` as a chat template expects them; those named in `free_text` take a plain text.
    `left_out` are the types and names of the others."""

    tools: list[dict[str, Any]]
    free_text: dict[str, str] = {}
    left_out: list[str] = []

    @property
    def names(self) -> list[str]:
        return [_name(tool) for tool in self.tools]


class Chosen(msgspec.Struct, frozen=True):
    """The tools that may be called, whether one has to be, and which one if it is named."""

    tools: list[dict[str, Any]]
    how: ToolChoice
    name: str | None = None
    free_text: dict[str, str] = {}


def offered(tools: Sequence[Tool]) -> Offered:
    """What of `tools`, in OpenAI's form, can be offered.

    Raises EngineError (invalid_request_error) for a function without a name and for parameters
    that are no object's schema.
    """
    functions: list[tuple[int, Tool]] = []
    free_text: dict[str, str] = {}
    left_out: list[str] = []
    for index, tool in enumerate(tools):
        match kind := tool.get("type") or "function":
            case "function":
                functions.append((index, tool.get("function") or tool))
            case "custom":
                given = tool.get("custom") or tool
                custom = _as_function(given)
                if all(custom["name"] != function.get("name") for _, function in functions):
                    free_text[custom["name"] or ""] = _grammar(given)
                functions.append((index, custom))
            case _:
                remark("tools[%d]: this server has no %s; it is left out", index, kind)
                left_out += [kind, tool.get("name") or kind]
    return Offered(_functions(functions), free_text, left_out)


def _functions(functions: Sequence[tuple[int, Tool]]) -> list[dict[str, Any]]:
    made: dict[str, dict[str, Any]] = {}
    for index, function in functions:
        name = function.get("name")
        if not name:
            raise invalid_request(f"tools[{index}]: a function without a name")
        if name in made:
            remark("tools[%d]: a second tool of its name; it is left out", index)
            continue
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        if parameters.get("type", "object") != "object":
            raise invalid_request(f"tools[{index}]: the parameters of a tool are an object")
        description = function.get("description") or ""
        made[name] = {
            "type": "function",
            "function": {"name": name, "description": description, "parameters": parameters},
        }
    return list(made.values())


def _as_function(custom: Tool) -> Tool:
    """A tool that takes a plain text, as a function with one parameter. The grammar of the text
    is told to the model, which writes better what it is held to."""
    lines = [custom.get("description") or ""]
    grammar = _format(custom)
    if isinstance(definition := grammar.get("definition"), str):
        syntax = grammar.get("syntax") or "grammar"
        lines += [f"The input follows this {syntax}:", definition]
    text = {"type": "string", "description": "The whole input, as plain text."}
    return {
        "name": custom.get("name"),
        "description": "\n".join(line for line in lines if line),
        "parameters": {
            "type": "object",
            "properties": {FREE_TEXT: text},
            "required": [FREE_TEXT],
            "additionalProperties": False,
        },
    }


def _format(custom: Tool) -> Mapping[str, Any]:
    form = custom.get("format") or {}
    found: Mapping[str, Any] = form.get("grammar") or form  # the two APIs of OpenAI differ in this
    return found


def _grammar(custom: Tool) -> str:
    """The grammar of the tool's text in Lark, "" if there is none."""
    grammar = _format(custom)
    definition = grammar.get("definition")
    if not isinstance(definition, str) or not definition:
        return ""
    if grammar.get("syntax") != "regex":
        return definition
    pattern = _SLASH.sub(r"\/", definition).replace("\n", r"\n")
    return f"start: /{pattern}/"


def chosen(offer: Offered, choice: Choice) -> Chosen:
    """What `choice` makes of the tools of a request.

    Raises EngineError: invalid_request_error for a tool that isn't there, not_supported_error for
    one that has been left out.
    """
    if choice is None or isinstance(choice, str):
        return _chosen(offer, offer.tools, _CHOICES[choice or "auto"])
    kind = choice["type"]
    if kind in _CHOICES:
        return _chosen(offer, offer.tools, _CHOICES[kind])
    if kind == "allowed_tools":
        return _allowed(offer, choice.get("allowed_tools") or choice)
    if kind not in _OWN:
        raise not_supported(f"tool_choice: this server has no {kind}")
    name = _named(choice)
    _check(offer, name)
    if name not in offer.names:
        raise not_supported(f"tool_choice: this server has no tool {name!r}")
    return Chosen(offer.tools, "required", name, offer.free_text)


def _allowed(offer: Offered, choice: Tool) -> Chosen:
    """The tools that `choice` leaves. Those that the server hasn't are left out there, too."""
    wanted = choice.get("tools") or []
    names = [_named(tool) for tool in wanted if tool.get("type", "function") in _OWN]
    for name in names:
        _check(offer, name)
    others = [tool["type"] for tool in wanted if tool.get("type", "function") not in _OWN]
    offer = Offered(
        [tool for tool in offer.tools if _name(tool) in names],
        offer.free_text,
        [*others, *offer.left_out],
    )
    return _chosen(offer, offer.tools, _CHOICES[choice.get("mode") or "auto"])


def _chosen(offer: Offered, tools: list[dict[str, Any]], how: ToolChoice) -> Chosen:
    if how == "required" and not tools:
        if offer.left_out:
            raise not_supported(f"tool_choice: this server has no {offer.left_out[0]}")
        remark("tool_choice: there are no tools of which one could be required")
        how = "auto"
    return Chosen(tools, how, free_text=offer.free_text)


def _named(choice: Tool) -> str:
    named = choice.get("function") or choice.get("custom") or choice
    if not named.get("name"):
        raise invalid_request("tool_choice: the name of the tool is missing")
    return str(named["name"])


def _check(offer: Offered, name: str) -> None:
    if name not in offer.names and name not in offer.left_out:
        raise invalid_request(f"tool_choice: there is no tool of the name {name!r}")


def _name(tool: Tool) -> str:
    return str(tool["function"]["name"])
