"""The parser of answers in channels."""

from typing import Any

import pytest

from specllama.engine.chat.output import ChatMessage
from tests.support.chat_strategies import parse, said
from tests.support.chat_syntaxes import SYNTAXES


def harmony(text: str, **more: Any) -> ChatMessage:
    return parse(SYNTAXES["harmony"], text, **more)


CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>'


@pytest.mark.parametrize(
    "text",
    [
        CALL,
        ' to=functions.f<|channel|>commentary <|constrain|>json<|message|>{"a": 1}<|call|>',
        '<|start|>assistant to=functions.f<|channel|>commentary json<|message|> {"a": 1}\n<|call|>',
        '<|channel|>analysis to=functions.f code<|message|>{"a": 1}',
        '<|channel|>commentary to=f <|constrain|>json<|message|>{"a": 1}<|end|>',
        "<|start|>assistant<|channel|>commentary<|message|><|end|><|start|>assistant" + CALL,
    ],
)
def test_recipients(text: str) -> None:
    assert said(harmony(text)) == ("", "", [("f", '{"a": 1}')])


def test_channels() -> None:
    text = "<|channel|>analysis<|message|>Well.<|end|><|start|>assistant<|channel|>"
    final = text + "final<|message|>Hello<|return|>"
    assert said(harmony(final)) == ("Hello", "Well.", [])
    assert said(harmony(text + "commentary<|message|>Wait<|end|><|start|>assistant" + CALL)) == (
        "Wait",
        "Well.",
        [("f", '{"a": 1}')],
    )
    assert said(harmony(text)) == ("", "Well.", [])
    legacy = "<|channel|>analysis<|message|>Well.<|end|>Hello"
    legacy = legacy.replace("<|end|>Hello", "<|end|><|channel|>final<|message|>Hello")
    shown = "<|channel|>analysis<|message|>Well.<|end|>Hello"
    assert said(harmony(legacy, reasoning="none")) == (shown, "", [])
    assert said(harmony(legacy, reasoning="deepseek-legacy")) == (shown, "Well.", [])


def test_messages_of_one_kind_are_kept_apart() -> None:
    thoughts = "<|channel|>analysis<|message|>One.<|end|><|start|>assistant"
    assert said(harmony(thoughts * 2 + "<|channel|>final<|message|>Hi")) == ("Hi", "One.\nOne.", [])


def test_harmony_without_headers_is_content() -> None:
    assert said(harmony("Hello <|chan")) == ("Hello <|chan", "", [])
    assert said(harmony("  tomorrow")) == ("  tomorrow", "", [])


def test_harmony_calls_are_left_in_the_text_without_tools() -> None:
    assert said(harmony(CALL, tools=None)) == (CALL, "", [])


def test_harmony_goes_on_from_the_prompt() -> None:
    start = "<|end|><|start|>assistant"
    assert said(harmony("Well.<|end|>", thinking=True)) == ("", "Well.", [])
    opened = f"{start}<|channel|>final<|message|>"
    assert said(harmony(" there", prompt=opened + "Hi")) == (" there", "", [])
    opened = f"{start} to=functions.f"
    text = "<|channel|>commentary<|message|>{}<|call|>"
    assert said(harmony(text, prompt=opened)) == ("", "", [("f", "{}")])
    assert said(harmony("{}<|call|>", prompt=opened + text[:-9])) == ("", "", [("f", "{}")])
    assert said(harmony("Hello", prompt=start)) == ("Hello", "", [])


def test_a_header_without_an_end_is_content() -> None:
    text = f"<|channel|>{'a' * 1100} and more"
    content, thoughts, calls = said(harmony(text))
    assert content.replace("\n", "") == text
    assert (thoughts, calls) == ("", [])
