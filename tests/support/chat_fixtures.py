"""All fixtures: chat templates and their properties (see `tests.support.chat_truth`)."""

from specllama.engine.chat.syntax import CallSyntax, OutputSyntax, TaggedArguments, Wrapper
from tests.support.chat_fixtures_more import MORE
from tests.support.chat_fixtures_sections import SECTIONS
from tests.support.chat_truth import (
    ARGUMENTS,
    HERMES,
    HERMES_ANSWERS,
    HERMES_ONE,
    HERMES_TWO,
    HOTEL,
    ID,
    IDS,
    NAME,
    THOUGHTS,
    TOOLS,
    WEATHER,
    WORDS,
    Answer,
    Fixture,
    Scenario,
    conversations,
    json_calls,
    says,
)

__all__ = [
    "FIXTURES",
    "THOUGHTS",
    "TOOLS",
    "WORDS",
    "Answer",
    "Fixture",
    "Scenario",
    "conversations",
    "fixture",
]

FIXTURES: tuple[Fixture, ...] = (
    Fixture(
        name="hermes_2_pro",
        bos="<|begin_of_text|>",
        eos="<|im_end|>",
        syntax=OutputSyntax(calls=HERMES),
        answers=HERMES_ANSWERS,
    ),
    Fixture(
        name="qwen_2_5",
        bos="",
        eos="<|im_end|>",
        syntax=OutputSyntax(calls=HERMES),
        answers=HERMES_ANSWERS,
    ),
    Fixture(
        name="qwen_3",
        bos="",
        eos="<|im_end|>",
        syntax=OutputSyntax(reasoning=Wrapper("<think>\n", "\n</think>\n\n"), calls=HERMES),
        arguments="either",
        no_thinking={"enable_thinking": False},
        keeps_reasoning=True,
        answers=(
            says(
                f"<think>\n{THOUGHTS}\n</think>\n\nHello there.",
                thoughts=THOUGHTS,
                content="Hello there.",
            ),
            says(f"<think>\n{THOUGHTS}\n</think>\n\n{HERMES_ONE}", thoughts=THOUGHTS, calls=1),
            says(
                f"<think>\n{THOUGHTS}\n</think>\n\n{WORDS}\n{HERMES_TWO}",
                thoughts=THOUGHTS,
                content=WORDS,
                calls=2,
            ),
        ),
    ),
    Fixture(
        name="qwen_3_coder",
        bos="",
        eos="<|im_end|>",
        syntax=OutputSyntax(
            calls=CallSyntax(
                parts=(
                    "<tool_call>\n<function=",
                    NAME,
                    ">\n",
                    ARGUMENTS,
                    "</function>\n</tool_call>",
                ),
                separator="\n",
                tagged=TaggedArguments("<parameter=", ">\n", "\n</parameter>\n"),
            )
        ),
        answers=(
            says("Hello there.", content="Hello there."),
            says(
                "<tool_call>\n<function=get_weather>\n<parameter=city>\nZürich\n</parameter>\n"
                "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
                calls=1,
            ),
            says(
                f"{WORDS}\n\n"
                "<tool_call>\n<function=get_weather>\n<parameter=city>\nZürich\n</parameter>\n"
                "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>\n"
                "<tool_call>\n<function=find_hotel>\n<parameter=stars>\n[4, 5]\n</parameter>\n"
                "<parameter=pool>\ntrue\n</parameter>\n"
                '<parameter=note>\na "quiet" one\nplease\n</parameter>\n'
                "</function>\n</tool_call>",
                content=WORDS,
                calls=2,
            ),
        ),
    ),
    Fixture(
        name="llama_3",
        bos="<|begin_of_text|>",
        eos="<|eot_id|>",
        syntax=OutputSyntax(calls=json_calls(key="parameters", parallel=False)),
        parallel=False,
        refuses=frozenset({"two calls"}),
        answers=(
            says("Hello there.", content="Hello there."),
            says(f'{{"name": "get_weather", "parameters": {WEATHER}}}', calls=1),
        ),
    ),
    Fixture(
        name="mistral_v3",
        syntax=OutputSyntax(
            calls=CallSyntax(
                parts=('{"name": "', NAME, '", "arguments": ', ARGUMENTS, ', "id": "', ID, '"}'),
                begin="[TOOL_CALLS] [",
                separator=", ",
                end="]",
            )
        ),
        answers=(
            says(" Hello there.", content="Hello there."),
            says(
                f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {WEATHER}, '
                '"id": "a1B2c3D4e"}]',
                calls=1,
                ids=IDS,
            ),
            says(
                f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {WEATHER}, '
                f'"id": "a1B2c3D4e"}}, {{"name": "find_hotel", "arguments": {HOTEL}, '
                '"id": "f5G6h7I8j"}]',
                calls=2,
                ids=IDS,
            ),
        ),
    ),
    Fixture(
        name="mistral_nemo",
        syntax=OutputSyntax(
            calls=CallSyntax(
                parts=('{"name": "', NAME, '", "arguments": ', ARGUMENTS, ', "id": "', ID, '"}'),
                begin="[TOOL_CALLS][",
                separator=", ",
                end="]",
            )
        ),
        answers=(
            says("Hello there.", content="Hello there."),
            says(
                f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {WEATHER}, '
                '"id": "a1B2c3D4e"}]',
                calls=1,
                ids=IDS,
            ),
            says(
                f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {WEATHER}, '
                f'"id": "a1B2c3D4e"}}, {{"name": "find_hotel", "arguments": {HOTEL}, '
                '"id": "f5G6h7I8j"}]',
                calls=2,
                ids=IDS,
            ),
        ),
    ),
    Fixture(
        name="mistral_new",
        arguments="either",
        typed_content=True,
        syntax=OutputSyntax(calls=CallSyntax(parts=("[TOOL_CALLS]", NAME, "[ARGS]", ARGUMENTS))),
        answers=(
            says("Hello there.", content="Hello there."),
            says(f"[TOOL_CALLS]get_weather[ARGS]{WEATHER}", calls=1),
            says(
                f"{WORDS}[TOOL_CALLS]get_weather[ARGS]{WEATHER}[TOOL_CALLS]find_hotel[ARGS]{HOTEL}",
                content=WORDS,
                calls=2,
            ),
        ),
    ),
    Fixture(
        name="mistral_small_3_2",
        arguments="either",
        typed_content=True,
        syntax=OutputSyntax(
            calls=CallSyntax(parts=("[TOOL_CALLS]", NAME, "[CALL_ID]", ID, "[ARGS]", ARGUMENTS))
        ),
        answers=(
            says("Hello there.", content="Hello there."),
            says(
                f"[TOOL_CALLS]get_weather[CALL_ID]a1B2c3D4e[ARGS]{WEATHER}",
                calls=1,
                ids=IDS,
            ),
            says(
                f"[TOOL_CALLS]get_weather[CALL_ID]a1B2c3D4e[ARGS]{WEATHER}"
                f"[TOOL_CALLS]find_hotel[CALL_ID]f5G6h7I8j[ARGS]{HOTEL}",
                calls=2,
                ids=IDS,
            ),
        ),
    ),
    *SECTIONS,
    *MORE,
)


def fixture(name: str) -> Fixture:
    return next(found for found in FIXTURES if found.name == name)
