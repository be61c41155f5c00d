"""The texts that the shipped model learns from and is judged by."""

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tools.models.lessons import (
    calling,
    conversation,
    copying,
    curriculum,
    exercises,
    extraction,
    infill,
)
from tools.models.lessons.functions import function
from tools.models.lessons.lesson import Gap, Lesson, assistant, exercise, filled, user
from tools.models.lessons.scenes import question
from tools.models.lessons.source import Source, is_held_out
from tools.models.lessons.toolbox import VERBS, Tool, any_verb, made_up_tool, verb_tool
from tools.models.lessons.trained_tools import trained_tool, unworded
from tools.models.recipes import TALKER
from tools.models.tokenizer import SPECIAL_TOKENS
from tools.models.training.encoding import (
    CHOICE_WEIGHT,
    CODE_WEIGHT,
    OWN_CODE_WEIGHT,
    PROMPT_WEIGHT,
    RARE_FACTOR,
    TOOLS_WEIGHT,
    encode,
    prompt_and_answer,
    tokenizer,
)

SEEDS = range(150)


def both_sides() -> list[Source]:
    return [Source(seed, held_out=side) for seed in SEEDS for side in (False, True)]


@pytest.mark.parametrize("seed", [0, 7])
def test_lessons_of_a_seed_are_always_the_same(seed: int) -> None:
    assert curriculum.lessons(Source(seed)) == curriculum.lessons(Source(seed))


def test_made_up_words_are_of_one_side() -> None:
    for source in both_sides():
        assert is_held_out(source.made_up()) == source.held_out
        assert is_held_out(source.noun()) == source.held_out


def test_phrasings_are_of_one_side() -> None:
    phrases = tuple(str(i) for i in range(23))
    seen = {
        side: {Source(i, held_out=side).phrase(phrases) for i in range(500)}
        for side in (False, True)
    }
    assert seen[False] | seen[True] == set(phrases)
    assert not seen[False] & seen[True]


def test_calls_are_of_tools_that_there_are() -> None:
    for source in both_sides():
        lesson = calling.lesson(source)
        known = {each["function"]["name"]: each["function"]["parameters"] for each in lesson.tools}
        for call in lesson.answer.get("tool_calls", ()):
            schema = known[call["function"]["name"]]
            given = json.loads(call["function"]["arguments"])
            assert set(schema.get("required", ())) <= set(given) <= set(schema["properties"])
            asked = lesson.messages[-1]["content"]
            for key, value in given.items():
                is_said(asked, value, schema["properties"][key])


def test_an_article_suits_the_word_behind_it() -> None:
    assert (
        filled("A {} has a {thing}, and {thing}s", "egg", thing="ant")
        == "An egg has an ant, and ants"
    )
    for source in both_sides():
        asked, answer = prompt_and_answer(question(source))
        assert not re.search(r"\b[Aa] [aeiou]", asked + answer)


def test_a_tool_of_many_names_is_called_by_the_one_that_it_has() -> None:
    names = {trained_tool(Source(seed)).name for seed in range(400)}
    # Half of them have unique names, in addition to the fifty or so that are listed.
    assert len(names) > 150
    for seed in SEEDS:
        tool = trained_tool(Source(seed))
        _, given = tool.ask(Source(seed))
        assert set(given) <= {each.name for each in tool.parameters}


def test_of_two_values_that_look_alike_one_has_its_name() -> None:
    paths = {"old_path": Source.file, "new_path": Source.file}
    for seed in SEEDS:
        text = unworded(Source(seed), "Move a document", paths)
        assert "{old_path}" in text
        assert "{new_path}" in text
        assert re.search(r"\b(old|new) path\b", text)


def test_the_word_that_goes_is_in_the_text() -> None:
    for seed in SEEDS:
        request = copying.unworded(Source(seed), "lamp", "bird", "A lamp is here.")
        assert "A lamp is here." in request
        assert request.count("lamp") == 2
        assert request.count("bird") == 1


def test_lessons_of_a_family_share_their_tools() -> None:
    for source in both_sides():
        family = calling.family(source, 4)
        assert len(family) in (4, 8)
        assert all(each.tools == family[0].tools for each in family)
        prompts = [prompt_and_answer(each)[0] for each in family]
        assert len({each[: each.index("</tools>")] for each in prompts}) == 1


def test_a_tool_among_those_of_one_noun_is_meant_by_its_verb() -> None:
    for seed in SEEDS:
        source = Source(seed)
        tools = calling.of_one_noun(source, 4)
        assert len({each.name for each in tools}) == 4
        for tool in tools:
            assert tool.verb is not None
            asked = tool.ask(source)[0].lower()
            assert any(each.lower() in asked for each in VERBS[tool.verb])
            others = [VERBS[each.verb or ""] for each in tools if each is not tool]
            assert not set(VERBS[tool.verb]).intersection(*others)


def test_reasoning_begins_with_the_word_that_identifies_the_tool() -> None:
    def tool(number: int, name: str, description: str = "") -> Tool:
        return Tool(
            name=name,
            description=description,
            parameters=(),
            ask=lambda _: ("", {}),
            number=number,
        )

    order, user = tool(2, "convert_order"), tool(1, "get_user")
    track = tool(3, "x_y", "Play the track")
    assert calling.found("Change the Order, please", [order, user]) == "order: #2 convert_order"
    assert calling.found("Put on a track", [track, user]) == "track: #3 x_y"
    # Rather the noun than the verb.
    made = replace(order, noun="order")
    assert calling.found("Convert the order", [made, user]) == "order: #2 convert_order"
    # A word that another tool has proves nothing.
    assert calling.found("Get the user", [user, tool(2, "delete-user")]) == "get: #1 get_user"
    assert calling.found("What is 2 + 3?", [order, user]) == "#2 convert_order"


def test_thoughts_number_the_tools_as_the_template_does() -> None:
    numbered = 0
    for seed in SEEDS:
        for lesson in calling.family(Source(seed), 3):
            prompt, answer = prompt_and_answer(lesson)
            for tool in re.findall(r"#\d+ [\w.-]*\w", answer):
                assert f"\n{tool} " in prompt
                numbered += 1
    assert numbered > len(SEEDS)


def test_who_thinks_of_a_result_has_thought_of_the_call() -> None:
    seen = 0
    for source in both_sides():
        lesson = calling.family(source, 2)[-1]
        for message in lesson.messages if lesson.kind == "result" else ():
            if lesson.thinks and "tool_calls" in message:
                name = message["tool_calls"][0]["function"]["name"]
                assert re.search(rf"#\d+ {re.escape(name)}\b", message["reasoning_content"])
                seen += 1
    assert seen > 5


def test_a_lookup_names_the_tools_that_have_the_words() -> None:
    for seed in SEEDS:
        source = Source(seed)
        tools = [made_up_tool(source) for _ in range(4)]
        lesson = calling.lookup(source, tools)
        names = {each.noun: each.listed for each in tools}
        found = dict(line.split(": ") for line in lesson.answer["content"].splitlines())
        assert found.items() <= names.items()
        assert all(noun in lesson.messages[-1]["content"] for noun in found)


def test_a_tool_of_a_verb_alone_is_asked_for_with_it() -> None:
    for seed in SEEDS:
        source = Source(seed)
        tool = verb_tool(source)
        assert tool.name.lower() in tool.ask(source)[0].lower()
        assert tool.parameters


def test_names_begin_with_any_token() -> None:
    begun = {any_verb(Source(seed, pieces=("zeb", "quo"))) for seed in range(300)}
    assert {"zeb", "quo", "get"} <= begun


def is_said(text: str, value: Any, schema: dict[str, Any]) -> None:
    """Asserts that the arguments can be copied from the sentence."""
    if schema["type"] == "array":
        for each in value:
            assert str(each) in text
    elif schema["type"] != "boolean":
        said = str(value).lower() in text.lower()
        options = schema.get("enum", [value])
        assert value in options
        # Or all others are denied.
        assert said or all(each.lower() in text.lower() for each in options if each != value)


def value(text: str) -> int:
    """Sums of two numbers, or of one."""
    a, sign, b = [*text.split(), "+", "0"][:3]
    return {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[sign]


def test_sums_are_right_in_each_step() -> None:
    lines: list[str] = []
    for source in both_sides():
        lines += exercises.arithmetic(source).answer["content"].splitlines()
    assert len(lines) > 2 * len(SEEDS)
    for line in lines:
        steps = line.split(" = ")
        assert len(steps) > 1
        assert len({value(each) for each in steps}) == 1, line


def test_extracted_values_are_in_the_text() -> None:
    for source in both_sides():
        lesson = extraction.lesson(source)
        fields = json.loads(lesson.answer["content"])
        assert fields
        for value in fields.values():
            assert str(value).lower() in lesson.messages[-1]["content"].lower()


def test_copies_are_of_the_text() -> None:
    for source in both_sides():
        lesson = copying.lesson(source)
        if lesson.kind == "repeat":
            assert lesson.answer["content"] in lesson.messages[-1]["content"]


def test_conversations_end_with_a_question_and_alternate() -> None:
    for source in both_sides():
        roles = [each["role"] for each in conversation.lesson(source).messages]
        spoken = roles[1:] if roles[0] == "system" else roles
        assert spoken == ["user", "assistant"] * (len(spoken) // 2) + ["user"]


def test_facts_are_in_the_answer() -> None:
    for source in both_sides():
        for lesson in (conversation.lesson(source), calling.lesson(source)):
            for fact in lesson.facts:
                assert fact in lesson.answer["content"]


def test_prompts_are_those_of_the_template() -> None:
    source = Source(3)
    for _ in SEEDS:
        lesson = curriculum.lessons(source)[-1]
        prompt, answer = prompt_and_answer(lesson)
        if isinstance(lesson, Lesson):
            assert prompt.startswith("<|im_start|>")
            assert answer.endswith("<|im_end|>")
            assert answer.startswith("<think>\n") == lesson.thinks
            assert prompt.endswith("</think>\n\n") != lesson.thinks
        elif isinstance(lesson, Gap):
            assert answer == lesson.middle + "<|endoftext|>"


def test_only_answers_count_in_full() -> None:
    lesson = conversation.lesson(Source(1))
    tokens, weights = encode(lesson)
    answer = tokenizer().decode(tokens[weights >= 1].tolist(), skip_special_tokens=False)
    assert answer == prompt_and_answer(lesson)[1]
    assert set(weights[weights < 1]) == {np.float32(PROMPT_WEIGHT)}


def test_code_counts_less() -> None:
    for seed in SEEDS:
        lesson = infill.lesson(Source(seed))
        tokens, weights = encode(lesson)
        code = tokens[weights > np.float32(PROMPT_WEIGHT)].tolist()
        assert tokenizer().decode(code, skip_special_tokens=False) == prompt_and_answer(lesson)[1]
        once = OWN_CODE_WEIGHT if lesson.own else CODE_WEIGHT
        assert set(weights[len(tokens) - len(code) :]) <= {
            np.float32(once),
            np.float32(once * (CHOICE_WEIGHT * RARE_FACTOR)),
        }


def chosen(lesson: Lesson | Gap) -> list[str]:
    """The tokens that count more than others of the answer."""
    tokens, weights = encode(lesson)
    most = weights == weights.max()
    return [tokenizer().decode([token], skip_special_tokens=False) for token in tokens[most]]


def test_the_gap_of_a_twin_is_in_the_other_one() -> None:
    for seed in SEEDS:
        gap = infill.twins(Source(seed))
        first, _, second = gap.prefix.partition("\n\n\n")
        assert gap.middle in first
        assert infill.tree(f"{second}{gap.middle}{gap.suffix}")


def test_gaps_are_often_where_a_deeper_line_follows() -> None:
    text = "def any_name(a):\n    b = a\n    if b:\n        return 1\n    return 2\n"
    made = [infill.cut(Source(seed), text) for seed in range(400)]
    headers = [each for each in made if each.middle.endswith(":") and "\n" not in each.middle]
    assert len(headers) > 100
    assert all(each.suffix is not None and each.suffix.startswith("\n        ") for each in headers)


def test_an_unknown_verb_is_a_wish_where_there_are_tools() -> None:
    found = [exercises.repeat(Source(seed, level=1.0)) for seed in range(300)]
    echoes = [each for each in found if each.kind == "echo"]
    assert 20 < len(echoes) < 80
    tools = calling.distinct(Source(1), 2)
    for each in echoes:
        assert each.answer["content"] in each.messages[0]["content"]
        assert calling._misleads(Source(1), each, tools)
    assert not any(each.kind == "echo" for each in map(exercises.repeat, held_out()))


def held_out() -> list[Source]:
    return [Source(seed, level=1.0, held_out=True) for seed in range(100)]


def test_a_short_gap_is_in_its_last_line() -> None:
    for seed in SEEDS:
        gap = infill.short(Source(seed))
        assert gap.middle
        assert "\n" not in gap.middle
        assert gap.suffix is not None
        assert gap.suffix.count("\n") == 1
        if gap.prefix.startswith("def "):
            assert infill.tree(gap.prefix + gap.middle + gap.suffix)


def test_choices_count_more() -> None:
    called = Lesson(
        ability="tools",
        kind="one",
        messages=[user("Book a table for 4 in Rome")],
        answer={
            "role": "assistant",
            "reasoning_content": "table: #2 book_table can do this.",
            "tool_calls": [calling.call("book_table", {"n": 4, "in": "Rome"})],
        },
        tools=(made_up_tool(Source(1)).definition(Source(1)),),
    )
    # The thought, its tool's number, the call, its name and values, and that no other call follows.
    assert chosen(called) == ["<think>", "t", "2", "<tool_call>", "book", "4", "R", "<|im_end|>"]
    assert max(encode(called)[1]) == TOOLS_WEIGHT * CHOICE_WEIGHT
    replaced = Lesson(
        ability="copying",
        kind="replace",
        messages=[user("Write tea for shop: Show the shop.")],
        answer=assistant("Show the tea."),
        decisive=("tea", "sh", "Sh"),
    )
    assert chosen(replaced) == ["S", "te"]
    lesson_ = Lesson(
        ability="conversation",
        kind="question",
        messages=[user("Bo is in Rome. Where is Bo?")],
        answer=assistant("Bo is in Rome."),
        facts=("Rome",),
    )
    assert chosen(lesson_) == ["B", "R"]
    gap = Gap(ability="infill", kind="gap", prefix="a = so", middle="rted(b)", suffix="\n")
    assert chosen(gap) == ["r", "<|endoftext|>"]


def test_functions_at_random_can_be_parsed() -> None:
    names = ["first", "second", "total"]
    for seed in range(1000):
        text = function(Source(seed), names, "work")
        made = infill.tree(text).body  # type: ignore[attr-defined]
        assert [each.name for each in made] == ["work"]


def test_answers_have_the_reasoning_if_it_is_switched_off() -> None:
    steps = "o 1, n 2, e 3."
    for seed in SEEDS:
        made = exercise(Source(seed), "letters", "How long?", "It has 3.", steps, aloud=True)
        assert made.answer["content"] == ("It has 3." if made.thinks else f"{steps} It has 3.")
        assert made.answer.get("reasoning_content", steps) == steps


def test_a_word_is_the_same_tokens_everywhere() -> None:
    for seed in SEEDS:
        word = Source(seed).made_up()
        alone = tokenizer().encode(word).ids
        for around in ("a {} b", '"{}"', "_{}_", '{{"{}": 1}}', "\n{}."):
            assert subsequence(alone, tokenizer().encode(around.format(word)).ids), word


def subsequence(part: list[int], whole: list[int]) -> bool:
    return any(whole[i : i + len(part)] == part for i in range(len(whole)))


def test_no_token_of_the_vocabulary_mixes_letters_with_others() -> None:
    text = TALKER.vocabulary().tokens[256 : -len(SPECIAL_TOKENS)]
    for token in text:
        ordinary = token.replace("Ġ", "").replace("Ċ", "")
        assert ordinary.isalpha() == any(each.isalpha() for each in ordinary)
        assert not (token != ordinary and ordinary.isalpha())
