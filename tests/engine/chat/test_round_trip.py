"""For every template, the parser returns the rendered answer, however the text is split, with the
true syntax of the template and with the detected one.
"""

import json
from functools import lru_cache
from typing import Any, Literal

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from specllama.engine.chat.output import ChatMessage, ToolCall
from specllama.engine.chat.syntax import Fill, OutputSyntax
from specllama.engine.errors import EngineError
from specllama.engine.helpers.render.detect.detect import detect
from specllama.engine.helpers.render.detect.matching import common_prefix
from specllama.engine.helpers.render.template.template import ChatTemplate
from tests.support.chat_fixtures import FIXTURES, TOOLS, Answer, Fixture, fixture
from tests.support.chat_strategies import messages, parse, pieces
from tests.support.covering import examples

ANSWERS = [(fixture, answer) for fixture in FIXTURES for answer in fixture.answers]
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
QUESTION: dict[str, Any] = {"role": "user", "content": "What is the weather?"}
Source = Literal["true", "found"]

ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|START_OF_TURN_TOKEN|>")
"""Ends of turns that are not the model's end of a text."""

some = examples(5)


@lru_cache
def template(name: str) -> ChatTemplate:
    return fixture(name).template()


@lru_cache
def syntax_of(name: str, source: Source) -> OutputSyntax:
    return fixture(name).syntax if source == "true" else detect(template(name))


@pytest.mark.parametrize(
    ("family", "answer"), ANSWERS, ids=[f"{f.name}-{i}" for i, (f, _) in enumerate(ANSWERS)]
)
@given(data=st.data())
@some
def test_answers_of_models(family: Fixture, answer: Answer, data: st.DataObject) -> None:
    found = parse(
        family.syntax,
        data.draw(pieces(answer.text)),
        thinking=family.opens_thoughts,
        tools=SCHEMAS,
        prompt=family.prompt_tail,
    )
    assert found.content.strip() == answer.message.content
    assert found.reasoning == answer.message.reasoning
    assert called(found) == called(answer.message)
    for call, true in zip(found.calls, answer.message.calls, strict=True):
        assert true.id in ("", call.id)


@pytest.mark.parametrize("source", ["true", "found"])
@pytest.mark.parametrize("family", FIXTURES, ids=lambda family: family.name)
@given(data=st.data())
@some
def test_rendered_answers(family: Fixture, source: Source, data: st.DataObject) -> None:
    syntax = syntax_of(family.name, source)
    message = renderable(family, syntax, data.draw(messages(family.syntax)))
    assume(message.content or message.calls)
    text = rendered(family, message)
    found = parse(syntax, data.draw(pieces(text)))
    assert found.content.strip() == message.content
    assert found.reasoning == message.reasoning
    assert called(found) == called(message)
    if syntax.calls and Fill("id") in syntax.calls.parts:
        assert [call.id for call in found.calls] == [call.id for call in message.calls]


def called(message: ChatMessage) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in message.calls]


def renderable(family: Fixture, syntax: OutputSyntax, message: ChatMessage) -> ChatMessage:
    """Returns the parts of `message` that the template renders, in the template's form."""
    calls: list[ToolCall] = []
    if syntax.harmony or (syntax.calls and "calls" in family.shown and family.calls):
        for index, call in enumerate(message.calls[: None if family.parallel else 1]):
            arguments = json.loads(call.arguments)
            if syntax.calls and syntax.calls.tagged:
                # Some templates print these as Python does; their models don't.
                for key in ("flag", "nothing", "object", "items", "choice"):
                    arguments.pop(key, None)
            id = f"{index:09}"
            if "kimi" in family.name:
                id = f"functions.{call.name}:{index}"
            calls.append(ToolCall(id, call.name, json.dumps(arguments, ensure_ascii=False)))
    kept = ChatMessage(message.content, message.reasoning, calls)
    if syntax.harmony and calls:
        kept.content = message.content = ""  # this template takes it for thoughts
    shape = (bool(kept.content), bool(kept.reasoning), len(calls))
    content, reasoning, called = shown(family.name, *shape)
    if calls and not called:  # with a content
        return renderable(family, syntax, ChatMessage("", message.reasoning, message.calls))
    # Indentation goes by Python's notion of lines, which JSON's strings may hold.
    assume(not family.argument_indent or all(len(c.arguments.splitlines()) == 1 for c in calls))
    return ChatMessage(
        message.content if content else "",
        message.reasoning if reasoning else "",
        calls,
    )


@lru_cache
def shown(name: str, content: bool, reasoning: bool, calls: int) -> tuple[bool, bool, bool]:
    """True if content, reasoning and calls are rendered in a message that has these things."""
    message = ChatMessage(
        "Zqcontent" if content else "",
        "Zqthoughts" if reasoning else "",
        [ToolCall(f"{index:09}", "f", '{"a": "Zqcall"}') for index in range(calls)],
    )
    text = full(fixture(name), message)
    return "Zqcontent" in text, "Zqthoughts" in text, "Zqcall" in text


def full(family: Fixture, message: ChatMessage) -> str:
    """A conversation that ends with `message`; templates may want the results of its calls."""
    answer: dict[str, Any] = {"role": "assistant", "content": message.content}
    if family.typed_content and not family.string_content:
        answer["content"] = [{"type": "text", "text": message.content}]
    if message.reasoning:
        answer[family.reasoning_key] = message.reasoning
    if message.calls:
        if not message.content and family.null_content:
            answer["content"] = None
        answer["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": call.arguments
                    if family.arguments == "string"
                    else json.loads(call.arguments),
                },
            }
            for call in message.calls
        ]
    return template(family.name).render(
        [question(family), answer],
        add_generation_prompt=False,
        tools=TOOLS,
        variables=family.thinking,
    )


def question(family: Fixture) -> dict[str, Any]:
    if family.string_content:
        return QUESTION
    return {**QUESTION, "content": [{"type": "text", "text": QUESTION["content"]}]}


@lru_cache
def head(name: str) -> str:
    """The text before an answer, whatever is in it."""
    family = fixture(name)
    before = full(family, ChatMessage("Zqcontent")).rpartition("Zqcontent")[0]
    before = before.removesuffix(family.syntax.content.begin)
    samples = [ChatMessage("Zqcontent", "Zqthoughts")]
    if family.calls:
        samples.append(ChatMessage("", "", [ToolCall("000000000", "f", '{"a": 1}')]))
    common = common_prefix(before, *(full(family, sample) for sample in samples))
    reasoning = family.syntax.reasoning
    return common.removesuffix(reasoning.begin) if reasoning else common


ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|START_OF_TURN_TOKEN|>")
"""Ends of turns, in addition to a family's own end of text."""


def rendered(family: Fixture, message: ChatMessage) -> str:
    """The text of `message` in a conversation."""
    before = head(family.name)
    text = full(family, message)
    assert text.startswith(before)
    text = text[len(before) :]
    if family.syntax.harmony:
        return text  # ends of turns are the parser's matter
    ends = [end for end in (family.eos, *ENDS) if end]
    said = [message.content, message.reasoning, *(call.arguments for call in message.calls)]
    assume(not any(end in part for end in ends for part in said))  # tokens, in no model's text
    return text[: min(text.find(end) % (len(text) + 1) for end in ends)]


def test_rejections_agree_with_the_fixtures() -> None:
    """The properties above leave out nothing else."""
    for family in FIXTURES:
        try:
            full(family, ChatMessage("Zqcontent"))
        except EngineError:
            pytest.fail(family.name)
