"""Small templates in the styles of templates that write calls in their own ways.

The parser finds the syntax of each, and returns the written calls, from the whole text and from any
two pieces of it."""

import json
from typing import Any

import pytest

from specllama.engine.chat.request import ChatRequest
from specllama.engine.chat.syntax import OutputSyntax
from specllama.engine.helpers.render.detect.detect import detect
from specllama.engine.helpers.render.template.caps import traits_of
from specllama.engine.helpers.render.template.prompt import chat_prompt
from specllama.engine.helpers.render.template.template import ChatTemplate
from tests.support.chat_strategies import parse

TOOLS_SHOWN = "{% if tools %}{{ '<tools>' ~ (tools | tojson) ~ '</tools>' }}{% endif %}"
ASSISTANT = "<|turn|>assistant\n"


def template(calls: str, thoughts: str = "", prompt: str = "") -> ChatTemplate:
    """A template that writes calls by `calls`, and thoughts by `thoughts`."""
    return ChatTemplate(
        "{%- macro text(v) %}{{ v if v is string else v | tojson }}{% endmacro -%}"
        "{%- macro element(v) -%}"
        "{%- if v is mapping -%}{%- for k, x in v.items() -%}"
        "{{ ']<]ns[>[<' ~ k ~ '>' ~ element(x) ~ ']<]ns[>[</' ~ k ~ '>' }}{%- endfor -%}"
        "{%- elif v is iterable and v is not string -%}{%- for x in v -%}"
        "{{ ']<]ns[>[<item>' ~ element(x) ~ ']<]ns[>[</item>' }}{%- endfor -%}"
        "{%- else -%}{{ text(v) }}{%- endif -%}{%- endmacro -%}"
        "{%- macro quoted(v) -%}"
        "{%- if v is string -%}{{ '<|\"|>' ~ v ~ '<|\"|>' }}"
        "{%- elif v is mapping -%}{{ '{' }}{%- for k, x in v.items() -%}"
        "{{ k ~ ':' ~ quoted(x) ~ ('' if loop.last else ',') }}{%- endfor -%}{{ '}' }}"
        "{%- elif v is iterable -%}{{ '[' }}{%- for x in v -%}"
        "{{ quoted(x) ~ ('' if loop.last else ',') }}{%- endfor -%}{{ ']' }}"
        "{%- else -%}{{ v | tojson }}{%- endif -%}{%- endmacro -%}"
        + TOOLS_SHOWN
        + "{%- for m in messages -%}{{ '<|turn|>' ~ m.role ~ '\n' }}"
        + thoughts
        + "{{ m.content or '' }}{%- if m.tool_calls -%}"
        + calls
        + "{%- endif -%}{{ '<|end|>\n' }}{%- endfor -%}"
        + "{%- if add_generation_prompt -%}{{ '"
        + ASSISTANT.replace("\n", "\\n")
        + prompt
        + "' }}{%- endif -%}"
    )


def each(begin: str, argument: str, end: str, separator: str = "") -> str:
    """Calls one by one, with their arguments one by one."""
    return (
        "{%- for c in m.tool_calls -%}{%- set f = c.function -%}{{ " + begin + " }}"
        "{%- for k, v in f.arguments.items() -%}{{ " + argument + " }}"
        "{{ '' if loop.last else '" + separator + "' }}{%- endfor -%}{{ " + end + " }}"
    )


THOUGHTS = (
    "{%- if m.reasoning_content -%}{{ '<think>' ~ m.reasoning_content ~ '</think>' }}{%- endif -%}"
)
KIND = "('string' if v is string else 'object' if v is mapping else 'boolean' if v is boolean else "
KIND += "'null' if v is none else 'number' if v is number else 'array')"
TYPED = "'<|open|>arg key=\"' ~ k ~ '\" type=\"' ~ " + KIND + " ~ '\"<|sep|>' ~ text(v) "
STYLES = {
    "types in tags, counted from 1": template(
        "{{ '<|open|>tools<|sep|>' }}"
        + each(
            "'<|open|>call tool=\"' ~ f.name ~ '\" index=\"' ~ loop.index ~ '\"<|sep|>'",
            TYPED + "~ '<|close|>arg<|sep|>'",
            "'<|close|>call<|sep|>'",
        )
        + "{%- endfor -%}{{ '<|close|>tools<|sep|>' }}",
        THOUGHTS,
    ),
    "text or not": template(
        "{{ '\n\n<:calls>\n' }}"
        + each(
            "'<:invoke name=\"' ~ f.name ~ '\">\n'",
            "'<:parameter name=\"' ~ k ~ '\" string=\"' ~ ('true' if v is string else 'false') "
            "~ '\">' ~ text(v) ~ '</:parameter>'",
            "'\n</:invoke>\n'",
            "\\n",
        )
        + "{%- endfor -%}{{ '</:calls>' }}",
        THOUGHTS,
    ),
    "elements in a namespace": template(
        "{{ ']<]ns[>[<tool_call>\n' }}"
        + each(
            "']<]ns[>[<invoke name=\"' ~ f.name ~ '\">'",
            "']<]ns[>[<' ~ k ~ '>' ~ element(v) ~ ']<]ns[>[</' ~ k ~ '>'",
            "']<]ns[>[</invoke>\n'",
        )
        + "{%- endfor -%}{{ ']<]ns[>[</tool_call>' }}",
        THOUGHTS,
    ),
    "literals": template(
        "{{ '<|call_start|>[' }}"
        + each("f.name ~ '('", "k ~ '=' ~ (v | pprint)", "')'", ", ")
        + "{{ '' if loop.last else ', ' }}{%- endfor -%}{{ ']<|call_end|>' }}",
        THOUGHTS,
    ),
    "quotes of its own": template(
        each("'<|call>call:' ~ f.name ~ '{'", "k ~ ':' ~ quoted(v)", "'}<call|>'", ",")
        + "{%- endfor -%}",
        THOUGHTS,
    ),
    "wrapped texts": template(
        each(
            "'<function name=\"' ~ f.name ~ '\">'",
            "'<param name=\"' ~ k ~ '\">' ~ ('<![CDATA[' ~ v ~ ']]>' if v is string and '<' in v "
            "else v) ~ '</param>'",
            "'</function>'",
        )
        + "{{ '' if loop.last else '\n' }}{%- endfor -%}",
        THOUGHTS,
    ),
    "the name as recipient, too": template(
        each(
            "'<|to|>' ~ f.name ~ '<|message|><calls><invoke name=\"' ~ f.name ~ '\">'",
            "'<parameter name=\"' ~ k ~ '\">' ~ text(v) ~ '</parameter>'",
            "'</invoke></calls>'",
        )
        + "{{ '' if loop.last else '<|next|>' }}{%- endfor -%}",
        THOUGHTS,
    ),
}
ARGUMENTS = {
    "city": 'Bern <b> & "x"',
    "days": 2,
    "sure": True,
    "list": ["a", "b"],
    "inner": {"deep": "12", "n": 3},
}
KINDS = {"city": {"type": "string"}, "days": {"type": "integer"}, "sure": {"type": "boolean"}}
INNER = {"properties": {"deep": {"type": "string"}, "n": {"type": "integer"}}}
PARAMETERS = {
    "type": "object",
    "properties": {
        **KINDS,
        "list": {"type": "array", "items": {"type": "string"}},
        "inner": {"type": "object", **INNER},
    },
}
SCHEMAS = {"get_weather": PARAMETERS, "get_time": {"type": "object", "properties": {}}}
USER: Any = {"role": "user", "content": "A question"}


def answer(text: str, thoughts: str, *calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    made = [
        {"id": f"call0000{i}", "type": "function", "function": {"name": name, "arguments": given}}
        for i, (name, given) in enumerate(calls)
    ]
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if thoughts:
        message["reasoning_content"] = thoughts
    return {**message, "tool_calls": made} if made else message


ONE, TWO = ("get_weather", ARGUMENTS), ("get_time", {"zone": "UTC+1"})
ANSWERS = [
    answer("Some words, {x}.", ""),
    answer("Some words.", "Some\n\nideas."),
    answer("", "", ONE),
    answer("", "", ONE, TWO, ("get_time", {})),
    answer("Some words.", "Some ideas.", TWO, ONE),
]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("number", range(len(ANSWERS)))
def test_written_text_is_read_back(style: str, number: int) -> None:
    syntax, message = _syntax(style), ANSWERS[number]
    rendered = STYLES[style].render([USER, message], add_generation_prompt=False)
    text = rendered.rpartition(ASSISTANT)[2].removesuffix("<|end|>\n")
    calls = [call["function"] for call in message.get("tool_calls", [])]
    for cut in range(len(text) + 1):
        found = parse(syntax, [text[:cut], text[cut:]], tools=SCHEMAS)
        assert found.content.strip() == message["content"]
        assert found.reasoning == message.get("reasoning_content", "")
        read = [(call.name, json.loads(call.arguments)) for call in found.calls]
        assert read == [(call["name"], call["arguments"]) for call in calls]


@pytest.mark.parametrize("style", STYLES)
def test_the_template_explains_the_tools(style: str) -> None:
    tool: Any = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
    request = ChatRequest(messages=[USER], tools=[tool])
    prompt = chat_prompt(STYLES[style], _syntax(style), request).text
    assert prompt == STYLES[style].render([USER], tools=[tool])


def _syntax(style: str) -> OutputSyntax:
    syntax = detect(STYLES[style])
    assert syntax.calls is not None, style
    assert traits_of(STYLES[style]).caps["supports_tools"]
    return syntax
