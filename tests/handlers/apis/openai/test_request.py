"""How much a model may think: the request's word, or the server's."""

from typing import Any

import pytest

from engine.chat.request import ThinkingBudget
from handlers.apis.openai.request import thinking_budget
from tests.support.options_support import model_options

OPTIONS = model_options(reasoning_budget=7, reasoning_budget_message="!")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, ThinkingBudget(7, "!")),
        ({"reasoning_budget_tokens": -1}, ThinkingBudget(7, "!")),
        ({"reasoning_budget_tokens": 0}, ThinkingBudget(0, "!")),
        ({"reasoning_budget_tokens": 5, "thinking_budget_tokens": 9}, ThinkingBudget(5, "!")),
        ({"reasoning_budget_tokens": None, "thinking_budget_tokens": 9}, ThinkingBudget(9, "!")),
        ({"reasoning_budget_message": ""}, ThinkingBudget(7)),
        ({"reasoning_budget_message": "?"}, ThinkingBudget(7, "?")),
        ({"reasoning_control": True}, ThinkingBudget(7, "!", control=True)),
        ({"reasoning_control": None}, ThinkingBudget(7, "!")),
    ],
)
def test_the_request_s_budget_wins(body: Any, expected: ThinkingBudget) -> None:
    assert thinking_budget(body, OPTIONS) == expected
