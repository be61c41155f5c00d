"""Judges a server's answers to the lessons' questions by marks, each true or false."""

import json
import re
from typing import Any

import jsonschema_rs

from tools.models.lessons import extraction, infill
from tools.models.lessons.held_out.family import Task
from tools.models.lessons.lesson import Gap, Lesson

Marks = dict[str, bool]
Schema = dict[str, Any]


def marks_of(lesson: Lesson, choice: dict[str, Any], schema: Schema | None = None) -> Marks:
    """Returns `right` and further marks of a chat's answer. `schema` is the requested one."""
    message = choice["message"]
    marks = {
        "right": _is_right(lesson, message),
        "ends": choice["finish_reason"] != "length",
        "thinks as requested": bool(message.get("reasoning_content")) == lesson.thinks,
    }
    if lesson.tools:
        marks["valid"] = _calls_are_valid(lesson, message)
    if schema is not None:
        marks["valid"] = is_valid(schema, parsed(message.get("content") or ""))
    return marks


def marks_of_task(task: Task, choice: dict[str, Any], schema: Schema | None = None) -> Marks:
    """Returns `right` and further marks of the answer to a task of a held-out family: `tool` if all
    called tools are right, whatever their arguments; `valid` if it follows the requested
    `schema`."""
    message = choice["message"]
    marks = {"ends": choice["finish_reason"] != "length"}
    called = [_call(each) for each in message.get("tool_calls") or ()]
    if task.fields is None:
        wanted = [list(each) for each in task.calls]
        marks["tool"] = [name for name, _ in called] == [name for name, _ in wanted]
        marks["right"] = is_same(called, wanted)
    else:
        given = parsed(message.get("content") or "")
        marks["right"] = not called and is_same(given, task.fields)
        if schema is not None:
            marks["valid"] = is_valid(schema, given)
    return marks


def marks_of_gap(gap: Gap, answer: dict[str, Any]) -> Marks:
    return {
        "right": parses(f"{gap.prefix}{answer['content']}{gap.suffix}"),
        "exact": answer["content"] == gap.middle,
        "ends": answer["stop_type"] != "limit",
    }


def schema_of(wanted: dict[str, Any], *, nullable: bool = False) -> Schema:
    """Returns the schema of an object with these keys, and with values of these types. If it is
    `nullable`, each value is a string, an integer or null, so that the schema doesn't show which
    value is which."""
    any_type = {"type": ["string", "integer", "null"]}
    return {
        "type": "object",
        "properties": {
            key: any_type if nullable else _schema_of_value(value) for key, value in wanted.items()
        },
        "required": list(wanted),
        "additionalProperties": False,
    }


def _schema_of_value(value: Any) -> Schema:
    if isinstance(value, dict):
        return schema_of(value)
    if isinstance(value, list):
        return {"type": "array", "items": _schema_of_value(value[0])}
    types = {str: "string", int: "integer", float: "number", bool: "boolean"}
    return {"type": types[type(value)]}


def is_valid(schema: Schema, value: Any) -> bool:
    return value is not None and bool(jsonschema_rs.is_valid(schema, value))


def is_same(one: Any, other: Any) -> bool:
    """True if two JSON values are equal: 1 equals 1.0, but not true. The order of keys is free."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _is_right(lesson: Lesson, message: dict[str, Any]) -> bool:
    content = message.get("content") or ""
    calls = message.get("tool_calls") or []
    wanted = lesson.answer.get("tool_calls") or []
    if wanted or calls:
        return is_same([_call(each) for each in calls], [_call(each) for each in wanted])
    if lesson.ability == extraction.ABILITY:
        return is_same(parsed(content), json.loads(lesson.answer["content"]))
    if lesson.facts:
        return _says(content, lesson.facts)
    return bool(content.strip() == lesson.answer["content"].strip())


def _says(content: str, facts: tuple[str, ...]) -> bool:
    """True if the answer contains all facts as whole words. A single fact that is a number has to
    be the last number in it, so `53`, `54 - 1 = 53` and `It is 53.` are equal answers."""
    if len(facts) == 1 and re.fullmatch(r"-?\d+(\.\d+)?", facts[0]):
        return re.findall(r"-?\d+(?:\.\d+)?", content)[-1:] == [facts[0]]
    return all(re.search(rf"(?<!\w){re.escape(each)}(?!\w)", content) for each in facts)


def _calls_are_valid(lesson: Lesson, message: dict[str, Any]) -> bool:
    """True if each call is of a known tool, with arguments that match its schema."""
    known = {each["function"]["name"]: each["function"]["parameters"] for each in lesson.tools}
    for each in message.get("tool_calls") or []:
        name, arguments = _call(each)
        if name not in known:
            return False
        # A parameter that the tool doesn't have is wrong.
        if not is_valid(known[name] | {"additionalProperties": False}, arguments):
            return False
    return "<tool_call>" not in (message.get("content") or "")


def _call(call: dict[str, Any]) -> list[Any]:
    return [call["function"]["name"], parsed(call["function"]["arguments"])]


def parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def parses(text: str) -> bool:
    try:
        infill.tree(text)
    except (SyntaxError, ValueError):
        return False
    return True
