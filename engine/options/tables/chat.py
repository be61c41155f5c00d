"""Options of conversations."""

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
"""The templates that llama.cpp knows by name and renders itself."""


class ChatOptions(msgspec.Struct, kw_only=True, frozen=True):
    """How messages become a prompt, and an answer a message."""

    jinja: Annotated[
        bool,
        _chat(
            names="--jinja",
            negative="--no-jinja",
            env="LLAMA_ARG_JINJA",
            help="Render chat templates with the Jinja engine; without, llama.cpp's built-in "
            "formats are used.",
        ),
    ] = True
    chat_template: Annotated[
        str,
        _chat(
            names="--chat-template",
            env="LLAMA_ARG_CHAT_TEMPLATE",
            metavar="TEMPLATE",
            help="A Jinja template, or the name of one of llama.cpp's built-in formats.",
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
            help="File with a Jinja template.",
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
            help='Variables for the template, as a JSON object such as {"enable_thinking":false}.',
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
            help="Where the model's thoughts go: with none they stay in the content as they were "
            "generated, with deepseek (and auto) they are taken out into reasoning_content, with "
            "deepseek-legacy they are in both places.",
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
            help="How much the model may think: -1 without a limit, 0 not at all.",
        ),
    ] = -1
    reasoning_budget_message: Annotated[
        str,
        _chat(
            names="--reasoning-budget-message",
            env="LLAMA_ARG_THINK_BUDGET_MESSAGE",
            metavar="TEXT",
            help="What is put at the end of thoughts that have used up their budget.",
            default="nothing",
        ),
    ] = ""
    reasoning: Annotated[
        Switch,
        _chat(
            names="-rea --reasoning",
            env="LLAMA_ARG_REASONING",
            metavar="[on|off|auto]",
            help="Tell the template to let the model think, or not to; auto leaves that to the "
            "template.",
            read=values.switch,
        ),
    ] = "auto"
    reasoning_effort: Annotated[
        str,
        _chat(
            names="--reasoning-effort",
            env="LLAMA_ARG_REASONING_EFFORT",
            metavar="LEVEL",
            help="How much the template tells the model to think, such as minimal, low, medium, "
            "high, xhigh or max; default leaves that to the template.",
        ),
    ] = "default"
    reasoning_preserve: Annotated[
        bool,
        _chat(
            names="--reasoning-preserve",
            negative="--no-reasoning-preserve",
            env="LLAMA_ARG_REASONING_PRESERVE",
            help="Show the thoughts of earlier turns to the model again, where the template can.",
        ),
    ] = True
    skip_chat_parsing: Annotated[
        bool,
        _chat(
            names="--skip-chat-parsing",
            negative="--no-skip-chat-parsing",
            env="LLAMA_ARG_SKIP_CHAT_PARSING",
            help="Leave answers as they were generated: thoughts and tool calls stay in the "
            "content, and nothing binds them to the form that the tools want.",
        ),
    ] = False
    prefill_assistant: Annotated[
        bool,
        _chat(
            names="--prefill-assistant",
            negative="--no-prefill-assistant",
            env="LLAMA_ARG_PREFILL_ASSISTANT",
            help="Let the model go on with a last message that is the assistant's; without, it "
            "is a whole message, and the model answers anew.",
        ),
    ] = True

    def variables(self) -> dict[str, Any]:
        """The variables of the template that hold unless a request says otherwise."""
        given: dict[str, Any] = dict(self.chat_template_kwargs)
        if self.reasoning != "auto":
            given["enable_thinking"] = self.reasoning == "on"
        if self.reasoning_effort != "default":
            given["reasoning_effort"] = self.reasoning_effort
        if not self.reasoning_preserve:
            given["preserve_reasoning"] = False
        return given
