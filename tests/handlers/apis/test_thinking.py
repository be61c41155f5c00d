"""Markers of reasoning that the request itself sets."""

from typing import Any

import pytest

from specllama.engine.params import ThinkingRules, Thoughts
from specllama.handlers.apis.thinking import thinking_rules

TAGS = {"reasoning_budget_start_tag": "<t>", "reasoning_budget_end_tags": ["</t>", "", "END"]}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"reasoning_budget_tokens": 5, "reasoning_control": True},
        {"reasoning_budget_start_tag": "<t>"},
        {"reasoning_budget_start_tag": None, "reasoning_budget_end_tag": "</t>"},
        {"reasoning_budget_start_tag": "<t>", "reasoning_budget_end_tags": ["", " "]},
        {"reasoning_budget_start_tag": " ", "reasoning_budget_end_tags": ["</t>"]},
        {**TAGS, "reasoning_budget_end_tags": [], "reasoning_budget_end_tag": "</t>"},
    ],
)
def test_nothing_is_known_of_thoughts(body: Any) -> None:
    assert thinking_rules(body) is None


def test_all_of_it() -> None:
    budget = {"reasoning_budget_tokens": 5, "reasoning_budget_message": "!"}
    thoughts = Thoughts("<t>", "</t>", open=False, other_ends=["END"])
    body: Any = {**TAGS, **budget, "reasoning_control": True}
    assert thinking_rules(body) == ThinkingRules(thoughts, 5, "!", control=True, anywhere=True)
    one: Any = {"reasoning_budget_start_tag": "<t>", "reasoning_budget_end_tag": "</t>"}
    assert thinking_rules(one) == ThinkingRules(Thoughts("<t>", "</t>", open=False), anywhere=True)


@pytest.mark.parametrize(
    ("prompt", "is_open"),
    [
        (None, False),
        ("<t>\n", True),
        ("a<t>b", True),
        ("<t></t>", False),
        ("<t>END\n", False),
        ("</t><t>", True),
    ],
)
def test_thoughts_that_the_prompt_has_opened(prompt: str | None, is_open: bool) -> None:
    body: Any = {**TAGS, "generation_prompt": prompt}
    rules = thinking_rules(body)
    assert rules is not None
    assert rules.thoughts.open is is_open
