"""Finds out what a chat template can express, by rendering probes with it.

Each probe is a small conversation with marked words; a capability is there when its mark
comes out in the prompt. The names are those of llama-server's `chat_template_caps`.
"""

import json
from functools import lru_cache
from typing import Any, TypedDict

from engine.chat.template import ChatTemplate
from engine.errors import EngineError

_USER: dict[str, Any] = {"role": "user", "content": "A question"}
_ANSWER: dict[str, Any] = {"role": "assistant", "content": "An answer"}
_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "A probe",
        "parameters": {
            "type": "object",
            "properties": {"probe_argument": {"type": "string", "description": "A probe"}},
            "required": ["probe_argument"],
        },
    },
}
KEEP_REASONING = {
    "preserve_thinking": True,
    "clear_thinking": False,
    "truncate_history_thinking": False,
    "drop_thinking": False,
}


class Caps(TypedDict):
    """What a template renders.

    String and typed content are the two forms of a message's content: a text and a list of
    parts. Object arguments: the arguments of a tool call are an object rather than a JSON
    string. Preserved reasoning: that of earlier turns is shown again.
    """

    supports_string_content: bool
    supports_typed_content: bool
    supports_system_role: bool
    supports_tools: bool
    supports_tool_calls: bool
    supports_parallel_tool_calls: bool
    supports_object_arguments: bool
    supports_preserve_reasoning: bool
    supports_reasoning_effort: bool


@lru_cache(maxsize=16)
def probe(template: ChatTemplate) -> Caps:
    """The capabilities of `template`; costs about a dozen renderings, once per template."""

    def render(*messages: dict[str, Any], tools: bool = False, **variables: Any) -> str:
        """The prompt, or nothing if the template fails on these messages."""
        try:
            return template.render(
                list(messages), tools=[_TOOL] if tools else None, variables=variables
            )
        except EngineError:
            return ""

    def with_calls(*calls: dict[str, Any]) -> str:
        result = {"role": "tool", "name": "probe_tool", "content": "A result"}
        asking = {"role": "assistant", "content": "", "tool_calls": list(calls)}
        results = [{**result, "tool_call_id": call["id"]} for call in calls]
        return render(_USER, asking, *results, _ANSWER, _USER, tools=True)

    string = render({"role": "user", "content": "string_mark"})
    parts = render({"role": "user", "content": [{"type": "text", "text": "parts_mark"}]})
    system = render({"role": "system", "content": "system_mark"}, _USER)

    as_object = with_calls(_call(1, {"probe_argument": "object_mark"}))
    # Printed as Python would print it: the template meant to print a string.
    object_arguments = "object_mark" in as_object and "{'probe_argument'" not in as_object
    encode = (lambda arguments: arguments) if object_arguments else json.dumps
    single = as_object if object_arguments else with_calls(_call(1, '{"a": "string_mark"}'))
    double = with_calls(
        _call(1, encode({"a": "first_mark"})), _call(2, encode({"a": "second_mark"}))
    )
    mark = "object_mark" if object_arguments else "string_mark"
    tool_calls = mark in single
    in_turn = "first_mark" in double and "second_mark" in double

    reasoned = {**_ANSWER, "reasoning_content": "reasoning_mark"}
    history = render(
        _USER, reasoned, _USER, {**_ANSWER, "reasoning_content": "More"}, _USER, **KEEP_REASONING
    )
    efforts = {
        render(_USER, reasoning_effort=effort, reasoning_strength=effort)
        for effort in ("low", "high")
    }
    return Caps(
        supports_string_content="string_mark" in string,
        supports_typed_content="parts_mark" in parts and "'parts_mark'" not in parts,
        supports_system_role="system_mark" in system,
        supports_tools="probe_tool" in render(_USER, tools=True),
        supports_tool_calls=tool_calls,
        supports_parallel_tool_calls=tool_calls and in_turn,
        supports_object_arguments=object_arguments,
        supports_preserve_reasoning="reasoning_mark" in history,
        supports_reasoning_effort=len(efforts) > 1,
    )


def _call(number: int, arguments: Any) -> dict[str, Any]:
    # Nine letters and digits: what the strictest templates want of an id.
    return {
        "id": f"call0000{number}",
        "type": "function",
        "function": {"name": "probe_tool", "arguments": arguments},
    }
