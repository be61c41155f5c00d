"""Fixtures: DeepSeek, Kimi, MiniMax, GLM."""

from specllama.engine.chat.syntax import CallSyntax, OutputSyntax, TaggedArguments, Wrapper
from tests.support.chat_truth import (
    ARGUMENTS,
    HOTEL,
    INDEX,
    NAME,
    THOUGHTS,
    WEATHER,
    WORDS,
    Fixture,
    says,
)

_HELLO = "Hello there."
_DEEPSEEK_CALLS = CallSyntax(
    parts=(
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        NAME,
        "\n```json\n",
        ARGUMENTS,
        "\n```<｜tool▁call▁end｜>",
    ),
    begin="<｜tool▁calls▁begin｜>",
    separator="\n",
    end="<｜tool▁calls▁end｜>",
)
_DEEPSEEK_ONE = (
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
    f"```json\n{WEATHER}\n```<｜tool▁call▁end｜>"
)
_DEEPSEEK_TWO = (
    f"{_DEEPSEEK_ONE}\n"
    f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>find_hotel\n```json\n{HOTEL}\n```<｜tool▁call▁end｜>"
)
_R1_ANSWERS = (
    says(f"{THOUGHTS}\n</think>\n\n{_HELLO}", thoughts=THOUGHTS, content=_HELLO),
    says(
        f"{THOUGHTS}\n</think>\n\n<｜tool▁calls▁begin｜>{_DEEPSEEK_ONE}<｜tool▁calls▁end｜>",
        thoughts=THOUGHTS,
        calls=1,
    ),
    says(
        f"{THOUGHTS}\n</think>\n\n{WORDS}<｜tool▁calls▁begin｜>{_DEEPSEEK_TWO}<｜tool▁calls▁end｜>",
        thoughts=THOUGHTS,
        content=WORDS,
        calls=2,
    ),
)
_KIMI = CallSyntax(
    parts=(
        "<|tool_call_begin|>functions.",
        NAME,
        ":",
        INDEX,
        "<|tool_call_argument_begin|>",
        ARGUMENTS,
        "<|tool_call_end|>",
    ),
    begin="<|tool_calls_section_begin|>",
    end="<|tool_calls_section_end|>",
)
_KIMI_ONE = (
    "<|tool_call_begin|>functions.get_weather:0"
    f"<|tool_call_argument_begin|>{WEATHER}<|tool_call_end|>"
)
_KIMI_TWO = (
    f"{_KIMI_ONE}<|tool_call_begin|>functions.find_hotel:1"
    f"<|tool_call_argument_begin|>{HOTEL}<|tool_call_end|>"
)
_KIMI_ANSWERS = (
    says(_HELLO, content=_HELLO),
    says(f"<|tool_calls_section_begin|>{_KIMI_ONE}<|tool_calls_section_end|>", calls=1),
    says(
        f"{WORDS}<|tool_calls_section_begin|>{_KIMI_TWO}<|tool_calls_section_end|>",
        content=WORDS,
        calls=2,
    ),
)
_GLM_ONE = (
    "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Zürich</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>"
)
_GLM_TWO = (
    f"{_GLM_ONE}\n<tool_call>find_hotel\n<arg_key>stars</arg_key>\n<arg_value>[4, 5]</arg_value>\n"
    "<arg_key>pool</arg_key>\n<arg_value>true</arg_value>\n"
    '<arg_key>note</arg_key>\n<arg_value>a "quiet" one\nplease</arg_value>\n</tool_call>'
)
_MINIMAX_ONE = (
    '<invoke name="get_weather">\n<parameter name="city">Zürich</parameter>\n'
    '<parameter name="days">2</parameter>\n</invoke>\n'
)
_MINIMAX_TWO = (
    f'{_MINIMAX_ONE}<invoke name="find_hotel">\n<parameter name="stars">[4, 5]</parameter>\n'
    '<parameter name="pool">true</parameter>\n'
    '<parameter name="note">a "quiet" one\nplease</parameter>\n</invoke>\n'
)


SECTIONS: tuple[Fixture, ...] = (
    Fixture(
        name="deepseek_r1",
        bos="<｜begin▁of▁sentence｜>",
        eos="<｜end▁of▁sentence｜>",
        syntax=OutputSyntax(
            reasoning=Wrapper("<think>\n", "\n</think>\n\n"), calls=_DEEPSEEK_CALLS
        ),
        opens_thoughts=True,
        answers=_R1_ANSWERS,
    ),
    Fixture(
        name="deepseek_r1_distill",
        bos="<｜begin▁of▁sentence｜>",
        eos="<｜end▁of▁sentence｜>",
        syntax=OutputSyntax(
            reasoning=Wrapper("<think>\n", "\n</think>\n\n"), calls=_DEEPSEEK_CALLS
        ),
        tools=False,
        arguments="string",
        null_content=True,
        opens_thoughts=True,
        answers=_R1_ANSWERS,
    ),
    Fixture(
        name="deepseek_v3_1",
        bos="<｜begin▁of▁sentence｜>",
        eos="<｜end▁of▁sentence｜>",
        syntax=OutputSyntax(
            reasoning=Wrapper("<think>", "</think>"),
            calls=CallSyntax(
                parts=(
                    "<｜tool▁call▁begin｜>",
                    NAME,
                    "<｜tool▁sep｜>",
                    ARGUMENTS,
                    "<｜tool▁call▁end｜>",
                ),
                begin="<｜tool▁calls▁begin｜>",
                end="<｜tool▁calls▁end｜>",
            ),
        ),
        arguments="either",
        thinking={"thinking": True},
        no_thinking={"thinking": False},
        opens_thoughts=True,
        answers=(
            says(f"{THOUGHTS}</think>{_HELLO}", thoughts=THOUGHTS, content=_HELLO),
            says(
                f"{THOUGHTS}</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather"
                f"<｜tool▁sep｜>{WEATHER}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                thoughts=THOUGHTS,
                calls=1,
            ),
            says(
                f"{THOUGHTS}</think>{WORDS}<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather"
                f"<｜tool▁sep｜>{WEATHER}<｜tool▁call▁end｜><｜tool▁call▁begin｜>find_hotel"
                f"<｜tool▁sep｜>{HOTEL}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                thoughts=THOUGHTS,
                content=WORDS,
                calls=2,
            ),
        ),
    ),
    Fixture(
        name="kimi_k2",
        bos="[BOS]",
        eos="<|im_end|>",
        syntax=OutputSyntax(calls=_KIMI),
        arguments="either",
        typed_content=True,
        answers=_KIMI_ANSWERS,
    ),
    Fixture(
        name="kimi_k2_ids",
        bos="[BOS]",
        eos="<|im_end|>",
        syntax=OutputSyntax(calls=_KIMI),
        arguments="either",
        shown=frozenset({"content"}),
        answers=_KIMI_ANSWERS,
    ),
    Fixture(
        name="minimax_m2",
        bos="]~!b[",
        eos="[e~[",
        syntax=OutputSyntax(
            reasoning=Wrapper("<think>\n", "\n</think>\n\n"),
            calls=CallSyntax(
                parts=('<invoke name="', NAME, '">\n', ARGUMENTS, "</invoke>\n"),
                begin="\n<minimax:tool_call>\n",
                end="</minimax:tool_call>",
                tagged=TaggedArguments('<parameter name="', '">', "</parameter>\n"),
            ),
        ),
        typed_content=True,
        opens_thoughts=True,
        keeps_reasoning=True,
        answers=(
            says(f"{THOUGHTS}\n</think>\n\n{_HELLO}", thoughts=THOUGHTS, content=_HELLO),
            says(
                f"{THOUGHTS}\n</think>\n\n\n<minimax:tool_call>\n{_MINIMAX_ONE}"
                "</minimax:tool_call>",
                thoughts=THOUGHTS,
                calls=1,
            ),
            says(
                f"{THOUGHTS}\n</think>\n\n{WORDS}\n<minimax:tool_call>\n{_MINIMAX_TWO}"
                "</minimax:tool_call>",
                thoughts=THOUGHTS,
                content=WORDS,
                calls=2,
            ),
        ),
    ),
    Fixture(
        name="glm_4_5",
        bos="",
        eos="<|endoftext|>",
        syntax=OutputSyntax(
            reasoning=Wrapper("\n<think>", "</think>\n"),
            calls=CallSyntax(
                parts=("<tool_call>", NAME, "\n", ARGUMENTS, "</tool_call>"),
                separator="\n",
                tagged=TaggedArguments("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"),
            ),
        ),
        typed_content=True,
        no_thinking={"enable_thinking": False},
        keeps_reasoning=True,
        answers=(
            says(f"\n<think>{THOUGHTS}</think>\n{_HELLO}", thoughts=THOUGHTS, content=_HELLO),
            says(f"\n<think>{THOUGHTS}</think>\n{_GLM_ONE}", thoughts=THOUGHTS, calls=1),
            says(
                f"\n<think>{THOUGHTS}</think>\n{WORDS}\n{_GLM_TWO}",
                thoughts=THOUGHTS,
                content=WORDS,
                calls=2,
            ),
            says(f"\n<think></think>\n{_HELLO}", content=_HELLO, bare=True),
        ),
    ),
)
