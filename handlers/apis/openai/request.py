"""From the body of a chat completion in OpenAI's form to the internal request.

Bodies have passed validation against the description.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.chat.request import ChatRequest, ToolChoice
from engine.errors import invalid_request
from engine.options import Options

_CHOICES: Mapping[str, ToolChoice] = {"auto": "auto", "none": "none", "required": "required"}


def chat_request(body: Mapping[str, Any], options: Options) -> ChatRequest:
    """The request in `body`; the server's options stand in for fields that it lacks.

    Raises EngineError (invalid_request_error).
    """
    tools = function_tools(body.get("tools") or [], "tools")
    tools, choice, name = tool_choice(tools, body.get("tool_choice"))
    return ChatRequest(
        messages=body["messages"],
        tools=tools,
        tool_choice=choice,
        tool_name=name,
        parallel_tool_calls=body.get("parallel_tool_calls"),
        parse_tool_calls=body.get("parse_tool_calls") is not False,
        reasoning_format=body.get("reasoning_format") or options.chat.reasoning_format,
        reasoning_budget=_reasoning_budget(body, options),
        thinking_forced_open=bool(body.get("thinking_forced_open")),
        add_generation_prompt=body.get("add_generation_prompt"),
        continue_final_message=body.get("continue_final_message"),
        prefill=options.chat.prefill_assistant,
        template_variables=template_variables(body, options),
    )


def _reasoning_budget(body: Mapping[str, Any], options: Options) -> int:
    """Tokens; that of the server stands in for none and for -1."""
    for name in ("reasoning_budget_tokens", "thinking_budget_tokens"):
        budget: int | None = body.get(name)
        if budget is not None and budget >= 0:
            return budget
    return options.chat.reasoning_budget


def function_tools(tools: Sequence[Mapping[str, Any]], where: str) -> list[dict[str, Any]]:
    """`tools` as a chat template expects them. Raises EngineError (invalid_request_error) for
    two of one name and for parameters that are no object's schema."""
    names: set[str] = set()
    made: list[dict[str, Any]] = []
    for index, tool in enumerate(tools):
        function = tool["function"]
        name = function["name"]
        if name in names:
            raise invalid_request(f"{where}[{index}]: there are two tools of the name {name!r}")
        names.add(name)
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        if parameters.get("type", "object") != "object":
            raise invalid_request(f"{where}[{index}]: the parameters of a tool are an object")
        description = function.get("description") or ""
        made.append(
            {
                "type": "function",
                "function": {"name": name, "description": description, "parameters": parameters},
            }
        )
    return made


def tool_choice(
    tools: list[dict[str, Any]], choice: str | Mapping[str, Any] | None
) -> tuple[list[dict[str, Any]], ToolChoice, str | None]:
    """The tools that may be called, whether one has to be, and which one if it is named.

    Raises EngineError (invalid_request_error) for a choice that the tools don't allow.
    """
    if choice is None:
        return tools, "auto", None
    if isinstance(choice, str):
        if choice == "required" and not tools:
            raise invalid_request("tool_choice: there are no tools, but one is required")
        return tools, _CHOICES[choice], None
    if choice.get("type") == "allowed_tools":
        allowed = choice["allowed_tools"]
        names = [tool["function"]["name"] for tool in allowed["tools"]]
        _check_known(tools, names)
        return tool_choice([tool for tool in tools if _name(tool) in names], allowed["mode"])
    name = choice["function"]["name"]
    _check_known(tools, [name])
    return tools, "required", name


def _name(tool: Mapping[str, Any]) -> str:
    return str(tool["function"]["name"])


def _check_known(tools: list[dict[str, Any]], names: Sequence[str]) -> None:
    known = {_name(tool) for tool in tools}
    for name in names:
        if name not in known:
            raise invalid_request(f"tool_choice: there is no tool of the name {name!r}")


def template_variables(body: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """The variables of the template beside the messages: the request's win over the server's.

    Raises EngineError (invalid_request_error).
    """
    variables = {**options.chat.chat_template_kwargs, **(body.get("chat_template_kwargs") or {})}
    effort = body.get("reasoning_effort")
    if effort == "none":
        variables["enable_thinking"] = False
    elif effort is not None:
        variables["reasoning_effort"] = effort
    if not isinstance(variables.get("enable_thinking", True), bool):
        raise invalid_request("chat_template_kwargs: enable_thinking is true or false")
    if body.get("documents"):
        variables["documents"] = body["documents"]
    return variables
