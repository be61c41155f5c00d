"""Output syntaxes in the style of the published families, for tests of parsers and constraints."""

from specllama.engine.chat.syntax import (
    HERMES_CALLS,
    CallSyntax,
    Fill,
    OutputSyntax,
    TaggedArguments,
    Wrapper,
)

NAME, ARGUMENTS, ID, INDEX = Fill("name"), Fill("arguments"), Fill("id"), Fill("index")
_JSON = ('{"name": "', NAME, '", "arguments": ', ARGUMENTS, "}")
_JSON_WITH_ID = ('{"name": "', NAME, '", "arguments": ', ARGUMENTS, ', "id": "', ID, '"}')
_THINK = Wrapper("<think>\n", "\n</think>\n\n")

SYNTAXES: dict[str, OutputSyntax] = {
    "plain": OutputSyntax(),
    "hermes": OutputSyntax(calls=HERMES_CALLS),
    "qwen 3": OutputSyntax(reasoning=_THINK, calls=HERMES_CALLS),
    "qwen 3 coder": OutputSyntax(
        calls=CallSyntax(
            parts=("<tool_call>\n<function=", NAME, ">\n", ARGUMENTS, "</function>\n</tool_call>"),
            separator="\n",
            tagged=TaggedArguments("<parameter=", ">\n", "\n</parameter>\n"),
        )
    ),
    "llama 3": OutputSyntax(
        calls=CallSyntax(
            parts=('{"name": "', NAME, '", "parameters": ', ARGUMENTS, "}"), parallel=False
        )
    ),
    "mistral list": OutputSyntax(
        calls=CallSyntax(parts=_JSON, begin="[TOOL_CALLS] [", separator=", ", end="]")
    ),
    "mistral nemo": OutputSyntax(
        calls=CallSyntax(parts=_JSON_WITH_ID, begin="[TOOL_CALLS][", separator=", ", end="]")
    ),
    "mistral names": OutputSyntax(
        calls=CallSyntax(parts=("[TOOL_CALLS]", NAME, "[ARGS]", ARGUMENTS))
    ),
    "mistral names and ids": OutputSyntax(
        calls=CallSyntax(parts=("[TOOL_CALLS]", NAME, "[CALL_ID]", ID, "[ARGS]", ARGUMENTS))
    ),
    "deepseek r1": OutputSyntax(
        reasoning=_THINK,
        calls=CallSyntax(
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
        ),
    ),
    "deepseek v3.1": OutputSyntax(
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
    "command r7b": OutputSyntax(
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
    "command r": OutputSyntax(
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
    "functionary tags": OutputSyntax(
        calls=CallSyntax(parts=("<function=", NAME, ">", ARGUMENTS, "</function>"))
    ),
    "functionary recipients": OutputSyntax(
        content=Wrapper(">>>all\n"), calls=CallSyntax(parts=(">>>", NAME, "\n", ARGUMENTS))
    ),
    "granite": OutputSyntax(
        reasoning=Wrapper("<think>", "</think>"),
        content=Wrapper("<response>", "</response>"),
        calls=CallSyntax(parts=_JSON, begin="<|tool_call|>[", separator=", ", end="]"),
    ),
    "glm": OutputSyntax(
        reasoning=Wrapper("\n<think>", "</think>\n"),
        calls=CallSyntax(
            parts=("\n<tool_call>", NAME, "\n", ARGUMENTS, "</tool_call>"),
            tagged=TaggedArguments("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"),
        ),
    ),
    "kimi": OutputSyntax(
        calls=CallSyntax(
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
    ),
    "minimax": OutputSyntax(
        reasoning=_THINK,
        calls=CallSyntax(
            parts=('<invoke name="', NAME, '">\n', ARGUMENTS, "</invoke>\n"),
            begin="\n<minimax:tool_call>\n",
            end="</minimax:tool_call>",
            tagged=TaggedArguments('<parameter name="', '">', "</parameter>\n"),
        ),
    ),
    "tags around json": OutputSyntax(
        calls=CallSyntax(
            parts=("<call:", NAME, ">", ARGUMENTS, "</call>"),
            tagged=TaggedArguments("<arg:", ">", "</arg>", separator=",\n", json_strings=True),
        )
    ),
    "phi 4 mini": OutputSyntax(
        calls=CallSyntax(parts=_JSON, begin="<|tool_call|>[", separator=", ", end="]<|/tool_call|>")
    ),
    "smollm 3": OutputSyntax(reasoning=Wrapper("<think>\n", "\n</think>\n"), calls=HERMES_CALLS),
    "nested": OutputSyntax(
        calls=CallSyntax(
            parts=(
                '<call>{"id": "',
                ID,
                '", "type": "function", "function": {"name": "',
                NAME,
                '", "arguments": ',
                ARGUMENTS,
                "}}</call>",
            )
        )
    ),
    "harmony": OutputSyntax(harmony=True),
}
