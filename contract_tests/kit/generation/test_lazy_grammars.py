"""Grammars that a trigger starts, and control tokens that are shown, over HTTP."""

import re
from typing import Any

import pytest

from contract_tests.kit import contract
from contract_tests.kit.bodies import GENERATING, body, path
from contract_tests.kit.server import OwnServer, Server

LAZY = {"grammar": 'root ::= "<<" [0-9]{3} "."', "grammar_lazy": True}
WORD = {"grammar_triggers": [{"type": 1, "value": "<<"}]}


def settings_of(server: Server, **options: Any) -> dict[str, Any]:
    request = body("create_completion", **options)
    answer: dict[str, Any] = server.ask("/completion", request)
    return answer


@pytest.fixture
def control_token(server: Server) -> tuple[int, str]:
    """Returns a token that generated text doesn't show, and its text."""
    for text in ("<|fim_prefix|>", "<|im_start|>", "<|start_header_id|>", "[INST]"):
        request = {"content": text, "parse_special": True, "with_pieces": True}
        tokens = server.ask("/tokenize", request)["tokens"]
        if len(tokens) == 1:
            return tokens[0]["id"], text
    assert not isinstance(server, OwnServer), "the shipped model has one of them"
    pytest.skip("this test has no control token for the model")


@pytest.mark.parametrize("name", GENERATING)
def test_nothing_happens_without_a_trigger(name: str, server: Server) -> None:
    never = {"grammar_triggers": [{"type": 1, "value": "\u2603 never said \u2603"}]}
    grammar = {"grammar": 'root ::= "\u2603 never said \u2603"', "grammar_lazy": True}
    request = body(name, seed=5, n_predict=20)
    free, lazy = (
        server.ask(path(name), {**request, **options}) for options in ({}, {**grammar, **never})
    )
    assert text_of(free) == text_of(lazy)


def text_of(answer: dict[str, Any]) -> str:
    if "choices" not in answer:
        return str(answer["content"])
    choice = answer["choices"][0]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


@pytest.mark.parametrize("name", GENERATING)
def test_a_word_starts_the_grammar(name: str, server: Server) -> None:
    bias = {"logit_bias": [["<", 30.0]], "n_predict": 40}
    text = text_of(server.ask(path(name), body(name, **LAZY, **WORD, **bias)))
    assert re.fullmatch(r"[^<]*(?:<[^<]+)*<<[0-9]{3}\.", text), text


def test_the_settings_show_the_triggers(server: Server) -> None:
    settings = settings_of(server, **LAZY, **WORD)["generation_settings"]
    assert settings["grammar_lazy"] is True
    assert settings["grammar_triggers"] == WORD["grammar_triggers"]
    settings = settings_of(server)["generation_settings"]
    found = [settings[name] for name in ("grammar_lazy", "grammar_triggers", "preserved_tokens")]
    assert found == [False, [], []]


def test_a_token_starts_the_grammar(server: Server, control_token: tuple[int, str]) -> None:
    token, text = control_token
    triggers = [{"type": 0, "token": token}]
    answer = settings_of(
        server,
        grammar=f'root ::= "{text}" [0-9]{{3}}',
        grammar_lazy=True,
        grammar_triggers=triggers,
        logit_bias=[[token, 100.0]],
    )
    assert re.fullmatch("[0-9]{3}", answer["content"])
    assert answer["generation_settings"]["grammar_triggers"] == [{**triggers[0], "value": ""}]


@pytest.mark.parametrize("stream", [False, True])
def test_preserved_tokens_show(
    server: Server, control_token: tuple[int, str], stream: bool
) -> None:
    token, text = control_token
    options: dict[str, Any] = {"logit_bias": [[token, 100.0]], "n_predict": 3, "stream": stream}
    request = body("create_completion", **options)
    shown = {**request, "preserved_tokens": [f"a{text}"]}
    if stream:
        events = server.events("/completion", shown)
        assert "".join(event.json["content"] for event in events) == 3 * text
        return
    assert server.ask("/completion", request)["content"] == ""
    answer = server.ask("/completion", shown)
    assert answer["content"] == 3 * text
    assert answer["generation_settings"]["preserved_tokens"] == [token]


@pytest.mark.parametrize("name", GENERATING)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({}, "needs grammar_triggers"),
        ({"grammar_triggers": [{"type": 2, "value": "<"}]}, "patterns"),
        ({"grammar_triggers": [{"type": 3, "value": "<"}]}, "patterns"),
        ({"grammar_triggers": [{"type": 4, "value": "<"}]}, "grammar_triggers"),
        ({"grammar_triggers": [{"type": 1, "value": ""}]}, "needs a value"),
        ({"grammar_triggers": [{"type": 0}]}, "needs a token"),
        ({"grammar_triggers": [{"type": 0, "token": 2147483647}]}, "no token 2147483647"),
        ({"grammar_triggers": [{"type": 1, "value": "x"}]}, "no text begins with the trigger"),
        ({"grammar_triggers": [{}]}, "grammar_triggers"),
        ({"grammar_triggers": "<"}, "grammar_triggers"),
        ({"preserved_tokens": [1]}, "preserved_tokens"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_mistakes_are_reported(
    name: str, stream: bool, wrong: dict[str, Any], message: str, server: Server
) -> None:
    response = server.post(path(name), body(name, **LAZY, **wrong, stream=stream))
    contract.check(response, 400)
    assert message in contract.message(response)
