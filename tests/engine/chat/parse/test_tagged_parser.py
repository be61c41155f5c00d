"""Arguments between tags become JSON; the declared type distinguishes texts from other values."""

import json
from typing import Any

import pytest

from engine.chat.parse.parser import answer_parser
from tests.support.chat_strategies import TOOLS, parse, said
from tests.support.chat_syntaxes import SYNTAXES


def coder(*arguments: tuple[str, str], tools: Any = TOOLS) -> Any:
    text = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments)
    text = f"<tool_call>\n<function=f>\n{text}</function>\n</tool_call>"
    (call,) = parse(SYNTAXES["qwen 3 coder"], text, tools=tools).calls
    return json.loads(call.arguments)


def test_the_declared_type_decides() -> None:
    assert coder(("text", "123"), ("count", "123"), ("choice", "1"), ("any", "1")) == {
        "text": "123",
        "count": 123,
        "choice": "1",
        "any": 1,
    }
    assert coder(("maybe", "null"), ("count", "many"), ("nothing", "1")) == {
        "maybe": None,
        "count": "many",
        "nothing": "1",
    }
    assert coder(("maybe", "5"), ("object", '{"a": NaN}')) == {"maybe": "5", "object": '{"a": NaN}'}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"$ref": "#/$defs/a~1b"}, "1"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "1"),
        ({"anyOf": [{"type": "string"}, {"type": "number"}]}, 1),
        ({"allOf": [{"$ref": "#/$defs/a~1b"}, {}]}, "1"),
        ({"const": "1"}, "1"),
        ({"$ref": "#/properties/x"}, 1),
        ({"$ref": "#/missing"}, 1),
        (True, 1),
        ({"type": 3}, 1),
        ({"anyOf": 3, "enum": 4}, 1),
    ],
)
def test_declarations(schema: Any, expected: Any) -> None:
    parameters = {"properties": {"x": schema}, "$defs": {"a/b": {"type": "string"}}}
    assert coder(("x", "1"), tools={"f": parameters}) == {"x": expected}


def test_declarations_further_inside() -> None:
    parameters = {
        "$ref": "#/$defs/top",
        "$defs": {"top": {"allOf": [{"properties": {"x": {"type": "string"}}}]}},
    }
    assert coder(("x", "1"), tools={"f": parameters}) == {"x": "1"}
    parameters = {"additionalProperties": {"type": "string"}, "$ref": "#"}
    assert coder(("x", "1"), tools={"f": parameters}) == {"x": "1"}


def test_raw_texts_keep_their_white_space() -> None:
    text = "\n  def f():\n\treturn '</parameter'\n\n"
    assert coder(("text", text)) == {"text": text}


def test_raw_texts_stream() -> None:
    parser = answer_parser(SYNTAXES["qwen 3 coder"], reasoning="auto", thinking=False, tools=TOOLS)
    deltas = parser.feed('<tool_call><function=f><parameter=text>\nA "quo')
    assert [getattr(delta, "text", None) for delta in deltas] == [None, '{"text": "A \\"quo']


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("<function=f></function>", "{}"),
        ("<tool_call><function=f></function></tool_call>", "{}"),
        ("<tool_call><function=f><parameter=count>1</parameter>", '{"count": 1}'),
        ("<tool_call><function=f><parameter=text>1</par", '{"text": "1</par'),
        ("<tool_call><function=f><parameter=count>1</par", '{"count": '),
        ("<tool_call><function=f><parameter=cou", ""),
    ],
)
def test_tagged_arguments_cut_short(text: str, arguments: str) -> None:
    found = parse(SYNTAXES["qwen 3 coder"], text)
    assert said(found) == ("", "", [("f", arguments)])
