"""Stop strings end an answer only in its text, as its parser finds it."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.chat import harmony_markers
from specllama.engine.chat.grammar.triggers import stop_scope
from specllama.engine.chat.output import ChatMessage, ToolCall
from specllama.engine.chat.request import ReasoningFormat
from specllama.engine.chat.syntax import OutputSyntax
from specllama.engine.params import StopScope
from specllama.engine.worker.generation.request import TextStream
from tests.support.chat_strategies import TOOLS, messages, parse, pieces
from tests.support.chat_syntaxes import SYNTAXES
from tests.support.chat_writer import write_answer
from tests.support.covering import examples

every_syntax = pytest.mark.parametrize("syntax", SYNTAXES.values(), ids=SYNTAXES)
QWEN, HARMONY = SYNTAXES["qwen 3"], OutputSyntax(harmony=True)


def scope(syntax: OutputSyntax, **changes: Any) -> StopScope:
    options: dict[str, Any] = {"reasoning": "auto", "thinking": False, "tools": TOOLS}
    return stop_scope(syntax, **{**options, "required": False, **changes})


def shown(within: StopScope | None, stops: list[str], parts: Iterable[str]) -> tuple[str, str]:
    """The text that a client gets of an answer, and the stop string that ended it."""
    stream = TextStream(stops, within)
    text = ""
    for part in parts:
        text += stream.feed(part.encode())
        assert stream.n_held >= 0
        if stream.stopping_word:
            return text, stream.stopping_word
    return text + stream.finish(), stream.stopping_word


def first_stop(text: str, stops: list[str]) -> tuple[str, str] | None:
    """`text` up to the stop string that is complete first, the longest of several, and that."""
    ends = [(text.index(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not ends:
        return None
    end, _, stop = min(ends)
    return text[: end - len(stop)], stop


@st.composite
def stop_strings(draw: st.DrawFn, text: str, syntax: OutputSyntax) -> list[str]:
    """Some that the answer has somewhere, markers, parts of these, and others."""
    markers = [marker for marker in syntax.markers if marker.strip()] or ["<"]
    found = ["\n", "\n\n", "<", '"', "}", " "]
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(text)))
        found.append(text[start : start + draw(st.integers(1, 8))])
        found.append(draw(st.sampled_from(markers)))
    return draw(st.lists(st.sampled_from([each for each in found if each]), min_size=1, max_size=4))


@every_syntax
@examples(20)
@given(data=st.data())
def test_a_stop_string_counts_in_the_text_alone(syntax: OutputSyntax, data: st.DataObject) -> None:
    message = data.draw(messages(syntax))
    thinks = bool(syntax.reasoning or syntax.harmony)
    thinking = thinks and data.draw(st.booleans())
    text = write_answer(syntax, message, thinking=thinking)
    stops = data.draw(stop_strings(text, syntax))
    found, word = shown(scope(syntax, thinking=thinking), stops, data.draw(pieces(text)))
    # White space before the next marker may still be text.
    before = write_answer(syntax, ChatMessage("", message.reasoning), thinking=thinking)
    begin = harmony_markers.MESSAGE if syntax.harmony else syntax.content.begin
    place = 0
    if message.content:
        place = text.index(begin + message.content, len(before)) + len(begin)
    behind = text[place + len(message.content) :]
    space = behind[: len(behind) - len(behind.lstrip())] if message.content else ""
    expected = first_stop(message.content + space, stops)
    if expected is None:
        assert (found, word) == (text, "")
    else:
        assert word == expected[1]
        said = parse(syntax, [found], thinking=thinking)
        assert (said.content.rstrip(), said.calls) == (expected[0].rstrip(), [])
        assert said.reasoning == message.reasoning


@every_syntax
@examples(10)
@given(data=st.data())
def test_pieces_make_no_difference(syntax: OutputSyntax, data: st.DataObject) -> None:
    """For any text, even one that no template writes."""
    words = st.sampled_from([*syntax.markers, "<", "{", "\n", " ", "a", "b", "ab"])
    text = "".join(data.draw(st.lists(words, max_size=12)))
    stops = data.draw(stop_strings(text, syntax)) if text else ["a"]
    within = scope(syntax)
    assert shown(within, stops, data.draw(pieces(text))) == shown(within, stops, list(text))


STOPS = ["\n\n", "stop", "</", '"', "<|", "{", "think"]
CALL = '<tool_call>\n{"name": "f", "arguments": {"text": "stop\\n\\n"}}\n</tool_call>'
HARMONY_CALL = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"


@pytest.mark.parametrize(
    ("syntax", "text"),
    [
        (QWEN, "<think>\n\nstop {\n</think>\n\nHello"),
        (QWEN, "\n\n<think>\n</think>\n\n\nHello"),
        (QWEN, "</think>\n\nHello"),
        (QWEN, f"<think>\n\n</think>\n\n{CALL}\n\n{CALL}"),
        (QWEN, f"Hello\n{CALL}"),
        (SYNTAXES["qwen 3 coder"], "<function=f>\n<parameter=text>\n\nstop</parameter>"),
        (HARMONY, "<|channel|>analysis<|message|>\n\nstop<|end|><|start|>assistant"),
        (HARMONY, "<|channel|>final<|message|>Hello"),
        (HARMONY, "<|channel|>commentary<|message|>Hello<|end|><|start|>assistant" + HARMONY_CALL),
        (HARMONY, ' to=functions.f<|channel|>commentary json<|message|>{"a": "stop"}'),
    ],
)
def test_bytes_that_are_no_text_go_on(syntax: OutputSyntax, text: str) -> None:
    assert shown(scope(syntax), STOPS, text) == (text, "")


@pytest.mark.parametrize(
    ("syntax", "text", "content"),
    [
        (QWEN, "<think>\n\n</think>\n\nHello\n\nYou", "Hello"),
        (QWEN, "Hello <think>", "Hello <"),
        (QWEN, "Hello <tool_calm", "Hello <tool_calm"),
        (HARMONY, "<|channel|>final<|message|>Hello\n\nYou", "Hello"),
        (HARMONY, "<|channel|>commentary<|message|>Hello stop<|end|>", "Hello "),
        (OutputSyntax(), "\n\nHello", ""),
    ],
)
def test_the_text_ends(syntax: OutputSyntax, text: str, content: str) -> None:
    found, word = shown(scope(syntax), STOPS, text)
    assert bool(word) == (found != text)
    assert parse(syntax, [found]).content.rstrip() == content.rstrip()


@pytest.mark.parametrize("reasoning", ["none", "deepseek-legacy"])
def test_thoughts_that_are_content_count(reasoning: ReasoningFormat) -> None:
    found = shown(scope(QWEN, reasoning=reasoning), ["\n\n"], "<think>\n\nSo.</think>")
    assert found == ("<think>", "\n\n")
    opened = scope(QWEN, reasoning=reasoning, thinking=True)
    assert shown(opened, ["</think>"], "So.</think>") == ("So.", "</think>")
    assert shown(opened, ["stop"], f"So.</think>{CALL}") == (f"So.</think>{CALL}", "")


def test_without_tools_a_call_is_text() -> None:
    assert shown(scope(QWEN, tools=()), ["stop"], CALL) == (CALL[: CALL.index("stop")], "stop")


def test_a_required_call_has_no_text() -> None:
    bare = '{"parameters": {"text": "stop"}, "name": "f"}'
    assert shown(scope(SYNTAXES["llama 3"], required=True), ["stop"], bare) == (bare, "")


def test_an_answer_that_goes_on_is_text_at_once() -> None:
    assert shown(scope(QWEN, continued=True), ["\n\n"], "\n\nYou") == ("", "\n\n")
    thinking = scope(QWEN, continued=True, thinking=True)
    assert shown(thinking, ["\n\n"], "\n\nSo.</think>Yes") == ("\n\nSo.</think>Yes", "")


def test_a_stop_string_reaches_over_no_marker() -> None:
    assert shown(scope(QWEN), ["a</think>b"], "a</think>b") == ("", "a</think>b")
    assert shown(scope(QWEN), ["a</think>b"], "<think>a</think>b") == ("<think>a</think>b", "")
    syntax = SYNTAXES["command r7b"]
    begin, end = (text.strip() for text in (syntax.content.begin, syntax.content.end))
    text = f"{begin}a{end}"
    assert shown(scope(syntax), [f"a{end}", end, "|"], text) == (text, "")


def test_a_match_ends_the_text_at_once() -> None:
    """With the character that completes it, unless that may begin a marker."""
    stream = TextStream(["\n\n"], scope(QWEN))
    for character in "<think>\n\n</think>\n\nHello\n":
        stream.feed(character.encode())
        assert not stream.stopping_word
    stream.feed(b"\n")
    assert stream.stopping_word


def test_no_text_is_late_by_more_than_a_marker() -> None:
    stream = TextStream(["x"], scope(QWEN))
    assert stream.feed(b"Hello <tool") == "Hello "
    assert stream.n_held == 5
    assert stream.feed(b" and") == "<tool and"
    assert stream.feed(b" <tool_call>{") == " <tool_call>{"
    assert stream.feed(b"x") == "x"


def test_the_scope_is_small() -> None:
    """Whatever it consists of: a few markers, and one for each tool if no tag marks calls."""
    for syntax in SYNTAXES.values():
        assert len(scope(syntax).asides) < 20 + 2 * len(TOOLS)


def test_calls_that_were_written() -> None:
    message = ChatMessage("Hi", "", [ToolCall("abcdefghi", "f", '{"text": "stop"}')])
    for syntax in SYNTAXES.values():
        if syntax.calls and not syntax.calls.opening.startswith("{"):
            text = write_answer(syntax, message)
            assert shown(scope(syntax), ["stop"], text) == (text, ""), text
