"""Tools for templates that know none."""

import json

import pytest

from specllama.engine.chat.request import ChatRequest, Continuation
from specllama.engine.chat.syntax import (
    HERMES_CALLS,
    CallSyntax,
    Fill,
    OutputSyntax,
    TaggedArguments,
)
from specllama.engine.errors import EngineError
from specllama.engine.helpers.render.detect.detect import detect
from specllama.engine.helpers.render.renderer import CHATML
from specllama.engine.helpers.render.template.fallback import written_call
from specllama.engine.helpers.render.template.prompt import plain_messages
from specllama.engine.helpers.render.template.template import ChatTemplate
from tests.support.chat_fixtures import TOOLS
from tests.support.conversations import USER, asking, begun, call, prompt, result

HERMES_TEXT = '<tool_call>\n{"name": "f", "arguments": {"x": "é"}}\n</tool_call>'


def test_tools_are_explained_to_a_template_without_them() -> None:
    made = prompt(
        CHATML,
        {"role": "developer", "content": "Be short."},
        USER,
        asking(call("f"), call("g", "{}", "c2"), content="So:"),
        result("one"),
        result("two", "c2"),
        {"role": "user", "content": "And?"},
        tools=TOOLS,
    )
    assert made.syntax.calls == HERMES_CALLS
    first, _, rest = made.text.partition("<|im_end|>\n")
    assert first.startswith("<|im_start|>system\nBe short.\n\n# Tools\n")
    assert json.dumps(TOOLS[0]["function"], ensure_ascii=False) in first
    assert "several calls" in first
    assert rest == (
        f"<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nSo:\n{HERMES_TEXT}\n"
        f'<tool_call>\n{{"name": "g", "arguments": {{}}}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\none\n</tool_response>\n"
        "<tool_response>\ntwo\n</tool_response>\nAnd?<|im_end|>\n<|im_start|>assistant\n"
    )
    single = prompt(CHATML, USER, tools=TOOLS, parallel_tool_calls=False)
    assert "several calls" not in single.text
    # Calls of the past need no explanation.
    made = prompt(CHATML, USER, asking(call()), result("one"))
    assert HERMES_TEXT in made.text
    assert made.syntax.calls is None
    assert "# Tools" not in made.text


def test_tools_are_explained_in_the_template_s_own_syntax() -> None:
    source = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}"
        "<call>{{ c.function.name }}{{ c.function.arguments | tojson }}</call>{% endfor %}"
        "{% endfor %}"
    )
    calls = CallSyntax(parts=("<call>", Fill("name"), Fill("arguments"), "</call>"))
    made = prompt(
        *(source, USER, asking(call()), result("R")),
        tools=TOOLS,
        syntax=OutputSyntax(calls=calls),
    )
    assert '<call>NAME{"ARGUMENT": "VALUE"}</call>' in made.text
    assert made.text.endswith('[assistant]<call>f{"x": "é"}</call>[tool]R')
    assert made.syntax.calls == calls


def test_written_calls() -> None:
    tagged = CallSyntax(
        parts=("<", Fill("name"), ">", Fill("arguments"), "</>"),
        tagged=TaggedArguments("<k>", "=", "</k>"),
    )
    assert written_call(tagged, "f", {"a": "x", "b": [1]}) == "<f><k>a=x</k><k>b=[1]</k></>"
    assert written_call(HERMES_CALLS, "f", {"x": "é"}) == HERMES_TEXT


def test_messages_for_formats_that_are_not_templates() -> None:
    request = ChatRequest(
        messages=[USER, asking(call()), result("R"), begun("Hi")],
        tools=TOOLS,
    )
    messages, talk, syntax = plain_messages(request)
    assert [role for role, _ in messages] == ["system", "user", "assistant", "user"]
    assert talk.continuation == Continuation("Hi")
    assert syntax.calls == HERMES_CALLS


def test_documents() -> None:
    source = "{% for d in documents or [] %}{{ d.title }}{% endfor %}"
    variables = {"documents": [{"title": "A", "text": "B"}]}
    assert prompt(source, USER, template_variables=variables).text == "A"
    assert prompt(source, USER).text == ""
    with pytest.raises(EngineError, match="no place for documents"):
        prompt(CHATML, USER, template_variables=variables)
    with pytest.raises(EngineError, match="no place for documents"):
        plain_messages(ChatRequest(messages=[USER], template_variables=variables))


SHOWN = "{% if tools %}{{ tools | tojson }}{% endif %}"
ROLES = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


def test_a_template_without_calls_that_is_known() -> None:
    """The prompt lists the tools; earlier calls are in the text as the model writes them."""
    source = "List of tools: [" + SHOWN + "]" + ROLES
    syntax = detect(ChatTemplate(source))
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    asked = asking(call("f", '{"x": "é", "n": [1, {"a": true}]}'), content="Wait.")
    text = prompt(source, USER, asked, result("It is."), syntax=syntax, tools=tools).text
    assert text.startswith('List of tools: [[{"type"')
    written = '<|tool_call_start|>[f(x="é", n=[1, {"a": true}])]<|tool_call_end|>'
    assert text.endswith(f"]Hello[assistant]Wait.\n{written}[tool]It is.")
