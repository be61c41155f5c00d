"""Options of chat requests: templates and reasoning."""

from functools import partial
from typing import Annotated, Any, Literal

import msgspec

from specllama.engine.options import files, text_values, values
from specllama.engine.options.declaration import INT32_MAX, Opt, Switch

_chat = partial(Opt, group="Chat templates")

BUILTIN_NAMES = frozenset(
    {
        "bailing",
        "bailing-think",
        "bailing2",
        "chatglm3",
        "chatglm4",
        "chatml",
        "command-r",
        "deepseek",
        "deepseek2",
        "deepseek3",
        "exaone-moe",
        "exaone3",
        "exaone4",
        "falcon3",
        "gemma",
        "gigachat",
        "glmedge",
        "gpt-oss",
        "granite",
        "grok-2",
        "hunyuan-dense",
        "hunyuan-moe",
        "kimi-k2",
        "llama2",
        "llama2-sys",
        "llama2-sys-bos",
        "llama2-sys-strip",
        "llama3",
        "llama4",
        "megrez",
        "minicpm",
        "mistral-v1",
        "mistral-v3",
        "mistral-v3-tekken",
        "mistral-v7",
        "mistral-v7-tekken",
        "monarch",
        "openchat",
        "orion",
        "pangu-embedded",
        "phi3",
        "phi4",
        "rwkv-world",
        "seed_oss",
        "smolvlm",
        "solar-open",
        "vicuna",
        "vicuna-orca",
        "yandex",
        "zephyr",
    }
)
"""Names of the templates that llama.cpp renders itself, without Jinja."""


class ChatOptions(msgspec.Struct, kw_only=True, frozen=True):
    """How messages become a prompt, and how generated text becomes a message."""

    jinja: Annotated[
        bool,
        _chat(
            names="--jinja",
            negative="--no-jinja",
            env="LLAMA_ARG_JINJA",
            help="Render chat templates with the Jinja engine. With --no-jinja, llama.cpp's "
            "built-in formats are used.",
        ),
    ] = True
    chat_template: Annotated[
        str,
        _chat(
            names="--chat-template",
            env="LLAMA_ARG_CHAT_TEMPLATE",
            metavar="TEMPLATE",
            help="Chat template: a Jinja template, or the name of one of llama.cpp's built-in "
            "formats.",
            default="the model's own",
            replaces=("chat_template_file",),
        ),
    ] = ""
    chat_template_file: Annotated[
        str,
        _chat(
            names="--chat-template-file",
            env="LLAMA_ARG_CHAT_TEMPLATE_FILE",
            metavar="FILE",
            help="File with a Jinja chat template.",
            default="the model's own",
            replaces=("chat_template",),
            file=files.read_text,
        ),
    ] = ""
    chat_template_kwargs: Annotated[
        dict[str, Any],
        _chat(
            names="--chat-template-kwargs",
            env="LLAMA_CHAT_TEMPLATE_KWARGS",
            also_env="LLAMA_ARG_CHAT_TEMPLATE_KWARGS",
            metavar="JSON",
            help="Variables for the chat template, as a JSON object such as "
            '{"enable_thinking":false}.',
            default="none",
            read=text_values.json_object,
            show=text_values.show_json,
        ),
    ] = msgspec.field(default_factory=dict)
    reasoning_format: Annotated[
        Literal["auto", "none", "deepseek", "deepseek-legacy"],
        _chat(
            names="--reasoning-format",
            env="LLAMA_ARG_THINK",
            metavar="FORMAT",
            help="Field of the message that gets the reasoning: content, as generated (none); "
            "reasoning_content (deepseek and auto); or both (deepseek-legacy).",
        ),
    ] = "auto"
    reasoning_budget: Annotated[
        int,
        _chat(
            names="--reasoning-budget",
            env="LLAMA_ARG_THINK_BUDGET",
            metavar="TOKENS",
            min=-1,
            max=INT32_MAX,
            help="Maximum number of reasoning tokens: -1 no limit, 0 no reasoning.",
        ),
    ] = -1
    reasoning_budget_message: Annotated[
        str,
        _chat(
            names="--reasoning-budget-message",
            env="LLAMA_ARG_THINK_BUDGET_MESSAGE",
            metavar="TEXT",
            help="Text appended to reasoning that was cut off at --reasoning-budget.",
            default="nothing",
        ),
    ] = ""
    reasoning: Annotated[
        Switch,
        _chat(
            names="-rea --reasoning",
            env="LLAMA_ARG_REASONING",
            metavar="[on|off|auto]",
            help="Ask the chat template to enable or disable reasoning. With auto, the template "
            "decides.",
            read=values.switch,
        ),
    ] = "auto"
    reasoning_effort: Annotated[
        str,
        _chat(
            names="--reasoning-effort",
            env="LLAMA_ARG_REASONING_EFFORT",
            metavar="LEVEL",
            help="Reasoning effort for the chat template, such as minimal, low, medium, high, "
            "xhigh or max. With default, the template decides.",
        ),
    ] = "default"
    reasoning_preserve: Annotated[
        bool,
        _chat(
            names="--reasoning-preserve",
            negative="--no-reasoning-preserve",
            env="LLAMA_ARG_REASONING_PRESERVE",
            help="Include the reasoning of earlier turns in the prompt, if the template supports "
            "it.",
        ),
    ] = True
    skip_chat_parsing: Annotated[
        bool,
        _chat(
            names="--skip-chat-parsing",
            negative="--no-skip-chat-parsing",
            env="LLAMA_ARG_SKIP_CHAT_PARSING",
            help="Return generated text unparsed: reasoning and tool calls stay in the content, "
            "and no grammar enforces the format of tool calls.",
        ),
    ] = False
    prefill_assistant: Annotated[
        bool,
        _chat(
            names="--prefill-assistant",
            negative="--no-prefill-assistant",
            env="LLAMA_ARG_PREFILL_ASSISTANT",
            help="Continue a last message of the assistant. With --no-prefill-assistant, that "
            "message is complete, and the model answers it with a new one.",
        ),
    ] = True

    def variables(self) -> dict[str, Any]:
        """Returns the default variables of the template. Those of a request override them."""
        given: dict[str, Any] = dict(self.chat_template_kwargs)
        if self.reasoning != "auto":
            given["enable_thinking"] = self.reasoning == "on"
        if self.reasoning_effort != "default":
            given["reasoning_effort"] = self.reasoning_effort
        if not self.reasoning_preserve:
            given["preserve_reasoning"] = False
        return given
