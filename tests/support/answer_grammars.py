"""Syntaxes of calls with examples, and a check whether an answer's constraint allows a text."""

from typing import Any

import msgspec

from specllama.engine.chat.grammar.answer import AnswerGrammar, answer_grammar, answer_params
from specllama.engine.chat.syntax import (
    HERMES_CALLS,
    KEY,
    CallSyntax,
    Fill,
    OutputSyntax,
    TaggedArguments,
    Wrapper,
)
from specllama.engine.params import GenerationParams
from specllama.engine.worker.backend import Model
from specllama.engine.worker.constraints.compiler import Compiler

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
    "tagged, types said": (
        OutputSyntax(
            calls=CallSyntax(
                parts=('<invoke name="', NAME, '">', ARGUMENTS, "</invoke>"),
                begin="<calls>",
                end="</calls>",
                tagged=TaggedArguments(
                    '<arg name="',
                    '" string="true">',
                    "</arg>",
                    middles=tuple(
                        (kind, '" string="false">')
                        for kind in ("integer", "number", "boolean", "null", "array", "object")
                    ),
                ),
            )
        ),
        '<calls><invoke name="get"><arg name="city" string="true">Bern</arg>'
        '<arg name="days" string="false">12</arg></invoke>'
        '<invoke name="get_note"><arg name="kind" string="true">to do</arg>'
        '<arg name="pages" string="false">[1, 99]</arg>'
        '<arg name="text" string="true">12</arg></invoke></calls>',
    ),
    "tagged, keys as tags": (
        OutputSyntax(
            calls=CallSyntax(
                parts=("<invoke=", NAME, ">", ARGUMENTS, "</invoke>"),
                tagged=TaggedArguments("<", ">", f"</{KEY}>", item="item"),
            )
        ),
        "<invoke=get><city>Bern</city><days>12</days></invoke>"
        "<invoke=get_note><kind>memo</kind><text>x < y</text></invoke>",
    ),
    "literals": (
        OutputSyntax(
            calls=CallSyntax(
                parts=(NAME, "(", ARGUMENTS, ")"),
                begin="<|calls|>[",
                separator=", ",
                end="]<|/calls|>",
                tagged=TaggedArguments("", "=", "", ", ", quote="'"),
            )
        ),
        '<|calls|>[get(city="Bern", days=12), '
        'get_note(kind="memo", pages=[1], text="x")]<|/calls|>',
    ),
    "quotes of its own": (
        OutputSyntax(
            calls=CallSyntax(
                parts=("<|call>call:", NAME, "{", ARGUMENTS, "}<call|>"),
                tagged=TaggedArguments("", ":", "", ",", quote='<|"|>'),
            )
        ),
        '<|call>call:get{city:<|"|>Bern<|"|>,days:12}<call|>'
        '<|call>call:get_note{kind:<|"|>to do<|"|>,pages:[1,99],text:<|"|>a "b"<|"|>}<call|>',
    ),
}


def grammar(syntax: OutputSyntax, **options: Any) -> AnswerGrammar:
    chosen: dict[str, Any] = {"tools": TOOLS, "required": True, "tool_name": None}
    chosen |= {"parallel": True, "thinking": False, **options}
    found = answer_grammar(syntax, **chosen)
    assert found is not None
    return found


def params(syntax: OutputSyntax, thinking: bool = False, **options: Any) -> GenerationParams:
    found = grammar(syntax, thinking=thinking, **options)
    made = answer_params(GenerationParams(), syntax, found, thinking=thinking)
    # The engine derives ids from these texts.
    return msgspec.structs.replace(made, preserved_tokens=[])


def accepts(compiler: Compiler, model: Model, made: GenerationParams, text: str) -> bool:
    """True if the constraint allows `text` as a whole answer."""
    guide = compiler.guided(made).guide
    assert guide is not None
    ids = model.tokenize(text.encode(), add_special=False, parse_special=False).tolist()
    for i, token in enumerate(ids):
        if guide.ended or (guide.allowed is not None and token not in guide.allowed):
            return False
        if guide.advance(token):
            return i == len(ids) - 1
    return guide.allowed is None or bool(model.eog & set(guide.allowed.ids.tolist()))


def tagged(schema: Any, *, required: bool = True) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": schema}, "required": ["x"] if required else []}
