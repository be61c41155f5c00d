"""POST /v1/chat/completions, its control and token count, and /apply-template."""

from typing import cast

from starlette.responses import Response

from specllama.handlers.apis.generate import Dialect, count_input, generate
from specllama.handlers.apis.openai.format import chat_form
from specllama.handlers.apis.openai.request import SUPPORTED, chat_request, read_chat_completion
from specllama.handlers.http import schemas
from specllama.handlers.http.api_keys import current_owner
from specllama.handlers.http.json_answer import JSONAnswer
from specllama.handlers.running.chat_batch import rendered_prompt, with_markers
from specllama.handlers.running.media import media_marker, with_documents, with_marker
from specllama.handlers.running.resolve_model import resolve_model
from specllama.handlers.running.run_in_thread import run_in_thread
from specllama.handlers.running.runtime import runtime

CHATS = Dialect(read=read_chat_completion, form=chat_form, supported=SUPPORTED)


async def create_chat_completion(body: schemas.ChatCompletionRequest) -> Response:
    """A chat.completion object, or chunks of one with `stream`."""
    return await generate(CHATS, body)


create_chat_completion_alias = create_chat_completion


async def control_chat_completion(body: schemas.ChatControlRequest) -> Response:
    """`{"success": ...}`, with a `message` if there is nothing to control."""
    key = (current_owner(), body["id"])
    if problem := runtime().control.end_thoughts(key):
        return JSONAnswer({"success": False, "message": problem})
    return JSONAnswer({"success": True})


async def count_chat_tokens(body: schemas.ChatCompletionRequest) -> Response:
    """`{"object": "response.input_tokens", "input_tokens": ...}`: the length of the prompt that a
    chat completion would have."""
    n = await count_input(read_chat_completion, body, SUPPORTED)
    return JSONAnswer({"object": "response.input_tokens", "input_tokens": n})


count_chat_tokens_alias = count_chat_tokens


async def apply_template(body: schemas.ApplyTemplateRequest) -> Response:
    """`{"prompt": ...}`: the prompt that a chat completion would have, with the server's marker for
    images and sounds, which are neither fetched nor decoded."""
    model = resolve_model(body)
    engine = await model.engine()
    chat = cast(schemas.ChatCompletionRequest, body)  # fewer fields, the rest are optional
    request = await run_in_thread(chat_request, chat, model.options)
    request, talk = with_markers(engine, request)
    prompt = await rendered_prompt(model, engine, request)
    parts = await with_documents(model, engine, talk.split(prompt.text))
    return JSONAnswer({"prompt": with_marker(parts, media_marker())})
