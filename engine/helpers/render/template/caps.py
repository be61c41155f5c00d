"""Detects what a chat template can express, by rendering probes with it.

Each probe is a small conversation with marked words. A capability exists if its mark occurs in the
prompt. The names in `Caps` are those of llama-server's `chat_template_caps`.
"""

import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec

from specllama.engine.chat import harmony_markers
from specllama.engine.errors import EngineError

if TYPE_CHECKING:
    from specllama.engine.helpers.render.template.template import ChatTemplate

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
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
_PRINTED = re.compile(r"""(['"])parts_mark\1""")  # as printed by Python or JSON
_PRINTED_PART = re.compile(r"""(['"])thinking\1""")
_LONG_ID = "call_0123456789abcdefABCDEF01"


ROLES = frozenset(("system", "user", "assistant", "tool"))


class Caps(TypedDict):
    """The parts of a conversation that a template renders.

    String and typed content are the two forms of a message's content: a text and a list of parts.
    Object arguments: the arguments of a tool call are an object instead of a JSON string. Preserved
    reasoning: the reasoning of earlier turns is shown.
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


class Traits(msgspec.Struct, frozen=True):
    """The `caps` of a template, and the forms of messages that it requires.

    `reasoning_key` is the field of a message with the reasoning. With `thoughts_or_content`, a
    message with calls may have either reasoning or content. With `null_content`, calls are rendered
    only if the message's content is null; with `text_hides_calls`, only if the message has no text.
    With `text_behind_results`, the text of a message with calls is shown after their results. With
    `short_ids`, the id of a call has nine letters and digits. With `developer_role`, the role
    developer is supported. With `thoughts_in_parts`, reasoning is a part of the content; with
    `results_in_call`, the results of calls are in the message with the calls.

    System messages: with `several_systems`, several may begin a conversation; with `system_alone`,
    a conversation may consist of system messages only. With `late_system`, they are also shown
    after other messages; with `system_before_result`, even between a call and its result. With
    `user_after_result`, a user's message may follow a result. `text_roles` are the roles whose
    content may be a text; `Caps` describes only the user's.
    """

    caps: Caps
    reasoning_key: str = "reasoning_content"
    thoughts_or_content: bool = False
    null_content: bool = False
    text_hides_calls: bool = False
    text_behind_results: bool = False
    short_ids: bool = False
    developer_role: bool = False
    thoughts_in_parts: bool = False
    results_in_call: bool = False
    several_systems: bool = True
    system_alone: bool = True
    late_system: bool = True
    system_before_result: bool = True
    user_after_result: bool = True
    text_roles: frozenset[str] = ROLES


def probe(template: "ChatTemplate") -> Caps:
    """Returns the capabilities of `template`."""
    return traits_of(template).caps


@lru_cache(maxsize=16)
def traits_of(template: "ChatTemplate") -> Traits:
    """Returns the traits of `template`. This takes about twenty renderings, once per template."""
    probe = _Probe(template)
    string = probe.render({"role": "user", "content": "string_mark"})
    parts = probe.render({"role": "user", "content": [{"type": "text", "text": "parts_mark"}]})
    probe.in_parts = "string_mark" not in string and "parts_mark" in parts
    system = probe.render({"role": "system", "content": "system_mark"}, _USER)

    mark: dict[str, Any] = {"a": "call_mark"}
    tool_calls = object_arguments = False
    for probe.empty in ("", None):
        as_object = probe.call(mark)
        # Printed by Python's rules: the template expected a string.
        object_arguments = "call_mark" in as_object and "{'a'" not in as_object
        tool_calls = object_arguments or "call_mark" in probe.call(json.dumps(mark))
        if tool_calls:
            break
    null_content = tool_calls and probe.empty is None
    encode = (lambda arguments: arguments) if object_arguments else json.dumps
    double = probe.calls(
        [_call(encode({"a": "first_mark"}), "call00001"), _call(encode(mark), "call00002")]
    )
    in_turn = "first_mark" in double and "call_mark" in double
    beside_text = probe.call(encode(mark), content="content_mark")
    results_in_call = tool_calls and probe.wants_results_in_call(encode(mark))
    before_result = probe.open_call(encode(mark), content="content_mark")
    long_ids = "call_mark" in probe.calls([_call(encode(mark), _LONG_ID)])

    reasoning_key = next(
        (key for key in _REASONING_KEYS if probe.shows_thoughts(key, encode(mark))),
        _REASONING_KEYS[0],
    )
    thoughts = {reasoning_key: "reasoning_mark"}
    part = {"type": "thinking", "thinking": "reasoning_mark"}
    in_parts = probe.render(
        _USER, {**_ANSWER, "content": [part, {"type": "text", "text": "An answer"}]}
    )
    with_thoughts = probe.open_call(encode(mark), **thoughts)
    with_both = probe.open_call(encode(mark), **thoughts, content="content_mark")
    reasoned = {**_ANSWER, "reasoning_content": "reasoning_mark"}
    history = probe.render(
        *(_USER, reasoned, _USER, {**_ANSWER, "reasoning_content": "More"}, _USER),
        **KEEP_REASONING,
    )
    efforts = {
        probe.render(_USER, reasoning_effort=effort, reasoning_strength=effort)
        for effort in ("low", "high")
    }
    caps = Caps(
        supports_string_content="string_mark" in string,
        supports_typed_content=_PRINTED.search(parts) is None and "parts_mark" in parts,
        supports_system_role="system_mark" in system,
        supports_tools="probe_tool" in probe.render(_USER, tools=True),
        supports_tool_calls=tool_calls,
        supports_parallel_tool_calls=tool_calls and in_turn,
        supports_object_arguments=object_arguments,
        supports_preserve_reasoning="reasoning_mark" in history,
        supports_reasoning_effort=len(efforts) > 1,
    )
    return Traits(
        caps,
        reasoning_key,
        thoughts_or_content="reasoning_mark" in with_thoughts and not with_both,
        null_content=null_content,
        text_hides_calls=tool_calls and "call_mark" not in beside_text,
        text_behind_results=tool_calls
        and (results_in_call or _in_order(before_result, "A result", "content_mark")),
        short_ids=tool_calls and not long_ids,
        # Only templates with channels support the role developer.
        thoughts_in_parts=(
            "reasoning_mark" in in_parts
            and not _PRINTED_PART.search(in_parts)
            and not probe.shows_thoughts(reasoning_key, encode(mark))
        ),
        results_in_call=results_in_call,
        developer_role=harmony_markers.CHANNEL in template.source,
        text_roles=probe.text_roles(encode(mark) if tool_calls else None),
        **probe.places_of_systems(encode(mark) if tool_calls else None),
    )


def _in_order(text: str, *marks: str) -> bool:
    """Returns whether all marks are in the text, in this order."""
    places = [text.find(mark) for mark in marks]
    return -1 not in places and places == sorted(places)


class _Probe:
    """Renders probes. `empty` is the content of messages that only call tools. With `in_parts`,
    text content is passed as a part."""

    def __init__(self, template: "ChatTemplate") -> None:
        self._template = template
        self.empty: str | None = ""
        self.in_parts = False

    def render(self, *messages: dict[str, Any], tools: bool = False, **variables: Any) -> str:
        """Returns the prompt; "" if the template fails on these messages."""
        given = [self._with_parts(message) if self.in_parts else message for message in messages]
        try:
            return self._template.render(
                given, tools=[_TOOL] if tools else None, variables=variables
            )
        except EngineError:
            return ""

    def call(self, arguments: Any, **fields: Any) -> str:
        """Returns the prompt of a conversation with one call; `fields` are additional fields of its
        message.

        The id has nine letters and digits, which the strictest templates require.
        """
        return self.calls([_call(arguments, "call00001")], **fields)

    def calls(self, calls: list[dict[str, Any]], **fields: Any) -> str:
        turn = self._turn(calls, fields)
        return self.render(*turn, _ANSWER, _USER, tools=True)

    def open_call(self, arguments: Any, **fields: Any) -> str:
        """Returns the prompt of a conversation that ends with the result of a call."""
        return self.render(*self._turn([_call(arguments, "call00001")], fields), tools=True)

    def _turn(self, calls: list[dict[str, Any]], fields: dict[str, Any]) -> list[dict[str, Any]]:
        asking = {"role": "assistant", "content": self.empty, "tool_calls": calls, **fields}
        result = {"role": "tool", "name": "probe_tool", "content": "A result"}
        return [_USER, asking, *({**result, "tool_call_id": call["id"]} for call in calls)]

    def text_roles(self, arguments: Any) -> frozenset[str]:
        """Returns the roles whose content is shown if it is a text; `arguments` are those of a
        call, if the template shows calls. A role whose content is shown neither as a text nor in
        parts is included."""

        def shown(role: str, content: Any) -> bool:
            message = {"role": role, "content": content}
            if role == "tool":
                turn = self._turn([_call(arguments, "call00001")], {})
                return "role_mark" in self.render(*turn[:2], {**turn[2], **message}, tools=True)
            around = {"system": ([], [_USER]), "user": ([], []), "assistant": ([_USER], [_USER])}
            before, after = around[role]
            return "role_mark" in self.render(*before, message, *after)

        was, self.in_parts = self.in_parts, False
        parts = [{"type": "text", "text": "role_mark"}]
        probed = ROLES if arguments is not None else ROLES - {"tool"}
        found = ROLES - {r for r in probed if not shown(r, "role_mark") and shown(r, parts)}
        self.in_parts = was
        return found

    def places_of_systems(self, arguments: Any) -> dict[str, bool]:
        """Returns where system messages are shown in their place, and whether a user's message may
        follow the result of a call. `arguments` are as in `text_roles`."""
        system = {"role": "system", "content": "system_mark"}
        more = {"role": "user", "content": "more_mark"}
        middle = self.render(_USER, _ANSWER, system, more)
        end = self.render(_USER, _ANSWER, more, system)
        late = _in_order(middle, "An answer", "system_mark", "more_mark")
        late = late and _in_order(end, "more_mark", "system_mark")
        two = self.render({**system, "content": "first_mark"}, system, _USER)
        found = {
            "several_systems": _in_order(two, "first_mark", "system_mark", "A question"),
            "system_alone": "system_mark" in self.render(system),
        }
        if arguments is None:
            return {**found, "late_system": late}
        asked, call, result = self._turn([_call(arguments, "call00001")], {})
        inside = self.render(asked, call, system, result, tools=True)
        behind = self.render(asked, call, result, system, tools=True)
        spoken = self.render(asked, call, result, more, _ANSWER, _USER, tools=True)
        late = late and _in_order(behind, "A result", "system_mark")
        return {
            **found,
            "late_system": late,
            "system_before_result": late
            and _in_order(inside, "call_mark", "system_mark", "A result"),
            "user_after_result": _in_order(spoken, "A result", "more_mark", "An answer"),
        }

    @staticmethod
    def _with_parts(message: dict[str, Any]) -> dict[str, Any]:
        content = message["content"]
        if not isinstance(content, str):
            return message
        return {**message, "content": [{"type": "text", "text": content}]}

    def wants_results_in_call(self, arguments: Any) -> bool:
        """Returns whether results are shown differently if they are in the message with the
        call."""
        turn = self._turn([_call(arguments, "call00001")], {})
        inside = {"tool_responses": [{"name": "probe_tool", "response": "A result"}]}
        within = self.render(_USER, {**turn[1], **inside}, tools=True)
        return "A result" in within and within != self.render(*turn, tools=True)

    def shows_thoughts(self, key: str, arguments: Any) -> bool:
        """Returns whether reasoning in the field `key` is rendered anywhere. Most templates only
        show the reasoning of the last, unanswered turn."""
        thoughts = {key: "reasoning_mark"}
        return "reasoning_mark" in self.open_call(
            arguments, **thoughts
        ) or "reasoning_mark" in self.render(_USER, {**_ANSWER, **thoughts})


def _call(arguments: Any, id: str) -> dict[str, Any]:
    return {
        "id": id,
        "type": "function",
        "function": {"name": "probe_tool", "arguments": arguments},
    }
