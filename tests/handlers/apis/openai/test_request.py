"""The limit of reasoning, in every field that a request can set."""

from typing import Any

import pytest

from specllama.engine.chat.request import ThinkingBudget
from specllama.handlers.apis.openai.request import chat_request
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
    asked: Any = {"messages": [], **body}
    assert chat_request(asked, OPTIONS).thinking_budget == expected


@pytest.mark.parametrize(
    ("body", "variables"),
    [
        ({"reasoning_effort": "none"}, {"enable_thinking": False}),
        ({"reasoning": {"effort": "none"}}, {"enable_thinking": False}),
        ({"reasoning": {"enabled": False}}, {"enable_thinking": False}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        ({"enable_thinking": False}, {"enable_thinking": False}),
        (
            {"enable_thinking": False, "chat_template_kwargs": {"enable_thinking": True}},
            {"enable_thinking": False},
        ),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, {"enable_thinking": True}),
        ({"enable_thinking": True, "reasoning_effort": "none"}, {"enable_thinking": False}),
        ({"reasoning": {"effort": "high"}}, {"reasoning_effort": "high"}),
        ({"reasoning": {"effort": "high"}, "reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        ({"reasoning": None, "thinking": None, "enable_thinking": None}, {}),
        ({"thinking": {"type": "adaptive"}}, {}),
    ],
)  # fmt: skip
def test_every_form_of_the_switch_of_thoughts(
    body: dict[str, Any], variables: dict[str, Any]
) -> None:
    asked: Any = {"messages": [{"role": "user", "content": "a"}], **body}
    assert chat_request(asked, model_options()).template_variables == variables


def test_thoughts_of_the_history_have_two_names() -> None:
    said = {"role": "assistant", "content": "b"}
    for name in ("reasoning_content", "reasoning"):
        messages: Any = [{"role": "user", "content": "a"}, {**said, name: "c"}]
        made = chat_request({"messages": messages}, OPTIONS).messages
        assert made[1] == {**said, "reasoning_content": "c"}
