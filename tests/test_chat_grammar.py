"""What the constraint of an answer lets a model write: calls as templates write them, with
arguments that validate, and nothing else."""

import json
import random
import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.backend import Model, initialize
from engine.chat.grammar import AnswerGrammar, answer_grammar, answer_params
from engine.chat.syntax import (
    HERMES_CALLS,
    CallSyntax,
    Fill,
    OutputSyntax,
    TaggedArguments,
    Wrapper,
)
from engine.constraints import Compiler
from engine.embedded import model_path
from engine.errors import EngineError
from engine.gbnf import GrammarError
from engine.options import Options
from engine.params import GenerationParams
from tests.chat_fixtures import FIXTURES, Fixture
from tests.chat_fixtures import TOOLS as FAMILY_TOOLS

NAME, ARGUMENTS, ID, INDEX = Fill("name"), Fill("arguments"), Fill("id"), Fill("index")
THINK = Wrapper("<think>\n", "\n</think>\n\n")
CITY = {"type": "string"}
WEATHER = {
    "type": "object",
    "properties": {"city": CITY, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
NOTE = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["memo", "to do"]},
        "pages": {"type": "array", "items": {"$ref": "#/$defs/page"}},
        "text": {"type": "string"},
    },
    "required": ["kind", "text"],
    "additionalProperties": False,
    "$defs": {"page": {"type": "integer", "minimum": 1, "maximum": 99}},
}


def tool(name: str, parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [tool("get", WEATHER), tool("get_note", NOTE)]
GET, GET_NOTE = '{"city": "Bern"}', '{"kind": "memo", "pages": [1], "text": "x"}'


def in_json(key: str, before: str = "", after: str = "", **options: Any) -> CallSyntax:
    parts = (f'{before}{{"name": "', NAME, f'", "{key}": ', ARGUMENTS, "}" + after)
    return CallSyntax(parts=parts, **options)


# A syntax, and two calls in it.
SYNTAXES: dict[str, tuple[OutputSyntax, str]] = {
    "json in tags": (
        OutputSyntax(reasoning=THINK, calls=HERMES_CALLS),
        f'<tool_call>\n{{"name": "get", "arguments": {GET}}}\n</tool_call>\n'
        f'<tool_call>\n{{"name": "get_note", "arguments": {GET_NOTE}}}\n</tool_call>',
    ),
    "list with ids": (
        OutputSyntax(
            calls=CallSyntax(
                parts=('{"name": "', NAME, '", "arguments": ', ARGUMENTS, ', "id": "', ID, '"}'),
                begin="[TOOL_CALLS] [",
                separator=", ",
                end="]",
            )
        ),
        f'[TOOL_CALLS] [{{"name": "get", "arguments": {GET}, "id": "a1B2c3D4e"}}, '
        f'{{"name": "get_note", "arguments": {GET_NOTE}, "id": "f5G6h7I8j"}}]',
    ),
    "name before": (
        OutputSyntax(calls=CallSyntax(parts=("[TOOL_CALLS]", NAME, "[ARGS]", ARGUMENTS))),
        f"[TOOL_CALLS]get[ARGS]{GET}[TOOL_CALLS]get_note[ARGS]{GET_NOTE}",
    ),
    "nothing between": (
        OutputSyntax(calls=CallSyntax(parts=("[CALL]", NAME, ARGUMENTS))),
        f"[CALL]get{GET}[CALL]get_note{GET_NOTE}",
    ),
    "arguments first": (
        OutputSyntax(
            calls=CallSyntax(
                parts=('<call>{"arguments": ', ARGUMENTS, ', "name": "', NAME, '"}</call>')
            )
        ),
        f'<call>{{"arguments": {GET}, "name": "get"}}</call>'
        f'<call>{{"arguments": {GET_NOTE}, "name": "get_note"}}</call>',
    ),
    "numbers": (
        OutputSyntax(
            calls=CallSyntax(
                parts=("<|begin|>functions.", NAME, ":", INDEX, "<|args|>", ARGUMENTS, "<|end|>"),
                begin="<|section|>",
                end="<|section_end|>",
            )
        ),
        f"<|section|><|begin|>functions.get:0<|args|>{GET}<|end|>"
        f"<|begin|>functions.get_note:1<|args|>{GET_NOTE}<|end|><|section_end|>",
    ),
    "pretty": (
        OutputSyntax(
            calls=CallSyntax(
                parts=(
                    '  {\n    "name": "',
                    NAME,
                    '",\n    "args": ',
                    ARGUMENTS,
                    "\n  }",
                ),
                begin="Action:\n```json\n[\n",
                separator=",\n",
                end="\n]```\n",
            )
        ),
        f'Action:\n```json\n[\n  {{\n    "name": "get",\n    "args": {GET}\n  }},\n'
        f'  {{\n    "name": "get_note",\n    "args": {GET_NOTE}\n  }}\n]```',
    ),
    "tagged": (
        OutputSyntax(
            reasoning=THINK,
            calls=CallSyntax(
                parts=(
                    "<tool_call>\n<function=",
                    NAME,
                    ">\n",
                    ARGUMENTS,
                    "</function>\n</tool_call>",
                ),
                separator="\n",
                tagged=TaggedArguments("<parameter=", ">\n", "\n</parameter>\n"),
            ),
        ),
        "<tool_call>\n<function=get>\n<parameter=city>\nBern\n</parameter>\n"
        "<parameter=days>\n12\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=get_note>\n<parameter=kind>\nto do\n</parameter>\n"
        "<parameter=pages>\n[1, 99]\n</parameter>\n"
        "<parameter=text>\nx < y\n\n\n</parameter>\n</function>\n</tool_call>",
    ),
    "tagged, separated": (
        OutputSyntax(
            calls=CallSyntax(
                parts=("<invoke ", NAME, ">", ARGUMENTS, "</invoke>"),
                begin="\n<calls>\n",
                end="\n</calls>",
                tagged=TaggedArguments("<arg ", ">", "</arg>", separator="; "),
            )
        ),
        "<calls>\n<invoke get><arg city>Bern</arg>; <arg days>-1</arg></invoke>"
        "<invoke get_note><arg kind>memo</arg>; <arg text></arg></invoke>\n</calls>",
    ),
    "tagged, json": (
        OutputSyntax(
            calls=CallSyntax(
                parts=("<invoke ", NAME, ">", ARGUMENTS, "</invoke>"),
                tagged=TaggedArguments("<arg ", ">", "</arg>", json_strings=True),
            )
        ),
        '<invoke get><arg city>"Bern"</arg></invoke>'
        '<invoke get_note><arg kind>"memo"</arg><arg text>""</arg></invoke>',
    ),
}


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    initialize()
    model = Model(str(model_path()), Options())
    yield model
    model.close()


@pytest.fixture(scope="module")
def compiler(model: Model) -> Iterator[Compiler]:
    compiler = Compiler(model)
    yield compiler
    compiler.close()


def grammar(syntax: OutputSyntax, **options: Any) -> AnswerGrammar:
    chosen: dict[str, Any] = {"tools": TOOLS, "required": True, "tool_name": None}
    chosen |= {"parallel": True, "thinking": False, **options}
    found = answer_grammar(syntax, **chosen)
    assert found is not None
    return found


def params(syntax: OutputSyntax, thinking: bool = False, **options: Any) -> GenerationParams:
    found = grammar(syntax, thinking=thinking, **options)
    made = answer_params(GenerationParams(), syntax, found, thinking=thinking)
    made.preserved_tokens = []  # ids, which the engine makes of texts
    return made


def accepts(compiler: Compiler, model: Model, made: GenerationParams, text: str) -> bool:
    """Whether `text` may be the whole answer."""
    guide = compiler.guide(made)
    assert guide is not None
    ids = model.tokenize(text.encode(), add_special=False, parse_special=False).tolist()
    for i, token in enumerate(ids):
        if guide.ended or (guide.allowed is not None and token not in guide.allowed):
            return False
        if guide.advance(token):
            return i == len(ids) - 1
    return guide.allowed is None or bool(model.eog & set(guide.allowed.tolist()))


# ---- what is allowed ---------------------------------------------------------------------


@pytest.mark.parametrize("name", SYNTAXES)
def test_calls_as_templates_write_them(compiler: Compiler, model: Model, name: str) -> None:
    syntax, text = SYNTAXES[name]
    assert accepts(compiler, model, params(syntax), text)
    assert not accepts(compiler, model, params(syntax, parallel=False), text)
    assert not accepts(compiler, model, params(syntax, tool_name="get"), text)
    assert not accepts(compiler, model, params(syntax), text.replace("get", "gut"))
    assert not accepts(compiler, model, params(syntax), "Hello")
    assert not accepts(compiler, model, params(syntax), text[:-3])


@pytest.mark.parametrize("name", SYNTAXES)
@pytest.mark.parametrize("before", ["", "I'll look.\n"])
def test_lazy_calls(compiler: Compiler, model: Model, name: str, before: str) -> None:
    syntax, text = SYNTAXES[name]
    made = params(syntax, required=False)
    assert made.grammar_lazy
    assert accepts(compiler, model, made, before + text)
    assert not accepts(compiler, model, made, before + text.replace("get", "gut"))
    assert accepts(compiler, model, made, "Hello, get a call [ or < that?")


@pytest.mark.parametrize("name", ["json in tags", "tagged"])
def test_thoughts_before_calls(compiler: Compiler, model: Model, name: str) -> None:
    syntax, text = SYNTAXES[name]
    thoughts = "a <tool_call> or\nnot </thin"
    assert accepts(compiler, model, params(syntax), f"<think>\n{thoughts}\n</think>\n\n{text}")
    assert accepts(compiler, model, params(syntax), f"<think></think>{text}")
    opened = params(syntax, thinking=True)
    assert accepts(compiler, model, opened, f"{thoughts}\n</think>\n\n{text}")
    assert not accepts(compiler, model, opened, text)
    lazy = params(syntax, required=False)
    assert accepts(compiler, model, lazy, f"<think>\n{thoughts}\n</think>\n\nOh! {text}")
    lazy = params(syntax, required=False, thinking=True)
    assert accepts(compiler, model, lazy, f"{thoughts}\n</think>\n\n{text}")
    wrong = text.replace("get", "gut")
    assert not accepts(compiler, model, lazy, f"{thoughts}\n</think>\n\n{wrong}")


BARE = OutputSyntax(calls=in_json("parameters", parallel=False))


def test_calls_without_a_marker_begin_the_answer(compiler: Compiler, model: Model) -> None:
    call, wrong = '{"name": "get", "parameters": {"city": "x"}}', '{"name": "get", "parameters": 1}'
    lazy = params(BARE, required=False)
    assert accepts(compiler, model, lazy, call)
    assert not accepts(compiler, model, lazy, wrong)
    assert accepts(compiler, model, lazy, f"Such as: {wrong}")
    assert accepts(compiler, model, params(BARE), call)


def test_an_end_of_calls_that_ends_the_answer_is_no_text(compiler: Compiler, model: Model) -> None:
    calls = in_json("arguments", begin="<calls>", end="<|im_end|>", stops=True)
    text = '<calls>{"name": "get", "arguments": {"city": "x"}}'
    assert accepts(compiler, model, params(OutputSyntax(calls=calls)), text)


CHANNELS = OutputSyntax(harmony=True)


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=functions.get <|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.get<|message|>",
        " to=functions.get<|channel|>commentary json<|message|>",
    ],
)
def test_channels(compiler: Compiler, model: Model, header: str) -> None:
    thoughts = "<|channel|>analysis<|message|>to=functions.x?<|end|><|start|>assistant"
    for required in (True, False):
        made = params(CHANNELS, required=required)
        for before in ("", thoughts):
            assert accepts(compiler, model, made, before + header + GET)
            assert not accepts(compiler, model, made, before + header + '{"city": 1}')
    made = params(CHANNELS, required=False, schema=NOTE)
    assert accepts(compiler, model, made, header + GET)
    assert accepts(compiler, model, made, f"{thoughts}<|channel|>final<|message|>{GET_NOTE}")


PREFIXED = OutputSyntax(
    content=Wrapper(">>>all\n"), calls=CallSyntax(parts=(">>>", NAME, "\n", ARGUMENTS))
)


def test_what_the_prompt_has_begun_is_not_written_again(compiler: Compiler, model: Model) -> None:
    prompt = "<|start_header_id|>assistant<|end_header_id|>\n\n>>>"
    made = params(PREFIXED, prompt=prompt)
    assert accepts(compiler, model, made, f"get\n{GET}>>>get_note\n{GET_NOTE}")
    lazy = params(PREFIXED, prompt=prompt, required=False)
    assert accepts(compiler, model, lazy, "all\nWell, get\nit >>> there")
    assert accepts(compiler, model, lazy, f"get\n{GET}>>>get_note\n{GET_NOTE}")
    assert not accepts(compiler, model, lazy, "get\n[]")
    assert accepts(compiler, model, lazy, f"all\nWell >>>get_note\n{GET_NOTE}")
    assert not accepts(compiler, model, lazy, "all\nWell >>>get_note\n[]")
    made = params(PREFIXED, prompt=prompt, tools=[], schema=NOTE)
    assert accepts(compiler, model, made, f"all\n{GET_NOTE}")


def test_json_answers(compiler: Compiler, model: Model) -> None:
    syntax, call = SYNTAXES["json in tags"]
    made = params(syntax, tools=[], schema=WEATHER)
    assert not made.grammar_lazy
    for before in ("", "<think>\nHm\n</think>\n\n"):
        assert accepts(compiler, model, made, before + GET)
        assert not accepts(compiler, model, made, before + GET_NOTE)
        assert not accepts(compiler, model, made, before + call)
        either = params(syntax, required=False, schema=WEATHER)
        assert accepts(compiler, model, either, before + GET)
        assert accepts(compiler, model, either, before + call)
        assert not accepts(compiler, model, either, before + "Hello")
    wrapped = OutputSyntax(content=Wrapper("<response>", "</response>"))
    made = params(wrapped, tools=[], schema=WEATHER)
    assert accepts(compiler, model, made, f"<response>{GET}</response>")
    assert accepts(compiler, model, made, GET)
    for schema in ({}, True):
        assert accepts(compiler, model, params(wrapped, tools=[], schema=schema), '{"any": 1}')


@pytest.mark.parametrize("name", ["list with ids", "name before", "pretty"])
def test_json_or_calls(compiler: Compiler, model: Model, name: str) -> None:
    syntax, calls = SYNTAXES[name]
    schema = {"type": "array", "items": {"type": ["string", "boolean"]}}
    made = params(syntax, required=False, schema=schema)
    assert accepts(compiler, model, made, calls)
    for text in ('["a"]', "[true]", "[]"):
        assert accepts(compiler, model, made, text)


def test_nothing_to_follow() -> None:
    nothing: dict[str, Any] = {"required": False, "tool_name": None}
    nothing |= {"parallel": True, "thinking": False, "tools": []}
    assert answer_grammar(OutputSyntax(), **nothing) is None


@pytest.mark.parametrize("name", ["json in tags", "tagged"])
def test_no_thoughts(compiler: Compiler, model: Model, name: str) -> None:
    syntax, text = SYNTAXES[name]
    made = params(syntax, may_think=False)
    assert accepts(compiler, model, made, text)
    assert not accepts(compiler, model, made, f"<think></think>{text}")
    opened = params(syntax, thinking=True, may_think=False)
    assert accepts(compiler, model, opened, f"</think>{text}"), "thoughts that are open, end"
    call = f"<|channel|>commentary to=functions.get<|message|>{GET}"
    made = params(CHANNELS, may_think=False)
    assert accepts(compiler, model, made, call)
    thoughts = "<|channel|>analysis<|message|><|end|><|start|>assistant"
    assert not accepts(compiler, model, made, thoughts + call)


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


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize("found", FIXTURES, ids=lambda found: found.name)
def test_answers_of_all_families(
    compiler: Compiler, model: Model, found: Fixture, required: bool
) -> None:
    for answer in found.answers:
        if required and (answer.message.content or not answer.message.calls):
            continue
        made = params(
            found.syntax,
            tools=FAMILY_TOOLS,
            required=required,
            thinking=found.opens_thoughts,
            prompt=found.prompt_tail,
        )
        text = answer.text.removesuffix("<|call|>").rstrip()
        assert accepts(compiler, model, made, text), text


# ---- tagged arguments --------------------------------------------------------------------


def tagged(schema: Any, *, required: bool = True) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": schema}, "required": ["x"] if required else []}


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


# ---- arguments validate ------------------------------------------------------------------


def arguments(syntax: OutputSyntax, text: str, name: str, schema: Any) -> Any:
    """The arguments of the only call in `text`, of the tool `name`."""
    calls = syntax.calls
    assert calls is not None
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
    guide = compiler.guide(params(syntax, tool_name=function["name"], parallel=False))
    assert guide is not None
    likely = set(model.tokenize(example.encode(), add_special=False, parse_special=False).tolist())
    draw = random.Random(seed)
    text = b""
    for _ in range(400):
        if guide.ended:
            break
        assert guide.allowed is not None
        allowed = guide.allowed.tolist()
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


# ---- what is refused ---------------------------------------------------------------------

CYCLIC = {"properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"]}
CYCLIC |= {"type": "object", "$defs": {"a": {"$ref": "#/$defs/a"}}}


@pytest.mark.parametrize("name", ["json in tags", "tagged"])
@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (CYCLIC, "'bad'"),
        ({"properties": {"a": {"not": {}}}}, "'bad'.*'not'"),
        ({"properties": {"a": {"type": "wrong"}}}, "'bad'"),
        ({"properties": {"a": {"type": "array", "items": 5}}}, "'bad'"),
        ({"properties": 5}, "'bad'"),
        ({"properties": {"a": {"$ref": "#/nowhere"}}}, "'bad'"),
        ({"type": "string"}, "'bad'.*'object'"),
        ("a text", "'bad'"),
        (False, "'bad'"),
        ({"properties": {"a": {"type": "array", "items": {"pattern": "(?=a)"}}}}, "'bad'"),
    ],
)
def test_bad_schemas_name_the_tool(
    compiler: Compiler, name: str, required: bool, parameters: Any, message: str
) -> None:
    tools = [tool("good", WEATHER), tool("bad", parameters)]
    with pytest.raises((EngineError, GrammarError), match=f"parameters of the tool {message}"):
        compiler.guide(params(SYNTAXES[name][0], tools=tools, required=required))


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"type": "object"}, {"type": "object", "properties": {}}]},
        {"type": "object", "patternProperties": {"a": {}}},
        tagged({"type": "string", "pattern": "a$b"}),
        tagged({"type": "string", "format": "ipv6"}),
        tagged({"enum": ["1", 1]}),
        tagged({"enum": []}),
        tagged({"allOf": [{"minLength": 1}, {"maxLength": 2}]}),
        {"type": "object", "properties": {"a>\nb": {}}},
        {"type": "object", "properties": {f"p{n}": {} for n in range(2000)}},
    ],
)
def test_what_tags_can_not_say(compiler: Compiler, schema: Any) -> None:
    with pytest.raises((EngineError, GrammarError), match="parameters of the tool 'f'"):
        compiler.guide(params(SYNTAXES["tagged"][0], tools=[tool("f", schema)]))


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ([{"type": "function"}], "not a function with a name"),
        ([{"type": "retrieval", "function": {"name": "x"}}], "not a function"),
        ([tool("", {})], "can't be called"),
        ([tool('a"b', {})], "can't be called"),
        ([tool("a b", {})], "can't be called"),
        ([tool("x" * 200, {})], "can't be called"),
        ([tool("x", {}), tool("x", {})], "another tool 'x'"),
    ],
)
def test_bad_tools(tools: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(EngineError, match=re.escape(message)):
        grammar(OutputSyntax(), tools=tools)


def test_a_named_tool_has_to_be_there() -> None:
    with pytest.raises(EngineError, match="no tool 'x'"):
        grammar(OutputSyntax(), tool_name="x")


def test_what_can_not_be_combined() -> None:
    with pytest.raises(EngineError, match="response_format and tools"):
        grammar(BARE, required=False, schema=WEATHER)
    found = grammar(OutputSyntax())
    with pytest.raises(EngineError, match="together"):
        answer_params(GenerationParams(grammar="x"), OutputSyntax(), found, thinking=False)


def test_markers_are_to_be_shown() -> None:
    syntax, _ = SYNTAXES["numbers"]
    made = answer_params(GenerationParams(), syntax, None, thinking=False)
    assert made.preserved_tokens == syntax.markers


@pytest.mark.parametrize("name", ["json in tags", "tagged"])
def test_many_tools(compiler: Compiler, model: Model, name: str) -> None:
    syntax, _ = SYNTAXES[name]
    tools = [tool(f"tool_{n}", {**WEATHER, "description": str(n)}) for n in range(128)]
    guide = compiler.guide(params(syntax, tools=tools))
    assert guide is not None
    assert guide.allowed is not None


@pytest.mark.parametrize("name", ["json in tags", "tagged"])
def test_large_tools(compiler: Compiler, name: str) -> None:
    """Compiled, or refused by name; never a fault of the server."""
    syntax, _ = SYNTAXES[name]
    wide = {"type": "object", "properties": {f"p{n:05}": {"type": "string"} for n in range(30_000)}}
    deep: Any = {"type": "string"}
    for _ in range(2000):
        deep = {"type": "array", "items": deep}
    for schema in (wide, tagged(deep)):
        with pytest.raises((EngineError, GrammarError), match="'f'"):
            compiler.guide(params(syntax, tools=[tool("f", schema)]))
