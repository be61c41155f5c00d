"""Chat templates in the style of published ones, with the properties of each, written by hand. The
server has to detect them by rendering the template.

Every template (tests/support/templates/NAME.jinja) has the markers, the structure and the habits of
its family, in our own words. The answers of a fixture are texts that a model of the family would
generate after the generation prompt, with the parsed messages.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from specllama.engine.chat.output import ChatMessage, ToolCall
from specllama.engine.chat.syntax import CallSyntax, Fill, OutputSyntax
from specllama.engine.helpers.render.template.template import ChatTemplate

NAME, ARGUMENTS, ID, INDEX = Fill("name"), Fill("arguments"), Fill("id"), Fill("index")

Scenario = Literal[
    "system",
    "turns",
    "tools",
    "one call",
    "two calls",
    "no content",
    "thoughts, call",
    "thoughts, answer",
]
Shown = Literal["reasoning", "content", "calls"]


class Answer(msgspec.Struct, frozen=True):
    """A model's output without its end token, and the parsed message. Ids of calls are "" if the
    text has no ids. `bare`: the text lacks wrappers of the syntax, as the output of some models
    does."""

    text: str
    message: ChatMessage
    bare: bool = False


class Fixture(msgspec.Struct, frozen=True, kw_only=True):
    """A template and its properties.

    `syntax` is the model's output syntax. `shown`: the parts of it that renderings reveal; the
    model has learnt the rest, or the prompt describes it in prose (reasoning counts as shown if
    the generation prompt opens or closes it). `thinking` has the variables that make the model
    think (and open its thoughts in the prompt if `opens_thoughts`); `no_thinking` has the
    variables that prevent it, or is None. `arguments`: the form in which a call's arguments have
    to be given. `keeps_reasoning`: whether the `reasoning_key` of a message after the
    last user message is rendered, at least with calls or without them. `null_content`: calls are
    shown only with a content that is null. `prompt_tail` is the text at the end of the
    generation prompt that belongs to the syntax of the answer. `argument_indent`: arguments are
    pretty-printed, with this step and this indent of all lines but the first. `refuses` are the
    scenarios for which the template raises an exception.
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
    argument_indent: tuple[int, int] | None = None
    prompt_tail: str = ""
    string_content: bool = True
    typed_content: bool = False
    null_content: bool = False
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
TOOLS: Any = [
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
CALLED = (("get_weather", WEATHER), ("find_hotel", HOTEL))


def says(
    text: str,
    *,
    thoughts: str = "",
    content: str = "",
    calls: int = 0,
    ids: tuple[str, ...] = ("", ""),
    bare: bool = False,
) -> Answer:
    """Returns an answer with the first `calls` of the two calls that all fixtures share."""
    called = [
        ToolCall(id, name, arguments)
        for (name, arguments), id in list(zip(CALLED, ids, strict=True))[:calls]
    ]
    return Answer(text, ChatMessage(content, thoughts, called), bare)


def json_calls(
    *,
    before: str = "",
    after: str = "",
    key: str = "arguments",
    begin: str = "",
    separator: str = "",
    end: str = "",
    parallel: bool = True,
) -> CallSyntax:
    """Returns calls as JSON objects with a name and arguments, between `before` and `after`."""
    return CallSyntax(
        parts=(f'{before}{{"name": "', NAME, f'", "{key}": ', ARGUMENTS, f"}}{after}"),
        begin=begin,
        separator=separator,
        end=end,
        parallel=parallel,
    )


HERMES = json_calls(before="<tool_call>\n", after="\n</tool_call>", separator="\n")
HERMES_ONE = f'<tool_call>\n{{"name": "get_weather", "arguments": {WEATHER}}}\n</tool_call>'
HERMES_TWO = (
    f'{HERMES_ONE}\n<tool_call>\n{{"name": "find_hotel", "arguments": {HOTEL}}}\n</tool_call>'
)
HERMES_ANSWERS = (
    says("Hello there.", content="Hello there."),
    says(HERMES_ONE, calls=1),
    says(f"{WORDS}\n{HERMES_TWO}", content=WORDS, calls=2),
)
IDS = ("a1B2c3D4e", "f5G6h7I8j")


def conversations(given: Fixture) -> dict[Scenario, list[dict[str, Any]]]:
    """Returns the conversation for every template, by scenario; "two calls" ends with the
    results."""
    user = {"role": "user", "content": "What is the weather?"}
    answer = {"role": "assistant", "content": "It rains."}

    def asking(count: int, **more: Any) -> list[dict[str, Any]]:
        calls, results = [], []
        for number, ((name, arguments), id) in enumerate(zip(CALLED, IDS, strict=True)):
            form = arguments if given.arguments == "string" else json.loads(arguments)
            function = {"name": name, "arguments": form}
            calls.append({"id": id, "type": "function", "function": function})
            result = {"tool_call_id": id, "name": name, "content": f'{{"result": {number}}}'}
            results.append({"role": "tool", **result})
        content = None if given.null_content else ""
        return [
            user,
            {"role": "assistant", "content": content, "tool_calls": calls[:count], **more},
            *results[:count],
        ]

    thoughtful = {given.reasoning_key: THOUGHTS}
    return {
        "system": [{"role": "system", "content": "Be short."}, user],
        "turns": [user, answer, {"role": "user", "content": "And tomorrow?"}],
        "tools": [user],
        "one call": asking(1),
        "two calls": asking(2),
        "no content": [user, {"role": "assistant", "content": ""}, user],
        "thoughts, call": asking(1, **thoughtful),
        "thoughts, answer": [user, {**answer, **thoughtful}],
    }
