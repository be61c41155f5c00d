"""POST /completion in the native format, POST /v1/completions in OpenAI's."""

from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import Response

from engine.protocol.messages import Delta, Finished, Infill
from handlers.apis.native.format import NativeFormat
from handlers.apis.native.probabilities import native_probabilities, text_probabilities
from handlers.apis.native.request import generation_params, parse_prompts
from handlers.apis.openai.format import TextChunks, head, text_completion, usage, wants_verbose
from handlers.apis.unsupported import COMPLETION, TEXT_COMPLETION, refuse_unsupported
from handlers.http.disconnect import until_disconnect
from handlers.http.json_answer import JSONAnswer
from handlers.http.sse import DONE, event_stream
from handlers.running.batch import Batch
from handlers.running.choices import best, candidates, texts_per_prompt
from handlers.running.served import served


async def create_completion(body: dict[str, Any]) -> Response:
    """An object for one prompt, an array of them for several, or events with `stream`.

    In place of the prompts there may be the gap that `handlers.infill` found in its request.
    """
    refuse_unsupported(body, COMPLETION)
    model = served(body)
    params = generation_params(body, model.options.generation_defaults())
    given = body["prompt"]
    prompts = [given] if isinstance(given, Infill) else parse_prompts(given)
    n = texts_per_prompt(body, prompts)
    engine = await model.engine()
    native = NativeFormat(
        body.get("model") or model.name,
        model.name,
        engine.info.n_ctx,
        params,
        probabilities=native_probabilities(params),
        response_fields=body.get("response_fields") or (),
    )

    async def events() -> AsyncIterator[bytes]:
        async with Batch(engine, prompts, params, n=n, echo_prompt=True) as batch:
            async for index, event in batch.events():
                if isinstance(event, Delta):
                    yield native.delta(index, event)
                else:
                    yield native.finish(index, event)

    if params.stream:
        return event_stream(events())
    async with Batch(engine, prompts, params, n=n, echo_prompt=True) as batch:
        results = await until_disconnect(batch.results())
    answers = [native.result(index, result) for index, result in enumerate(results)]
    return JSONAnswer(answers[0] if len(answers) == 1 else answers)


create_completion_plural = create_completion


async def create_openai_completion(body: dict[str, Any]) -> Response:
    """A text_completion object with a choice per prompt, or chunks of one with `stream`."""
    refuse_unsupported(body, TEXT_COMPLETION)
    model = served(body)
    params = generation_params(body, model.options.generation_defaults())
    prompts = parse_prompts(body["prompt"])
    n = texts_per_prompt(body, prompts)
    probabilities = text_probabilities(body, params)
    n_candidates = candidates(body, n, len(prompts), params)
    engine = await model.engine()
    name = body.get("model") or model.name
    top = head("text_completion", name)
    native = None
    if verbose := wants_verbose(body, model.options):
        native = NativeFormat(
            name,
            model.name,
            engine.info.n_ctx,
            params,
            probabilities=probabilities,
            response_fields=body.get("response_fields") or (),
        )

    async def events() -> AsyncIterator[bytes]:
        chunks = TextChunks(
            top,
            timings_per_token=params.timings_per_token,
            n=n,
            probabilities=probabilities,
            native=native,
        )
        async with Batch(engine, prompts, params, n=n, echo_prompt=verbose) as batch:
            async for index, event in batch.events():
                if isinstance(event, Finished):
                    yield chunks.finish(index, event)
                elif event.text or event.progress:
                    yield chunks.delta(index, event)
        yield DONE

    if params.stream:
        return event_stream(events())
    async with Batch(engine, prompts, params, n=n_candidates, echo_prompt=verbose) as batch:
        results = await until_disconnect(batch.results())
    answer = text_completion(
        top,
        best(results, n, n_candidates),
        usage=usage(results, results[::n_candidates]),
        probabilities=probabilities,
        native=native,
    )
    return JSONAnswer(answer)
