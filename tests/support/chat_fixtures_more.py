"""Fixtures: Command, Functionary, Granite, Gemma, Phi, SmolLM, gpt-oss, and plain ones."""

from specllama.engine.chat.syntax import CallSyntax, OutputSyntax, Wrapper
from tests.support.chat_truth import (
    ARGUMENTS,
    HERMES,
    HERMES_ONE,
    HERMES_TWO,
    HOTEL,
    INDEX,
    NAME,
    THOUGHTS,
    WEATHER,
    WORDS,
    Fixture,
    json_calls,
    says,
)

_HELLO = "Hello there."
_GRANITE = OutputSyntax(
    reasoning=Wrapper("<think>", "</think>\n"),
    content=Wrapper("<response>", "</response>"),
    calls=json_calls(begin="<|tool_call|>[", separator=", ", end="]"),
)
_JSON_ONE = f'{{"name": "get_weather", "arguments": {WEATHER}}}'
_JSON_TWO = f'{_JSON_ONE}, {{"name": "find_hotel", "arguments": {HOTEL}}}'
_GRANITE_ANSWERS = (
    says(
        f"<think>{THOUGHTS}</think>\n<response>{_HELLO}</response>",
        thoughts=THOUGHTS,
        content=_HELLO,
    ),
    says(_HELLO, content=_HELLO, bare=True),
    says(f"<|tool_call|>[{_JSON_ONE}]", calls=1),
    says(f"<|tool_call|>[{_JSON_TWO}]", calls=2),
)
_PHI = OutputSyntax(calls=json_calls(begin="<|tool_call|>[", separator=", ", end="]<|/tool_call|>"))
_PHI_ANSWERS = (
    says(_HELLO, content=_HELLO),
    says(f"<|tool_call|>[{_JSON_ONE}]<|/tool_call|>", calls=1),
    says(f"{WORDS}<|tool_call|>[{_JSON_TWO}]<|/tool_call|>", content=WORDS, calls=2),
)
_COMMAND_PLUS_ONE = """\
    {
        "tool_name": "get_weather",
        "parameters": {
            "city": "Zürich",
            "days": 2
        }
    }"""
_COMMAND_PLUS_TWO = f"""\
{_COMMAND_PLUS_ONE},
    {{
        "tool_name": "find_hotel",
        "parameters": {{
            "stars": [
                4,
                5
            ],
            "pool": true,
            "note": "a \\"quiet\\" one\\nplease"
        }}
    }}"""
_HARMONY_THOUGHTS = f"<|channel|>analysis<|message|>{THOUGHTS}<|end|>"


MORE: tuple[Fixture, ...] = (
    Fixture(
        name="command_r7b",
        bos="<BOS_TOKEN>",
        eos="<|END_OF_TURN_TOKEN|>",
        syntax=OutputSyntax(
            reasoning=Wrapper("<|START_THINKING|>", "<|END_THINKING|>"),
            content=Wrapper("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
            calls=CallSyntax(
                parts=(
                    '{"tool_call_id": "',
                    INDEX,
                    '", "tool_name": "',
                    NAME,
                    '", "parameters": ',
                    ARGUMENTS,
                    "}",
                ),
                begin="<|START_ACTION|>[\n    ",
                separator=",\n    ",
                end="\n]<|END_ACTION|>",
            ),
        ),
        no_thinking={"enable_thinking": False},
        keeps_reasoning=True,
        answers=(
            says(
                f"<|START_THINKING|>{THOUGHTS}<|END_THINKING|>"
                f"<|START_RESPONSE|>{_HELLO}<|END_RESPONSE|>",
                thoughts=THOUGHTS,
                content=_HELLO,
            ),
            says(f"<|START_RESPONSE|>{_HELLO}<|END_RESPONSE|>", content=_HELLO),
            says(
                f"<|START_THINKING|>{THOUGHTS}<|END_THINKING|><|START_ACTION|>[\n"
                f'    {{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {WEATHER}}}'
                "\n]<|END_ACTION|>",
                thoughts=THOUGHTS,
                calls=1,
            ),
            says(
                f"<|START_THINKING|>{THOUGHTS}<|END_THINKING|><|START_ACTION|>[\n"
                f'    {{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {WEATHER}}},'
                "\n"
                f'    {{"tool_call_id": "1", "tool_name": "find_hotel", "parameters": {HOTEL}}}'
                "\n]<|END_ACTION|>",
                thoughts=THOUGHTS,
                calls=2,
            ),
        ),
    ),
    Fixture(
        name="command_r_plus",
        bos="<BOS_TOKEN>",
        eos="<|END_OF_TURN_TOKEN|>",
        syntax=OutputSyntax(
            calls=CallSyntax(
                parts=(
                    '    {\n        "tool_name": "',
                    NAME,
                    '",\n        "parameters": ',
                    ARGUMENTS,
                    "\n    }",
                ),
                begin="Action:\n```json\n[\n",
                separator=",\n",
                end="\n]```\n",
            )
        ),
        argument_indent=(4, 8),
        answers=(
            says(_HELLO, content=_HELLO),
            says(f"Action:\n```json\n[\n{_COMMAND_PLUS_ONE}\n]```\n", calls=1),
            says(
                f"{WORDS}\nAction:\n```json\n[\n{_COMMAND_PLUS_TWO}\n]```\n",
                content=WORDS,
                calls=2,
            ),
        ),
    ),
    Fixture(
        name="functionary_v3_1",
        bos="<|begin_of_text|>",
        eos="<|eot_id|>",
        syntax=OutputSyntax(
            calls=CallSyntax(parts=("<function=", NAME, ">", ARGUMENTS, "</function>"))
        ),
        answers=(
            says(_HELLO, content=_HELLO),
            says(f"<function=get_weather>{WEATHER}</function>", calls=1),
            says(
                f"{WORDS}<function=get_weather>{WEATHER}</function>"
                f"<function=find_hotel>{HOTEL}</function>",
                content=WORDS,
                calls=2,
            ),
        ),
    ),
    Fixture(
        name="functionary_v3_2",
        bos="<|begin_of_text|>",
        eos="<|eot_id|>",
        syntax=OutputSyntax(
            content=Wrapper(">>>all\n"),
            calls=CallSyntax(parts=(">>>", NAME, "\n", ARGUMENTS)),
        ),
        arguments="string",
        prompt_tail=">>>",
        answers=(
            says(f"all\n{_HELLO}", content=_HELLO),
            says(f"get_weather\n{WEATHER}", calls=1),
            says(
                f"all\n{WORDS}>>>get_weather\n{WEATHER}>>>find_hotel\n{HOTEL}",
                content=WORDS,
                calls=2,
            ),
        ),
    ),
    Fixture(
        name="granite_3",
        bos="<|end_of_text|>",
        eos="<|end_of_text|>",
        syntax=_GRANITE,
        thinking={"thinking": True},
        keeps_reasoning=True,
        answers=_GRANITE_ANSWERS,
    ),
    Fixture(
        name="granite_3_plain",
        bos="<|end_of_text|>",
        eos="<|end_of_text|>",
        syntax=_GRANITE,
        calls=False,
        shown=frozenset(),
        thinking={"thinking": True},
        answers=_GRANITE_ANSWERS,
    ),
    Fixture(
        name="gemma",
        bos="<bos>",
        eos="<end_of_turn>",
        syntax=OutputSyntax(),
        system=False,
        tools=False,
        calls=False,
        refuses=frozenset({"system", "one call", "two calls", "thoughts, call"}),
        answers=(says(_HELLO, content=_HELLO),),
    ),
    Fixture(
        name="phi_4_mini",
        bos="",
        eos="<|endoftext|>",
        syntax=_PHI,
        tools=False,
        calls=False,
        shown=frozenset({"content"}),
        answers=_PHI_ANSWERS,
    ),
    Fixture(
        name="phi_4_mini_tools",
        bos="",
        eos="<|endoftext|>",
        syntax=_PHI,
        answers=_PHI_ANSWERS,
    ),
    Fixture(
        name="smollm_3",
        bos="",
        eos="<|im_end|>",
        syntax=OutputSyntax(reasoning=Wrapper("<think>\n", "\n</think>\n"), calls=HERMES),
        calls=False,
        shown=frozenset({"reasoning", "content"}),
        no_thinking={"enable_thinking": False},
        answers=(
            says(f"<think>\n{THOUGHTS}\n</think>\n{_HELLO}", thoughts=THOUGHTS, content=_HELLO),
            says(f"<think>\n{THOUGHTS}\n</think>\n{HERMES_ONE}", thoughts=THOUGHTS, calls=1),
            says(
                f"<think>\n{THOUGHTS}\n</think>\n{WORDS}\n{HERMES_TWO}",
                thoughts=THOUGHTS,
                content=WORDS,
                calls=2,
            ),
        ),
    ),
    Fixture(
        name="gpt_oss",
        bos="<|startoftext|>",
        eos="<|return|>",
        syntax=OutputSyntax(harmony=True),
        parallel=False,
        keeps_reasoning=True,
        reasoning_key="thinking",
        answers=(
            says(f"<|channel|>final<|message|>{_HELLO}", content=_HELLO),
            says(
                f"{_HARMONY_THOUGHTS}<|start|>assistant<|channel|>final<|message|>{_HELLO}",
                thoughts=THOUGHTS,
                content=_HELLO,
            ),
            # The recipient stands in the header, before or after the channel.
            says(
                f"{_HARMONY_THOUGHTS}<|start|>assistant to=functions.get_weather"
                f"<|channel|>commentary json<|message|>{WEATHER}",
                thoughts=THOUGHTS,
                calls=1,
            ),
            says(
                f"{_HARMONY_THOUGHTS}<|start|>assistant<|channel|>commentary"
                f" to=functions.get_weather <|constrain|>json<|message|>{WEATHER}<|call|>",
                thoughts=THOUGHTS,
                calls=1,
            ),
            # Words to the user before a call are a commentary too.
            says(
                f"<|channel|>commentary<|message|>{WORDS}<|end|><|start|>assistant"
                "<|channel|>commentary to=functions.get_weather "
                f"<|constrain|>json<|message|>{WEATHER}",
                content=WORDS,
                calls=1,
            ),
        ),
    ),
    Fixture(
        name="chatml",
        bos="",
        eos="<|im_end|>",
        syntax=OutputSyntax(),
        tools=False,
        calls=False,
        answers=(says(_HELLO, content=_HELLO),),
    ),
    Fixture(
        name="typed_only",
        syntax=OutputSyntax(),
        tools=False,
        calls=False,
        string_content=False,
        typed_content=True,
        answers=(says(_HELLO, content=_HELLO),),
    ),
)
