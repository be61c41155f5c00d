"""An answer is parsed while it arrives, and a call that was cut off is never complete."""

import json
from functools import partial
from typing import Any

import msgspec
import pytest

from specllama.engine.chat.output import CallArguments, CallStart, ChatMessage, ToolCall
from specllama.engine.chat.parse.parser import FreeTextCalls, answer_parser
from specllama.engine.chat.request import ChatPrompt, ChatRequest
from specllama.engine.chat.syntax import OutputSyntax
from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import StopType
from specllama.handlers.apis.responses.format import status_of
from specllama.handlers.running.chat_batch import (
    AnswerReader,
    ChatAnswer,
    PreparedChat,
    constrained,
)
from tests.support.chat_strategies import TOOLS
from tests.support.chat_syntaxes import SYNTAXES
from tests.support.chat_writer import write_answer
from tests.support.factories import delta, finished

CALLED = ChatMessage("", "", [ToolCall("abcdefghi", "f", '{"text": "Ada", "count": 12}')])
every_syntax = pytest.mark.parametrize(
    "syntax", [s for s in SYNTAXES.values() if s.calls or s.harmony], ids=str
)


def read(syntax: OutputSyntax, text: str, stop_type: StopType, *, free: bool = False) -> ChatAnswer:
    """The answer that has come when the engine ends its `text` in this way."""
    new = partial(answer_parser, syntax, reasoning="auto", thinking=False, tools=TOOLS)
    parser = (lambda: FreeTextCalls(new(), {"f"})) if free else new
    reader = AnswerReader(PreparedChat([], GenerationParams(), parser))
    events = [reader.read(0, delta(each)) for each in text]
    end = finished(stop_type=stop_type)
    return ChatAnswer(reader.message, end, [*events, reader.read(0, end)])


def is_whole(call: ToolCall) -> bool:
    try:
        return isinstance(json.loads(call.arguments), dict)
    except ValueError:
        return False


@every_syntax
def test_a_cut_call_never_looks_whole(syntax: OutputSyntax) -> None:
    """Wherever a stop string or the limit cuts it, the visible part shows the cut."""
    text = write_answer(syntax, CALLED)
    n_cut = 0
    for end in range(len(text)):
        for stop_type in ("word", "limit"):
            answer = read(syntax, text[:end], stop_type)
            for call in answer.message.calls:
                assert call.arguments, "nothing but a name"
                if not is_whole(call):
                    n_cut += 1
                    assert answer.finish_reason == ("stop" if stop_type == "word" else "length")
                    assert status_of(answer.message, answer.finished) == "incomplete"
            if answer.finish_reason == "tool_calls":
                [call] = answer.message.calls
                assert json.loads(call.arguments) == json.loads(CALLED.calls[0].arguments)
    assert n_cut


TOOL: Any = {"type": "function", "function": {"name": "f", "parameters": None}}


def rules(request: ChatRequest, params: GenerationParams | None = None) -> str:
    """The grammar of the answer to `request`."""
    prompt = ChatPrompt("Hello", SYNTAXES["qwen 3"])
    made = constrained(prompt, request, params or GenerationParams())
    assert "<tool_call>" in str(made.preserved_tokens), "the engine can't see the marker"
    return made.answer.lark if made.answer and not made.grammar_lazy else ""


def test_an_answer_that_must_not_call() -> None:
    request = ChatRequest(messages=[], tools=[TOOL], tool_choice="none")
    assert "& ~" in rules(request)
    others: tuple[dict[str, Any], ...] = (
        {"tools": []},
        {"tool_choice": "auto"},
        {"parse_tool_calls": False},
    )
    for change in others:  # without tools a text may speak of calls, and some want them as text
        assert not rules(msgspec.structs.replace(request, **change))
    schema = rules(request, GenerationParams(json_schema="{}"))
    assert schema
    assert "& ~" not in schema
    assert not rules(request, GenerationParams(grammar='root ::= "a"'))


def test_stop_strings_are_bound_to_the_text_of_an_answer() -> None:
    request = ChatRequest(messages=[], tools=[TOOL])
    params = GenerationParams(stop=["a"])
    for syntax in SYNTAXES.values():
        made = constrained(ChatPrompt("", syntax), request, params)
        assert made.stop == ["a"]
        rules = made.answer
        assert (rules is not None and rules.stops is not None) == bool(syntax.markers)
        plain = constrained(ChatPrompt("", syntax), request, GenerationParams())
        assert plain.answer is None or plain.answer.stops is None


@every_syntax
def test_a_whole_call_is_one(syntax: OutputSyntax) -> None:
    answer = read(syntax, write_answer(syntax, CALLED), "eos")
    assert answer.finish_reason == "tool_calls"
    assert status_of(answer.message, answer.finished) == "completed"
    assert is_whole(answer.message.calls[0])


def test_a_plain_text_that_is_cut() -> None:
    """Half of it may be text as well: only the end of the answer decides."""
    text = '<tool_call>\n{"name": "f", "arguments": {"input": "rm -r /home/x'
    answer = read(SYNTAXES["qwen 3"], text, "word", free=True)
    assert answer.message.calls[0].arguments == "rm -r /home/x"
    assert answer.finish_reason == "stop"
    assert status_of(answer.message, answer.finished) == "incomplete"


def test_a_stop_string_behind_a_call() -> None:
    text = '<tool_call>\n{"name": "f", "arguments": {"count": 1}}\n</tool_call>\n'
    assert read(SYNTAXES["qwen 3"], text, "word").finish_reason == "tool_calls"


def test_half_of_a_marker_before_a_stop_string_is_text() -> None:
    assert read(SYNTAXES["qwen 3"], "a <tool", "word").message.content == "a <tool"
    assert read(SYNTAXES["qwen 3"], "a <tool", "limit").message.content == "a"


def test_a_call_begins_with_its_arguments() -> None:
    """In every syntax: a stream has no call that nothing follows."""
    for syntax in SYNTAXES.values():
        if not (syntax.calls or syntax.harmony):
            continue
        text = write_answer(syntax, CALLED)
        for end in range(len(text)):
            deltas = [d for e in read(syntax, text[:end], "limit").events for d in e.deltas]
            if any(isinstance(each, CallStart) for each in deltas):
                assert any(isinstance(each, CallArguments) for each in deltas)
