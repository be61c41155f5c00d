"""Tools whose input is a plain text, and grammars of such texts."""

import json
import re
from typing import Any

import pytest

from contract_tests.kit import contract
from contract_tests.kit.bodies import MESSAGES
from contract_tests.kit.server import Server

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
LARK = """start: "*** " WORD LF line{1,2}
line: ("+" | "-") /[a-c"]{1,4}/ LF
%import common.WORD
%import common.LF
"""
FORMS = [
    ("regex", r'[a-c"]{2,6}\n', r'[a-c"]{2,6}\n'),
    ("lark", LARK, r'\*\*\* [a-zA-Z]+\n([+-][a-c"]{1,4}\n){1,2}'),
]


def form(syntax: str, definition: str) -> dict[str, Any]:
    return {"type": "grammar", "syntax": syntax, "definition": definition}


def chat(**made: Any) -> dict[str, Any]:
    tool = {"type": "custom", "custom": {"name": "note", "format": made}}
    choice = {"type": "custom", "custom": {"name": "note"}}
    thoughts = {"enable_thinking": False}
    return {"messages": MESSAGES, "tools": [tool], "tool_choice": choice, "max_tokens": 200,
            "parallel_tool_calls": False, "seed": 3, "chat_template_kwargs": thoughts}  # fmt: skip


@pytest.mark.parametrize(("syntax", "definition", "pattern"), FORMS, ids=["regex", "lark"])
def test_a_text_follows_its_grammar(
    syntax: str, definition: str, pattern: str, server: Server
) -> None:
    asked = chat(**form(syntax, definition))
    bias = {**asked, "logit_bias": [[letter, 8] for letter in ("\\n", '"')]}
    for body in (asked, bias):
        response = server.post(CHAT, body)
        answer = contract.check(response)
        assert "X-Specllama-Relaxed" not in response.headers
        [choice] = answer["choices"]
        if choice["finish_reason"] == "length":
            continue  # a word without end
        [call] = choice["message"]["tool_calls"]
        assert re.fullmatch(pattern, call["custom"]["input"]), json.dumps(call)


@pytest.mark.parametrize("definition", ["start: (", "start: other", "no grammar at all"])
def test_a_wrong_grammar(definition: str, server: Server) -> None:
    made = form("lark", definition)
    said = contract.check(server.post(CHAT, chat(**made)), 400)["error"]["message"]
    assert "the grammar of the tool 'note'" in said
    tool = {"type": "custom", "name": "note", "format": made}
    body = {"input": "Hello", "tools": [tool], "max_output_tokens": 5}
    said = contract.check(server.post(RESPONSES, body), 400)["error"]["message"]
    assert "the grammar of the tool 'note'" in said


def test_rules_that_can_t_be_enforced_are_reported(server: Server) -> None:
    response = server.post(CHAT, chat(**form("lark", 'start: "a"\n%ignore " "')))
    contract.check(response)
    assert "note#/format" in response.headers["X-Specllama-Relaxed"]
