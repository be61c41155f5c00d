"""The detected syntax is the one that the model writes; nothing unproven is believed."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.engine.chat.syntax import (
    KEY,
    CallSyntax,
    Fill,
    OutputSyntax,
    TaggedArguments,
    Wrapper,
)
from specllama.engine.errors import EngineError
from specllama.engine.helpers.render.detect.detect import detect
from specllama.engine.helpers.render.template.template import ChatTemplate
from tests.support.chat_fixtures import FIXTURES, Fixture
from tests.support.hostile_templates import HOSTILE, Hostile

pytestmark = pytest.mark.slow

CALLS: list[dict[str, Any]] = [
    {"city": "Zürich", "days": 2},
    {"stars": [4, 5], "pool": True, "note": 'a "quiet" one\nplease'},
    {"only": None},
]


def written(syntax: CallSyntax, arguments: list[dict[str, Any]]) -> str:
    """Calls in the syntax, except for white space around all of them."""
    texts = []
    for index, values in enumerate(arguments):
        fills = {
            "name": f"tool_{index}",
            "id": f"id{index}abc",
            "index": str(index),
            "arguments": _arguments(syntax.tagged, values),
        }
        texts.append(
            "".join(part if isinstance(part, str) else fills[part.hole] for part in syntax.parts)
        )
    return (syntax.begin + syntax.separator.join(texts) + syntax.end).strip()


def _arguments(tagged: TaggedArguments | None, values: dict[str, Any]) -> str:
    if tagged is None:
        return json.dumps(values)
    raw = not tagged.json_strings
    return tagged.separator.join(
        tagged.begin
        + key
        + tagged.middle
        + (value if isinstance(value, str) and raw else json.dumps(value))
        + tagged.end
        for key, value in values.items()
    )


def assert_same_calls(found: CallSyntax | None, true: CallSyntax | None) -> None:
    """They write the same texts: a space between two parts may belong to either."""
    if found is None or true is None:
        assert found is true
        return
    assert found.parallel == true.parallel
    for count in (1, 2, 3) if true.parallel else (1,):
        assert written(found, CALLS[:count]) == written(true, CALLS[:count])
    holes = [part for part in found.parts if isinstance(part, Fill)]
    assert holes == [part for part in true.parts if isinstance(part, Fill)]


@pytest.mark.parametrize("family", FIXTURES, ids=lambda family: family.name)
def test_the_families(family: Fixture) -> None:
    found, true = detect(family.template()), family.syntax
    assert found.harmony == true.harmony
    assert found.reasoning == (true.reasoning if "reasoning" in family.shown else None)
    # Content is rendered by every template; its wrapper may be known to the model only.
    assert found.content == (true.content if "content" in family.shown else Wrapper())
    # Calls whose ids name the function are found though renderings of other ids don't show names.
    if "calls" in family.shown or found.calls is not None:
        assert_same_calls(found.calls, true.calls)


def conversation(answer: str, prompt: str = "<|ai|>", end: str = "<|end|>") -> ChatTemplate:
    """A template in which the assistant's messages are rendered by `answer`."""
    return ChatTemplate(
        "{%- for message in messages %}"
        "{%- if message.role == 'user' %}{{ '<|user|>' + message.content + '<|end|>' }}"
        "{%- elif message.role == 'assistant' %}{{ '<|ai|>' }}"
        + answer
        + "{{ '"
        + end
        + "' }}{%- endif %}{%- endfor %}"
        + "{%- if add_generation_prompt %}"
        + prompt
        + "{%- endif %}"
    )


def calls_in(one_call: str, begin: str = "", separator: str = "", end: str = "") -> str:
    return (
        "{{ message.content or '' }}"
        "{%- if message.tool_calls %}"
        f"{literal(begin)}"
        "{%- for call in message.tool_calls %}{%- set function = call.function %}"
        f"{one_call}"
        f"{{%- if not loop.last %}}{literal(separator)}{{%- endif %}}"
        f"{{%- endfor %}}{literal(end)}"
        "{%- endif %}"
    )


def literal(text: str) -> str:
    return "{{ " + json.dumps(text) + " }}"


def json_call(before: str, between: str, after: str, dump: str = "tojson") -> str:
    return (
        literal(before)
        + "{{ function.name }}"
        + literal(between)
        + f"{{{{ function.arguments | {dump} }}}}"
        + literal(after)
    )


@pytest.mark.parametrize(
    "dump",
    [
        "tojson",
        "tojson(indent=4)",
        "tojson(separators=(',', ':'))",
        "tojson(sort_keys=true)",
        "tojson(ensure_ascii=true)",
    ],
)
def test_json_is_read_however_it_is_spaced(dump: str) -> None:
    template = conversation(calls_in(json_call("<call>", "|", "</call>", dump)))
    assert detect(template).calls == CallSyntax(
        ("<call>", Fill("name"), "|", Fill("arguments"), "</call>")
    )


def test_arguments_may_come_before_the_name_and_an_id_after_it() -> None:
    call = (
        literal('<call>{"arguments": ')
        + "{{ function.arguments | tojson }}"
        + literal(', "name": "')
        + "{{ function.name }}"
        + literal('", "id": "')
        + "{{ call.id }}"
        + literal('"}')
    )
    assert detect(conversation(calls_in(call, separator="\n"))).calls == CallSyntax(
        (
            '<call>{"arguments": ',
            Fill("arguments"),
            ', "name": "',
            Fill("name"),
            '", "id": "',
            Fill("id"),
            '"}',
        ),
        separator="\n",
    )


def test_calls_are_counted_from_0_or_1() -> None:
    template = "<call {{ loop.index0 }}>{{ function.name }}:{{ function.arguments | tojson }};"
    assert detect(conversation(calls_in(template))).calls == CallSyntax(
        ("<call ", Fill("index"), ">", Fill("name"), ":", Fill("arguments"), ";")
    )
    from_1 = template.replace("index0", "index")
    assert detect(conversation(calls_in(from_1))).calls == CallSyntax(
        ("<call ", Fill("index"), ">", Fill("name"), ":", Fill("arguments"), ";"), first_index=1
    )


def test_a_digit_that_does_not_count_is_a_text() -> None:
    template = "<call v=0>{{ function.name }}:{{ function.arguments | tojson }};"
    assert detect(conversation(calls_in(template))).calls == CallSyntax(
        ("<call v=0>", Fill("name"), ":", Fill("arguments"), ";")
    )


def test_calls_that_end_the_turn_in_their_own_way() -> None:
    template = conversation(
        calls_in(json_call("<f=", ">", "</f>")),
        end="' + ('<|more|>' if message.tool_calls else '<|end|>') + '",
    )
    assert detect(template).calls == CallSyntax(
        ("<f=", Fill("name"), ">", Fill("arguments"), "</f>")
    )


def test_calls_as_json_text() -> None:
    call = "<call>{{ function.name }} {{ function.arguments }}</call>"
    assert detect(conversation(calls_in(call))).calls == CallSyntax(
        ("<call>", Fill("name"), " ", Fill("arguments"), "</call>")
    )


def tagged_call(value: str, separator: str = "") -> str:
    return (
        "<call={{ function.name }}>"
        "{%- for key, value in function.arguments.items() %}"
        f"<arg={{{{ key }}}}>{{{{ {value} }}}}</arg>"
        f"{{%- if not loop.last %}}{literal(separator)}{{%- endif %}}"
        "{%- endfor %}</call>"
    )


def test_tagged_arguments() -> None:
    parts = ("<call=", Fill("name"), ">", Fill("arguments"), "</call>")
    raw = "value if value is string else value | tojson"
    assert detect(conversation(calls_in(tagged_call(raw)))).calls == CallSyntax(
        parts, tagged=TaggedArguments("<arg=", ">", "</arg>")
    )
    assert detect(conversation(calls_in(tagged_call(raw, ", ")))).calls == CallSyntax(
        parts, tagged=TaggedArguments("<arg=", ">", "</arg>", ", ")
    )
    assert detect(conversation(calls_in(tagged_call("value | tojson")))).calls == CallSyntax(
        parts, tagged=TaggedArguments("<arg=", ">", "</arg>", json_strings=True)
    )


def test_the_tags_may_have_the_type_of_a_value() -> None:
    raw = tagged_call("value if value is string else value | tojson")
    typed = raw.replace(
        ">{{ value if", " type={{ 'text' if value is string else 'json' }}>{{ value if"
    )
    calls = detect(conversation(calls_in(typed))).calls
    assert calls is not None
    assert calls.tagged is not None
    assert calls.tagged.middle == " type=text>"
    kinds = ("integer", "number", "boolean", "null", "array", "object")
    assert set(calls.tagged.middles) == {(kind, " type=json>") for kind in kinds}


def test_texts_may_be_wrapped() -> None:
    wrapped = "'<![CDATA[' + value + ']]>' if value is string and '<' in value else value"
    calls = detect(conversation(calls_in(tagged_call(wrapped)))).calls
    assert calls is not None
    assert calls.tagged is not None
    assert calls.tagged.wrapper == Wrapper("<![CDATA[", "]]>")


def test_the_key_may_be_the_tag() -> None:
    call = (
        "<call={{ function.name }}>{%- for key, value in function.arguments.items() %}"
        "<{{ key }}>{{ value if value is string else value | tojson }}</{{ key }}>"
        "{%- endfor %}</call>"
    )
    calls = detect(conversation(calls_in(call))).calls
    assert calls is not None
    assert calls.tagged == TaggedArguments("<", ">", f"</{KEY}>")


def test_literals_of_a_language() -> None:
    call = (
        "{{ '[' + function.name + '(' }}{%- for key, value in function.arguments.items() %}"
        "{{ key }}={{ value | pprint }}{%- if not loop.last %}{{ ', ' }}{%- endif %}"
        "{%- endfor %})]"
    )
    assert detect(conversation(calls_in(call))).calls == CallSyntax(
        ("[", Fill("name"), "(", Fill("arguments"), ")]"),
        tagged=TaggedArguments("", "=", "", ", ", quote="'"),
    )


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(tagged_call("value | string | escape"), id="escaped"),
        pytest.param(
            tagged_call("value if value is string else value | tojson").replace(
                "<arg=", "<arg type={{ 'text' if value is string else 'json' }} name="
            ),
            id="types in the tags",
        ),
        pytest.param(json_call("<call>", "|", "</call>", "length"), id="arguments lost"),
        pytest.param(json_call("", "", ""), id="no marker at all"),
        pytest.param(
            json_call("<call>", "|", "</call>") + "{{ function.name }}", id="the name twice"
        ),
        pytest.param(
            "{%- if function.name is in ['zqfirst_tool', 'zqsecond_tool'] %}"
            + json_call("<call>", "|", "</call>")
            + "{%- else %}"
            + json_call("<other>", "|", "</other>")
            + "{%- endif %}",
            id="only what was guessed from",
        ),
    ],
)
def test_calls_that_no_syntax_describes(call: str) -> None:
    assert detect(conversation(calls_in(call))).calls is None


def test_one_call_only() -> None:
    refusing = (
        "{%- if message.tool_calls and message.tool_calls | length > 1 %}"
        "{{ raise_exception('one') }}{%- endif %}"
    )
    first = "{%- set first = (message.tool_calls or [])[:1] %}"
    true = CallSyntax(("<call>", Fill("name"), "|", Fill("arguments")), parallel=False)
    calls = calls_in(json_call("<call>", "|", ""))
    assert detect(conversation(refusing + calls)).calls == true
    kept = calls.replace("in message.tool_calls %", "in first %")
    assert detect(conversation(first + kept)).calls == true


_TEXT = "{{ message.content }}"
_THINK = OutputSyntax(reasoning=Wrapper("<think>\n", "\n</think>\n\n"))


@pytest.mark.parametrize(
    ("template", "true"),
    [
        pytest.param(conversation(_TEXT), OutputSyntax(), id="none"),
        pytest.param(
            conversation(
                "{%- if message.thinking %}<t>{{ message.thinking }}</t>{%- endif %}" + _TEXT
            ),
            OutputSyntax(reasoning=Wrapper("<t>", "</t>")),
            id="in a field of another name",
        ),
        pytest.param(
            conversation(
                "{%- if message.content is string %}{{ message.content }}{%- else %}"
                "{%- for part in message.content %}{%- if part.type == 'thinking' %}"
                "[THINK]{{ part.thinking }}[/THINK]{%- else %}{{ part.text }}{%- endif %}"
                "{%- endfor %}{%- endif %}"
            ),
            OutputSyntax(reasoning=Wrapper("[THINK]", "[/THINK]")),
            id="in parts of the content",
        ),
        pytest.param(
            conversation(
                "{%- if loop.last %}{{ '<think>\n' }}{{ message.reasoning_content }}"
                "{{ '\n</think>\n\n' }}{%- endif %}" + _TEXT,
                prompt="<|ai|>{{ '<think>\n' }}{%- if not enable_thinking %}{{ '\n</think>\n\n' }}"
                "{%- endif %}",
            ),
            _THINK,
            id="always there",
        ),
        pytest.param(
            conversation("{{ message.content.split('</think>')[-1] | trim }}"),
            _THINK,
            id="taken out of the content",
        ),
        pytest.param(
            conversation(_TEXT, prompt="<|ai|><think>{{ '\n' }}"), _THINK, id="opened by the prompt"
        ),
        pytest.param(
            conversation(
                _TEXT,
                prompt="<|ai|>{%- if not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}"
                "{%- endif %}",
            ),
            _THINK,
            id="closed by the prompt",
        ),
        pytest.param(
            conversation(_TEXT, prompt="<|ai|>{{ '<think>' if enable_thinking else '</think>' }}"),
            OutputSyntax(reasoning=Wrapper("<think>", "</think>")),
            id="opened or closed by the prompt",
        ),
        pytest.param(
            conversation(
                "{%- if message.reasoning_content %}<|START_PLAN|>{{ message.reasoning_content }}"
                "<|END_PLAN|>{%- endif %}<|START_SAY|>{{ message.content }}<|END_SAY|>"
            ),
            OutputSyntax(
                reasoning=Wrapper("<|START_PLAN|>", "<|END_PLAN|>"),
                content=Wrapper("<|START_SAY|>", "<|END_SAY|>"),
            ),
            id="the text is marked, too",
        ),
        pytest.param(
            conversation(
                "{%- if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>"
                "<say>{{ message.content }}</say>{%- else %}{{ message.content }}{%- endif %}"
            ),
            OutputSyntax(
                reasoning=Wrapper("<think>", "</think>"), content=Wrapper("<say>", "</say>")
            ),
            id="the text is marked after thoughts",
        ),
        pytest.param(
            conversation(
                "{%- if message.reasoning_content %}<|channel|>analysis<|message|>"
                "{{ message.reasoning_content }}<|end|><|start|>assistant{%- endif %}"
                "<|channel|>final<|message|>{{ message.content }}"
            ),
            OutputSyntax(harmony=True),
            id="channels",
        ),
    ],
)
def test_thoughts_and_text(template: ChatTemplate, true: OutputSyntax) -> None:
    assert detect(template) == true


@pytest.mark.parametrize(
    "source",
    [
        "",
        "{{ raise_exception('no') }}",
        "{{ messages }}",
        "{{ messages | tojson }}{{ tools | tojson }}",
        "{{ messages[-1].content }}{{ '{' * 7000 }}",
        "{% for m in messages %}{{ m.content }}{% endfor %}" + "[{" * 3000,
        "{% for m in messages %}{{ m.content }}{% endfor %}" + "<" * 5000,
        "{% for m in messages %}{{ m.content }}{{ m.content }}<think></think>{% endfor %}",
        "<think></think><tool_call></tool_call>[TOOL_CALLS]<|channel|>a<|message|>[]"
        "{% for m in messages %}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{{ c.function.name * 50 }}{{ c.function.arguments }}{% endfor %}{% endfor %}",
        "{% for m in messages %}{{ m.content | reverse }}{% endfor %}",
        "{% for m in messages %}{{ m.content | upper }}{% endfor %}",
    ],
)
def test_odd_templates_have_no_calls(source: str) -> None:
    found = detect(ChatTemplate(source))
    assert found.calls is None
    assert not found.harmony


@pytest.mark.parametrize(
    "hostile",
    [hostile for hostile in HOSTILE if hostile.outcome in ("renders", "refused")],
    ids=lambda hostile: hostile.name,
)
def test_templates_that_mean_harm(hostile: Hostile) -> None:
    """Templates that end by themselves; the others are stopped from outside."""
    found = detect(ChatTemplate(hostile.source))
    assert found == OutputSyntax()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # escapes that a cut made invalid
@given(family=st.sampled_from(FIXTURES), data=st.data())
@settings(max_examples=80, deadline=None)
def test_damaged_templates(family: Fixture, data: st.DataObject) -> None:
    """Whatever is missing in a template, the detection raises no exception."""
    source = family.source
    start = data.draw(st.integers(0, len(source)))
    damaged = source[:start] + source[start + data.draw(st.integers(1, 60)) :]
    try:
        template = ChatTemplate(damaged, family.bos, family.eos)
    except EngineError:
        return
    assert isinstance(detect(template), OutputSyntax)


_BEGINS = st.sampled_from(
    ["", "<calls>", "[CALLS] [", "<|calls_begin|>", "<calls>\n", "Action:\n```json\n[\n    "]
)
_PIECES = st.sampled_from(["|", '", "arguments": ', '">', "<sep>", "\n```json\n", "[ARGS]", " "])
_OPENINGS = st.sampled_from(
    ["<call>", '{"name": "', '<call>\n{"name": "', "[CALL]", "<|call|>", "fn(", "<call name="]
)
_CLOSINGS = st.sampled_from(["</call>", "}", "}\n</call>", "[/CALL]", "<|/call|>", ")", "</call>;"])
_SEPARATORS = st.sampled_from(["", "\n", ", ", ",\n", "\n\n", ";"])


@given(
    begin=_BEGINS,
    opening=_OPENINGS,
    middle=_PIECES,
    closing=_CLOSINGS,
    separator=_SEPARATORS,
    end=st.sampled_from(["</calls>", "]", "<|calls_end|>", "\n]```"]),
    thoughts=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_any_mixture_of_markers(
    begin: str,
    opening: str,
    middle: str,
    closing: str,
    separator: str,
    end: str,
    thoughts: bool,
) -> None:
    true = CallSyntax(
        (opening, Fill("name"), middle, Fill("arguments"), closing),
        begin,
        separator,
        end if begin else "",
    )
    before = "{%- if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>"
    answer = (before + "{%- endif %}" if thoughts else "") + calls_in(
        json_call(opening, middle, closing), begin, separator, true.end
    )
    found = detect(conversation(answer))
    assert found.reasoning == (Wrapper("<think>", "</think>") if thoughts else None)
    assert_same_calls(found.calls, true)
