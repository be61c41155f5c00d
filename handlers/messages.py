"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages API."""

from starlette.responses import Response

from specllama.handlers.apis.anthropic.format import message_form
from specllama.handlers.apis.anthropic.request import (
    INPUT_SUPPORTED,
    SUPPORTED,
    read_message,
    read_message_input,
    refuse_threads,
)
from specllama.handlers.apis.generate import Dialect, count_input, generate
from specllama.handlers.http import schemas
from specllama.handlers.http.current import current_scope
from specllama.handlers.http.envelopes.anthropic import anthropic_request_id
from specllama.handlers.http.json_answer import JSONAnswer

_MESSAGES = Dialect(read=read_message, form=message_form, supported=SUPPORTED)


async def create_message(body: schemas.MessagesRequest) -> Response:
    """A message, or its events with `stream`."""
    refuse_threads(body)
    id = anthropic_request_id(current_scope())
    return await generate(_MESSAGES, body, request_id=id, headers={"request-id": id})


async def count_message_tokens(body: schemas.MessagesInput) -> Response:
    """`{"input_tokens": ...}`: the length of the prompt that a message would have."""
    refuse_threads(body)
    n = await count_input(read_message_input, body, INPUT_SUPPORTED)
    counted: schemas.InputTokens = {"input_tokens": n}
    return JSONAnswer(counted, headers={"request-id": anthropic_request_id(current_scope())})
