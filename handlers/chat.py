"""POST /v1/chat/completions and /apply-template."""

from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import Response

from engine.protocol import Finished
from handlers.answers import JSONAnswer
from handlers.batch import Batch
from handlers.generation import generation_params
from handlers.http.disconnect import until_disconnect
from handlers.http.sse import DONE, event_stream
from handlers.openai_format import ChatChunks, chat_completion, head
from handlers.runtime import runtime
from handlers.templates import chat_prompt
from handlers.unsupported import CHAT, TEMPLATE, refuse_unsupported


async def create_chat_completion(body: dict[str, Any]) -> Response:
    """A chat.completion object, or chunks of one with `stream`."""
    refuse_unsupported(body, CHAT)
    current = runtime()
    params = generation_params(body, current.options.generation_defaults())
    engine = await current.supervisor.engine()
    prompt = await chat_prompt(current, engine, body)
    model = body.get("model") or current.model_id

    async def events() -> AsyncIterator[bytes]:
        chunks = ChatChunks(
            head("chat.completion.chunk", model),
            timings_per_token=params.timings_per_token,
            include_usage=bool((body.get("stream_options") or {}).get("include_usage")),
        )
        async with Batch(engine, [[prompt]], params) as batch:
            begun = False
            async for _, event in batch.events():
                if not begun:
                    # Not before the engine has taken the request: an error comes alone.
                    begun = True
                    yield chunks.begin()
                if isinstance(event, Finished):
                    yield chunks.finish(event)
                elif event.text:
                    yield chunks.delta(event)
        yield DONE

    if params.stream:
        return event_stream(events())
    async with Batch(engine, [[prompt]], params) as batch:
        [result] = await until_disconnect(batch.results())
    return JSONAnswer(chat_completion(head("chat.completion", model), result))


create_chat_completion_unversioned = create_chat_completion


async def apply_template(body: dict[str, Any]) -> Response:
    """`{"prompt": ...}`: what a chat completion would give the model to read."""
    refuse_unsupported(body, TEMPLATE)
    current = runtime()
    engine = await current.supervisor.engine()
    return JSONAnswer({"prompt": await chat_prompt(current, engine, body)})
