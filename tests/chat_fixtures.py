"""Chat templates in the style of the published ones, and what is true of each: a ground truth,
written by hand, for what the server finds out from a template by rendering it.

Every template (tests/templates/NAME.jinja) has the markers, the structure and the habits of its
family, in words of our own. `ANSWERS` of a fixture are texts that a model of the family would
generate after the generation prompt, with the messages that they mean.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from engine.chat.output import ChatMessage, ToolCall
from engine.chat.syntax import CallSyntax, Fill, OutputSyntax, TaggedArguments, Wrapper
from engine.chat.template import ChatTemplate

NAME, ARGUMENTS, ID, INDEX = Fill("name"), Fill("arguments"), Fill("id"), Fill("index")

Scenario = Literal["system", "turns", "tools", "one call", "two calls", "no content", "reasoning"]
Shown = Literal["reasoning", "content", "calls"]


class Answer(msgspec.Struct, frozen=True):
    """What a model generates (the text up to, and without, the token that ends it), and what it
    says. Ids of calls are "" where the text has none."""

    text: str
    message: ChatMessage


class Fixture(msgspec.Struct, frozen=True, kw_only=True):
    """A template and the truth about it.

    `syntax` is how the model writes. `shown`: which parts of it renderings give away; the rest
    is nowhere but in the model, or in the prose of the prompt. `thinking` are the variables that
    make the model think (and open its thoughts in the prompt if `opens_thoughts`), and
    `no_thinking` those that stop it, None if nothing does. `arguments`: the form in which
    those of a call have to be given. `keeps_reasoning`: whether the `reasoning_key` of a message
    is rendered where no user has spoken since. `prompt_tail` is the text at the end of the
    generation prompt that belongs to the syntax of the answer. `refuses` are the scenarios for
    which the template raises an exception.
    """

    name: str
    syntax: OutputSyntax
    answers: tuple[Answer, ...]
    bos: str = "<s>"
    eos: str = "</s>"
    system: bool = True
    tools: bool = True
    calls: bool = True
    parallel: bool = True
    arguments: Literal["object", "string", "either"] = "object"
    shown: frozenset[Shown] = frozenset({"reasoning", "content", "calls"})
    thinking: Mapping[str, Any] = {}
    no_thinking: Mapping[str, Any] | None = None
    opens_thoughts: bool = False
    keeps_reasoning: bool = False
    reasoning_key: str = "reasoning_content"
    prompt_tail: str = ""
    string_content: bool = True
    typed_content: bool = False
    refuses: frozenset[Scenario] = frozenset()

    @property
    def source(self) -> str:
        return (TEMPLATES / f"{self.name}.jinja").read_text(encoding="utf-8")

    def template(self) -> ChatTemplate:
        return ChatTemplate(self.source, self.bos, self.eos)


TEMPLATES = Path(__file__).parent / "templates"

WEATHER = '{"city": "Zürich", "days": 2}'
HOTEL = '{"stars": [4, 5], "pool": true, "note": "a \\"quiet\\" one\\nplease"}'
THOUGHTS = "It is about the weather.\nI look it up."
WORDS = "Let me look."
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Its name"},
                    "days": {"type": "integer"},
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "find_hotel",
            "description": "Hotels in the city",
            "parameters": {
                "type": "object",
                "properties": {
                    "stars": {"type": "array", "items": {"type": "integer"}},
                    "pool": {"type": "boolean"},
                    "note": {"type": "string"},
                },
                "required": ["stars", "pool"],
            },
        },
    },
]
_CALLED = (("get_weather", WEATHER), ("find_hotel", HOTEL))


def says(
    text: str,
    *,
    thoughts: str = "",
    content: str = "",
    calls: int = 0,
    ids: tuple[str, ...] = ("", ""),
) -> Answer:
    """An answer with the first `calls` of the two calls that all fixtures have in common."""
    called = [
        ToolCall(id, name, arguments)
        for (name, arguments), id in list(zip(_CALLED, ids, strict=True))[:calls]
    ]
    return Answer(text, ChatMessage(content, thoughts, called))


def _json_calls(
    *,
    before: str = "",
    after: str = "",
    key: str = "arguments",
    begin: str = "",
    separator: str = "",
    end: str = "",
    parallel: bool = True,
) -> CallSyntax:
    """Calls as objects in JSON with a name and arguments, between `before` and `after`."""
    return CallSyntax(
        parts=(f'{before}{{"name": "', NAME, f'", "{key}": ', ARGUMENTS, f"}}{after}"),
        begin=begin,
        separator=separator,
        end=end,
        parallel=parallel,
    )


_HERMES = _json_calls(before="<tool_call>\n", after="\n</tool_call>", separator="\n")
_HERMES_ONE = f'<tool_call>\n{{"name": "get_weather", "arguments": {WEATHER}}}\n</tool_call>'
_HERMES_TWO = (
    f'{_HERMES_ONE}\n<tool_call>\n{{"name": "find_hotel", "arguments": {HOTEL}}}\n</tool_call>'
)
_HERMES_ANSWERS = (
    says("Hello there.", content="Hello there."),
    says(_HERMES_ONE, calls=1),
    says(f"{WORDS}\n{_HERMES_TWO}", content=WORDS, calls=2),
)
_IDS = ("a1B2c3D4e", "f5G6h7I8j")


FIXTURES: tuple[Fixture, ...] = (
    Fixture(
        name="hermes_2_pro",
        bos="<|begin_of_text|>",
        eos="<|im_end|>",
        syntax=OutputSyntax(calls=_HERMES),
        answers=_HERMES_ANSWERS,
    ),
    Fixture(
        name="qwen_2_5",
        bos="",
        eos="<|im_end|>",
        syntax=OutputSyntax(calls=_HERMES),
        answers=_HERMES_ANSWERS,
    ),
    Fixture(
        name="qwen_3",
        bos="",
        eos="<|im_end|>",
        syntax=OutputSyntax(reasoning=Wrapper("<think>\n", "\n</think>\n\n"), calls=_HERMES),
        arguments="either",
        no_thinking={"enable_thinking": False},
        keeps_reasoning=True,
        answers=(
            says(
                f"<think>\n{THOUGHTS}\n</think>\n\nHello there.",
                thoughts=THOUGHTS,
                content="Hello there.",
            ),
            says(f"<think>\n{THOUGHTS}\n</think>\n\n{_HERMES_ONE}", thoughts=THOUGHTS, calls=1),
            says(
                f"<think>\n{THOUGHTS}\n</think>\n\n{WORDS}\n{_HERMES_TWO}",
                thoughts=THOUGHTS,
                content=WORDS,
                calls=2,
            ),
        ),
    ),
    Fixture(
        name="qwen_3_coder",
        bos="",
        eos="<|im_end|>",
        syntax=OutputSyntax(
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
            )
        ),
        answers=(
            says("Hello there.", content="Hello there."),
            says(
                "<tool_call>\n<function=get_weather>\n<parameter=city>\nZürich\n</parameter>\n"
                "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
                calls=1,
            ),
            says(
                f"{WORDS}\n\n"
                "<tool_call>\n<function=get_weather>\n<parameter=city>\nZürich\n</parameter>\n"
                "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>\n"
                "<tool_call>\n<function=find_hotel>\n<parameter=stars>\n[4, 5]\n</parameter>\n"
                "<parameter=pool>\ntrue\n</parameter>\n"
                '<parameter=note>\na "quiet" one\nplease\n</parameter>\n'
                "</function>\n</tool_call>",
                content=WORDS,
                calls=2,
            ),
        ),
    ),
    Fixture(
        name="llama_3",
        bos="<|begin_of_text|>",
        eos="<|eot_id|>",
        syntax=OutputSyntax(calls=_json_calls(key="parameters", parallel=False)),
        parallel=False,
        refuses=frozenset({"two calls"}),
        answers=(
            says("Hello there.", content="Hello there."),
            says(f'{{"name": "get_weather", "parameters": {WEATHER}}}', calls=1),
        ),
    ),
    Fixture(
        name="mistral_v3",
        syntax=OutputSyntax(
            calls=CallSyntax(
                parts=('{"name": "', NAME, '", "arguments": ', ARGUMENTS, ', "id": "', ID, '"}'),
                begin="[TOOL_CALLS] [",
                separator=", ",
                end="]",
            )
        ),
        answers=(
            says(" Hello there.", content="Hello there."),
            says(
                f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {WEATHER}, '
                '"id": "a1B2c3D4e"}]',
                calls=1,
                ids=_IDS,
            ),
            says(
                f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {WEATHER}, '
                f'"id": "a1B2c3D4e"}}, {{"name": "find_hotel", "arguments": {HOTEL}, '
                '"id": "f5G6h7I8j"}]',
                calls=2,
                ids=_IDS,
            ),
        ),
    ),
    Fixture(
        name="mistral_nemo",
        syntax=OutputSyntax(
            calls=CallSyntax(
                parts=('{"name": "', NAME, '", "arguments": ', ARGUMENTS, ', "id": "', ID, '"}'),
                begin="[TOOL_CALLS][",
                separator=", ",
                end="]",
            )
        ),
        answers=(
            says("Hello there.", content="Hello there."),
            says(
                f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {WEATHER}, '
                '"id": "a1B2c3D4e"}]',
                calls=1,
                ids=_IDS,
            ),
            says(
                f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {WEATHER}, '
                f'"id": "a1B2c3D4e"}}, {{"name": "find_hotel", "arguments": {HOTEL}, '
                '"id": "f5G6h7I8j"}]',
                calls=2,
                ids=_IDS,
            ),
        ),
    ),
    Fixture(
        name="mistral_new",
        arguments="either",
        typed_content=True,
        syntax=OutputSyntax(calls=CallSyntax(parts=("[TOOL_CALLS]", NAME, "[ARGS]", ARGUMENTS))),
        answers=(
            says("Hello there.", content="Hello there."),
            says(f"[TOOL_CALLS]get_weather[ARGS]{WEATHER}", calls=1),
            says(
                f"{WORDS}[TOOL_CALLS]get_weather[ARGS]{WEATHER}[TOOL_CALLS]find_hotel[ARGS]{HOTEL}",
                content=WORDS,
                calls=2,
            ),
        ),
    ),
    Fixture(
        name="mistral_small_3_2",
        arguments="either",
        typed_content=True,
        syntax=OutputSyntax(
            calls=CallSyntax(parts=("[TOOL_CALLS]", NAME, "[CALL_ID]", ID, "[ARGS]", ARGUMENTS))
        ),
        answers=(
            says("Hello there.", content="Hello there."),
            says(
                f"[TOOL_CALLS]get_weather[CALL_ID]a1B2c3D4e[ARGS]{WEATHER}",
                calls=1,
                ids=_IDS,
            ),
            says(
                f"[TOOL_CALLS]get_weather[CALL_ID]a1B2c3D4e[ARGS]{WEATHER}"
                f"[TOOL_CALLS]find_hotel[CALL_ID]f5G6h7I8j[ARGS]{HOTEL}",
                calls=2,
                ids=_IDS,
            ),
        ),
    ),
)


def fixture(name: str) -> Fixture:
    return next(found for found in FIXTURES if found.name == name)


def conversations(given: Fixture) -> dict[Scenario, list[dict[str, Any]]]:
    """What every template is given; "two calls" goes as far as the results."""
    user = {"role": "user", "content": "What is the weather?"}
    answer = {"role": "assistant", "content": "It rains."}

    def asking(count: int, content: str = "", **more: Any) -> list[dict[str, Any]]:
        calls = [
            {
                "id": id,
                "type": "function",
                "function": {
                    "name": name,
                    "arguments": arguments
                    if given.arguments == "string"
                    else json.loads(arguments),
                },
            }
            for (name, arguments), id in list(zip(_CALLED, _IDS, strict=True))[:count]
        ]
        results = [
            {
                "role": "tool",
                "tool_call_id": call["id"],
                "name": call["function"]["name"],
                "content": f'{{"result": {number}}}',
            }
            for number, call in enumerate(calls)
        ]
        return [
            user,
            {"role": "assistant", "content": content, "tool_calls": calls, **more},
            *results,
        ]

    thoughtful = {given.reasoning_key: THOUGHTS}
    return {
        "system": [{"role": "system", "content": "Be short."}, user],
        "turns": [user, answer, {"role": "user", "content": "And tomorrow?"}],
        "tools": [user],
        "one call": asking(1),
        "two calls": asking(2),
        "no content": [user, {"role": "assistant", "content": ""}, user],
        "reasoning": asking(1, **thoughtful) if given.calls else [user, {**answer, **thoughtful}],
    }
