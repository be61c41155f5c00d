"""Nothing that the evaluation names, says or asks for is in the training."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tools.models.lessons import (
    calling,
    conversation,
    copying,
    exercises,
    extraction,
    infill,
    known_tools,
    phrasings,
    scenes,
    thinking,
    toolbox,
    trained_tools,
    turns,
    words,
)
from tools.models.lessons.extraction import FIELDS, MEETING, PRODUCT
from tools.models.lessons.lesson import Lesson
from tools.models.lessons.source import PHRASINGS, Source, is_held_out_phrase

pytestmark = pytest.mark.slow

N = 1500
SHARED_KEYS = {"name", *FIELDS, *PRODUCT[0], *MEETING[0]}
"""The shared parts of sentences about persons, goods and meetings."""


def lessons(make: Callable[[Source], Lesson], *, held_out: bool) -> Iterator[Lesson]:
    return (make(Source(seed, held_out=held_out)) for seed in range(N))


def leaves(value: Any) -> Iterator[str]:
    """The strings and numbers in a value."""
    if isinstance(value, dict):
        for each in value.values():
            yield from leaves(each)
    elif isinstance(value, list):
        for each in value:
            yield from leaves(each)
    elif not isinstance(value, bool):
        yield str(value).lower()


def parts(text: str) -> set[str]:
    """The text and its words."""
    return {text, *re.findall(r"[^\W\d_]{2,}", text)}


def names_of_tools(*, held_out: bool) -> set[str]:
    found: set[str] = set()
    for lesson in lessons(calling.lesson, held_out=held_out):
        for tool in lesson.tools:
            function = tool["function"]
            found |= {function["name"], *function["parameters"]["properties"]}
    return found


def values_of_calls(*, held_out: bool) -> set[str]:
    found: set[str] = set()
    for lesson in lessons(calling.lesson, held_out=held_out):
        for call in lesson.answer.get("tool_calls", ()):
            for text in leaves(json.loads(call["function"]["arguments"])):
                found |= parts(text)
        for tool in lesson.tools:
            for schema in tool["function"]["parameters"]["properties"].values():
                for option in schema.get("enum", ()):
                    found |= parts(option.lower())
    # Words that hold sentences together are on both sides.
    return found.difference(words.SMALL)


def keys_and_values(*, held_out: bool) -> set[str]:
    found: set[str] = set()
    for lesson in lessons(extraction.lesson, held_out=held_out):
        fields = json.loads(lesson.answer["content"])
        found |= set(fields) - SHARED_KEYS
        for text in leaves(fields):
            found |= parts(text)
    return found


def questions(make: Callable[[Source], Lesson]) -> Callable[..., set[str]]:
    def found(*, held_out: bool) -> set[str]:
        return {each.messages[-1]["content"] for each in lessons(make, held_out=held_out)}

    return found


def copied(*, held_out: bool) -> set[str]:
    found: set[str] = set()
    for lesson in lessons(copying.lesson, held_out=held_out):
        found |= set(re.findall(r"[^\W\d_]{2,}", lesson.answer["content"].lower()))
    return found - {word.lower() for word in words.SMALL}


@pytest.mark.parametrize(
    "found",
    [
        names_of_tools,
        values_of_calls,
        keys_and_values,
        copied,
        questions(calling.lesson),
        questions(conversation.lesson),
        questions(thinking.lesson),
    ],
)
def test_both_sides_have_nothing_in_common(found: Callable[..., set[str]]) -> None:
    trained, asked = found(held_out=False), found(held_out=True)
    assert len(asked) > 20
    both = trained & asked
    assert not both


def test_functions_are_of_one_side() -> None:
    trained = {infill.lesson(Source(seed)).prefix for seed in range(300)}
    asked = {infill.lesson(Source(seed, held_out=True)).prefix for seed in range(300)}
    both = trained & asked
    # Only what says nothing: the beginning of a definition.
    assert all(re.fullmatch(r"(def|class)?\s*", each) for each in both), both


@pytest.mark.parametrize("held_out", [False, True])
def test_each_list_has_words_of_both_sides(held_out: bool) -> None:
    named = [
        (module.__name__, name, value)
        for module in (words, toolbox, infill)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, list) and value is not words.SMALL
    ]
    assert len(named) > 10
    for module, name, value in named:
        assert Source(1, held_out=held_out).listed_some(value, 1), (module, name)


@pytest.mark.parametrize("held_out", [False, True])
def test_each_known_tool_can_be_asked_for(held_out: bool) -> None:
    for build in known_tools.KNOWN:
        source = Source(2, held_out=held_out)
        tool = build(source)
        text, given = tool.ask(source)
        assert set(given) <= {each.name for each in tool.parameters}
        assert "{" not in text


def test_tools_of_the_training_have_names_and_parameters_of_their_own() -> None:
    held_out = [each for i, each in enumerate(known_tools.KNOWN) if is_held_out_phrase(i)]
    asked = [build(Source(1, held_out=True)) for build in held_out]
    taken = {each.name for each in asked} | {p.name for each in asked for p in each.parameters}
    for seed, build in enumerate(trained_tools.TRAINED):
        tool = build(Source(seed))
        named = {tool.name, *(each.name for each in tool.parameters)}
        assert not named & taken
        text, given = tool.ask(Source(seed))
        assert {each.name for each in tool.parameters if each.required} <= set(given) <= named, text
        assert "{" not in text


LISTED: list[tuple[tuple[str, ...], tuple[phrasings.Parts, ...]]] = [
    (exercises.REPEAT, (phrasings.COPY, phrasings.COPY_LAST)),
    (exercises.SPELL, phrasings.SPELL),
    (exercises.COUNT, phrasings.COUNT),
    (exercises.UPPER, phrasings.UPPER),
    (exercises.LOWER, phrasings.LOWER),
    (exercises.SUM, phrasings.SUM),
    (exercises.SPOKEN, phrasings.SPOKEN),
    (copying.REPEAT, (phrasings.COPY, phrasings.COPY_LAST)),
    (copying.REPLACE, copying.REPLACING),
    (extraction.ASK, phrasings.EXTRACTION),
    (extraction.ASK_ALL, phrasings.EXTRACT_ALL),
    (scenes.ABOUT, phrasings.ABOUT),
    (thinking.LARGER, phrasings.LARGER),
    (thinking.PLACE, phrasings.PLACE),
    (thinking.LETTERS, phrasings.LETTERS),
    (thinking.CHAIN, phrasings.CHAIN),
    (thinking.LEFT, phrasings.LEFT),
    (thinking.BACKWARDS, phrasings.BACKWARDS),
]


@pytest.mark.parametrize(("listed", "parts"), LISTED)
def test_no_phrasing_of_the_evaluation_is_made(
    listed: tuple[str, ...], parts: tuple[phrasings.Parts, ...]
) -> None:
    held_out = {phrasings.bare(each) for i, each in enumerate(listed) if is_held_out_phrase(i)}
    source = Source(4)
    made = {phrasings.made(source, listed, parts) for _ in range(400)}
    assert len(made) > 50
    assert not {phrasings.bare(each) for each in made} & held_out


@pytest.mark.parametrize(
    ("listed", "more"),
    [
        (toolbox.SAID, toolbox.MORE_SAID),
        (toolbox.ONE_STRING, toolbox.MORE_ONE_STRING),
        (toolbox.JOINED, toolbox.MORE_JOINED),
        (extraction.SAID, extraction.MORE_SAID),
        (thinking.MORE, thinking.GAINS),
        (thinking.LESS, thinking.LOSSES),
        *((stated, turns.MORE_TOLD[key]) for key, (stated, _, _) in turns.FACTS.items()),
        *((asked, turns.MORE_ASKED[key]) for key, (_, asked, _) in turns.FACTS.items()),
        *((said, extraction.MORE_CLAUSES[key]) for key, (_, said) in FIELDS.items()),
    ],
)
def test_no_phrasing_of_the_evaluation_is_listed(
    listed: tuple[str, ...], more: tuple[str, ...]
) -> None:
    held_out = {phrasings.bare(each) for i, each in enumerate(listed) if is_held_out_phrase(i)}
    assert not {phrasings.bare(each) for each in more} & held_out


def test_each_fact_has_phrasings_enough() -> None:
    from tools.models.lessons.guided import ALWAYS, NAMED
    from tools.models.lessons.scenes import SCENES
    from tools.models.lessons.turns import FACTS

    lists: list[tuple[str, ...]] = [ALWAYS, NAMED]
    for _, sentences, asked in SCENES:
        lists += [sentences, *(each.asked for each in asked)]
    for stated, asked_for, _ in FACTS.values():
        lists += [stated, asked_for]
    for each in lists:
        assert len(each) >= PHRASINGS
        assert len(set(each)) == len(each)


TASKS: dict[Callable[[Source], Lesson], str] = {
    calling.lesson: "690922abbb7d482b",
    conversation.lesson: "7fcc47a7c564cc7d",
    copying.lesson: "3691df23b499e381",
    extraction.lesson: "582883eb7afa236a",
    thinking.lesson: "2058d98cac9bf21d",
}


@pytest.mark.parametrize("make", TASKS, ids=lambda make: make.__module__.rpartition(".")[-1])
def test_the_tasks_of_the_evaluation_are_the_same_as_ever(make: Callable[[Source], Lesson]) -> None:
    """Otherwise the scores of two models can't be compared: after an intended change of the tasks,
    the model has to be evaluated again. Thoughts are not included, and infill uses Python's own
    functions."""
    tasks = hashlib.sha256()
    for seed in range(7000, 7300):
        made = make(Source(seed, held_out=True))
        answer = {key: made.answer[key] for key in made.answer if key != "reasoning_content"}
        tasks.update(json.dumps([made.messages, made.tools, answer]).encode())
    assert tasks.hexdigest()[:16] == TASKS[make]
