"""The chat template in force, and the prompts that it makes."""

from functools import cache

import msgspec

from engine.chat.prompt import ChatPrompt
from engine.chat.rendering.messages import Description, TemplateSource
from engine.chat.request import ChatRequest
from engine.chat.template.builtin import CHATML
from engine.chat.template.prompt import continued, plain_messages
from engine.errors import EngineError
from engine.options import Options
from engine.options.files import read_text
from engine.options.tables.chat import BUILTIN_NAMES
from engine.pool.client import EngineClient
from engine.protocol.messages import ModelInfo
from handlers.running.served import Served

_read_once = cache(read_text)


def template_source(options: Options, info: ModelInfo, *, tools: bool = False) -> str:
    """The Jinja text, or the name of one of llama.cpp's formats: from the command line, else
    from the model, which may have one of its own for `tools`, else ChatML.

    Raises OptionError if `--chat-template-file` can't be read; the command line has checked it.
    """
    if options.chat.chat_template_file:
        return _read_once(options.chat.chat_template_file)
    for_tools = info.tool_template if tools and options.chat.jinja else ""
    own = for_tools or info.chat_template or info.tool_template
    return options.chat.chat_template or own or CHATML


def tool_template_source(options: Options, info: ModelInfo) -> str:
    """The Jinja text that the model has for requests with tools; "" without one, and where the
    command line has another template."""
    given = options.chat.chat_template_file or options.chat.chat_template
    return "" if given else info.tool_template


def renders_with_jinja(options: Options, source: str) -> bool:
    """Otherwise llama.cpp's own formats are to be used."""
    return options.chat.jinja and source not in BUILTIN_NAMES


async def description(model: Served, info: ModelInfo, source: str) -> Description | None:
    """The capabilities of the template; None if it can't be tried."""
    if not renders_with_jinja(model.options, source):
        return None
    try:
        return await model.renderer.describe(_with_tokens(source, info))
    except EngineError:
        return None  # not valid, or it never ends: a chat gets the error


async def rendered_prompt(model: Served, engine: EngineClient, request: ChatRequest) -> ChatPrompt:
    """The prompt for the messages of a chat request, whose media are marked, and what is known of
    the answer.

    Raises EngineError: invalid_request_error for messages that the template doesn't take,
    server_error if the template itself is at fault.
    """
    info = engine.info
    source = template_source(model.options, info, tools=bool(request.tools))
    if renders_with_jinja(model.options, source):
        prompt = await model.renderer.prompt(_with_tokens(source, info), request)
        return msgspec.structs.replace(prompt, text=without_special(prompt.text, info))
    messages, talk, syntax = plain_messages(request)
    text = await engine.format_chat(source, messages, talk.add_generation_prompt)
    prompt = ChatPrompt(text, syntax)
    return prompt if talk.continuation is None else continued(prompt, talk.continuation)


def without_special(text: str, info: ModelInfo) -> str:
    """`text` without the tokens at its ends that the tokenizer is going to add."""
    if info.add_bos and info.bos_token:
        text = text.removeprefix(info.bos_token)
    if info.add_eos and info.eos_token:
        text = text.removesuffix(info.eos_token)
    return text


def _with_tokens(source: str, info: ModelInfo) -> TemplateSource:
    return TemplateSource(source, info.bos_token, info.eos_token)
