"""Which chat template is in force, and what it makes of a conversation."""

import asyncio
from collections.abc import Mapping
from functools import cache
from typing import Any

from engine.chat.caps import Caps, probe
from engine.chat.conversation import adapted, conversation, pairs
from engine.chat.template import BUILTIN_NAMES, CHATML, ChatTemplate
from engine.client import EngineClient
from engine.errors import EngineError
from engine.options import Options
from engine.options.files import read_text
from engine.protocol import ModelInfo
from handlers.chat_request import template_variables
from handlers.runtime import Runtime

LONG = 1000  # messages: rendering more takes milliseconds, which others shall not wait for

_read_once = cache(read_text)


def template_source(options: Options, info: ModelInfo) -> str:
    """The Jinja text, or the name of one of llama.cpp's formats: from the command line, else
    from the model, else ChatML.

    Raises OptionError if `--chat-template-file` can't be read; the command line has checked it.
    """
    if options.chat_template_file:
        return _read_once(options.chat_template_file)
    return options.chat_template or info.chat_template or CHATML


def renders_with_jinja(options: Options, source: str) -> bool:
    """Otherwise llama.cpp's own formats are to be used."""
    return options.jinja and source not in BUILTIN_NAMES


def compiled(current: Runtime, info: ModelInfo, source: str) -> ChatTemplate:
    """The template `source`, compiled once. Raises EngineError (server_error) if it is not
    valid Jinja."""
    template = current.templates.get(source)
    if template is None:
        template = ChatTemplate(source, info.bos_token, info.eos_token)
        current.templates[source] = template
    return template


def template_caps(current: Runtime, info: ModelInfo, source: str) -> Caps | dict[str, bool]:
    """The template's capabilities by name; none if it can't be tried."""
    if not renders_with_jinja(current.options, source):
        return {}
    try:
        return probe(compiled(current, info, source))
    except EngineError:
        return {}  # not valid: whoever chats is told so


async def chat_prompt(current: Runtime, engine: EngineClient, body: Mapping[str, Any]) -> str:
    """The prompt for the messages of a chat request.

    Raises EngineError: invalid_request_error for messages that the template doesn't take,
    not_supported_error for what this server doesn't take yet, server_error if the template
    itself is at fault.
    """
    info = engine.info
    talk = conversation(
        body["messages"],
        add_generation_prompt=body.get("add_generation_prompt"),
        continue_final_message=body.get("continue_final_message"),
    )
    source = template_source(current.options, info)
    if renders_with_jinja(current.options, source):
        template = compiled(current, info, source)
        variables = template_variables(body, current.options)

        def render() -> str:
            return template.render(
                adapted(talk.messages, probe(template), source),
                add_generation_prompt=talk.add_generation_prompt,
                variables=variables,
            )

        is_long = len(talk.messages) > LONG
        text = without_special(await asyncio.to_thread(render) if is_long else render(), info)
    else:
        text = await engine.format_chat(source, pairs(talk.messages), talk.add_generation_prompt)
    return text + talk.continuation


def without_special(text: str, info: ModelInfo) -> str:
    """`text` without the tokens at its ends that the tokenizer is going to add."""
    if info.add_bos and info.bos_token:
        text = text.removeprefix(info.bos_token)
    if info.add_eos and info.eos_token:
        text = text.removesuffix(info.eos_token)
    return text
