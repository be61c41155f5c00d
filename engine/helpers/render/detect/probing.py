"""Probe conversations for the detection: one question, and an answer of known words."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from specllama.engine.chat.syntax import JSON_TYPES
from specllama.engine.errors import EngineError
from specllama.engine.helpers.render.template.caps import KEEP_REASONING, probe
from specllama.engine.helpers.render.template.template import ChatTemplate

Json = str | int | float | bool | None | list[Any] | dict[str, Any]

QUESTION = "Zqquestion"
_LONGEST = 8000  # characters of an answer; a longer one indicates repetitions


class Call(msgspec.Struct, frozen=True):
    """A probe's call of a tool. The tool has exactly these arguments."""

    name: str
    arguments: dict[str, Json]
    id: str


class Style(msgspec.Struct, frozen=True):
    """A form of messages with calls; some templates show calls only in one form."""

    objects: bool = True  # the arguments are an object instead of JSON text
    null: bool = False  # empty content is None instead of ""
    named_ids: bool = False  # ids contain the function's name


USUAL = Style()


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The assistant's message of a probe. `thoughts` are fields of the message with the
    reasoning."""

    content: str | list[dict[str, str]] | None = ""
    thoughts: Mapping[str, str] = {}
    calls: Sequence[Call] = ()


class Prober:
    """Renders probes with one template."""

    def __init__(self, template: ChatTemplate) -> None:
        self.source = template.source
        self._template = template
        self._caps = probe(template)

    def styles(self) -> list[Style]:
        """Returns all ways of showing a call, the most likely first."""
        # With support for objects, templates print JSON text badly, or encode it twice.
        forms = (True,) if self._caps["supports_object_arguments"] else (False, True)
        return [
            Style(form, null, named)
            for named in (False, True)
            for form in forms
            for null in (False, True)
        ]

    def prompt(self, thinking: bool) -> str | None:
        """Returns the prompt's text after the question."""
        variables = {"enable_thinking": thinking, "thinking": thinking}
        return self._render([], [], True, variables)

    def answer(
        self, answer: Answer, style: Style = USUAL, *, keep: bool = False, followed: bool = False
    ) -> str | None:
        """Returns the rendered text after the question, with `answer` as the next message; None if
        the template fails or doesn't show the question. `keep` asks the template to show reasoning;
        `followed`: another question follows the answer."""
        content = answer.content
        if not content and style.null:
            content = None
        message: dict[str, Any] = {"role": "assistant", "content": self._content(content)}
        message |= answer.thoughts
        if answer.calls:
            message["tool_calls"] = [
                _tool_call(call, index, style) for index, call in enumerate(answer.calls)
            ]
        messages = [message]
        if followed:
            messages.append({"role": "user", "content": self._content("Another")})
        variables = {**KEEP_REASONING, "thinking": True} if keep else {}
        return self._render(messages, answer.calls, False, variables)

    def _content(self, content: str | list[dict[str, str]] | None) -> Any:
        if isinstance(content, str) and not self._caps["supports_string_content"]:
            return [{"type": "text", "text": content}]
        return content

    def _render(
        self,
        messages: Sequence[dict[str, Any]],
        calls: Sequence[Call],
        generate: bool,
        variables: Mapping[str, Any],
    ) -> str | None:
        asked = {"role": "user", "content": self._content(QUESTION)}
        try:
            text = self._template.render(
                [asked, *messages],
                add_generation_prompt=generate,
                tools=[_tool(call) for call in calls or (_SOME_CALL,)],
                variables=variables,
            )
        except EngineError:
            return None
        _, found, rest = text.rpartition(QUESTION)
        return rest if found and len(rest) <= _LONGEST else None


def call_id(call: Call, index: int, style: Style) -> str:
    """Returns the id of a call as passed to the template."""
    return f"functions.{call.name}:{index}" if style.named_ids else call.id


def _tool_call(call: Call, index: int, style: Style) -> dict[str, Any]:
    arguments = call.arguments if style.objects else json.dumps(call.arguments)
    return {
        "id": call_id(call, index, style),
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


def json_type(value: Json) -> str:
    """Returns JSON Schema's name for the type of `value`."""
    return JSON_TYPES[type(value)]


def schema_of(value: Json) -> dict[str, Any]:
    """Returns a schema with only the types of `value` and of its content."""
    if isinstance(value, dict):
        properties = {key: schema_of(inner) for key, inner in value.items()}
        return {"type": "object", "properties": properties}
    return {"type": json_type(value)}


def _tool(call: Call) -> dict[str, Any]:
    properties = {key: _schema(value) for key, value in call.arguments.items()}
    return {
        "type": "function",
        "function": {
            "name": call.name,
            "description": "A probe",
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": list(properties),
            },
        },
    }


def _schema(value: Json) -> dict[str, Any]:
    kind = "string" if value is None else json_type(value)
    schema: dict[str, Any] = {"type": kind, "description": "A probe"}
    # Templates that write signatures as text require these details.
    if isinstance(value, list):
        schema["items"] = {"type": "string"}
    if isinstance(value, dict):
        schema["properties"] = {key: {"type": "string"} for key in value}
    return schema


_SOME_CALL = Call("some_tool", {"some_argument": ""}, "some00000")
