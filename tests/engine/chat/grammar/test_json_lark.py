"""A grammar in JSON allows the same texts as the grammar by itself."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.chat.grammar.json_lark import TextGrammarError, in_json
from specllama.engine.grammars.gbnf import GrammarError
from specllama.engine.params import AnswerRules, GenerationParams, NamedGrammar
from specllama.engine.worker.backend import Model
from specllama.engine.worker.constraints.compiler import Compiler
from tests.support.answer_grammars import accepts

pytestmark = pytest.mark.slow

PATCH = r"""
start: begin hunk+ end
begin: "*** Begin Patch" LF
end: "*** End Patch" LF?
hunk: "*** Update File: " /(.+)/ LF line+
line: ("+" | "-" | " ") /(.*)/ LF -> line
// behind the rules
%import common.LF
"""


def made(lark: str) -> GenerationParams:
    quoted = NamedGrammar("the grammar", lark, in_json(lark))
    return GenerationParams(answer=AnswerRules('start: "\\"" @g "\\""', grammars={"g": quoted}))


@pytest.mark.parametrize(
    ("lark", "good", "bad"),
    [
        (PATCH, '*** Begin Patch\n*** Update File: a"b\\c\n-x\t= "1"\n+\n*** End Patch\n', "a"),
        (PATCH, "*** Begin Patch\n*** Update File: a\n x\n*** End Patch", "*** Begin Patch\nx"),
        (r'start: /[a-z"\n]+/', 'a"\nz', "A"),
        ('start: "a"i "\\n" B\nB: "x".."z"', "A\ny", "a\nw"),
        (r"start: /(?s:.)+/", 'a\n"\\', ""),
        (r"start: /.+/s", "\n", ""),
        (r"start: /.+/", 'a"\\\t', "\n"),
        (r'start: /[^"]*/', "a\\\n", '"'),
        (r"start: /\s\S\d\w\W\D/", '\n"1a"\\', 'a"1a"\\'),
        (r"start: /\x41\u{1F600}\n?\//", "A😀\n/", "B"),
        (r"start: /(?i)ab[c]\n/", "aBC\n", "ac\n"),
        (r'start: /"(\\.|[^"\\])*?"/', '"a\\"b"', '"a'),
        (r"start: /(a|b{2,3}|)x/", "bbx", "bx"),
        (r"start: /(a|b{2,3}|)x/", "x", "bbbbx"),
        ("start: NUMBER\n%import common.NUMBER", "2.5e3", "x"),
        ("start: N WS W\n%import common.INT -> N\n%import common (WS, WORD)\nW: WORD", "1\na", "a"),
        ('start: "\\"\\\\"', '"\\', "\\"),
    ],
)  # fmt: skip
def test_texts(compiler: Compiler, model: Model, lark: str, good: str, bad: str) -> None:
    assert accepts(compiler, model, made(lark), json.dumps(good, ensure_ascii=False))
    assert not accepts(compiler, model, made(lark), json.dumps(bad, ensure_ascii=False))


@given(st.text(alphabet='ab"\\\n\t\x00é ', max_size=6))
@pytest.mark.parametrize("regex", [r"[a\"\n]+", r"[^\\b]*", r"(a|\\)+\n?", r".*b", r"\s*\S"])
def test_regular_expressions_match_the_same(
    compiler: Compiler, model: Model, regex: str, text: str
) -> None:
    matches = re.fullmatch(regex, text) is not None
    assert (
        accepts(compiler, model, made(f"start: /{regex}/"), json.dumps(text, ensure_ascii=False))
        is matches
    )


@pytest.mark.parametrize(
    "lark",
    [
        'start: "a"\n%ignore " "',
        "start: @other",
        "start: <|end|>",
        "start: /a/x",
        r"start: /\p{L}/",
        "start: /[a&&b]/",
        "start: X\n%import common.NOTHING",
    ],
)
def test_schemas_that_are_not_rewritten(lark: str) -> None:
    with pytest.raises(TextGrammarError):
        in_json(lark)


@pytest.mark.parametrize("lark", ["start: (", "start: other", "begin: /a/", 'start: "a'])
def test_the_error_of_a_wrong_grammar_has_its_name(compiler: Compiler, lark: str) -> None:
    with pytest.raises(GrammarError, match="Failed to parse the grammar: "):
        compiler.guided(made(lark))
