"""Calls of tools that take a plain text."""

import json
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.chat.output import CallArguments, CallStart, ChatMessage, Content
from specllama.engine.chat.parse.parser import FreeTextCalls, answer_parser
from specllama.engine.chat.syntax import HERMES_CALLS, OutputSyntax

SYNTAX = OutputSyntax(calls=HERMES_CALLS)
new_parser = partial(
    answer_parser, SYNTAX, reasoning="auto", thinking=False, tools={"patch": None, "plain": None}
)


def written(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def read(text: str, *cuts: int) -> ChatMessage:
    """`text` as a message, parsed in the pieces that `cuts` make of it."""
    parser = FreeTextCalls(new_parser(), {"patch"})
    message = ChatMessage()
    ends = [*sorted(cuts), len(text)]
    for begin, end in zip([0, *ends], ends, strict=False):
        for delta in parser.feed(text[begin:end]):
            message.add(delta)
    for delta in parser.finish():
        message.add(delta)
    return message


@given(st.text(), st.booleans(), st.lists(st.integers(0, 200), max_size=3))
def test_the_text_comes_out_however_it_is_cut(text: str, ascii: bool, cuts: list[int]) -> None:
    whole = written("patch", json.dumps({"input": text}, ensure_ascii=ascii))
    [call] = read(whole, *(min(cut, len(whole)) for cut in cuts)).calls
    assert call.free_text
    assert call.arguments == text


@pytest.mark.parametrize("text", ['a"b\\c\n\t/ü😀', "😀😀", "\\u0041", ""])
@pytest.mark.parametrize("ascii", [True, False])
def test_every_pair_of_pieces(text: str, ascii: bool) -> None:
    whole = written("patch", json.dumps({"input": text}, ensure_ascii=ascii))
    for cut in range(len(whole)):
        assert read(whole, cut).calls[0].arguments == text


def test_half_a_pair_of_surrogates_is_no_character() -> None:
    assert read(written("patch", r'{"input": "a\ud83db"}')).calls[0].arguments == "a\ufffdb"


def test_the_text_grows_as_it_comes() -> None:
    parser = FreeTextCalls(new_parser(), {"patch"})
    begun = parser.feed('Here:<tool_call>\n{"name": "patch", "arguments": {"input": "one\\n')
    assert begun[0] == Content("Here:")
    start = begun[1]
    assert isinstance(start, CallStart)
    assert (start.name, start.free_text) == ("patch", True)
    assert parser.feed("two") == [CallArguments(0, "two")]
    assert parser.feed("\\u00") == []
    assert parser.feed("e9") == [CallArguments(0, "é")]
    assert parser.finish(cut_off=True) == []


def test_other_calls_keep_their_json() -> None:
    arguments = '{"input": "x"}'
    text = written("plain", arguments) + "\n" + written("patch", arguments)
    first, second = read(text).calls
    assert (first.arguments, first.free_text) == (arguments, False)
    assert (second.arguments, second.free_text) == ("x", True)
