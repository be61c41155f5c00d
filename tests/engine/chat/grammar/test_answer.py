"""The constraint of an answer allows calls as templates write them, and nothing else; the rest is
refused."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from specllama.engine.chat.grammar.answer import answer_grammar, answer_params, no_calls_grammar
from specllama.engine.chat.syntax import CallSyntax, OutputSyntax, Wrapper
from specllama.engine.errors import EngineError
from specllama.engine.grammars.gbnf import GrammarError
from specllama.engine.params import GenerationParams
from specllama.engine.worker.backend import Model
from specllama.engine.worker.constraints.compiler import Compiler
from tests.support.answer_grammars import (
    ARGUMENTS,
    GET,
    GET_NOTE,
    NAME,
    NOTE,
    SYNTAXES,
    WEATHER,
    accepts,
    grammar,
    in_json,
    params,
    tagged,
    tool,
)
from tests.support.chat_fixtures import FIXTURES, Fixture
from tests.support.chat_fixtures import TOOLS as FAMILY_TOOLS

pytestmark = pytest.mark.slow

# ---- answers without calls ---------------------------------------------------------------


def without(
    syntax: OutputSyntax, prompt: str = "", names: Sequence[str] = ("get", "get_note")
) -> GenerationParams | None:
    """The parameters of an answer that has no calls; None if any text will do."""
    found = no_calls_grammar(syntax, names, prompt)
    if found is None:
        return None
    made = answer_params(GenerationParams(), syntax, found, thinking=False)
    return msgspec.structs.replace(made, preserved_tokens=[])


@pytest.mark.parametrize("name", SYNTAXES)
def test_no_call_begins_where_none_may(compiler: Compiler, model: Model, name: str) -> None:
    syntax, text = SYNTAXES[name]
    made = without(syntax)
    assert made is not None
    for before in ("", "I'll look.\n", "<think>\nSo.\n</think>\n\n" if syntax.reasoning else "\n"):
        assert not accepts(compiler, model, made, before + text), before
    for free in ("", 'Hello, get a call [ or < that?\nfunctions.get [1, 2] {"a": 1}', "é < ü"):
        assert accepts(compiler, model, made, free), free


@pytest.mark.parametrize("family", FIXTURES, ids=lambda each: each.name)
def test_no_call_of_a_family_begins_where_none_may(
    compiler: Compiler, model: Model, family: Fixture
) -> None:
    """Whatever its template writes; a family with plain JSON calls allows it."""
    names = [each["function"]["name"] for each in FAMILY_TOOLS]
    made = without(family.syntax, family.prompt_tail, names)
    assert (made is None) == (family.name == "llama_3")
    if made is None:
        return
    for answer in family.answers:
        accepted = accepts(compiler, model, made, answer.text)
        assert accepted == (not answer.message.calls), answer.text


def test_calls_that_begin_in_the_prompt(compiler: Compiler, model: Model) -> None:
    """The marker that content and calls share is in the prompt; the text after it distinguishes
    them."""
    calls = CallSyntax(parts=(">>>", NAME, "\n", ARGUMENTS))
    made = without(OutputSyntax(content=Wrapper(">>>all\n"), calls=calls), ">>>")
    assert made is not None
    assert not accepts(compiler, model, made, "get\n{}")
    assert not accepts(compiler, model, made, "all\nHello\n>>>get\n{}")
    assert accepts(compiler, model, made, "all\nLet me get\nthat. >>>")


# ---- allowed texts ---------------------------------------------------------------------


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


def test_text_that_the_prompt_has_begun_is_not_repeated(compiler: Compiler, model: Model) -> None:
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
    schema: Any
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


# ---- rejected requests ---------------------------------------------------------------------


CYCLIC = {"properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"]}
CYCLIC |= {"type": "object", "$defs": {"a": {"$ref": "#/$defs/a"}}}


@pytest.mark.parametrize("name", ["json in tags", "tagged"])
@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (CYCLIC, "'bad'"),
        ({"properties": {"a": {"type": "wrong"}}}, "'bad'"),
        ({"properties": {"a": {"type": "array", "items": 5}}}, "'bad'"),
        ({"properties": 5}, "'bad'"),
        ({"properties": {"a": {"$ref": "#/nowhere"}}}, "'bad'"),
        ("a text", "'bad'"),
        (False, "'bad'"),
        ({"properties": {"a": {"type": "array", "items": {"pattern": 5}}}}, "'bad'"),
    ],
)
def test_bad_schemas_name_the_tool(
    compiler: Compiler, name: str, required: bool, parameters: Any, message: str
) -> None:
    tools = [tool("good", WEATHER), tool("bad", parameters)]
    with pytest.raises((EngineError, GrammarError), match=f"parameters of the tool {message}"):
        compiler.guided(params(SYNTAXES[name][0], tools=tools, required=required))


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize("name", ["json in tags", "tagged"])
@pytest.mark.parametrize(
    ("parameters", "relaxed"),
    [
        ({"type": "string"}, ["f#/type"]),
        ({"type": "object", "not": {}}, ["f#/not"]),
        (tagged({"type": "array", "uniqueItems": True}), ["f#/properties/x/uniqueItems"]),
        (
            {"properties": {"a/b": {"$ref": "#/$defs/c"}}}
            | {"$defs": {"c": {"items": {"pattern": "(?=a)"}}}},
            ["f#/$defs/c/items/pattern"],
        ),
        (tagged({"type": "string", "pattern": "(?=a)"}), ["f#/properties/x/pattern"]),
        (tagged({"type": "integer", "minimum": 2**64}), ["f#/properties/x/minimum"]),
    ],
)
def test_ignored_parts_of_a_tool_are_reported(
    compiler: Compiler, name: str, required: bool, parameters: Any, relaxed: list[str]
) -> None:
    tools = [tool("f", parameters), tool("good", WEATHER)]
    found = compiler.guided(params(SYNTAXES[name][0], tools=tools, required=required))
    assert list(found.relaxed) == relaxed


@pytest.mark.parametrize(
    ("schema", "relaxed"),
    [
        ({"anyOf": [{"type": "object"}, {"type": "object", "properties": {}}]}, ["anyOf"]),
        ({"type": "object", "patternProperties": {"a": {}}}, ["patternProperties"]),
        (tagged({"type": "string", "pattern": "a$b"}), ["properties/x/pattern"]),
        (tagged({"type": "string", "format": "ipv6"}), ["properties/x/format"]),
        (tagged({"enum": ["1", 1]}), []),
        (tagged({"enum": ["5", 1]}), ["properties/x/enum"]),
        (tagged({"enum": ["</parameter>", "x"]}), ["properties/x/enum"]),
        (tagged({"type": "integer", "enum": ["a"]}), ["properties/x/type"]),
        (tagged({"allOf": [{"minLength": 1}, {"maxLength": 2}]}), ["properties/x/allOf"]),
        (tagged({"anyOf": [{"minLength": 1}, {"type": "integer"}]}), ["properties/x/anyOf/0"]),
        ({"type": "object", "properties": {"a>\nb": {}}}, ["properties/a>\nb"]),
        ({"type": "object", "properties": {"a": False}}, []),
        ({"type": "object", "required": True}, ["required"]),
    ],
)
def test_schemas_beyond_tags(compiler: Compiler, schema: Any, relaxed: list[str]) -> None:
    found = compiler.guided(params(SYNTAXES["tagged"][0], tools=[tool("f", schema)]))
    assert set(found.relaxed) == {f"f#/{where}" for where in relaxed}


@pytest.mark.parametrize(
    ("name", "schema", "relaxed"),
    [
        ("tagged, types said", tagged({"anyOf": [{"minLength": 1}, {"type": "integer"}]}), []),
        ("tagged, types said", tagged({"enum": ["5", 1, 5]}), []),
        ("tagged, types said", tagged({"enum": ["a", 1], "type": "null"}), ["properties/x/type"]),
        ("tagged, types said", tagged({"anyOf": [False]}), ["properties/x"]),
        ("tagged, types said", tagged({"pattern": "(?=a)"}), ["properties/x/pattern"]),
        ("tagged, keys as tags", tagged({"enum": ["a</x>", "b"]}), ["properties/x/enum"]),
        (
            "tagged, keys as tags",
            {"type": "object", "additionalProperties": {"type": "string"}},
            ["additionalProperties"],
        ),
        ("literals", tagged({"type": "string", "pattern": "(?=a)"}), ["properties/x/pattern"]),
        ("quotes of its own", tagged({"enum": ['a<|"|>', "b", 5]}), ["properties/x/enum"]),
        ("quotes of its own", tagged({"enum": ["5", 5, None]}), []),
        ("quotes of its own", tagged({"enum": [5, [5]]}), ["properties/x/enum"]),
        ("quotes of its own", tagged({"anyOf": [False]}), ["properties/x"]),
        ("quotes of its own", tagged({"minLength": 1, "type": ["integer", "string"]}), []),
        ("quotes of its own", tagged({"items": {"type": "integer"}, "minItems": 1}), []),
        ("quotes of its own", tagged({"items": {"minLength": 1}}), ["properties/x/items"]),
        (
            "quotes of its own",
            tagged({"type": ["integer", "object"], "minimum": 1, "required": ["a"]}),
            ["properties/x/required"],
        ),
    ],
)
def test_schemas_that_other_notations_can_not_express(
    compiler: Compiler, name: str, schema: Any, relaxed: list[str]
) -> None:
    found = compiler.guided(params(SYNTAXES[name][0], tools=[tool("f", schema)]))
    assert set(found.relaxed) == {f"f#/{where}" for where in relaxed}


@pytest.mark.parametrize(
    ("value", "allowed"),
    [("5", True), ("6", False), ('<|"|>b<|"|>', True), ('<|"|>5<|"|>', False), ("{}", False)],
)
def test_fixed_values_in_quotes_of_its_own(
    compiler: Compiler, model: Model, value: str, allowed: bool
) -> None:
    made = params(SYNTAXES["quotes of its own"][0], tools=[tool("f", tagged({"enum": ["b", 5]}))])
    assert accepts(compiler, model, made, f"<|call>call:f{{x:{value}}}<call|>") == allowed


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {f"p{n}": {} for n in range(2000)}},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}},
    ],
)
def test_too_large_or_wrong_schemas_between_tags(compiler: Compiler, schema: Any) -> None:
    with pytest.raises((EngineError, GrammarError), match="parameters of the tool 'f'"):
        compiler.guided(params(SYNTAXES["tagged"][0], tools=[tool("f", schema)]))


def test_parts_name_arguments_too() -> None:
    parts = {"allOf": [{"properties": {"a": {"type": "integer"}}}, {"required": ["a"]}]}
    made = params(SYNTAXES["tagged"][0], tools=[tool("f", {**parts, "type": "object"})])
    assert made.answer is not None
    assert made.answer.relaxed == ["f#/allOf"]
    assert "<parameter=a>" in made.answer.lark


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


def test_impossible_combinations() -> None:
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
    guide = compiler.guided(params(syntax, tools=tools)).guide
    assert guide is not None
    assert guide.allowed is not None


@pytest.mark.parametrize("name", ["json in tags", "tagged"])
def test_large_tools(compiler: Compiler, name: str) -> None:
    """Left out, or refused by name; never a fault of the server."""
    syntax, _ = SYNTAXES[name]
    wide = {"type": "object", "properties": {f"p{n:05}": {"type": "string"} for n in range(30_000)}}
    deep: Any = {"type": "string"}
    for _ in range(2000):
        deep = {"type": "array", "items": deep}
    for schema in (wide, tagged(deep)):
        reports: tuple[str, ...]
        try:
            reports = compiler.guided(params(syntax, tools=[tool("f", schema)])).relaxed
        except (EngineError, GrammarError) as error:
            reports = (str(error),)
        assert any("'f'" in each or each.startswith("f#") for each in reports)
