"""POST /v1/chat/completions and /apply-template."""

from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import Response

from engine.protocol import Finished
from handlers.answers import JSONAnswer
from handlers.batch import Batch
from handlers.choices import texts_per_prompt
from handlers.generation import Prompt, generation_params
from handlers.http.disconnect import until_disconnect
from handlers.http.sse import DONE, event_stream
from handlers.native_format import NativeFormat
from handlers.openai_format import ChatChunks, chat_completion, head, wants_verbose
from handlers.probabilities import chat_probabilities
from handlers.runtime import runtime
from handlers.templates import chat_prompt
from handlers.unsupported import CHAT, TEMPLATE, refuse_unsupported


async def create_chat_completion(body: dict[str, Any]) -> Response:
    """A chat.completion object, or chunks of one with `stream`."""
    refuse_unsupported(body, CHAT)
    current = runtime()
    params = generation_params(body, current.options.generation_defaults())
    probabilities = chat_probabilities(body, params)
    engine = await current.supervisor.engine()
    prompts: list[Prompt] = [[await chat_prompt(current, engine, body)]]
    n = texts_per_prompt(body, prompts)
    model = body.get("model") or current.model_id
    native = None
    if verbose := wants_verbose(body, current.options):
        native = NativeFormat(
            model,
            current.model_id,
            engine.info.n_ctx,
            params,
            probabilities=probabilities,
            response_fields=body.get("response_fields") or (),
        )

    async def events() -> AsyncIterator[bytes]:
        chunks = ChatChunks(
            head("chat.completion.chunk", model),
            timings_per_token=params.timings_per_token,
            include_usage=bool((body.get("stream_options") or {}).get("include_usage")),
            n=n,
            probabilities=probabilities,
            native=native,
        )
        async with Batch(engine, prompts, params, n=n, echo_prompt=verbose) as batch:
            begun: set[int] = set()
            async for index, event in batch.events():
                if index not in begun:
                    # Not before the engine has taken the request: an error comes alone.
                    begun.add(index)
                    yield chunks.begin(index)
                if isinstance(event, Finished):
                    yield chunks.finish(event, index)
                elif event.text or event.progress:
                    yield chunks.delta(event, index)
        yield DONE

    if params.stream:
        return event_stream(events())
    async with Batch(engine, prompts, params, n=n, echo_prompt=verbose) as batch:
        results = await until_disconnect(batch.results())
    answer = chat_completion(
        head("chat.completion", model), results, probabilities=probabilities, native=native
    )
    return JSONAnswer(answer)


create_chat_completion_unversioned = create_chat_completion


async def apply_template(body: dict[str, Any]) -> Response:
    """`{"prompt": ...}`: what a chat completion would give the model to read."""
    refuse_unsupported(body, TEMPLATE)
    current = runtime()
    engine = await current.supervisor.engine()
    return JSONAnswer({"prompt": await chat_prompt(current, engine, body)})
