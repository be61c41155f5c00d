"""The tools that a request offers to the model, and whether the model has to call one.

Every chat API first converts its tools to the form of OpenAI's chat API. The model is offered
functions, tools with a plain text as input, and the client's search for tools; functions and text
tools may be in a namespace. Tools that run at other servers, or that only other models were trained
for, are not available.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from specllama.engine.chat.request import FREE_TEXT, OfferedTool, ToolChoice, ToolFunction
from specllama.engine.errors import invalid_request, not_supported
from specllama.handlers.http.log_fields import warn_ignored

Tool = Mapping[str, Any]
Choice = str | Mapping[str, Any] | None

_CHOICES: Mapping[str, ToolChoice] = {
    "auto": "auto",
    "none": "none",
    "required": "required",
    "any": "required",
}

_SLASH = re.compile(r"(?<!\\)/")
_OWN = ("function", "custom", "tool_search")
"""The supported types of tools, besides namespaces."""
MAX_TOOLS = 4096
"""The limit for one request, which includes tools in namespaces."""
SEARCH = "tool_search"
"""The name by which a model calls the client's search for tools."""


class Place(msgspec.Struct, frozen=True):
    """The client's name for a tool that has another name in the prompt: a tool in a `namespace`;
    without a `namespace`, the search for tools."""

    name: str
    namespace: str | None = None


class Offered(msgspec.Struct, frozen=True):
    """The `tools` that a chat template gets. `free_text` has the grammars of the tools with a plain
    text as input, `places` the tools with another name at the client, both by name. `left_out` has
    the types and names of unavailable tools.
    """

    tools: list[OfferedTool]
    free_text: dict[str, str] = {}
    left_out: list[str] = []
    places: dict[str, Place] = {}

    @property
    def names(self) -> list[str]:
        return [_name(tool) for tool in self.tools]


class Chosen(msgspec.Struct, frozen=True):
    """The tools that the model may call, whether it has to call one, and which one if that is
    given."""

    tools: list[OfferedTool]
    how: ToolChoice
    name: str | None = None
    free_text: dict[str, str] = {}
    places: dict[str, Place] = {}


def qualified(name: str, namespace: str | None) -> str:
    """Returns the name of a tool in the prompt: one word, which includes its namespace."""
    return f"{namespace.removesuffix('__')}__{name}" if namespace else name


def offered(tools: Sequence[Tool]) -> Offered:
    """Returns the available ones of `tools`, which are in OpenAI's form.

    Raises EngineError (invalid_request_error) for a function without a name, for parameters whose
    schema isn't that of an object, and for too many tools.
    """
    functions: dict[str, tuple[str, Tool]] = {}
    free_text: dict[str, str] = {}
    left_out: list[str] = []
    places: dict[str, Place] = {}
    for where, tool, namespace in _alone(tools):
        match kind := tool.get("type") or "function":
            case "function":
                function = tool.get("function") or tool
            case "custom":
                function = _as_function(tool.get("custom") or tool)
            case "tool_search" if tool.get("execution") == "client" and not namespace:
                function = {**tool, "name": SEARCH}
            case _:
                warn_ignored("%s: this server has no %s; the tool is left out", where, kind)
                left_out += [kind, tool.get("name") or kind]
                continue
        if not (own := function.get("name")):
            raise invalid_request(f"{where}: the name of the function is missing")
        name = qualified(own, namespace)
        if name in functions:
            warn_ignored("%s: a second tool with the same name is left out", where)
            continue
        if len(functions) == MAX_TOOLS:
            raise invalid_request(f"tools: more than {MAX_TOOLS} are not supported")
        functions[name] = where, {**function, "name": name}
        if kind == "custom":
            free_text[name] = _grammar(tool.get("custom") or tool)
        if namespace or kind == SEARCH:
            places[name] = Place(own, namespace)
    return Offered(_functions(functions), free_text, left_out, places)


def known(tools: Sequence[Tool]) -> list[str]:
    """Returns the names of `tools` in the prompt."""
    named = (
        (inner.get("function") or inner.get("custom") or inner, n) for _, inner, n in _alone(tools)
    )
    return [qualified(tool["name"], namespace) for tool, namespace in named if tool.get("name")]


def _alone(tools: Sequence[Tool]) -> Iterator[tuple[str, Tool, str | None]]:
    """Yields all of `tools`, also those in namespaces: the place in the request, the tool, and its
    namespace. A namespace's description is added to that of its first tool, since templates show
    only tools."""
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        if tool.get("type") != "namespace":
            yield where, tool, None
            continue
        if not (namespace := tool.get("name")):
            raise invalid_request(f"{where}: the name of the namespace is missing")
        about = tool.get("description")
        for number, inner in enumerate(tool.get("tools") or ()):
            if about:
                heading = f"All tools named {qualified('*', namespace)}: {about}"
                inner = {**inner, "description": f"{inner.get('description') or ''}\n\n{heading}"}
                about = None
            yield f"{where}.tools[{number}]", inner, namespace


def _functions(functions: Mapping[str, tuple[str, Tool]]) -> list[OfferedTool]:
    made: list[OfferedTool] = []
    for name, (where, function) in functions.items():
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        if parameters.get("type", "object") != "object":
            raise invalid_request(f"{where}: the parameters of a tool must be an object")
        description = function.get("description") or ""
        fields: ToolFunction = {
            "name": name,
            "description": description,
            "parameters": parameters,
        }
        made.append({"type": "function", "function": fields})
    return made


def _as_function(custom: Tool) -> Tool:
    """Returns a tool with a plain text as input, as a function with one parameter. Its description
    contains the grammar of the text, because models write better input if they can read the
    constraint."""
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
    grammar = form.get("grammar")  # Chat Completions has one more object around it than Responses
    return grammar if isinstance(grammar, Mapping) else form


def _grammar(custom: Tool) -> str:
    """Returns the grammar of the tool's text in Lark; "" if it has no grammar."""
    grammar = _format(custom)
    definition = grammar.get("definition")
    if not isinstance(definition, str) or not definition:
        return ""
    if grammar.get("syntax") != "regex":
        return definition
    pattern = _SLASH.sub(r"\/", definition).replace("\n", r"\n")
    return f"start: /{pattern}/"


def chosen(offer: Offered, choice: Choice) -> Chosen:
    """Applies `choice` to the tools of a request.

    Raises EngineError: invalid_request_error for an unknown tool, not_supported_error for one that
    is unavailable here.
    """
    if choice is None or isinstance(choice, str):
        return _chosen(offer, offer.tools, _CHOICES[choice or "auto"])
    kind = choice["type"]
    if kind in _CHOICES:
        return _chosen(offer, offer.tools, _CHOICES[kind])
    if kind == "allowed_tools":
        return _allowed(offer, choice.get("allowed_tools") or choice)
    if kind == "namespace":
        return _allowed(offer, {"mode": "required", "tools": [choice]})
    if kind not in _OWN:
        raise not_supported(f"tool_choice: this server has no {kind}")
    name = _named(offer, choice)
    _check(offer, name)
    if name not in offer.names:
        raise not_supported(f"tool_choice: this server has no tool {name!r}")
    return Chosen(offer.tools, "required", name, offer.free_text, offer.places)


def _allowed(offer: Offered, choice: Tool) -> Chosen:
    """Returns the tools that `choice` allows, without unavailable ones."""
    wanted = choice.get("tools") or []
    names, others = set[str](), list[str]()
    for tool in wanted:
        kind = tool.get("type", "function")
        if kind == "namespace":
            names |= _within(offer, tool.get("name"))
        elif kind in _OWN:
            name = _named(offer, tool)
            _check(offer, name)
            names.add(name)
        else:
            others.append(kind)
    left = [tool for tool in offer.tools if _name(tool) in names]
    offer = Offered(left, offer.free_text, [*others, *offer.left_out], offer.places)
    return _chosen(offer, offer.tools, _CHOICES[choice.get("mode") or "auto"])


def _chosen(offer: Offered, tools: list[OfferedTool], how: ToolChoice) -> Chosen:
    if how == "required" and not tools:
        if offer.left_out:
            raise not_supported(f"tool_choice: this server has no {offer.left_out[0]}")
        warn_ignored("tool_choice: there are no tools, so no call is required")
        how = "auto"
    return Chosen(tools, how, free_text=offer.free_text, places=offer.places)


def _named(offer: Offered, choice: Tool) -> str:
    """Returns the name of the chosen tool in the prompt. The namespace may be missing if only one
    tool has the name."""
    if choice.get("type") == SEARCH:
        return SEARCH
    named = choice.get("function") or choice.get("custom") or choice
    if not named.get("name"):
        raise invalid_request("tool_choice: the name of the tool is missing")
    name = qualified(str(named["name"]), named.get("namespace"))
    if name not in offer.names:
        within = [known for known, place in offer.places.items() if place.name == name]
        if len(within) == 1:
            return within[0]
    return name


def _within(offer: Offered, namespace: str | None) -> set[str]:
    names = {name for name, place in offer.places.items() if place.namespace == namespace}
    if not namespace or not names:
        raise invalid_request(f"tool_choice: there is no namespace {namespace!r} with tools")
    return names


def _check(offer: Offered, name: str) -> None:
    if name not in offer.names and name not in offer.left_out:
        raise invalid_request(f"tool_choice: there is no tool of the name {name!r}")


def _name(tool: OfferedTool) -> str:
    return tool["function"]["name"]
