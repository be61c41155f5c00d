"""The barrier between the held-out families and the training: no lesson passes it that has one of
their phrasings, words, tools or shapes.

Names of parameters, keys, and numbers may be on both sides, and so may the other words of a request.
"""

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from tools.models.lessons.held_out import calls, calls_of_other_schemas, extractions
from tools.models.lessons.held_out.family import EXTRACTION, Family, Task
from tools.models.lessons.lesson import Gap, Lesson

FAMILIES: tuple[Family, ...] = (
    *calls.FAMILIES,
    *calls_of_other_schemas.FAMILIES,
    *extractions.FAMILIES,
)
MOST_PARAMETERS = 4
"""The largest number of parameters of a lesson's tool."""
_SHORTEST = 3


def normal(text: str) -> str:
    """Returns the words and numbers of a text, in lower case, with one space around each."""
    words = re.findall(r"[^\W_]+", text.lower().replace("'", ""))
    return f" {' '.join(words)} "


def words_of(text: str) -> set[str]:
    """Returns the words of three letters or more, in lower case."""
    found = re.findall(r"[^\W\d_]+", text.lower())
    return {each for each in found if len(each) >= _SHORTEST}


def leaves(value: Any) -> Iterator[str]:
    """Yields the texts in a JSON value, without keys."""
    if isinstance(value, dict):
        for each in value.values():
            yield from leaves(each)
    elif isinstance(value, list):
        for each in value:
            yield from leaves(each)
    elif isinstance(value, str):
        yield value


def values_of(task: Task) -> list[str]:
    """Returns the texts among the values of a task's right answer."""
    return list(leaves([task.fields, *(arguments for _, arguments in task.calls)]))


def shapes_of(schema: dict[str, Any]) -> set[str]:
    """Returns what a tool's schema has beyond those of the lessons, which have up to four plain
    parameters, enums of strings, and lists of strings or integers."""
    properties = schema.get("properties", {})
    found = {"more than four parameters"} if len(properties) > MOST_PARAMETERS else set()
    for each in properties.values():
        types = each.get("type")
        items = each.get("items", {})
        if types == "object":
            found.add("object in an object")
        if isinstance(types, list) or "anyOf" in each:
            found.add("several types")
        if items.get("type") in ("object", "array"):
            found.add("objects in a list")
        if any(not isinstance(option, str) for option in each.get("enum", ())):
            found.add("enum of numbers")
        if each.keys() & {"minimum", "maximum"}:
            found.add("range")
    return found


def shapes_of_answer(fields: dict[str, Any]) -> set[str]:
    """Returns what an extracted object has beyond those of the lessons, which have strings and
    numbers."""
    names = {dict: "object in an object", list: "list", type(None): "null", bool: "truth value"}
    return {names[type(each)] for each in fields.values() if type(each) in names}


def shapes_in(family: Family, task: Task) -> set[str]:
    """Returns those of the tools that a task calls, or of its answer."""
    if task.fields is not None:
        return shapes_of_answer(task.fields)
    called = {name for name, _ in task.calls}
    functions = [each["function"] for each in family.tools]
    found = [shapes_of(each["parameters"]) for each in functions if each["name"] in called]
    return set().union(*found)


MARKERS: tuple[str, ...] = tuple(
    sorted({f" {each} " for family in FAMILIES for each in family.markers})
)
_BY_FIRST_WORD = {
    first: [each for each in MARKERS if each.split()[0] == first]
    for first in {each.split()[0] for each in MARKERS}
}
NAMES: frozenset[str] = frozenset(
    tool["function"]["name"] for family in FAMILIES for tool in family.tools
)
WORDS: frozenset[str] = frozenset(
    word
    for family in FAMILIES
    for task in family.tasks
    for value in values_of(task)
    for word in words_of(value)
)
"""The words of all values."""


@cache
def _tool(text: str) -> str | None:
    """Returns why the tool with this definition is held out."""
    function = json.loads(text)["function"]
    if function["name"] in NAMES:
        return f"the tool {function['name']}"
    shapes = shapes_of(function["parameters"])
    if shapes:
        return f"the shape {min(shapes)}"
    return _text(text)


def _text(text: str) -> str | None:
    word = min(words_of(text) & WORDS, default=None)
    if word is not None:
        return f"the word {word}"
    spaced = normal(text)
    for first in _BY_FIRST_WORD.keys() & set(spaced.split()):
        for marker in _BY_FIRST_WORD[first]:
            if marker in spaced:
                return f"the phrasing{marker.rstrip()}"
    return None


def held_out_in(lesson: Lesson | Gap) -> str | None:
    """Returns what of the held-out families is in a lesson: a word, a phrasing, a tool or a shape;
    or None if the lesson may be in the training."""
    if isinstance(lesson, Gap):
        return _text(f"{lesson.prefix}{lesson.middle}{lesson.suffix or ''}")
    messages = [*lesson.messages, lesson.answer]
    for each in lesson.tools:
        found = _tool(json.dumps(each, ensure_ascii=False, sort_keys=True))
        if found:
            return found
    if lesson.ability == EXTRACTION:
        shapes = shapes_of_answer(json.loads(lesson.answer["content"]))
        if shapes:
            return f"the shape {min(shapes)}"
    return next(filter(None, (_text(text) for each in messages for text in _texts(each))), None)


def _texts(message: dict[str, Any]) -> Iterator[str]:
    yield message.get("content") or ""
    yield message.get("reasoning_content") or ""
    for each in message.get("tool_calls") or ():
        yield each["function"]["name"]
        yield each["function"]["arguments"]


def of_ability(ability: str) -> list[Family]:
    return [each for each in FAMILIES if each.ability == ability]
