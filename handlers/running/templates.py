"""The prompts that chat templates make."""

import msgspec

from specllama.engine.chat.request import ChatPrompt, ChatRequest
from specllama.engine.errors import EngineError
from specllama.engine.helpers.render.render_jobs import Description
from specllama.engine.helpers.render.renderer import (
    renders_with_jinja,
    template_source,
    with_tokens,
)
from specllama.engine.helpers.render.template.prompt import continued, plain_messages
from specllama.engine.models.client import EngineClient
from specllama.engine.wire.replies import ModelInfo
from specllama.handlers.running.resolve_model import ResolvedModel


async def description(model: ResolvedModel, info: ModelInfo, source: str) -> Description | None:
    """The capabilities of the template; None if it can't be tried."""
    if not renders_with_jinja(model.options, source):
        return None
    try:
        return await model.renderer.describe(with_tokens(source, info))
    except EngineError:
        return None  # not valid, or it never ends: a chat gets the error


async def rendered_prompt(
    model: ResolvedModel, engine: EngineClient, request: ChatRequest
) -> ChatPrompt:
    """The prompt for the messages of a chat request, whose media are marked, and what is known of
    the answer.

    Raises EngineError: invalid_request_error for messages that the template doesn't take,
    server_error if the template itself is at fault.
    """
    info = engine.info
    source = template_source(model.options, info, tools=bool(request.tools))
    if renders_with_jinja(model.options, source):
        prompt = await model.renderer.prompt(with_tokens(source, info), request)
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
