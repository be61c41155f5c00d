"""Lessons that a guess can't solve."""

import json
import re

import pytest

from tools.models.lessons import calling, copying, extraction, phrasings, scenes, thinking
from tools.models.lessons.source import Source

SEEDS = range(300)
SLOT = re.compile(r"{\w+}")


def sources() -> list[Source]:
    return [Source(seed) for seed in SEEDS]


def test_a_worn_phrasing_keeps_its_values_and_is_none_of_the_evaluation() -> None:
    changed = 0
    for source in sources():
        pattern = source.phrase(copying.REPLACE)
        worn = phrasings.worn(source, copying.REPLACE, pattern)
        assert sorted(SLOT.findall(worn)) == sorted(SLOT.findall(pattern))
        assert not phrasings.is_held_out_in(copying.REPLACE, worn)
        changed += worn != pattern
    assert changed > len(SEEDS) / 2


def test_a_phrasing_of_few_words_stays() -> None:
    for source in sources()[:20]:
        assert phrasings.worn(source, ("Say {text}",) * 5, "Say this: {text}") == "Say this: {text}"


def test_words_of_the_request_stay_in_the_text() -> None:
    text, old, new = "Ben saw a lamp. The lamp fell.", "lamp", "chair"
    changed = text.replace(old, new)
    added = 0
    for source in sources():
        pattern = source.phrase(copying.REPLACE)
        more, other = copying.beside(source, pattern, old, text, changed)
        assert more.replace(old, new) == other
        assert len(more.split(" ")) == len(other.split(" "))
        added += len(more) > len(text)
    assert added > len(SEEDS) / 2


def test_the_result_of_a_gift_depends_on_the_owner() -> None:
    hands = [f" {each} " for each in thinking.HANDS]
    for source in sources():
        for more in (True, False):
            text = thinking.transfer(source, more)
            assert text.count("{name}") == (2 if "Before that" in text else 1)
            first = "name" if text.startswith("{name}") else "friend"
            gives = any(each in text for each in hands)
            assert more == ((first == "friend") if gives else (first == "name")), text


def test_no_gift_has_a_phrasing_of_the_evaluation() -> None:
    asked = {thinking.MORE[4], thinking.LESS[4]}
    assert all(", who had {a}." in each for each in asked)
    for source in sources():
        assert not asked & {thinking.transfer(source, more) for more in (True, False)}


def test_the_same_scene_twice_has_nothing_true_of_both() -> None:
    for source in sources():
        make = source.one(scenes.ALL)[0][0]
        values = make(source)
        others = scenes.alike(source, make, values)
        assert others.keys() == values.keys()
        true = {value for key, value in values.items() if key not in scenes.TRUE}
        assert true.isdisjoint(others.values())


def test_some_requests_have_usual_tools_alone() -> None:
    alone = sum(
        all(each.verb is None for each in calling.distinct(source, 4)) for source in sources()
    )
    # One in fifteen would be right by chance.
    assert alone > len(SEEDS) * 0.12


def test_of_facts_in_any_words_the_keys_are_asked_for() -> None:
    for source in sources():
        text, fields = extraction.stated(source)
        assert all(key in text.lower() and str(fields[key]) in text for key in fields)


def test_a_contact_is_in_its_text() -> None:
    for source in sources():
        text, fields = extraction.contact(source, "Ada Moor")
        assert fields.keys() <= {"name", *extraction.CONTACTS}
        assert all(str(value) in text for value in fields.values())


def test_facts_in_any_words_are_in_the_text() -> None:
    for source in sources():
        for make in extraction.PUZZLES:
            text, fields = make(source)
            assert fields
            assert all(str(value) in text for value in fields.values()), (text, fields)


def test_the_keys_of_a_puzzle_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = (extraction.person, extraction.product, extraction.meeting, extraction.made_up)
    monkeypatch.setattr(extraction, "PUZZLES", (*plain, *extraction.PUZZLES))
    for source in sources():
        lesson = extraction.lesson(source)
        request = lesson.messages[0]["content"]
        assert all(key in request for key in json.loads(lesson.answer["content"])), request
