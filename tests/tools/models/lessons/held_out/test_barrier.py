"""The held-out families are hand-written, consistent, and unknown to the training's generator."""

import ast
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

import tools.models.lessons
from tools.models.judging import is_valid, schema_of
from tools.models.lessons import calling, curriculum, extraction
from tools.models.lessons.held_out import barrier
from tools.models.lessons.held_out.barrier import FAMILIES, MARKERS, NAMES, WORDS, held_out_in
from tools.models.lessons.held_out.family import (
    ASK,
    EXTRACTION,
    INTEGER,
    TEXT,
    TOOLS,
    Family,
    Task,
    an_object,
    tool,
)
from tools.models.lessons.lesson import Gap, Lesson, Message, assistant, user
from tools.models.lessons.source import Source
from tools.models.training.encoding import pieces, tokenizer

pytestmark = pytest.mark.slow

LESSONS = Path(tools.models.lessons.__file__).parent
SEEDS = range(2500)
TASKS = [(family, task) for family in FAMILIES for task in family.tasks]


def constants() -> Iterator[str]:
    """Yields the texts in the generator's source: all templates, parts and words."""
    for path in sorted(LESSONS.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def functions(family: Family) -> dict[str, dict[str, Any]]:
    return {each["function"]["name"]: each["function"]["parameters"] for each in family.tools}


def test_the_generator_knows_no_word_and_no_tool_of_a_family() -> None:
    known = set().union(*map(barrier.words_of, constants()))
    assert len(known) > 2000
    assert not known & WORDS
    assert not set(constants()) & NAMES


def test_no_template_and_no_part_of_one_has_a_phrasing_of_a_family() -> None:
    texts = list(map(barrier.normal, constants()))
    assert not [marker for marker in MARKERS if any(marker in text for text in texts)]


def test_no_word_of_a_family_is_a_token() -> None:
    tokens = {token.replace("Ġ", "").lower() for token in tokenizer().get_vocab()}
    assert not tokens & WORDS


def test_no_lesson_of_the_curriculum_has_something_held_out() -> None:
    seen = 0
    for seed in SEEDS:
        source = Source(seed, level=seed % 3 / 2, pieces=pieces())
        for lesson in curriculum.lessons(source):
            assert held_out_in(lesson) is None
            seen += 1
    assert seen > len(SEEDS)


def test_the_barrier_turns_back_hardly_any_lesson() -> None:
    """Otherwise it would take something away that the lessons need."""
    turned_back = [
        found
        for seed in SEEDS
        for make in curriculum.MAKERS[:2]
        for found in map(held_out_in, make(Source(seed, pieces=pieces())))
        if found
    ]
    assert len(turned_back) < len(SEEDS) / 100, turned_back


def test_a_lesson_that_is_turned_back_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = lesson("Say a."), lesson("Fold an Origami!")
    made = iter([[good, bad], [bad], [good]])
    monkeypatch.setattr(curriculum, "MAKERS", [lambda _: next(made)] * len(curriculum.MAKERS))
    assert curriculum.lessons(Source(1)) == [good]


def lesson(
    request: str = "Say a.",
    answer: Message | None = None,
    ability: str = TOOLS,
    tools: tuple[Message, ...] = (),
) -> Lesson:
    return Lesson(
        ability=ability,
        kind="one",
        messages=[user(request)],
        answer=answer or assistant("a"),
        tools=tools,
    )


def called(**arguments: Any) -> Message:
    return {"role": "assistant", "tool_calls": [calling.call("get", arguments)]}


@pytest.mark.parametrize(
    ("made", "found"),
    [
        (lesson(), None),
        (lesson("Possibly, would you say a?"), None),
        (lesson("Would it be POSSIBLE,\nplease?"), "the phrasing would it be possible"),
        (lesson("I was wondering."), "the phrasing i was wondering"),
        (lesson("I'm curious"), "the phrasing im curious"),
        (lesson("Is the Tiramisu_x good?"), "the word tiramisu"),
        (lesson(answer=assistant("a walrus")), "the word walrus"),
        (lesson(answer={**assistant("a"), "reasoning_content": "łódź"}), "the word łódź"),
        (lesson(answer=called(a="baklava")), "the word baklava"),
        (lesson(tools=(tool("book_sauna", "Book"),)), "the tool book_sauna"),
        (lesson(tools=(tool("a", "Bring baklava"),)), "the word baklava"),
        (lesson(tools=(tool("a", "A", b=TEXT, c=INTEGER),)), None),
        (lesson(tools=(tool("a", "A", b=an_object(c=TEXT)),)), "the shape object in an object"),
        (lesson(answer=assistant('{"a": "b"}'), ability=EXTRACTION), None),
        (lesson(answer=assistant('{"a": null}'), ability=EXTRACTION), "the shape null"),
        (lesson(answer=assistant('{"a": true}'), ability=EXTRACTION), "the shape truth value"),
        (Gap(ability="infill", kind="gap", prefix="a = ", middle="1", suffix=None), None),
        (
            Gap(ability="infill", kind="gap", prefix="wal", middle="rus", suffix=" = 1"),
            "the word walrus",
        ),
    ],
)
def test_what_is_held_out_is_found(made: Lesson | Gap, found: str | None) -> None:
    assert held_out_in(made) == found


@pytest.mark.parametrize(
    ("schema", "shapes"),
    [
        ({"type": "integer"}, set()),
        ({"type": "string", "enum": ["a", "b"]}, set()),
        ({"type": "array", "items": {"type": "string"}}, set()),
        ({"type": "array", "items": {"type": "object"}}, {"objects in a list"}),
        ({"type": "object"}, {"object in an object"}),
        ({"type": ["string", "null"]}, {"several types"}),
        ({"anyOf": [{"type": "null"}]}, {"several types"}),
        ({"type": "integer", "enum": [1, 2]}, {"enum of numbers"}),
        ({"type": "number", "minimum": 1}, {"range"}),
    ],
)
def test_shapes_of_a_parameter(schema: dict[str, Any], shapes: set[str]) -> None:
    assert barrier.shapes_of({"properties": {"a": schema}}) == shapes


def test_a_tool_may_have_four_parameters() -> None:
    four = dict.fromkeys("abcd", TEXT)
    assert barrier.shapes_of({"properties": four}) == set()
    assert barrier.shapes_of({"properties": {**four, "e": TEXT}}) == {"more than four parameters"}


def test_the_families_are_many() -> None:
    for ability, tasks, families in ((TOOLS, 120, 10), (EXTRACTION, 80, 8)):
        found = barrier.of_ability(ability)
        assert len(found) >= families
        assert len({each.name for each in found}) == len(found)
        assert sum(len(each.tasks) for each in found) >= tasks
    assert {TOOLS, EXTRACTION} == {calling.ABILITY, extraction.ABILITY}
    assert len({task.request for _, task in TASKS}) == len(TASKS)


@pytest.mark.parametrize(("family", "task"), TASKS, ids=[task.request[:40] for _, task in TASKS])
def test_a_task_is_one_of_its_family(family: Family, task: Task) -> None:
    asked = barrier.normal(task.request)
    if family.holds_out == "phrasings":
        assert any(f" {each} " in asked for each in family.markers)
    elif family.holds_out == "schemas":
        assert barrier.shapes_in(family, task) & set(family.shapes)
    else:
        assert barrier.values_of(task)
    # Each text among the values has a word that is held out, or digits.
    for value in barrier.values_of(task):
        assert barrier.words_of(value) or re.search(r"\d", value)


@pytest.mark.parametrize(("family", "task"), TASKS, ids=[task.request[:40] for _, task in TASKS])
def test_a_task_has_a_valid_answer_that_the_request_determines(family: Family, task: Task) -> None:
    if task.fields is not None:
        assert not task.calls
        assert is_valid(schema_of(task.fields, nullable=family.nullable), task.fields)
    options: set[str] = set()
    for name, arguments in task.calls:
        schema = functions(family)[name]
        jsonschema_rs.validate({**schema, "additionalProperties": False}, arguments)
        for each in schema["properties"].values():
            options |= {str(option) for option in each.get("enum", ())}
    said = task.request.lower()
    for value in barrier.values_of(task):
        others = options - {value}
        assert value.lower() in said or (value in options and any(each in said for each in others))


def test_each_marker_and_each_tool_is_used() -> None:
    for family in FAMILIES:
        asked = [barrier.normal(task.request) for task in family.tasks]
        assert not [m for m in family.markers if not any(f" {m} " in text for text in asked)]
        called = {name for task in family.tasks for name, _ in task.calls}
        assert len(family.tools) - len(called) <= (1 if called else len(family.tools))


def test_plain_extractions_are_asked_for_in_words_of_the_training() -> None:
    assert any(each == ASK for i, each in enumerate(extraction.ASK) if i % 5 != 4)


def test_the_tasks_are_the_same_as_ever() -> None:
    """Otherwise the scores of two models can't be compared: after an intended change of the tasks,
    the model has to be evaluated again."""
    text = json.dumps([asdict(each) for each in FAMILIES], ensure_ascii=False)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "1c0883afffbcf806"
