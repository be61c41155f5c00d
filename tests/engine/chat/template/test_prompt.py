"""Prompts: thoughts opened and closed, answers continued, tools explained, forms adapted."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.chat.detect.detect import detect
from engine.chat.prompt import ChatPrompt
from engine.chat.request import ChatRequest
from engine.chat.syntax import (
    HERMES_CALLS,
    CallSyntax,
    Fill,
    OutputSyntax,
    TaggedArguments,
    Wrapper,
)
from engine.chat.template.adapting import adapted, short_id
from engine.chat.template.builtin import CHATML
from engine.chat.template.caps import traits_of
from engine.chat.template.conversation import Continuation, conversation
from engine.chat.template.fallback import with_tools_as_text, written_call
from engine.chat.template.prompt import chat_prompt, continued, opened, plain_messages
from engine.chat.template.template import ChatTemplate
from engine.errors import EngineError
from tests.support.chat_fixtures import FIXTURES, TOOLS, Fixture

USER = {"role": "user", "content": "Hello"}
HERMES_TEXT = '<tool_call>\n{"name": "f", "arguments": {"x": "é"}}\n</tool_call>'
THINK = Wrapper("<think>\n", "\n</think>\n\n")
THINKING = OutputSyntax(reasoning=THINK)
HARMONY = OutputSyntax(harmony=True)
OPENS = CHATML.replace("assistant\n{%", "assistant\n<think>\n{%")
SWITCHED = CHATML.replace(
    "assistant\n{%", "assistant\n{% if not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{%"
)
HEAD = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"


def call(name: str = "f", arguments: Any = '{"x": "é"}', id: str | None = "c1") -> dict[str, Any]:
    made = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return made if id is None else {**made, "id": id}


def asking(*calls: dict[str, Any], content: str | None = None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls), **more}


def result(content: str, id: str | None = "c1", **more: Any) -> dict[str, Any]:
    made = {"role": "tool", "content": content, **more}
    return made if id is None else {**made, "tool_call_id": id}


def begun(content: str = "", reasoning: str | None = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "reasoning_content": reasoning}


def prompt(
    source: str, *messages: dict[str, Any], syntax: OutputSyntax | None = None, **fields: Any
) -> ChatPrompt:
    template = ChatTemplate(source, "<s>", "</s>")
    request = ChatRequest(messages=list(messages), **fields)
    return chat_prompt(template, detect(template) if syntax is None else syntax, request)


# ---- thoughts ----------------------------------------------------------------------------


def test_thoughts_that_the_prompt_opens() -> None:
    made = prompt(OPENS, USER, syntax=THINKING)
    assert made == ChatPrompt(HEAD + "<think>\n", THINKING, thinking=True)
    assert not prompt(OPENS, USER).answering
    plain = prompt(CHATML, USER, syntax=THINKING)
    assert plain == ChatPrompt(HEAD, THINKING)


def test_no_budget_for_thoughts() -> None:
    closed = ChatPrompt(HEAD + "<think>\n\n</think>\n\n", THINKING)
    assert prompt(OPENS, USER, syntax=THINKING, reasoning_budget=0) == closed
    assert prompt(SWITCHED, USER, syntax=THINKING, reasoning_budget=0) == closed
    assert prompt(SWITCHED, USER, syntax=THINKING).text == HEAD
    wins = {"reasoning_budget": 0, "template_variables": {"enable_thinking": True}}
    assert prompt(SWITCHED, USER, syntax=THINKING, **wins) == closed
    assert prompt(OPENS, USER, syntax=OutputSyntax(), reasoning_budget=0).text.endswith("<think>\n")


def test_thoughts_forced_open() -> None:
    made = prompt(CHATML, USER, syntax=THINKING, thinking_forced_open=True)
    assert made == ChatPrompt(HEAD + "<think>\n", THINKING, thinking=True)
    assert prompt(OPENS, USER, syntax=THINKING, thinking_forced_open=True) == made
    off = {"enable_thinking": False}
    forced = prompt(
        SWITCHED, USER, syntax=THINKING, thinking_forced_open=True, template_variables=off
    )
    assert forced == made
    no = prompt(CHATML, USER, syntax=THINKING, thinking_forced_open=True, reasoning_budget=0)
    assert no.text == HEAD
    unable = prompt(CHATML, USER, syntax=OutputSyntax(), thinking_forced_open=True)
    assert unable == ChatPrompt(HEAD, OutputSyntax())
    harmony = opened(
        ChatPrompt("<|start|>assistant", HARMONY),
        ChatRequest(messages=[USER], thinking_forced_open=True),
    )
    assert harmony.text == "<|start|>assistant<|channel|>analysis<|message|>"
    assert harmony.thinking


# ---- continued answers -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "syntax", "answer", "tail"),
    [
        (CHATML, OutputSyntax(), begun("Hi"), "Hi"),
        (CHATML, OutputSyntax(), begun("Hi", "Hm"), "Hi"),  # thoughts that the template drops
        (CHATML, THINKING, begun("Hi"), "<think>\n\n</think>\n\nHi"),
        (CHATML, THINKING, begun("Hi", "Hm"), "<think>\nHm\n</think>\n\nHi"),
        (OPENS, THINKING, begun("Hi"), "<think>\n\n</think>\n\nHi"),
        (OPENS, THINKING, begun("Hi", "Hm"), "<think>\nHm\n</think>\n\nHi"),
        (SWITCHED, THINKING, begun("Hi", "Hm"), "<think>\nHm\n</think>\n\nHi"),
    ],
)
def test_a_content_goes_on(
    source: str, syntax: OutputSyntax, answer: dict[str, Any], tail: str
) -> None:
    for how in (None, True, "content"):
        made = prompt(source, USER, answer, syntax=syntax, continue_final_message=how)
        assert made == ChatPrompt(HEAD + tail, syntax, answering=True)


def test_thoughts_go_on() -> None:
    wanted = ChatPrompt(HEAD + "<think>\nHm", THINKING, thinking=True)
    for source in (CHATML, OPENS, SWITCHED):
        for how in (None, True, "reasoning_content"):
            last = begun("", "Hm")
            assert prompt(source, USER, last, syntax=THINKING, continue_final_message=how) == wanted
    with_content = prompt(
        OPENS, USER, begun("", "Hm"), syntax=THINKING, continue_final_message="content"
    )
    assert with_content.text == HEAD + "<think>\nHm\n</think>\n\n"
    assert with_content.answering


def test_empty_thoughts_where_the_template_writes_them() -> None:
    shows = CHATML.replace(
        "{{ message.content }}",
        "{% if message.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}"
        "{{ message.content }}",
    )
    made = prompt(shows, USER, begun("Hi"), syntax=THINKING)
    assert made.text == HEAD + "<think>\n\n</think>\n\nHi"
    off = {"enable_thinking": False}
    made = prompt(SWITCHED, USER, begun("Hi"), syntax=THINKING, template_variables=off)
    assert made.text == HEAD + "<think>\n\n</think>\n\nHi"


def test_markers_of_the_content() -> None:
    marked = OutputSyntax(THINK, Wrapper("<response>", "</response>"))
    source = CHATML.replace("{{ message.content }}", "<response>{{ message.content }}")
    made = prompt(source, USER, begun("Hi"), syntax=marked)
    assert made.text.endswith("assistant\n<think>\n\n</think>\n\n<response>Hi")
    assert made.begun == "<response>"
    without = OutputSyntax(content=Wrapper("<response>", "</response>"))
    # The template may mark a text, or not.
    assert prompt(source, USER, begun("Hi"), syntax=without).text.endswith("\n<response>Hi")
    assert prompt(CHATML, USER, begun("Hi"), syntax=without).text == HEAD + "Hi"
    made = prompt(CHATML, USER, begun("Hi", "Hm"), syntax=marked)
    assert made.text == HEAD + "<think>\nHm\n</think>\n\n<response>Hi"
    half = ChatPrompt("...>>>", OutputSyntax(content=Wrapper(">>>all\n")))
    assert continued(half, Continuation("Hi"), lambda: "...>>>all\n").text == "...>>>all\nHi"


def test_harmony_goes_on() -> None:
    start = ChatPrompt("<|start|>assistant", HARMONY)
    thoughts = "<|start|>assistant<|channel|>analysis<|message|>Hm"
    made = continued(start, Continuation(reasoning="Hm", thinks=True))
    assert (made.text, made.thinking) == (thoughts, True)
    made = continued(start, Continuation("Hi", "Hm"))
    assert made.text == f"{thoughts}<|end|><|start|>assistant<|channel|>final<|message|>Hi"
    made = continued(start, Continuation("Hi"))
    empty = "<|start|>assistant<|channel|>analysis<|message|><|end|>"
    assert made.text == f"{empty}<|start|>assistant<|channel|>final<|message|>Hi"


@pytest.mark.parametrize(
    ("answer", "fields", "message"),
    [
        (begun("", "Hm"), {"syntax": OutputSyntax()}, "no thoughts to go on with"),
        (begun("Hi", "Hm"), {"continue_final_message": "reasoning_content"}, "begun already"),
        (asking(call()), {}, "tool calls can't be continued"),
        (USER, {"continue_final_message": True}, "not the assistant's"),
        (
            begun("Hi"),
            {"continue_final_message": True, "add_generation_prompt": True},
            "not with add_generation_prompt",
        ),
    ],
)
def test_what_does_not_go_on(answer: dict[str, Any], fields: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message) as error:
        prompt(CHATML, USER, answer, **({"syntax": THINKING} | fields))
    assert error.value.info.type == "invalid_request_error"


def test_without_prefilling_the_last_answer_is_whole() -> None:
    made = prompt(CHATML, USER, begun("Hi"), prefill=False)
    assert made.text == HEAD + "Hi<|im_end|>\n<|im_start|>assistant\n"
    assert not made.answering
    two = prompt(CHATML, USER, begun("Hi"), begun("Ho"), prefill=False)
    assert two.text.count("assistant") == 3
    insisted = prompt(CHATML, USER, begun("Hi"), prefill=False, continue_final_message=True)
    assert insisted.text == HEAD + "Hi"


# ---- calls and their results -------------------------------------------------------------


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
    ("messages", "message"),
    [
        ([USER, result("1", None)], r"messages\[1\]: .*no call waits"),
        ([result("1", "x")], r"messages\[0\].tool_call_id"),
        ([USER, asking(call(id="a")), result("1", "b")], r"messages\[2\].tool_call_id"),
        ([USER, asking(call()), result("1", None), result("2", None)], r"messages\[3\]"),
    ],
)
def test_a_result_without_a_call_is_refused(messages: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(EngineError, match=message) as error:
        conversation(messages)
    assert error.value.info.type == "invalid_request_error"


def test_fields_that_are_empty_are_left_out() -> None:
    empty: dict[str, Any] = {"tool_calls": [], "reasoning_content": None, "name": None}
    assert conversation([{**USER, **empty}]).messages == [USER]
    with pytest.raises(EngineError, match="there are none"):
        conversation([])


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


def test_ids_and_numbers_of_calls_as_the_template_wants_them() -> None:
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


def test_arguments_in_the_form_that_the_template_wants() -> None:
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
    for bad, message in (("{", "not JSON"), ("[1]", "not a JSON object")):
        with pytest.raises(EngineError, match=rf"messages\[1\].tool_calls\[0\].*{message}"):
            prompt(as_object, USER, asking(call(arguments=bad)), result("R"))


# ---- tools for templates that know none ---------------------------------------------------


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


# ---- every family ------------------------------------------------------------------------

every_fixture = pytest.mark.parametrize("family", FIXTURES, ids=lambda family: family.name)


@every_fixture
def test_traits_are_found(family: Fixture) -> None:
    traits = traits_of(family.template())
    caps = traits.caps
    assert caps["supports_system_role"] == family.system
    assert caps["supports_tools"] == family.tools
    assert caps["supports_tool_calls"] == family.calls
    assert caps["supports_string_content"] == family.string_content
    assert caps["supports_typed_content"] == family.typed_content
    assert traits.null_content == family.null_content
    if family.calls:
        assert caps["supports_parallel_tool_calls"] == family.parallel
        if family.arguments != "either":
            assert caps["supports_object_arguments"] == (family.arguments == "object")
    if family.keeps_reasoning:
        assert traits.reasoning_key == family.reasoning_key


@every_fixture
def test_an_agent_s_conversation_renders_with_every_template(family: Fixture) -> None:
    """In OpenAI's form, with everything that some templates have trouble with."""
    template = family.template()
    one, two = "call_abcdefghijklmnopqrstuvwx", "call_01234567890123456789abcd"
    messages: list[dict[str, Any]] = [
        {"role": "developer", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "What is the weather?"}]},
        asking(
            call("get_weather", '{"city": "Zürich", "days": 2}', one),
            call("find_hotel", '{"stars": [4], "pool": true}', two),
            reasoning_content="Thoughts",
        ),
        result('"Rain"', one),
        result('"None"', two),
    ]
    syntax = detect(template)
    made = chat_prompt(template, syntax, ChatRequest(messages=messages, tools=TOOLS))
    for word in ("What is the weather?", "Zürich", "Rain", "None", "find_hotel", "get_weather"):
        assert word in made.text
    assert made.syntax.calls is not None or made.syntax.harmony
    assert chat_prompt(template, syntax, ChatRequest(messages=messages)).text


@every_fixture
def test_every_answer_of_every_family_goes_on(family: Fixture) -> None:
    template = family.template()
    syntax = detect(template)

    def made(last: dict[str, Any]) -> ChatPrompt:
        return chat_prompt(template, syntax, ChatRequest(messages=[USER, last]))

    assert made(begun("Begun")).text.endswith("Begun")
    whole = made(begun("Begun", "Thoughts"))
    assert whole.text.endswith("Begun")
    assert whole.answering
    if syntax.reasoning or syntax.harmony:
        assert "Thoughts" in whole.text
        thoughts = made(begun("", "Thoughts"))
        assert thoughts.text.endswith("Thoughts")
        assert thoughts.thinking
        assert whole.text.startswith(thoughts.text)


# ---- properties --------------------------------------------------------------------------

texts = st.text(max_size=8)
calls_ = st.builds(
    lambda name, arguments, id: call(name, json.dumps(arguments), id),
    st.sampled_from(["f", "g"]),
    st.dictionaries(texts, st.integers() | texts, max_size=2),
    st.none() | st.sampled_from(["a", "b", "call_0123456789"]),
)
messages_ = st.lists(
    st.one_of(
        st.builds(
            lambda role, text: {"role": role, "content": text},
            st.sampled_from(["system", "developer", "user"]),
            texts | st.none(),
        ),
        st.builds(lambda text, thoughts: begun(text, thoughts), texts, texts | st.none()),
        st.builds(lambda c, text: asking(*c, content=text), st.lists(calls_, max_size=3), texts),
        st.builds(result, texts, st.none() | st.sampled_from(["a", "b", "x"])),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=150, deadline=None)
@given(messages_, st.sampled_from([f.name for f in FIXTURES] + [""]), st.booleans(), st.booleans())
def test_every_conversation_makes_a_prompt_or_a_documented_error(
    messages: list[dict[str, Any]], name: str, prefill: bool, tools: bool
) -> None:
    source = next((f.source for f in FIXTURES if f.name == name), CHATML)
    before = json.dumps(messages)
    refusal = ""
    try:
        made = prompt(
            source, *messages, syntax=THINKING, tools=TOOLS if tools else [], prefill=prefill
        )
        assert not (made.thinking and made.answering)
    except EngineError as e:
        refusal = e.info.type
    assert refusal in ("", "invalid_request_error")
    assert json.dumps(messages) == before


@given(messages_)
def test_tools_as_text_leaves_roles_and_texts(messages: list[dict[str, Any]]) -> None:
    try:
        talk = conversation(messages, prefill=False)
    except EngineError:
        return
    made = with_tools_as_text(talk.messages, TOOLS)
    assert {message["role"] for message in made} <= {"system", "developer", "user", "assistant"}
    assert not any("tool_calls" in message for message in made)
    shown = "\n".join(message["content"] for message in made)
    assert all(message["content"] in shown for message in talk.messages)


# ---- what templates are told beside the messages, and forms of their own -----------------------


def test_thinking_is_for_models_that_think() -> None:
    source = "{{ enable_thinking }}"
    assert prompt(source, USER, syntax=OutputSyntax()).text == "False"
    assert prompt(source, USER, syntax=THINKING).text == "True"
    forced = {"template_variables": {"enable_thinking": True}}
    assert prompt(source, USER, syntax=OutputSyntax(), **forced).text == "True"


def test_earlier_thoughts_are_kept_unless_it_is_switched_off() -> None:
    source = "{{ preserve_thinking }} {{ clear_thinking }} {{ drop_thinking }}"
    assert prompt(source, USER).text == "True False False"
    off = {"preserve_reasoning": False}
    assert prompt(source, USER, template_variables=off).text == "False True True"
    mixed = {**off, "clear_thinking": "own"}
    assert prompt(source, USER, template_variables=mixed).text == "False own True"


def test_an_effort_has_two_names() -> None:
    source = "{{ reasoning_effort }} {{ reasoning_strength }}"
    given_effort = {"reasoning_effort": "low"}
    assert prompt(source, USER, template_variables=given_effort).text == "low low"


SHOWN = "{% if tools %}{{ tools | tojson }}{% endif %}"
ROLES = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


def test_a_template_without_calls_that_is_known() -> None:
    """It is given the tools; earlier calls stand in the text as the model writes them."""
    source = "List of tools: [" + SHOWN + "]" + ROLES
    syntax = detect(ChatTemplate(source))
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    asked = asking(call("f", '{"x": "é", "n": [1, {"a": true}]}'), content="Wait.")
    text = prompt(source, USER, asked, result("It is."), syntax=syntax, tools=tools).text
    assert text.startswith('List of tools: [[{"type"')
    written = '<|tool_call_start|>[f(x="é", n=[1, {"a": true}])]<|tool_call_end|>'
    assert text.endswith(f"]Hello[assistant]Wait.\n{written}[tool]It is.")


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


def test_the_rest_of_a_word_is_no_marker() -> None:
    syntax = OutputSyntax(content=Wrapper("to=user|"))
    made = continued(ChatPrompt("assistant", syntax), Continuation("Hi"), lambda: "x to=user|")
    assert made.text == "assistantto=user|Hi"
