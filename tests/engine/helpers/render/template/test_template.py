"""Templates in their sandbox, the results of probing them, and their variables."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.chat.request import Continuation
from specllama.engine.errors import EngineError
from specllama.engine.helpers.render.renderer import CHATML
from specllama.engine.helpers.render.template.adapting import adapted
from specllama.engine.helpers.render.template.caps import Caps, probe, traits_of
from specllama.engine.helpers.render.template.conversation import conversation, pairs, text_of
from specllama.engine.helpers.render.template.template import ChatTemplate

USER = {"role": "user", "content": "Hello"}
SYSTEM = {"role": "system", "content": "Be short."}
ANSWER = {"role": "assistant", "content": "Hi"}
CALL = {"type": "function", "function": {"name": "f", "arguments": "{}"}}


def render(source: str, *messages: dict[str, Any], **options: Any) -> str:
    return ChatTemplate(source, "<s>", "</s>").render(list(messages), **options)


def caps_of(source: str) -> Caps:
    return probe(ChatTemplate(source, "<s>", "</s>"))


# ---- the dialect -------------------------------------------------------------------------


def test_chatml() -> None:
    expected = "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
    assert render(CHATML, SYSTEM, USER, add_generation_prompt=False) == expected
    assert render(CHATML, SYSTEM, USER) == expected + "<|im_start|>assistant\n"


def test_variables_of_templates() -> None:
    assert render("{{ bos_token }}|{{ eos_token }}|{{ messages[0].role }}", USER) == "<s>|</s>|user"
    assert render("{{ documents }} {{ enable_thinking }}", USER) == "None True"
    assert render("{{ enable_thinking }}", USER, variables={"enable_thinking": False}) == "False"
    assert render("{{ messages | length }}", USER, variables={"messages": []}) == "1"
    assert len(render("{{ strftime_now('%Y-%m-%d') }}", USER)) == 10


def test_tools_are_there_only_if_there_are_any() -> None:
    source = "{% for tool in tools %}{{ tool.function.name }}{% endfor %}{{ tools is defined }}"
    assert render(source, USER) == "False"
    tool = {"type": "function", "function": {"name": "a_tool"}}
    assert ChatTemplate(source).render([USER], tools=[tool]) == "a_toolTrue"


@pytest.mark.parametrize(
    "expression", ["'a' + missing", "missing + 'a'", "'a' + none", "none + 'a'"]
)
def test_nothing_adds_nothing_to_a_text(expression: str) -> None:
    assert render(f"{{{{ {expression} }}}}", USER) == "a"


def test_lists_of_its_own_change() -> None:
    source = (
        "{% set own = [0, 1] %}{% set _ = own.append(2) %}{% set _ = own.pop(0) %}"
        "{{ own | map('string') | tojson }}"
    )
    assert render(source, USER) == '["1", "2"]'


@pytest.mark.parametrize(
    "given", ["messages", "messages[0].content", "tools", "tools[0].function.x"]
)
def test_lists_that_are_given_do_not_grow(given: str) -> None:
    tool = {"type": "function", "function": {"name": "a_tool", "x": [1]}}
    message = {"role": "user", "content": [{"type": "text", "text": "Hello"}]}
    with pytest.raises(EngineError, match="unsafe"):
        ChatTemplate(f"{{{{ {given}.append(1) }}}}").render([message], tools=[tool])


def test_nothing_adds_to_a_text_only() -> None:
    with pytest.raises(EngineError):
        render("{{ 1 + missing }}", USER)


def test_blocks_leave_no_blanks_and_lines_behind() -> None:
    assert render("a\n  {% if true %}\n  b\n  {% endif %}\nc", USER) == "a\n  b\nc"


def test_generation_blocks_and_loop_controls() -> None:
    source = (
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    )
    assert render(source, USER, ANSWER) == "Hello"


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("x | tojson", '{"b": "<ä>\'&", "a": 1}'),
        ("x | tojson(ensure_ascii=true)", '{"b": "<\\u00e4>\'&", "a": 1}'),
        ("x | tojson(sort_keys=true, separators=(',', ':'))", '{"a":1,"b":"<ä>\'&"}'),
        ("x | tojson(indent=1)", '{\n "b": "<ä>\'&",\n "a": 1\n}'),
    ],
)
def test_tojson(expression: str, expected: str) -> None:
    variables = {"x": {"b": "<ä>'&", "a": 1}}
    assert render("{{ " + expression + " }}", USER, variables=variables) == expected


# ---- failures ----------------------------------------------------------------------------


def test_an_invalid_template_is_the_server_s_fault() -> None:
    with pytest.raises(EngineError, match="line 2") as error:
        ChatTemplate("a\n{% if %}")
    assert error.value.info.type == "server_error"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ nothing.at.all }}", "nothing"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe|not safe"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "range"),
    ],
)
def test_a_failing_template_is_quoted(source: str, message: str) -> None:
    with pytest.raises(EngineError, match=f"(?i){message}") as error:
        render(source, USER)
    assert error.value.info.type == "invalid_request_error"


def test_templates_can_not_change_the_messages() -> None:
    messages = [dict(USER)]
    with pytest.raises(EngineError):
        ChatTemplate("{{ messages[0].update({'role': 'x'}) }}").render(messages)
    assert messages == [USER]


# ---- capabilities ------------------------------------------------------------------------

TOOLS = """
{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor %}
{%- for m in messages %}{{ m.role }}:{{ m.content }}
{%- for call in m.tool_calls or [] %}{{ call.function.name }}ARGUMENTS{% endfor %}
{%- endfor %}"""
OBJECT_ARGUMENTS = TOOLS.replace("ARGUMENTS", "{{ call.function.arguments | tojson }}")
TEXT_ARGUMENTS = TOOLS.replace("ARGUMENTS", "{{ '' + call.function.arguments }}")
PRINTED_ARGUMENTS = TOOLS.replace("ARGUMENTS", "{{ call.function.arguments }}")
PARTS_ONLY = """
{%- for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}"""
NO_SYSTEM = """
{%- for m in messages %}
{%- if m.role not in ['user', 'assistant'] %}{{ raise_exception('no') }}{% endif %}
{{- m.content }}{% endfor %}"""


def test_caps_of_a_plain_template() -> None:
    caps = caps_of(CHATML)
    assert {name for name, value in caps.items() if value} == {
        "supports_string_content",
        "supports_system_role",
    }


def test_caps_of_tools() -> None:
    caps = caps_of(OBJECT_ARGUMENTS)
    assert caps["supports_tools"]
    assert caps["supports_tool_calls"]
    assert caps["supports_parallel_tool_calls"]
    assert caps["supports_object_arguments"]
    for source in (TEXT_ARGUMENTS, PRINTED_ARGUMENTS):
        caps = caps_of(source)
        assert caps["supports_tool_calls"]
        assert caps["supports_parallel_tool_calls"]
        assert not caps["supports_object_arguments"]
    one = OBJECT_ARGUMENTS.replace("m.tool_calls or []", "(m.tool_calls or [])[:1]")
    assert caps_of(one)["supports_tool_calls"]
    assert not caps_of(one)["supports_parallel_tool_calls"]


def test_caps_of_contents_and_roles() -> None:
    caps = caps_of(PARTS_ONLY)
    assert caps["supports_typed_content"]
    assert not caps["supports_string_content"]
    caps = caps_of(NO_SYSTEM)
    assert caps["supports_string_content"]
    assert not caps["supports_system_role"]


def test_caps_of_reasoning() -> None:
    source = (
        "{{ reasoning_effort }}{% for m in messages %}"
        "{% if preserve_thinking %}{{ m.reasoning_content }}{% endif %}{% endfor %}"
    )
    caps = caps_of(source)
    assert caps["supports_preserve_reasoning"]
    assert caps["supports_reasoning_effort"]


def test_caps_of_a_template_that_never_works() -> None:
    assert not any(caps_of("{{ raise_exception('never') }}").values())


# ---- conversations -----------------------------------------------------------------------


def prompt(source: str, *messages: dict[str, Any]) -> str:
    template = ChatTemplate(source, "<s>", "</s>")
    talk = conversation(messages)
    shown = adapted(talk.messages, traits_of(template))
    text = template.render(shown, add_generation_prompt=talk.add_generation_prompt)
    return text + (talk.continuation.content if talk.continuation else "")


PARTS: dict[str, Any] = {
    "role": "user",
    "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
}


def test_parts_are_joined_where_a_template_knows_texts_only() -> None:
    assert "a\nb" in prompt(CHATML, PARTS)
    assert prompt(PARTS_ONLY, PARTS, SYSTEM) == "abBe short."
    assert text_of(PARTS["content"]) == "a\nb"


def test_the_developer_is_the_system_but_for_channels() -> None:
    message = {"role": "developer", "content": "x"}
    assert prompt("{{ messages[0].role }}{{ messages[0].content }}", message) == "systemx"
    source = "{{ messages[0].role }}{{ messages[0].content }}{# <|channel|> #}"
    assert prompt(source, message) == "developerx"
    assert pairs([message]) == [("system", "x")]


def test_system_messages_join_the_next_where_there_are_none() -> None:
    assert prompt(NO_SYSTEM, SYSTEM, USER) == "Be short.\nHello"
    assert prompt(NO_SYSTEM, USER, SYSTEM) == "Hello\n\n<system>\nBe short.\n</system>"


def test_null_content_is_empty() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    asking = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert conversation([USER, asking, USER]).messages[1]["content"] == ""
    assert conversation([{"role": "user", "content": None}]).messages[0]["content"] == ""


def test_arguments_become_objects_if_the_template_needs_them() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": '{"x": "é"}'}}
    asking = {"role": "assistant", "content": "", "tool_calls": [call]}
    assert 'f{"x": "é"}' in prompt(OBJECT_ARGUMENTS, USER, asking, USER)
    assert 'f{"x": "é"}' in prompt(TEXT_ARGUMENTS, USER, asking, USER)
    call["function"] = {"name": "f", "arguments": "{"}
    assert 'f{"INVALID_JSON": "{"}' in prompt(OBJECT_ARGUMENTS, USER, asking, USER)


def test_a_last_answer_is_continued() -> None:
    started = {"role": "assistant", "content": "Once"}
    assert prompt(CHATML, USER, started).endswith("<|im_start|>assistant\nOnce")
    talk = conversation([USER, started], continue_final_message=True)
    assert talk.continuation == Continuation("Once")
    assert conversation([started]).messages == []


@pytest.mark.parametrize(
    ("messages", "options", "type_"),
    [
        ([USER, ANSWER, ANSWER], {}, "invalid_request_error"),
        ([USER, ANSWER | {"tool_calls": [CALL]}], {}, "invalid_request_error"),
        ([USER], {"continue_final_message": True}, "invalid_request_error"),
        (
            [USER, ANSWER],
            {"continue_final_message": True, "add_generation_prompt": True},
            "invalid_request_error",
        ),
        (
            [USER, ANSWER],
            {"continue_final_message": "reasoning_content"},
            "invalid_request_error",
        ),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": ""}}]}],
            {},
            "not_supported_error",
        ),
    ],
)
def test_impossible_requests(
    messages: list[dict[str, Any]], options: dict[str, Any], type_: str
) -> None:
    with pytest.raises(EngineError) as error:
        conversation(messages, **options)
    assert error.value.info.type == type_


roles = st.sampled_from(["system", "user", "assistant", "tool", "developer"])
messages_ = st.lists(
    st.fixed_dictionaries({"role": roles, "content": st.text()}), min_size=1, max_size=6
)


@given(messages_, st.sampled_from([CHATML, OBJECT_ARGUMENTS, PARTS_ONLY, NO_SYSTEM]))
def test_a_conversation_renders_or_is_refused(messages: list[dict[str, Any]], source: str) -> None:
    before = [dict(message) for message in messages]
    text, refusal = "", ""
    try:
        text = prompt(source, *messages)
    except EngineError as e:
        refusal = e.info.type
    assert messages == before
    if refusal:
        assert refusal == "invalid_request_error"
    elif messages[-1]["role"] == "assistant":
        assert text.endswith(messages[-1]["content"])


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("{% if x %}a", (1, 11)),
        ("a\nb {% foo %}", (2, 6)),
        ("a\r\nb {% foo %}", (2, 6)),
        ("{{ a b }}", (1, 6)),
        ("x\n\n  {{ a & b }}", (3, 8)),
        ("a\n {# never", (2, 4)),
        ("{{ m['a' }}", (1, 10)),
        ("{% if a -%}   \n  {%- endfor %}", (2, 7)),
        ("{# a\n#}{% raw %}{{ x }}{% endraw %}\n{{ +* }}", (3, 5)),
        ("{{ 'a\n\n' b }}", (3, 3)),
        ("{{ x }}\n{{", (2, 1)),
    ],
)
def test_a_fault_has_its_place(source: str, place: tuple[int, int]) -> None:
    with pytest.raises(EngineError, match=r"\(line {}, column {}\)$".format(*place)) as error:
        ChatTemplate(source)
    assert error.value.info.final


@given(
    st.lists(
        st.sampled_from(
            ["{%", "%}", "{{", "}}", "{#", "#}", "-", " ", "\n", "if", "endif", "a", "'", "(", "]"]
        ),
        max_size=12,
    ).map("".join)
)
def test_the_place_is_in_the_template(source: str) -> None:
    try:
        ChatTemplate(source)
    except EngineError as error:
        if found := re.search(r"\(line (\d+), column (\d+)\)$", error.info.message):
            lines = source.split("\n")
            line, column = map(int, found.groups())
            assert 1 <= line <= len(lines)
            assert 1 <= column <= len(lines[line - 1]) + 1
