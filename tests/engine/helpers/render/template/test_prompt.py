"""Prompts: thoughts opened and closed, answers continued."""

from pathlib import Path
from typing import Any

import pytest

from specllama.engine.chat.request import ChatPrompt, ChatRequest, Continuation, ThinkingBudget
from specllama.engine.chat.syntax import (
    OutputSyntax,
    Wrapper,
)
from specllama.engine.errors import EngineError
from specllama.engine.helpers.render.detect.detect import detect
from specllama.engine.helpers.render.renderer import CHATML
from specllama.engine.helpers.render.template.prompt import chat_prompt, continued, opened
from specllama.engine.helpers.render.template.template import ChatTemplate
from tests.support.conversations import USER, asking, begun, call, prompt

THINK = Wrapper("<think>\n", "\n</think>\n\n")

THINKING = OutputSyntax(reasoning=THINK)

HARMONY = OutputSyntax(harmony=True)

NONE = ThinkingBudget(0)

OPENS = CHATML.replace("assistant\n{%", "assistant\n<think>\n{%")

SWITCHED = CHATML.replace(
    "assistant\n{%", "assistant\n{% if not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{%"
)

HEAD = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"


# ---- thoughts ----------------------------------------------------------------------------


def test_thoughts_that_the_prompt_opens() -> None:
    made = prompt(OPENS, USER, syntax=THINKING)
    assert made == ChatPrompt(HEAD + "<think>\n", THINKING, thinking=True)
    assert not prompt(OPENS, USER).answering
    plain = prompt(CHATML, USER, syntax=THINKING)
    assert plain == ChatPrompt(HEAD, THINKING)


def test_no_budget_for_thoughts() -> None:
    closed = ChatPrompt(HEAD + "<think>\n\n</think>\n\n", THINKING)
    assert prompt(OPENS, USER, syntax=THINKING, thinking_budget=NONE) == closed
    assert prompt(SWITCHED, USER, syntax=THINKING, thinking_budget=NONE) == closed
    assert prompt(SWITCHED, USER, syntax=THINKING).text == HEAD
    wins = {"thinking_budget": NONE, "template_variables": {"enable_thinking": True}}
    assert prompt(SWITCHED, USER, syntax=THINKING, **wins) == closed
    assert prompt(OPENS, USER, syntax=OutputSyntax(), thinking_budget=NONE).text.endswith(
        "<think>\n"
    )


def test_thoughts_forced_open() -> None:
    made = prompt(CHATML, USER, syntax=THINKING, thinking_forced_open=True)
    assert made == ChatPrompt(HEAD + "<think>\n", THINKING, thinking=True)
    assert prompt(OPENS, USER, syntax=THINKING, thinking_forced_open=True) == made
    off = {"enable_thinking": False}
    forced = prompt(
        SWITCHED, USER, syntax=THINKING, thinking_forced_open=True, template_variables=off
    )
    assert forced == made
    no = prompt(CHATML, USER, syntax=THINKING, thinking_forced_open=True, thinking_budget=NONE)
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
        given = Continuation(answer["content"], answer["reasoning_content"] or "")
        assert made == ChatPrompt(HEAD + tail, syntax, answering=True, given=given)


def test_thoughts_go_on() -> None:
    given = Continuation(reasoning="Hm", thinks=True)
    wanted = ChatPrompt(HEAD + "<think>\nHm", THINKING, thinking=True, given=given)
    for source in (CHATML, OPENS, SWITCHED):
        for how in (None, True, "reasoning_content"):
            last = begun("", "Hm")
            assert prompt(source, USER, last, syntax=THINKING, continue_final_message=how) == wanted
    with_content = prompt(
        OPENS, USER, begun("", "Hm"), syntax=THINKING, continue_final_message="content"
    )
    assert with_content.text == HEAD + "<think>\nHm\n</think>\n\n"
    assert with_content.answering


@pytest.mark.parametrize("source", [CHATML, OPENS, SWITCHED])
@pytest.mark.parametrize(
    ("content", "given"),
    [
        ("<think>Hm</think>Hi", Continuation("Hi", "Hm")),
        ("\n<think>\nHm\n</think>\n\nHi", Continuation("Hi", "Hm")),
        ("<think>\n\n</think>\n\n", Continuation()),
        ("<think></think>Hi </think>", Continuation("Hi </think>")),
        ("<think>\nHm", Continuation(reasoning="Hm", thinks=True)),
        ("<think>", Continuation(thinks=True)),
        ("Hi <think>Hm</think>", Continuation("Hi <think>Hm</think>")),
        ("<thinking>Hm", Continuation("<thinking>Hm")),
    ],
)
def test_thoughts_in_the_content_are_thoughts(
    source: str, content: str, given: Continuation
) -> None:
    made = prompt(source, USER, begun(content), syntax=THINKING)
    assert made.given == given
    tail = f"<think>\n{given.reasoning}"
    if not given.thinks:
        tail += f"\n</think>\n\n{given.content}"
    assert (made.text, made.thinking) == (HEAD + tail, given.thinks)
    plain = prompt(source, USER, begun(content), syntax=OutputSyntax())
    assert plain.given == Continuation(content), "it has no thoughts"


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
    # Without thoughts the template decides whether a text is marked.
    thoughtless = OutputSyntax(content=marked.content)
    assert prompt(source, USER, begun("Hi"), syntax=thoughtless).text.endswith("\n<response>Hi")
    assert prompt(CHATML, USER, begun("Hi"), syntax=thoughtless).text == HEAD + "Hi"
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
    empty = thoughts.removesuffix("Hm")
    assert made.text == f"{empty}<|end|><|start|>assistant<|channel|>final<|message|>Hi"


@pytest.mark.parametrize(
    ("answer", "fields", "message"),
    [
        (begun("", "Hm"), {"syntax": OutputSyntax()}, "no reasoning that could be continued"),
        (begun("Hi", "Hm"), {"continue_final_message": "reasoning_content"}, "already begun"),
        (asking(call()), {}, "tool calls can't be continued"),
        (USER, {"continue_final_message": True}, "not the assistant's"),
        (
            begun("Hi"),
            {"continue_final_message": True, "add_generation_prompt": True},
            "together with add_generation_prompt",
        ),
    ],
)
def test_impossible_continuations(
    answer: dict[str, Any], fields: dict[str, Any], message: str
) -> None:
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


def test_the_rest_of_a_word_is_no_marker() -> None:
    syntax = OutputSyntax(content=Wrapper("to=user|"))
    made = continued(ChatPrompt("assistant", syntax), Continuation("Hi"), lambda: "x to=user|")
    assert made.text == "assistantto=user|Hi"


# ---- variables of templates besides the messages -----------------------------------------


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


# ---- conversations without messages ------------------------------------------------------

TEMPLATES = Path(__file__).parents[3] / "support" / "templates"


@pytest.mark.parametrize("path", sorted(TEMPLATES.glob("*.jinja")), ids=lambda path: path.stem)
@pytest.mark.parametrize("messages", [[], [{"role": "assistant", "content": "Sure"}]])
def test_a_conversation_without_messages(path: Path, messages: Any) -> None:
    """As in llama-server: whatever a template requires of the first message, the message is
    missing."""
    template = ChatTemplate(path.read_text(encoding="utf-8"), "<s>", "</s>")
    made = chat_prompt(template, detect(template), ChatRequest(messages=messages))
    if messages:
        assert made.text.endswith("Sure")
    assert made.text


def test_a_template_that_needs_a_message() -> None:
    wants = "{% if not messages %}{{ raise_exception('None!') }}{% endif %}" + CHATML
    for messages in ([], [{"role": "assistant", "content": "Sure"}]):
        with pytest.raises(EngineError) as caught:
            prompt(wants, *messages)
        assert caught.value.info.type == "invalid_request_error"
        assert caught.value.info.message == (
            "messages: there are none before the answer, and the chat template refuses this "
            "request: None!"
        )


def test_templates_find_no_first_message() -> None:
    source = (
        "{% if messages[0].role == 'system' %}a{% endif %}{% if messages[0]['content'][0] %}b"
        "{% endif %}{{ messages[-1].content + 'c' }}{{ messages[1:] | length }}"
        "{{ messages | length }}"
    )
    assert prompt(source).text == "c00"
