"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages API."""

from typing import Any

from starlette.responses import Response

from specllama.handlers.apis.anthropic.format import message_form
from specllama.handlers.apis.anthropic.request import (
    message_request,
    read_message,
    refuse_threads,
)
from specllama.handlers.apis.generate import Dialect, generate
from specllama.handlers.apis.unsupported import MESSAGES, MESSAGES_INPUT, refuse_unsupported
from specllama.handlers.http.current import current_scope
from specllama.handlers.http.envelopes.anthropic import anthropic_request_id
from specllama.handlers.http.json_answer import JSONAnswer
from specllama.handlers.running.chat_batch import count_tokens
from specllama.handlers.running.resolve_model import resolve_model
from specllama.handlers.running.run_in_thread import run_in_thread

_MESSAGES = Dialect(read=read_message, form=message_form, supported=MESSAGES)


async def create_message(body: dict[str, Any]) -> Response:
    """A message, or the events that it consists of with `stream`."""
    refuse_threads(body)
    id = anthropic_request_id(current_scope())
    return await generate(_MESSAGES, body, request_id=id, headers={"request-id": id})


async def count_message_tokens(body: dict[str, Any]) -> Response:
    """`{"input_tokens": ...}`: the length of the prompt that a message would have."""
    refuse_threads(body)
    refuse_unsupported(body, MESSAGES_INPUT)
    model = resolve_model(body)
    request = await run_in_thread(message_request, body, model.options)
    engine = await model.engine()
    n = await count_tokens(model, engine, request)
    return JSONAnswer(
        {"input_tokens": n}, headers={"request-id": anthropic_request_id(current_scope())}
    )
