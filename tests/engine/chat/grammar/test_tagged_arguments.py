"""Arguments of calls that a constraint lets a model write validate, in JSON and in tags."""

import json
import random
import re
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specllama.engine.chat.syntax import Fill, OutputSyntax
from specllama.engine.worker.backend import Model
from specllama.engine.worker.constraints.compiler import Compiler
from tests.support.answer_grammars import CITY, GET, SYNTAXES, TOOLS, accepts, params, tagged, tool
from tests.support.chat_strategies import parse

pytestmark = pytest.mark.slow

CLOSED = {"properties": {"city": CITY}, "required": ["city"]}


@pytest.mark.parametrize(
    ("parameters", "more"),
    [
        (CLOSED, False),
        ({**CLOSED, "additionalProperties": True}, True),
        ({**CLOSED, "additionalProperties": {"type": "integer"}}, True),
        ({**CLOSED, "minProperties": 2}, True),
        ({**CLOSED, "required": ["city", "page"]}, True),
        ({**CLOSED, "allOf": [{"properties": {"page": {"type": "integer"}}}]}, True),
        ({**CLOSED, "properties": {"city": CITY, "page": {"type": "object"}}}, False),
    ],
    ids=str,
)
def test_arguments_that_are_not_named(
    compiler: Compiler, model: Model, parameters: Any, more: bool
) -> None:
    """There are none unless the schema says something that listing them doesn't."""
    syntax, _ = SYNTAXES["name before"]
    made = params(syntax, tools=[tool("get", parameters)])
    call = "[TOOL_CALLS]get[ARGS]"
    assert accepts(compiler, model, made, f'{call}{{"city": "x", "page": 1}}') == more
    nested = f'{call}{{"city": "x", "page": {{"any": 1}}}}'
    if "page" in parameters["properties"]:
        assert accepts(compiler, model, made, nested), "objects in arguments may hold anything"


@pytest.mark.parametrize("parameters", [None, {}, {"type": "object"}, {"type": ["object", "null"]}])
@pytest.mark.parametrize("name", ["json in tags", "tagged"])
def test_any_arguments(compiler: Compiler, model: Model, name: str, parameters: Any) -> None:
    syntax, call = SYNTAXES[name]
    made = params(syntax, tools=[tool("get", parameters), tool("get_note", parameters)])
    assert accepts(compiler, model, made, call)
    if name == "json in tags":
        assert not accepts(compiler, model, made, call.replace(GET, "null"))


def written(value: str) -> str:
    argument = f"<parameter=x>\n{value}\n</parameter>\n"
    return f"<tool_call>\n<function=f>\n{argument}</function>\n</tool_call>"


DEFINITIONS = {"$defs": {"size": {"enum": ["s", "m"]}, "node": {"$ref": "#/$defs/list"}}}
DEFINITIONS["$defs"]["list"] = {"type": "array", "items": {"$ref": "#/$defs/node"}}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string"}, ["", "a", "\n", "1", '"', "</parameter", "é<"], ["</parameter>"]),
        ({}, ["a", "1", "null"], []),
        (True, ["a"], []),
        ({"enum": ["a", "ab", 3, None]}, ["a", "ab", "3", "null"], ["", "b", "abc", '"a"', "4"]),
        ({"const": "a b"}, ["a b"], ["a", "a b c"]),
        ({"enum": ["a", 1], "type": "string"}, ["a"], ["1"]),
        ({"type": "integer"}, ["1", "-20"], ["1.5", "a", ""]),
        ({"type": "boolean"}, ["true", "false"], ["True", "1"]),
        ({"type": ["string", "null"]}, ["null", "a", "[1]"], []),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, ["null", "a"], []),
        (
            {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]},
            ["[1, 2]", "a", "", "a [b]", "[]"],
            ['["a"]', "[x", " a"],
        ),
        ({"type": ["integer", "string"], "minimum": 5}, ["5", "77", "a", "a4"], ["4", "-1"]),
        ({"type": "string", "maxLength": 3, "minLength": 2}, ["ab", "é\n1"], ["a", "abcd", '"ab']),
        ({"type": "string", "pattern": "^[ab]+$"}, ["a", "abba"], ["", "c", "ac"]),
        ({"type": "string", "pattern": "a/b"}, ["a/b", "xa/by"], ["ab"]),
        ({"type": "string", "pattern": "^a"}, ["a", "ab"], ["ba"]),
        ({"type": "string", "format": "date"}, ["2024-02-28"], ["2024-02-30", "x"]),
        ({"type": "string", "format": "email"}, ["a.b@c.de"], ["a", "@", "a@b"]),
        ({"type": "string", "format": "uri"}, ["https://a.b/c%20?d=e#f", "http://a"], ["a"]),
        ({"type": "string", "format": "fancy"}, ["anything"], []),
        ({"$ref": "#/$defs/size"}, ["s", "m"], ["l"]),
        ({"allOf": [{"$ref": "#/$defs/size"}], "default": "s"}, ["s"], ["l"]),
        ({"$ref": "#/$defs/list"}, ["[]", "[[], [[]]]"], ["a", "[1]"]),
        ({"type": "object", "properties": {"a": {"type": "null"}}}, ['{"a": null}'], ['{"a": 1}']),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, ["1", "null"], ["x", "1.5"]),
        ({"anyOf": [{"enum": ["a"]}, {"type": "null"}]}, ["a", "null"], ["b", "nul"]),
    ],
)
def test_tagged_values(
    compiler: Compiler, model: Model, schema: Any, good: list[str], bad: list[str]
) -> None:
    syntax, _ = SYNTAXES["tagged"]
    made = params(syntax, tools=[tool("f", {**tagged(schema), **DEFINITIONS})])
    for value in good:
        assert accepts(compiler, model, made, written(value)), value
    for value in bad:
        assert not accepts(compiler, model, made, written(value)), value


def test_tagged_arguments_come_in_order_if_at_all(compiler: Compiler, model: Model) -> None:
    syntax, _ = SYNTAXES["tagged, separated"]
    properties = {name: {"type": "integer"} for name in "abcd"}
    schema = {"type": "object", "properties": properties, "required": ["b", "e"]}
    made = params(syntax, tools=[tool("f", schema)])

    def call(names: str) -> str:
        arguments = "; ".join(f"<arg {name}>1</arg>" for name in names)
        return f"<calls>\n<invoke f>{arguments}</invoke>\n</calls>"

    for names in ("be", "abe", "bde", "abcde"):
        assert accepts(compiler, model, made, call(names)), names
    for names in ("", "b", "e", "bae", "bbe", "eb", "ace"):
        assert not accepts(compiler, model, made, call(names)), names
    optional = {**schema, "required": []}
    made = params(syntax, tools=[tool("f", optional)])
    for names in ("", "a", "d", "bd", "abcd"):
        assert accepts(compiler, model, made, call(names)), names
    assert not accepts(compiler, model, made, call("ba"))


KEYS = ["a.b", "$ref", "@id", "größe", "a/b", "x+y", "#1", "a-b", "a?b!", "日本"]


@pytest.mark.parametrize("name", ["literals", "quotes of its own"])
@pytest.mark.parametrize("key", KEYS)
def test_a_key_without_a_marker_is_read_as_it_may_be_written(
    compiler: Compiler, model: Model, name: str, key: str
) -> None:
    syntax, _ = SYNTAXES[name]
    schema = {"type": "object", "properties": {key: {"type": "integer"}}, "required": [key]}
    made = params(syntax, tools=[tool("f", schema)])
    text = {
        "literals": f"<|calls|>[f({key}=7)]<|/calls|>",
        "quotes of its own": f"<|call>call:f{{{key}:7}}<call|>",
    }[name]
    assert accepts(compiler, model, made, text)
    assert arguments(syntax, text, "f", schema) == {key: 7}


@pytest.mark.parametrize("name", ["literals", "quotes of its own"])
@pytest.mark.parametrize("key", ["a b", "a,b", "a=b", "a:b", "(a)", "{a}", '"a"', "a|b", ""])
def test_a_key_that_could_not_be_read_is_not_written(
    compiler: Compiler, model: Model, name: str, key: str
) -> None:
    syntax, _ = SYNTAXES[name]
    schema = {"type": "object", "properties": {key: {"type": "integer"}}, "required": [key]}
    made = params(syntax, tools=[tool("f", schema)])
    [left_out] = compiler.guided(made).relaxed
    assert left_out.startswith("f#/properties/")


def arguments(syntax: OutputSyntax, text: str, name: str, schema: Any) -> Any:
    """The arguments of the only call in `text`, of the tool `name`."""
    calls = syntax.calls
    assert calls is not None
    if calls.tagged and (calls.tagged.middles or calls.tagged.item or calls.tagged.quote):
        (call,) = parse(syntax, [text], tools={name: schema}).calls
        return json.loads(call.arguments)
    pattern = re.escape(calls.begin.lstrip())
    for part in calls.parts:
        match part:
            case str():
                pattern += re.escape(part)
            case Fill("arguments"):
                pattern += "(.*)"
            case Fill("name"):
                pattern += name
            case Fill("index"):
                pattern += "0"
            case _:
                pattern += "[a-zA-Z0-9]{9}"
    found = re.fullmatch(pattern + re.escape(calls.end.rstrip()), text, re.DOTALL)
    assert found, text
    tags = calls.tagged
    if tags is None:
        return json.loads(found[1])
    values: dict[str, Any] = {}
    rest = found[1]
    while rest:
        rest = rest.removeprefix(tags.separator) if values else rest
        assert rest.startswith(tags.begin)
        key, _, rest = rest.removeprefix(tags.begin).partition(tags.middle)
        value, _, rest = rest.partition(tags.end)
        is_text = schema["properties"][key].get("type") == "string" or key == "kind"
        values[key] = value if is_text and not tags.json_strings else json.loads(value)
    return values


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    name=st.sampled_from(sorted(SYNTAXES)), called=st.sampled_from(TOOLS), seed=st.integers(0, 999)
)
def test_arguments_validate(
    compiler: Compiler, model: Model, name: str, called: dict[str, Any], seed: int
) -> None:
    syntax, example = SYNTAXES[name]
    function = called["function"]
    guide = compiler.guided(params(syntax, tool_name=function["name"], parallel=False)).guide
    assert guide is not None
    likely = set(model.tokenize(example.encode(), add_special=False, parse_special=False).tolist())
    draw = random.Random(seed)
    text = b""
    for _ in range(400):
        if guide.ended:
            break
        assert guide.allowed is not None
        allowed = guide.allowed.ids.tolist()
        if model.eog & set(allowed):
            break
        some = sorted(likely & set(allowed))
        token = draw.choice(some if some and draw.random() < 0.9 else allowed)
        text += model.piece(token, special=False)
        if guide.advance(token):
            break
    else:
        return
    schema = function["parameters"]
    answer = text.decode()
    answer = answer.rpartition("</think>")[2].lstrip() if syntax.reasoning else answer.lstrip()
    jsonschema_rs.validate(schema, arguments(syntax, answer, function["name"], schema))
