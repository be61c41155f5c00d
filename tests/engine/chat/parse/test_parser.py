"""Parsers of answers return the model's answer, however the text is split."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.chat.output import (
    CallArguments,
    CallStart,
    ChatDelta,
    ChatMessage,
    Content,
    ToolCall,
)
from specllama.engine.chat.parse.parser import answer_parser
from specllama.engine.chat.request import ReasoningFormat
from specllama.engine.chat.syntax import CallSyntax, Fill, OutputSyntax
from tests.support.chat_strategies import TOOLS, messages, parse, pieces, said, tokens
from tests.support.chat_syntaxes import SYNTAXES
from tests.support.chat_writer import write_answer
from tests.support.covering import examples

pytestmark = pytest.mark.slow

some = examples(8)
every_syntax = pytest.mark.parametrize("syntax", SYNTAXES.values(), ids=SYNTAXES)


def hermes(text: str, **more: Any) -> ChatMessage:
    """Pieces of an answer with reasoning and calls in Hermes' style."""
    return parse(SYNTAXES["qwen 3"], text, **more)


@every_syntax
@some
@given(data=st.data())
def test_written_answers_are_parsed(syntax: OutputSyntax, data: st.DataObject) -> None:
    message = data.draw(messages(syntax))
    thinking = bool(syntax.reasoning or syntax.harmony) and data.draw(st.booleans())
    text = write_answer(syntax, message, thinking=thinking)
    found = parse(syntax, data.draw(pieces(text)), thinking=thinking)
    assert said(found) == said(message)
    if syntax.calls and Fill("id") in syntax.calls.parts:
        assert [call.id for call in found.calls] == [call.id for call in message.calls]
    assert len({call.id for call in found.calls}) == len(found.calls)


@every_syntax
@some
@given(data=st.data())
def test_a_prefix_is_parsed_as_a_prefix(syntax: OutputSyntax, data: st.DataObject) -> None:
    """Nothing that was said is ever taken back."""
    text = write_answer(syntax, data.draw(messages(syntax)))
    parser = answer_parser(syntax, reasoning="auto", thinking=False, tools=TOOLS)
    whole = parse(syntax, [text])
    so_far = ChatMessage(calls=[])
    for character in text:
        for delta in parser.feed(character):
            so_far.add(delta)
        assert whole.content.startswith(so_far.content)
        assert whole.reasoning.startswith(so_far.reasoning)
        assert len(so_far.calls) <= len(whole.calls)
        for call, final in zip(so_far.calls, whole.calls, strict=False):
            assert call.name == final.name
            assert final.arguments.startswith(call.arguments)


@every_syntax
@some
@given(data=st.data())
def test_a_cut_off_answer_is_parsed_as_a_prefix(syntax: OutputSyntax, data: st.DataObject) -> None:
    """Half a marker and half the head of a call are no text."""
    text = write_answer(syntax, data.draw(messages(syntax)))
    cut = data.draw(st.integers(0, len(text)))
    found, whole = parse(syntax, [text[:cut]], cut_off=True), parse(syntax, [text])
    # White space at the cut may have been meant to stand before a marker.
    assert whole.content.startswith(found.content.rstrip())
    assert whole.reasoning.startswith(found.reasoning.rstrip())
    assert len(found.calls) <= len(whole.calls)
    for call, final in zip(found.calls, whole.calls, strict=False):
        assert call.name == final.name
        assert final.arguments.startswith(call.arguments)


def test_a_call_that_is_cut_off_before_its_arguments_leaves_nothing() -> None:
    text = 'Yes.\n<tool_call>\n{"name": "f", "arguments": {"any": 1}}\n</tool_call>'
    for end in range(len("Yes."), text.index('"arguments": {') + len('"arguments": ')):
        found = hermes(text[:end], cut_off=True)
        assert (found.content.rstrip(), found.calls) == ("Yes.", []), text[:end]
    for end in range(len(text), 2 * len(text)):
        assert len(hermes((text + text)[:end], cut_off=True).calls) in (1, 2)
    assert hermes("Yes, <tool").content == "Yes, <tool"
    assert hermes("Yes, a < b", cut_off=True).content == "Yes, a < b"


def test_tagged_arguments_that_are_cut_off_are_no_whole_object() -> None:
    text = "<tool_call>\n<function=f>\n<parameter=text>\nx\n</parameter>\n"
    [call] = parse(SYNTAXES["qwen 3 coder"], [text], cut_off=True).calls
    assert call.arguments == '{"text": "x"'


def garbage(syntax: OutputSyntax) -> st.SearchStrategy[str]:
    """Markers and pieces of them, JSON and pieces of it, anything."""
    markers = [*syntax.markers, *sorted(tokens(syntax))]
    cut = [marker[: len(marker) // 2] for marker in markers]
    json_pieces = ["{", "}", "[", "]", '"', ",", ":", '"name"', '"arguments"', '"x"', "1", "\\"]
    words = st.sampled_from([*markers, *cut, *json_pieces, *TOOLS, " ", "\n", "text"])
    return st.lists(words | st.text(max_size=3), max_size=25).map("".join)


@every_syntax
@some
@given(data=st.data())
def test_garbage_is_content(syntax: OutputSyntax, data: st.DataObject) -> None:
    text = data.draw(garbage(syntax))
    found = parse(syntax, data.draw(pieces(text)), reasoning="none")
    again = parse(syntax, [text], reasoning="none")
    assert said(found) == said(again)
    wrapped = syntax.content.begin or syntax.harmony  # their markers are no content
    if not found.calls and not wrapped:
        assert found.content == text


@every_syntax
@some
@given(data=st.data())
def test_without_tools_calls_are_content(syntax: OutputSyntax, data: st.DataObject) -> None:
    message = data.draw(messages(syntax))
    text = write_answer(syntax, message)
    found = parse(syntax, data.draw(pieces(text)), reasoning="none", tools=None)
    assert not found.calls
    if not syntax.content.begin and not syntax.harmony:
        assert found.content == text


@given(st.data())
def test_names_alone_mark_calls(data: st.DataObject) -> None:
    syntax = SYNTAXES["qwen 3 coder"]
    text = "<tool_call>\n<function=f>\n<parameter=a>\n12\n</parameter>\n<parameter=b>\nx y\n"
    text += "</parameter>\n</function>\n</tool_call>"
    found = parse(syntax, data.draw(pieces(text)), tools=["f"])
    assert said(found) == ("", "", [("f", '{"a": 12, "b": "x y"}')])


# Thoughts.


@pytest.mark.parametrize("reasoning", ["auto", "deepseek"])
def test_reasoning_is_separated(reasoning: ReasoningFormat) -> None:
    found = hermes("<think>\n\nWell.\n\n</think>\n\n\nHello  ", reasoning=reasoning)
    assert said(found) == ("Hello  ", "Well.", [])


def test_thoughts_in_the_content() -> None:
    text = "<think>\nWell.\n</think>\n\nHello"
    assert said(hermes(text, reasoning="none")) == (text, "", [])
    assert said(hermes(text, reasoning="deepseek-legacy")) == (text, "Well.", [])


def test_thoughts_that_the_prompt_has_opened() -> None:
    text = "Well.\n</think>\n\nHello"
    assert said(hermes(text, thinking=True)) == ("Hello", "Well.", [])
    assert said(hermes(f"<think>\n{text}", thinking=True)) == ("Hello", "Well.", [])
    assert said(hermes(text, thinking=True, reasoning="none")) == (text, "", [])


def test_thoughts_that_never_end() -> None:
    assert said(hermes("<think>Well </thi")) == ("", "Well </thi", [])
    assert said(hermes("Well \n", thinking=True)) == ("", "Well \n", [])


def test_empty_thoughts() -> None:
    assert said(hermes("<think>\n\n</think>\n\nHello")) == ("Hello", "", [])


def test_a_mention_of_thoughts_is_content() -> None:
    text = "Write <think> and </think>."
    assert said(hermes(text)) == (text, "", [])
    assert said(hermes(" <thin")) == ("<thin", "", [])


def test_white_space_where_thoughts_may_come_is_no_content() -> None:
    assert hermes("\n\n Hi ").content == "Hi "
    assert hermes("\n\n<think>a</think>\n\n Hi ").content == "Hi "
    assert hermes(" Hi", continued=True).content == " Hi"
    assert hermes(" Hi", prompt="user: Hello\n<think>\n\n</think>\n\n").content == " Hi"
    assert hermes(" Hi", reasoning="none").content == " Hi"
    assert parse(OutputSyntax(), [" Hi"]).content == " Hi"


# Calls in JSON.


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "f", "arguments": {"a": [1, "}"]}}\n</tool_call>',
        '<tool_call>{"name":"f","arguments":{"a": [1, "}"]}}</tool_call>',
        '<tool_call> { "name" : "f" ,\n "arguments" :\t{"a": [1, "}"]} } </tool_call>\n\n',
        '<tool_call>{"arguments": {"a": [1, "}"]}, "name": "f"}</tool_call>',
        '<tool_call>{"name": "f", "parameters": {"a": [1, "}"]}}</tool_call>',
        '<tool_call>{"id": 7, "name": "f", "arguments": {"a": [1, "}"]}, "x": [{}]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": [1, \\"}\\"]}"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": [1, "}"]}}',  # the end is missing
        '<tool_call>{"name": "f", "arguments": {"a": [1, "}"]}',
        '<tool_call>{"name": "f", "arguments": {"a": [1, "}"]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": [1, "}"]}}}]</tool_call>',  # too much of it
        '<tool_call>[{"name": "f", "arguments": {"a": [1, "}"]}}]</tool_call>',
    ],
)
def test_variations_of_a_call(text: str) -> None:
    found = hermes(text)
    assert said(found) == ("", "", [("f", '{"a": [1, "}"]}')])
    assert len(found.calls[0].id) >= 24
    assert found.calls[0].id.isalnum()


@pytest.mark.parametrize("arguments", ["", ', "arguments": {}', ', "arguments": null'])
def test_a_call_without_arguments(arguments: str) -> None:
    found = hermes(f'<tool_call>{{"name": "f"{arguments}}}</tool_call>')
    assert said(found) == ("", "", [("f", "{}")])


def test_several_calls_and_text_around_them() -> None:
    found = hermes(
        'First.\n<tool_call>{"name": "f", "arguments": {}}</tool_call>\n'
        '<tool_call>{"name": "unknown", "arguments": {"a": 1}}</tool_call>\n\nThen \n'
        '<tool_call>{"name": "f", "arguments": {"b": 2}}</tool_call>\n'
    )
    assert said(found) == (
        "First.\n\nThen",
        "",
        [("f", "{}"), ("unknown", '{"a": 1}'), ("f", '{"b": 2}')],
    )


def test_calls_in_a_list_that_the_syntax_does_not_have() -> None:
    found = hermes(
        '<tool_call>[{"name": "f", "arguments": {}}, {"name": "f", "arguments": {}}]</tool_call>'
    )
    assert said(found) == ("", "", [("f", "{}"), ("f", "{}")])


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "<tool_call> is how calls begin.",
        '<tool_call>{"name": "f", "argu',
        '<tool_call>{"name": 1, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {"a": 1}}</tool_call>',
        '<tool_call>{"arguments": {<tool_call>',
        '<tool_call>{"name": "f", "arguments": ...}</tool_call>',
        "<tool_call>f(1)</tool_call> and more",
        "a < b, <tool, <tool_cal",
        "- \n<tool_call\n>",
    ],
)
def test_text_that_is_no_call_is_content(text: str) -> None:
    assert said(hermes(text)) == (text, "", [])


def test_a_call_after_something_that_is_none() -> None:
    found = hermes('So <tool_call> is it: <tool_call>{"name": "f", "arguments": {}}</tool_call>')
    assert said(found) == ("So <tool_call> is it:", "", [("f", "{}")])


def test_arguments_that_never_end() -> None:
    found = hermes('<tool_call>{"name": "f", "arguments": {"a": "b')
    assert said(found) == ("", "", [("f", '{"a": "b')])


def test_arguments_end_where_the_call_does() -> None:
    found = hermes('<tool_call>{"name": "f", "arguments": {"a": 1\n</tool_call>Done.')
    assert said(found) == ("Done.", "", [("f", '{"a": 1\n')])


def test_escapes_in_arguments_in_a_string() -> None:
    inner = json.dumps({"a": 'ü\n\t"\\/😀'})
    text = f'<tool_call>{{"name": "f", "arguments": {json.dumps(inner)}}}</tool_call>'
    assert said(hermes(text))[2] == [("f", inner)]
    text = '<tool_call>{"name": "f", "arguments": "\\u00fc\\ud83d\\ude00\\ud83dx\\u12"}</tool_call>'
    assert said(hermes(text))[2] == [("f", "ü😀\ufffdx\\u12")]


def test_a_name_is_announced_before_its_arguments_are_complete() -> None:
    parser = answer_parser(SYNTAXES["hermes"], reasoning="auto", thinking=False, tools=TOOLS)
    assert parser.feed('So.\n<tool_call>\n{"name": "get_wea') == [Content("So.")]
    assert parser.feed('ther", "arguments": ') == []
    start, first = parser.feed('{"city": "Zü')
    assert isinstance(start, CallStart)
    assert (start.index, start.name) == (0, "get_weather")
    assert isinstance(first, CallArguments)
    assert first.text == '{"city": "Zü'
    [rest] = parser.feed('rich"}}')
    assert isinstance(rest, CallArguments)
    assert rest.text == 'rich"}'


# Calls without a marker.


def llama(text: str) -> ChatMessage:
    return parse(SYNTAXES["llama 3"], text)


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "f", "parameters": {"a": 1}}',
        '\n {"name":"f","arguments":{"a": 1}}\n',
        '[{"name": "f", "parameters": {"a": 1}}]',
    ],
)
def test_bare_calls(text: str) -> None:
    found = llama(text)
    assert [(call.name, call.arguments) for call in found.calls] == [("f", '{"a": 1}')]
    assert found.content.strip() in ("", "]")


def test_several_bare_calls() -> None:
    found = llama('{"name": "f", "parameters": {}}; {"name": "get_weather", "parameters": {}}')
    assert said(found) == ("", "", [("f", "{}"), ("get_weather", "{}")])


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "unknown", "parameters": {}}',
        '{"name": "f"}',
        '{"title": "f", "parameters": {}}',
        'Here: {"name": "f", "parameters": {}}',
        "{",
        "[1] is a reference.",
        '{"name": "f", "parameters": 1}',
    ],
)
def test_text_that_is_no_bare_call_is_content(text: str) -> None:
    assert said(llama(text)) == (text, "", [])


def test_json_for_the_user_is_not_held_back() -> None:
    parser = answer_parser(SYNTAXES["llama 3"], reasoning="auto", thinking=False, tools=TOOLS)
    assert parser.feed('{"answer": "It ') == [Content('{"answer": "It')]


# Other ways to write calls.


def test_ids_come_from_the_model() -> None:
    text = '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}, "id": "abc123XYZ"}]'
    assert [call.id for call in parse(SYNTAXES["mistral nemo"], text).calls] == ["abc123XYZ"]
    text = "[TOOL_CALLS]f[CALL_ID]abc123XYZ[ARGS]{}"
    assert [call.id for call in parse(SYNTAXES["mistral names and ids"], text).calls] == [
        "abc123XYZ"
    ]


def test_an_id_that_is_missing_is_made_up() -> None:
    found = parse(SYNTAXES["mistral names and ids"], "[TOOL_CALLS]f[ARGS]{}")
    assert said(found) == ("", "", [("f", "{}")])
    assert len(found.calls[0].id) >= 24
    found = parse(SYNTAXES["mistral nemo"], '[TOOL_CALLS][{"name": "f", "arguments": {}}]')
    assert said(found) == ("", "", [("f", "{}")])
    assert len(found.calls[0].id) >= 24


def test_an_id_that_comes_again_is_made_anew() -> None:
    call = '{"name": "f", "arguments": {}, "id": "abc123XYZ"}'
    found = parse(SYNTAXES["mistral nemo"], f"[TOOL_CALLS][{', '.join([call] * 3)}]")
    assert found.calls[0].id == "abc123XYZ"
    assert len({each.id for each in found.calls}) == 3
    assert all(each.id.isalnum() for each in found.calls)


def test_an_id_spelled_out_of_name_and_index() -> None:
    text = (
        "<|tool_calls_section_begin|>\n<|tool_call_begin|>functions.f:3"
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
    )
    assert parse(SYNTAXES["kimi"], text).calls == [ToolCall("functions.f:3", "f", "{}")]


def test_a_list_without_its_brackets() -> None:
    found = parse(SYNTAXES["phi 4 mini"], '<|tool_call|>{"name": "f", "arguments": {}}')
    assert said(found) == ("", "", [("f", "{}")])


def test_the_outer_marker_is_forgotten() -> None:
    text = '<invoke name="f">\n<parameter name="count">1</parameter>\n</invoke>'
    assert said(parse(SYNTAXES["minimax"], text)) == ("", "", [("f", '{"count": 1}')])


def test_the_end_of_calls_is_not_content() -> None:
    text = '<|tool_call|>[{"name": "f", "arguments": {}}, oops]<|/tool_call|>'
    found = parse(SYNTAXES["phi 4 mini"], text)
    assert said(found) == (", oops]", "", [("f", "{}")])


def test_content_without_its_wrapper() -> None:
    assert said(parse(SYNTAXES["granite"], "Hello")) == ("Hello", "", [])
    assert said(parse(SYNTAXES["granite"], "<think>A</think><response>B")) == ("B", "A", [])
    text = '<|START_RESPONSE|>Hello<|START_ACTION|>[{"tool_name": "f", "parameters": {}}]'
    assert said(parse(SYNTAXES["command r7b"], text)) == ("Hello", "", [("f", "{}")])


def test_the_prompt_has_the_beginning() -> None:
    syntax = SYNTAXES["functionary recipients"]
    for text, expected in {
        "all\nHello": ("Hello", "", []),
        "f\n{}": ("", "", [("f", "{}")]),
        "all\nHello>>>f\n{}>>>f\n{}": ("Hello", "", [("f", "{}"), ("f", "{}")]),
        "Hello": ("Hello", "", []),
    }.items():
        assert said(parse(syntax, text, prompt="assistant\n\n>>>")) == expected
        assert said(parse(syntax, [text], prompt="assistant\n\n>>>")) == expected


# Syntaxes that can't be read.


@pytest.mark.parametrize(
    "calls",
    [
        CallSyntax(parts=("<call>", Fill("arguments"), "</call>")),
        CallSyntax(parts=("<call>", Fill("name"), "</call>")),
    ],
)
def test_a_syntax_without_name_or_arguments_has_no_calls(calls: CallSyntax) -> None:
    text = '<call>{"name": "f"}</call>'
    assert said(parse(OutputSyntax(calls=calls), text)) == (text, "", [])


def test_empty_input_gives_no_events() -> None:
    parser = answer_parser(OutputSyntax(), reasoning="auto", thinking=False, tools=None)
    deltas: list[ChatDelta] = [*parser.feed(""), *parser.finish()]
    assert deltas == []


def test_written_arguments_are_an_object() -> None:
    message = ChatMessage(calls=[ToolCall("1", "f", "[]")])
    with pytest.raises(ValueError, match="not a JSON object"):
        write_answer(SYNTAXES["glm"], message)


def test_white_space_goes_on_with_thoughts() -> None:
    syntax = SYNTAXES["qwen 3"]
    for continued, thoughts in ((True, " but no"), (False, "but no")):
        found = parse(syntax, " but no</think>Yes.", thinking=True, continued=continued)
        assert (found.reasoning, found.content) == (thoughts, "Yes.")
