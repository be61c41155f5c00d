"""Conversations with the templates of every family, and made-up ones."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.engine.chat.request import ChatPrompt, ChatRequest
from specllama.engine.chat.syntax import (
    OutputSyntax,
    Wrapper,
)
from specllama.engine.errors import EngineError
from specllama.engine.helpers.render.detect.detect import detect
from specllama.engine.helpers.render.renderer import CHATML
from specllama.engine.helpers.render.template.caps import traits_of
from specllama.engine.helpers.render.template.conversation import conversation
from specllama.engine.helpers.render.template.fallback import with_tools_as_text
from specllama.engine.helpers.render.template.prompt import chat_prompt
from tests.support.chat_fixtures import FIXTURES, TOOLS, Fixture
from tests.support.conversations import USER, asking, begun, call, prompt, result

THINK = Wrapper("<think>\n", "\n</think>\n\n")

THINKING = OutputSyntax(reasoning=THINK)


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
    messages: Any = [
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

    def made(last: Any) -> ChatPrompt:
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
