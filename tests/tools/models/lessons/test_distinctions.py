"""Lessons with two people, two values, possessives and units say which one is which."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from tools.models.lessons import calling, distinctions, extraction, words
from tools.models.lessons.lesson import assistant
from tools.models.lessons.source import FOREIGN, Source, is_held_out
from tools.models.lessons.toolbox import Tool

SEEDS = range(400)
TOOLS = (
    distinctions.people_tool,
    distinctions.opposite_tool,
    distinctions.owner_tool,
    distinctions.unit_tool,
)


def asked(make: Callable[[Source], Tool], seed: int) -> tuple[Tool, str, dict[str, Any]]:
    source = Source(seed)
    tool = make(source)
    return tool, *tool.ask(source)


@pytest.mark.parametrize("make", TOOLS, ids=lambda make: make.__name__)
def test_a_request_has_the_values_of_a_tool_of_the_training(make: Callable[[Source], Tool]) -> None:
    for seed in SEEDS:
        tool, text, given = asked(make, seed)
        assert given.keys() == {each.name for each in tool.parameters}
        assert "{" not in text
        assert not tool.joins
        for each in tool.parameters:
            value = given[each.name]
            options = each.schema.get("enum", [value])
            assert value in options
            assert not any(is_held_out(option) for option in options if isinstance(option, str))
            assert str(value) in text or all(
                option in text for option in options if option != value
            )


def test_keys_and_parameters_are_of_the_training() -> None:
    pairs = (*distinctions.GIVING, *distinctions.ROLES, *distinctions.OPPOSITES)
    listed = [word for pair in pairs for word in pair]
    listed += [*distinctions.OWNERS, *distinctions.AMOUNTS, *distinctions.THINGS]
    assert len(distinctions.GIVING) > 4
    assert len(distinctions.ROLES) > 4
    assert not any(map(is_held_out, listed))


def test_people_are_named_in_either_order() -> None:
    first = 0
    for seed in SEEDS:
        _, text, given = asked(distinctions.people_tool, seed)
        a, b = (text.index(value) for value in given.values())
        first += a < b
        # Something between or around the names distinguishes them.
        rest = re.sub("|".join(map(re.escape, given.values())), "", text)
        assert re.search(r"[a-z]", rest)
    assert len(SEEDS) / 4 < first < len(SEEDS) * 3 / 4


def test_who_something_is_from_is_the_giver() -> None:
    seen = 0
    for seed in SEEDS:
        text, fields = distinctions.told_people(Source(seed))
        a, b, *_ = fields.values()
        for giver, receiver in ((a, b), (b, a)):
            if re.search(rf"[Ff]rom {giver} to {receiver}|{receiver} (got|has)", text):
                assert (giver, receiver) == (a, b)
                seen += 1
    assert seen > 20


def test_a_value_may_be_said_by_its_opposite_alone() -> None:
    silent = 0
    for seed in SEEDS:
        tool, text, given = asked(distinctions.opposite_tool, seed)
        (value,) = given.values()
        if value not in text:
            silent += 1
            assert len(tool.parameters[0].schema["enum"]) == 2
    assert len(SEEDS) / 20 < silent < len(SEEDS) / 2


def test_a_time_owns_nothing() -> None:
    seen = 0
    for seed in SEEDS:
        _, text, given = asked(distinctions.owner_tool, seed)
        owner = next(iter(given.values()))
        time = re.match(r"(\w+)'s", text)
        if time and time[1] in distinctions.TIMES:
            assert owner != time[1]
            seen += 1
        else:
            assert f"{owner}'s" in text
    assert seen > len(SEEDS) / 8


def test_a_number_is_before_its_unit() -> None:
    for seed in SEEDS:
        tool, text, given = asked(distinctions.unit_tool, seed)
        number = next(iter(given.values()))
        unit = given.get("unit")
        forms = (
            [f" {unit}"]
            if unit
            else [form for each in distinctions.UNITS.values() for form in each]
        )
        assert any(f"{number}{form}" in text for form in forms), (tool, text)


def test_a_request_without_the_noun_has_the_verb_of_the_tool() -> None:
    seen = 0
    for seed in SEEDS:
        tool, text, _ = asked(distinctions.unit_tool, seed)
        assert tool.noun
        if tool.noun not in text.lower():
            assert tool.name.removesuffix(f"_{tool.noun}").lower() in text.lower()
            seen += 1
    assert seen > 20


def test_the_right_one_of_two_values_is_extracted() -> None:
    for seed in SEEDS:
        source = Source(seed)
        text, fields = extraction.denied(source)
        (key,) = fields.keys() - {"name"}
        assert str(fields[key]) in text
        assert not re.search(rf"not {re.escape(str(fields[key]))}\b", text)


def test_a_possessive_is_of_a_person_a_thing_or_a_time() -> None:
    kinds = set()
    for seed in SEEDS:
        text, fields = extraction.owned(Source(seed))
        assert all(str(value) in text for value in fields.values())
        assert not set(fields.values()) & set(distinctions.TIMES)
        kinds.add("time" if text.split("'")[0] in distinctions.TIMES else min(fields, key=str))
    assert {"time", "price"} <= kinds


def test_measures_are_numbers_without_units() -> None:
    for seed in SEEDS:
        text, fields = distinctions.told_measures(Source(seed))
        _, *numbers = fields.values()
        assert numbers
        for number in numbers:
            assert isinstance(number, int)
            assert re.search(rf"\b{number}( ?[a-z°])", text)


def test_a_tool_of_opposites_gets_no_second_value_in_a_clause() -> None:
    source = Source(3)
    tool = distinctions.opposite_tool(source)
    for _ in range(100):
        lesson = calling.two(source, [tool])
        first, second = lesson.answer["tool_calls"]
        request = lesson.messages[-1]["content"]
        assert first["function"]["name"] == second["function"]["name"] == tool.name
        assert request.lower().count(tool.noun or "?") > 1, request


def test_the_evaluation_has_none_of_these_tools() -> None:
    for seed in SEEDS:
        lesson = calling.lesson(Source(seed, held_out=True))
        for each in lesson.tools:
            properties = each["function"]["parameters"]["properties"]
            assert not properties.keys() & {key for pair in distinctions.GIVING for key in pair}


def test_names_of_the_training_have_letters_of_other_alphabets() -> None:
    source = Source(1)
    made = [source.foreign() for _ in range(3000)]
    other = [word for word in made if not word.isascii()]
    assert FOREIGN / 3 < len(other) / len(made) <= FOREIGN * 1.5
    assert not any(map(is_held_out, made))
    assert all(word == word.upper().lower() for word in other)
    assert all(Source(seed, held_out=True).foreign().isascii() for seed in SEEDS)
    letters = "".join(words.ACCENTS.values())
    assert len(set(letters)) == len(letters)
    assert assistant(other[0])["content"] == other[0]
