"""Calls and their results in the form that a template needs."""

from typing import Any

import pytest

from specllama.engine.chat.request import Continuation
from specllama.engine.chat.syntax import (
    HERMES_CALLS,
    OutputSyntax,
)
from specllama.engine.helpers.render.renderer import CHATML
from specllama.engine.helpers.render.template.adapting import adapted, short_id
from specllama.engine.helpers.render.template.caps import traits_of
from specllama.engine.helpers.render.template.conversation import Conversation, conversation
from specllama.engine.helpers.render.template.template import ChatTemplate
from tests.support.conversations import USER, asking, begun, call, prompt, result


def test_results_find_their_calls() -> None:
    talk = conversation(
        [
            USER,
            asking(call("f", id="a"), call("g", id="b")),
            result("2", "b"),
            result("1", "a", name="own"),
            asking(call("h", id="a")),
            result("3", "a"),
            asking(call("f", id=None), call("g", id="")),
            result("5", None, name="g"),
            result("4", None),
            asking(call("f", id=None)),
            result("6", "unknown"),
        ]
    )
    tools = [m for m in talk.messages if m["role"] == "tool"]
    assert [m["name"] for m in tools] == ["g", "own", "h", "g", "f", "f"]
    ids = [c["id"] for m in talk.messages for c in m.get("tool_calls", [])]
    assert [m["tool_call_id"] for m in tools] == ["b", "a", "a", ids[4], ids[3], ids[5]]
    assert len(set(ids[3:])) == 3


@pytest.mark.parametrize(
    ("messages", "id"),
    [
        ([USER, result("1", None)], "call00000"),
        ([result("1", "x")], "x"),
        ([USER, asking(call(id="a")), result("1", "b")], "b"),
        ([USER, asking(call()), result("1", None), result("2", None)], "call00001"),
    ],
)
def test_a_result_without_a_call_stays(messages: list[dict[str, Any]], id: str) -> None:
    last = conversation(messages).messages[-1]
    assert last == {"role": "tool", "content": last["content"], "tool_call_id": id}


def test_fields_that_are_empty_are_left_out() -> None:
    empty: dict[str, Any] = {"tool_calls": [], "reasoning_content": None, "name": None}
    assert conversation([{**USER, **empty}]).messages == [USER]


def test_no_messages_are_the_template_s_business() -> None:
    assert conversation([]) == Conversation([])
    assert prompt(CHATML).text == "<|im_start|>assistant\n"


def test_parts_of_an_answer_that_goes_on_are_paragraphs() -> None:
    parts = [{"type": "text", "text": text} for text in ("One", "Two")]
    talk = conversation([USER, {"role": "assistant", "content": parts}])
    assert talk.continuation == Continuation("One\n\nTwo")


STRICT = """
{%- macro checked(id) %}
{%- if id | length != 9 %}{{ raise_exception('nine letters') }}{% endif %}{{ id }}
{%- endmacro %}
{%- for m in messages %}
{%- if m.role == 'tool' %}[{{ checked(m.tool_call_id) }}]{{ m.content }}
{%- elif m.tool_calls %}
{%- if m.tool_calls | length != 1 %}{{ raise_exception('one call') }}{% endif %}
{%- set call = m.tool_calls[0] %}
{{- m.content }}<{{ checked(call.id) }}{{ call.function.arguments | tojson }}>
{%- else %}{{ m.content }}{% endif %}{% endfor %}"""


def test_ids_and_numbers_of_calls_in_the_templates_form() -> None:
    long, good = "call_0123456789", "abcDEF123"
    template = ChatTemplate(STRICT)
    traits = traits_of(template)
    assert traits.short_ids
    assert not traits.caps["supports_parallel_tool_calls"]
    talk = conversation(
        [
            USER,
            asking(call(id=long), call("g", {"x": "2"}, good), content="So: "),
            result("two", good),
            result("one", long),
            USER,
        ]
    )
    text = template.render(adapted(talk.messages, traits))
    short = short_id(long)
    assert len(short) == 9
    assert short.isalnum()
    assert text == (
        f'HelloSo: <{short}{{"x": "é"}}>[{short}]one<{good}{{"x": "2"}}>[{good}]twoHello'
    )


def test_short_ids_differ() -> None:
    assert short_id("abcDEF123") == "abcDEF123"
    assert len({short_id(f"call_{n}") for n in range(1000)}) == 1000


def test_thoughts_under_the_name_that_the_template_knows() -> None:
    source = CHATML.replace("{{ message.content }}", "{{ message.thinking }}|{{ message.content }}")
    assert "Hm|Hi" in prompt(source, USER, begun("Hi", "Hm"), USER).text


def test_arguments_in_the_templates_form() -> None:
    given = call(arguments={"x": "é"})
    text = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.name + ARGUMENTS }}"
    )
    text += "{% endfor %}{{ m.content }}{% endfor %}"
    as_text = text.replace("ARGUMENTS", "c.function.arguments")
    as_object = text.replace("ARGUMENTS", "c.function.arguments | tojson")
    for source in (as_text, as_object):
        for form in (given, call()):
            made = prompt(source, USER, asking(form), result("R"), syntax=OutputSyntax())
            assert made.text == 'Hellof{"x": "é"}R'
    for bad in ("{", "[1]"):  # cut off, or never right
        made = prompt(as_object, USER, asking(call(arguments=bad)), result("R"))
        assert made.text == f'Hellof{{"INVALID_JSON": "{bad}"}}R'
        made = prompt(as_text, USER, asking(call(arguments=bad)), result("R"))
        assert made.text == f"Hellof{bad}R"


def test_thoughts_as_a_part_of_the_content() -> None:
    source = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for p in m.content %}{% if p.type == 'thinking' %}[THINK]{{ p.thinking }}[/THINK]"
        "{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
    )
    assert traits_of(ChatTemplate(source)).thoughts_in_parts
    assert prompt(source, USER, begun("Hi", "Hm"), USER).text == "Hello[THINK]Hm[/THINK]HiHello"
    printed = "{% for m in messages %}{{ m.content | tojson }}{% endfor %}"
    assert not traits_of(ChatTemplate(printed)).thoughts_in_parts


def test_results_in_the_message_of_the_call() -> None:
    source = (
        "{% for m in messages %}[{{ m.role }}]{% for c in m.tool_calls or [] %}"
        "{{ c.function.name ~ (c.function.arguments | tojson) }}{% endfor %}"
        "{% for r in m.tool_responses or [] %}<{{ r.name }}={{ r.response | tojson }}>{% endfor %}"
        "{{ m.content or '' }}{% endfor %}"
    )
    assert traits_of(ChatTemplate(source)).results_in_call
    asked = asking(call(), call("g", "{}", "c2"))
    answers = [result('{"a": 1}'), result("plain", "c2")]
    said = {"role": "assistant", "content": "So."}
    syntax = OutputSyntax(calls=HERMES_CALLS)
    text = prompt(source, USER, asked, *answers, said, USER, syntax=syntax).text
    assert text == ('[user]Hello[assistant]f{"x": "é"}g{}<f={"a": 1}><g="plain">So.[user]Hello')


@pytest.mark.parametrize("printed", ["{{ m.content | tojson }}", "{{ m.content }}"])
def test_parts_that_a_template_prints_are_a_text(printed: str) -> None:
    source = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    source += printed + "{% endif %}{% endfor %}"
    parts = [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]
    assert prompt(source, {"role": "user", "content": parts}).text == "One.\nTwo."


LOOP = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
ONLY_FIRST = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning') }}{% endif %}"
    "[{{ m.role }}:{{ m.content }}]{% endfor %}"
)
DROPS_LATE = (
    "{% for m in messages %}{% if m.role != 'system' or loop.first %}"
    "[{{ m.role }}:{{ m.content }}]{% endif %}{% endfor %}"
)
MOVES_UP = (
    "{% for m in messages if m.role == 'system' %}[system:{{ m.content }}]{% endfor %}"
    "{% for m in messages if m.role != 'system' %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
)
ALTERNATES = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "[{{ m.role }}:{{ m.content }}]{% endfor %}"
)
RULE, RULE_2 = ({"role": "system", "content": text} for text in ("Be short.", "Be kind."))
ANSWER = {"role": "assistant", "content": "Hi"}
MARKED = "<system>\nBe kind.\n</system>"


def shown(source: str, *messages: dict[str, Any]) -> str:
    return prompt(source, *messages).text


@pytest.mark.parametrize("source", [ONLY_FIRST, DROPS_LATE, MOVES_UP])
def test_late_system_messages_are_in_the_turn_of_the_user(source: str) -> None:
    head = "[system:Be short.][user:Hello]"
    assert shown(source, RULE, USER, ANSWER, RULE_2, USER) == (
        f"{head}[assistant:Hi][user:{MARKED}\n\nHello]"
    )
    assert shown(source, RULE, USER, RULE_2) == f"[system:Be short.][user:Hello\n\n{MARKED}]"
    assert shown(source, USER, RULE_2, ANSWER, USER) == (
        f"[user:Hello\n\n{MARKED}][assistant:Hi][user:Hello]"
    )


def test_a_template_that_takes_system_messages_anywhere_gets_them_there() -> None:
    assert shown(LOOP, RULE, RULE_2, USER, RULE_2) == (
        "[system:Be short.][system:Be kind.][user:Hello][system:Be kind.]"
    )


@pytest.mark.parametrize("source", [ONLY_FIRST, DROPS_LATE])
def test_several_first_system_messages_are_one(source: str) -> None:
    assert shown(source, RULE, RULE_2, USER) == "[system:Be short.\n\nBe kind.][user:Hello]"
    developer = {**RULE_2, "role": "developer"}
    assert shown(source, RULE, developer, USER) == "[system:Be short.\n\nBe kind.][user:Hello]"


def test_turns_alternate_with_system_messages_as_well() -> None:
    assert shown(ALTERNATES, RULE, USER) == "[user:Be short.\nHello]"
    assert shown(ALTERNATES, RULE, USER, ANSWER, RULE_2) == (
        f"[user:Be short.\nHello][assistant:Hi][user:{MARKED}]"
    )
    assert shown(ALTERNATES, USER, RULE_2) == f"[user:Hello\n\n{MARKED}]"
    assert shown(ALTERNATES, RULE) == "[user:Be short.]"


PRINTS_PARTS = (
    "{% for m in messages %}[{{ m.role }}:{% if m.role == 'user' and m.content is not string %}"
    "{% for p in m.content %}{{ p.text }}{% endfor %}{% else %}{{ m.content }}{% endif %}]"
    "{% endfor %}"
)


@pytest.mark.parametrize("role", ["system", "developer", "assistant"])
def test_parts_are_a_text_for_a_role_that_would_print_them(role: str) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    message = {"role": role, "content": parts, "tool_call_id": "call00001"}
    before = [] if role in ("system", "developer") else [USER]
    seen = "system" if role == "developer" else role
    assert f"[{seen}:one\ntwo]" in shown(PRINTS_PARTS, *before, message, USER)
    user = {"role": "user", "content": parts}
    assert shown(PRINTS_PARTS, user) == "[user:onetwo]"


CALLS_FIRST = (
    "{% for m in messages if m.role != 'tool' %}[{{ m.role }}:"
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}"
    "{% for c in m.tool_calls or [] %}<{{ c.function.name }} {{ c.function.arguments.a }}>"
    "{% set i = loop.index0 %}"
    "{% for t in messages if t.role == 'tool' and t.tool_call_id == c.id %}={{ t.content }}"
    "{% endfor %}{% endfor %}{{ m.content }}]{% endfor %}"
)


def test_a_text_that_would_stand_behind_the_result_is_a_thought() -> None:
    messages = [USER, {**asking(call("f", {"a": 1}, id="call00001")), "content": "I look."}]
    expected = "[user:Hello][assistant:(I look.)<f 1>=2]"
    assert shown(CALLS_FIRST, *messages, result("2", "call00001")) == expected
    in_parts = {**result("", "call00001"), "content": [{"type": "text", "text": "2"}]}
    assert shown(CALLS_FIRST, *messages, in_parts) == expected
