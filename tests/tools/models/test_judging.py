"""Right and wrong answers are distinguished."""

import json
from typing import Any

import pytest

from tools.models.judging import (
    is_same,
    is_valid,
    marks_of,
    marks_of_gap,
    marks_of_task,
    schema_of,
)
from tools.models.lessons import calling, extraction
from tools.models.lessons.held_out.family import Task
from tools.models.lessons.lesson import Gap, Lesson, assistant, user

TOOL = {
    "type": "function",
    "function": {
        "name": "get_age",
        "parameters": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "years": {"type": "integer"}},
            "required": ["name"],
        },
    },
}


def calls(**arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [calling.call("get_age", arguments)]}


def tool_lesson(answer: dict[str, Any]) -> Lesson:
    return Lesson(
        ability=calling.ABILITY, kind="one", messages=[user("?")], answer=answer, tools=(TOOL,)
    )


def choice(message: dict[str, Any], reason: str = "stop") -> dict[str, Any]:
    return {"message": message, "finish_reason": reason}


@pytest.mark.parametrize(
    ("message", "right", "valid"),
    [
        (calls(name="Ada"), True, True),
        (calls(name="Bob"), False, True),
        (calls(name=3), False, False),
        (calls(years=3), False, False),
        (calls(name="Ada", size=3), False, False),
        ({"tool_calls": [calling.call("other", {"name": "Ada"})]}, False, False),
        ({"tool_calls": [*calls(name="Ada")["tool_calls"]] * 2}, False, True),
        ({"content": "Ada"}, False, True),
        ({"content": '<tool_call>{"name'}, False, False),
        (
            {"tool_calls": [{"function": {"name": "get_age", "arguments": '{"name'}}]},
            False,
            False,
        ),
    ],
)
def test_calls(message: dict[str, Any], right: bool, valid: bool) -> None:
    marks = marks_of(tool_lesson(calls(name="Ada")), choice(message))
    assert marks == {"right": right, "valid": valid, "ends": True, "thinks as requested": True}


def test_a_call_where_none_is_wanted_is_wrong() -> None:
    lesson = tool_lesson(assistant("No."))
    assert not marks_of(lesson, choice(calls(name="Ada")))["right"]
    assert marks_of(lesson, choice({"content": " No.\n"}))["right"]


@pytest.mark.parametrize(
    ("content", "right", "valid"),
    [
        ('{"age": 1, "name": "Ada"}', True, True),
        ('{"name": "Ada", "age": 1.0}', True, True),
        ('{"name": "Ada", "age": true}', False, False),
        ('{"name": "Ada", "age": "1"}', False, False),
        ('{"name": "Bob", "age": 1}', False, True),
        ('{"name": "Ada"}', False, False),
        ('{"name": "Ada"', False, False),
        ("null", False, False),
    ],
)
def test_extraction_is_judged_by_schema_and_values(content: str, right: bool, valid: bool) -> None:
    wanted = {"name": "Ada", "age": 1}
    lesson = Lesson(
        ability=extraction.ABILITY,
        kind="fields",
        messages=[user("?")],
        answer=assistant(json.dumps(wanted)),
    )
    marks = marks_of(lesson, choice({"content": content}), schema_of(wanted))
    assert (marks["right"], marks["valid"]) == (right, valid)


def test_thoughts_and_ends() -> None:
    thinks = Lesson(
        ability="thinking",
        kind="chain",
        messages=[user("?")],
        answer={**assistant("The sum is 3."), "reasoning_content": "1 + 2 = 3."},
        facts=("is 3",),
    )
    thought = {"content": "It is 3.", "reasoning_content": "So."}
    assert marks_of(thinks, choice(thought)) == {
        "right": True,
        "ends": True,
        "thinks as requested": True,
    }
    assert not marks_of(thinks, choice({"content": "It is 3."}))["thinks as requested"]
    assert not marks_of(thinks, choice(thought, "length"))["ends"]


@pytest.mark.parametrize(
    ("content", "fact", "right"),
    [
        ("54 - 1 = 53", "53", True),
        ("53", "53", True),
        ("It is 53.", "53", True),
        ("54 - 1 = 5", "53", False),
        ("54 - 1 = 53", "5", False),
        ("53 - 0 = 5", "53", False),
        ("", "53", False),
        ("It costs 2.50 dollars.", "2.50", True),
        ("5 - 9 = -4", "-4", True),
        ("No, it is red.", "No", True),
        ("None of them.", "No", False),
        ("The result is: a/b.", "a/b", True),
    ],
)
def test_facts_are_judged_as_words_and_numbers(content: str, fact: str, right: bool) -> None:
    lesson = Lesson(
        ability="conversation",
        kind="arithmetic",
        messages=[user("?")],
        answer=assistant("."),
        facts=(fact,),
    )
    assert marks_of(lesson, choice({"content": content}))["right"] == right


def test_gaps() -> None:
    gap = Gap(ability="infill", kind="gap", prefix="x = ", middle="1", suffix="\n")
    marks = marks_of_gap(gap, {"content": "2", "stop_type": "eos"})
    assert marks == {"right": True, "exact": False, "ends": True}
    marks = marks_of_gap(gap, {"content": "(", "stop_type": "limit"})
    assert marks == {"right": False, "exact": False, "ends": False}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [(1, 1.0, True), (1, True, False), ([1, 2], [1], False), ({"a": []}, {"a": []}, True)],
)
def test_equal_as_json(one: Any, other: Any, same: bool) -> None:
    assert is_same(one, other) == same


def test_a_schema_accepts_the_value_that_it_was_made_from() -> None:
    fields = {"a": "x", "b": 1, "c": 1.5, "d": True}
    assert is_valid(schema_of(fields), fields)
    assert not is_valid(schema_of(fields), {**fields, "e": 1})


def test_a_schema_has_the_types_of_all_depths() -> None:
    fields = {"a": {"b": 1}, "c": ["x"], "d": [{"e": True}]}
    schema = schema_of(fields)
    assert is_valid(schema, fields)
    assert not is_valid(schema, {**fields, "a": {"b": "1"}})
    assert not is_valid(schema, {**fields, "c": [1]})
    assert not is_valid(schema, {**fields, "d": [{}]})


def test_a_nullable_schema_does_not_show_which_value_is_null() -> None:
    schema = schema_of({"a": None, "b": "x"}, nullable=True)
    assert schema["properties"]["a"] == schema["properties"]["b"]
    for value in ("x", 1, None):
        assert is_valid(schema, {"a": value, "b": value})
    assert not is_valid(schema, {"a": 1.5, "b": None})


@pytest.mark.parametrize(
    ("message", "tool", "right"),
    [
        (calls(name="Ada"), True, True),
        (calls(name="Bob"), True, False),
        ({"tool_calls": [*calls(name="Ada")["tool_calls"]] * 2}, False, False),
        ({"tool_calls": [calling.call("other", {"name": "Ada"})]}, False, False),
        ({"tool_calls": [{"function": {"name": "get_age", "arguments": "{"}}]}, True, False),
        ({"content": "I have no tool for that."}, False, False),
    ],
)
def test_a_held_out_call(message: dict[str, Any], tool: bool, right: bool) -> None:
    task = Task(request="?", calls=(("get_age", {"name": "Ada"}),))
    marks = marks_of_task(task, choice(message))
    assert marks == {"tool": tool, "right": right, "ends": True}


def test_without_a_fitting_tool_any_answer_but_a_call_is_right() -> None:
    task = Task(request="?")
    assert marks_of_task(task, choice({"content": "Hello!"}))["right"]
    assert not marks_of_task(task, choice(calls(name="Ada")))["right"]


@pytest.mark.parametrize(
    ("message", "right", "valid"),
    [
        ({"content": '{"b": null, "a": "x"}'}, True, True),
        ({"content": '{"a": "x", "b": 1}'}, False, True),
        ({"content": '{"a": "x"}'}, False, False),
        ({"content": '{"a": '}, False, False),
        (calls(a="x", b=None), False, False),
    ],
)
def test_a_held_out_extraction(message: dict[str, Any], right: bool, valid: bool) -> None:
    fields = {"a": "x", "b": None}
    marks = marks_of_task(
        Task(request="?", fields=fields), choice(message), schema_of(fields, nullable=True)
    )
    assert marks == {"right": right, "valid": valid, "ends": True}
    assert "valid" not in marks_of_task(Task(request="?", fields=fields), choice(message))
