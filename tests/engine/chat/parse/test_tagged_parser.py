"""Arguments between tags become JSON; the declared type distinguishes texts from other values."""

import json
from typing import Any

import pytest

from specllama.engine.chat.parse.parser import answer_parser
from specllama.engine.chat.syntax import (
    KEY,
    CallSyntax,
    Fill,
    OutputSyntax,
    TaggedArguments,
    Wrapper,
)
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
        ("<tool_call><function=f><parameter=cou", "{"),
    ],
)
def test_tagged_arguments_cut_short(text: str, arguments: str) -> None:
    found = parse(SYNTAXES["qwen 3 coder"], text)
    assert said(found) == ("", "", [("f", arguments)])


def called(tagged: TaggedArguments, text: str, schema: Any = None) -> Any:
    """The arguments in `text`, whatever two pieces it comes in."""
    parts = ("<call=", Fill("name"), ">", Fill("arguments"), "</call>")
    syntax = OutputSyntax(calls=CallSyntax(parts, tagged=tagged))
    text = f"<call=f>{text}</call>"
    found = [
        json.loads(parse(syntax, [text[:cut], text[cut:]], tools={"f": schema}).calls[0].arguments)
        for cut in range(len(text) + 1)
    ]
    assert all(each == found[0] for each in found)
    return found[0]


TYPED = TaggedArguments(
    '<arg k="',
    '" t="text">',
    "</arg>",
    middles=(("integer", '" t="number">'), ("null", '" t="null">')),
)
ELEMENTS = TaggedArguments("]<]ns[>[<", ">", f"]<]ns[>[</{KEY}>", item="item")


def test_the_tag_has_the_type_of_a_value() -> None:
    text = (
        '<arg k="a" t="text">12</arg><arg k="b" t="number">12</arg><arg k="c" t="null">null</arg>'
    )
    assert called(TYPED, text) == {"a": "12", "b": 12, "c": None}


def test_texts_in_a_wrapper() -> None:
    tagged = TaggedArguments('<p k="', '">', "</p>", wrapper=Wrapper("<![CDATA[", "]]>"))
    schema = {"properties": {"a": {"type": "string"}}}
    text = '<p k="a"><![CDATA[x </p> y]]></p><p k="b"><![CDATA[12]]></p><p k="c">12</p>'
    assert called(tagged, text, schema) == {"a": "x </p> y", "b": "12", "c": 12}


def elements(text: str) -> str:
    return text.replace("<", "]<]ns[>[<")


def test_values_of_elements() -> None:
    schema = {
        "properties": {
            "a": {"type": "string"},
            "list": {"type": "array", "items": {"type": "string"}},
            "object": {"properties": {"in": {"type": "string"}, "n": {"type": "integer"}}},
            "empty": {"type": "array"},
        }
    }
    text = (
        "<a>12</a><list><item>1</item><item>b</item></list>"
        "<object><in>1</in><n>2</n></object><empty></empty>"
    )
    assert called(ELEMENTS, elements(text), schema) == {
        "a": "12",
        "list": ["1", "b"],
        "object": {"in": "1", "n": 2},
        "empty": [],
    }
    assert called(ELEMENTS, elements("<x>[1, 2]</x>")) == {"x": [1, 2]}


def test_literals_after_keys() -> None:
    tagged = TaggedArguments("", "=", "", ", ", quote="'")
    assert called(tagged, "a='x', b=[1, None],c={'d': True}") == {
        "a": "x",
        "b": [1, None],
        "c": {"d": True},
    }
    assert called(tagged, "") == {}


def test_spellings_of_python_count_where_no_text_is_meant() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "string"}}}
    assert coder(("a", "True"), ("b", "True"), tools={"f": schema}) == {"a": True, "b": "True"}


@pytest.mark.parametrize("behind", ["", " and"])
def test_a_text_in_quotes_whose_tag_never_ends_is_a_cut_call(behind: str) -> None:
    (call,) = parse(SYNTAXES["tags around json"], f'<call:f><arg:text>"abc"{behind}').calls
    assert call.arguments == '{"text": "abc"'
