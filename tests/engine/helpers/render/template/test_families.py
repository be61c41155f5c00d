"""The fixtures are correct: templates render, and their prompts agree with the ground truth."""

import json
from typing import Any

import pytest

from specllama.engine.chat.output import ToolCall
from specllama.engine.chat.syntax import TaggedArguments
from specllama.engine.errors import EngineError
from specllama.engine.helpers.render.template.caps import probe
from tests.support.chat_fixtures import FIXTURES, THOUGHTS, TOOLS, Fixture, Scenario, conversations

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("given", FIXTURES, ids=lambda given: given.name),
]


def render(given: Fixture, scenario: Scenario, **variables: Any) -> str:
    messages = conversations(given)[scenario]
    if given.typed_content and not given.string_content:
        messages = [
            {**message, "content": [{"type": "text", "text": message["content"]}]}
            if message["content"] is not None
            else message
            for message in messages
        ]
    tools = TOOLS if scenario not in ("system", "turns") else None
    return given.template().render(messages, tools=tools, variables={**given.thinking, **variables})


def written(given: Fixture, calls: list[ToolCall]) -> str:
    """The text of `calls` by the ground truth."""
    syntax = given.syntax.calls
    assert syntax is not None
    texts = []
    for index, call in enumerate(calls):
        fills = {
            "name": call.name,
            "id": call.id,
            "index": str(index),
            "arguments": _arguments(given, syntax.tagged, call.arguments),
        }
        texts.append(
            "".join(part if isinstance(part, str) else fills[part.hole] for part in syntax.parts)
        )
    return syntax.begin + syntax.separator.join(texts) + syntax.end


def _arguments(given: Fixture, tagged: TaggedArguments | None, arguments: str) -> str:
    if tagged is None and given.argument_indent is not None:
        step, indent = given.argument_indent
        pretty = json.dumps(json.loads(arguments), ensure_ascii=False, indent=step)
        return pretty.replace("\n", "\n" + " " * indent)
    if tagged is None:
        return arguments
    return tagged.separator.join(
        tagged.begin
        + key
        + tagged.middle
        + (value if isinstance(value, str) else json.dumps(value))
        + tagged.end
        for key, value in json.loads(arguments).items()
    )


def test_every_scenario_renders_or_is_refused(given: Fixture) -> None:
    for scenario in conversations(given):
        if scenario in given.refuses:
            with pytest.raises(EngineError, match="the chat template refuses this request"):
                render(given, scenario)
        else:
            assert render(given, scenario)


def test_the_messages_are_in_the_prompt(given: Fixture) -> None:
    if given.system:
        assert "Be short." in render(given, "system")
    turns = render(given, "turns")
    places = [turns.index(text) for text in ("What is the weather?", "It rains.", "And tomorrow?")]
    assert places == sorted(places)
    if "tools" not in given.refuses:
        assert ("get_weather" in render(given, "tools")) == given.tools
    if given.calls:
        assert "result" in render(given, "one call")


def test_calls_are_rendered_as_the_syntax_says(given: Fixture) -> None:
    if given.syntax.calls is None or "calls" not in given.shown:
        return
    for answer in given.answers:
        wanted = answer.message.calls
        scenario: Scenario = "two calls" if len(wanted) == 2 else "one call"
        if not wanted or scenario in given.refuses:
            continue
        named = [
            ToolCall(id, call.name, call.arguments)
            for id, call in zip(("a1B2c3D4e", "f5G6h7I8j"), wanted, strict=False)
        ]
        prompt = render(given, scenario)
        # Python's own spelling of a boolean is a habit of some templates, not of their models.
        assert written(given, named) in prompt.replace("\nTrue\n", "\ntrue\n")


def test_answers_are_written_as_the_syntax_says(given: Fixture) -> None:
    """Thoughts, text and calls in this order, and nothing else but white space."""
    if given.syntax.harmony:
        return
    for answer in given.answers:
        if answer.bare:
            continue
        rest = given.prompt_tail + answer.text
        message = answer.message
        if message.reasoning:
            reasoning = given.syntax.reasoning
            assert reasoning is not None
            begin = "" if given.opens_thoughts else reasoning.begin
            assert rest.startswith(begin + message.reasoning + reasoning.end)
            rest = rest.removeprefix(begin + message.reasoning + reasoning.end)
        if message.calls:
            text = written(given, message.calls)
            assert rest.endswith(text)
            rest = rest.removesuffix(text)
        if message.content:
            content = given.syntax.content
            assert rest.strip() == f"{content.begin}{message.content}{content.end}".strip()
        else:
            assert not rest.strip()


def test_reasoning_is_rendered_where_it_is_kept(given: Fixture) -> None:
    reasoning = given.syntax.reasoning
    scenarios: tuple[Scenario, ...] = ("thoughts, call", "thoughts, answer")
    prompts = [render(given, each) for each in scenarios if each not in given.refuses]
    assert any(THOUGHTS in prompt for prompt in prompts) == given.keeps_reasoning
    if given.keeps_reasoning and reasoning is not None:
        text = reasoning.begin + THOUGHTS + reasoning.end
        assert any(text in prompt for prompt in prompts)


def test_thoughts_in_the_generation_prompt(given: Fixture) -> None:
    reasoning = given.syntax.reasoning
    prompt = render(given, "system") if given.system else render(given, "turns")
    if reasoning is None:
        assert not given.opens_thoughts
        assert "think>" not in prompt
        return
    assert prompt.rstrip().endswith(reasoning.begin.rstrip()) == given.opens_thoughts
    if given.no_thinking is not None:
        closed = render(given, "turns", **given.no_thinking)
        assert closed.rstrip().endswith(reasoning.end.strip())


def test_the_end_of_the_prompt_belongs_to_the_answer(given: Fixture) -> None:
    assert render(given, "turns").endswith(given.prompt_tail)


def test_capabilities_are_found_out(given: Fixture) -> None:
    caps = probe(given.template())
    assert caps["supports_string_content"] == given.string_content
    assert caps["supports_typed_content"] == given.typed_content
    assert caps["supports_system_role"] == given.system
    assert caps["supports_tools"] == given.tools
    assert caps["supports_tool_calls"] == given.calls
    assert caps["supports_parallel_tool_calls"] == (given.calls and given.parallel)
    if given.calls:
        assert caps["supports_object_arguments"] == (given.arguments != "string")
    assert caps["supports_reasoning_effort"] == (given.name == "gpt_oss")
