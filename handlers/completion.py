"""POST /completion in the native format, POST /v1/completions in OpenAI's."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.responses import Response

from engine.params import GenerationParams
from engine.protocol import Delta, Finished, Infill
from handlers.answers import JSONAnswer
from handlers.batch import Batch
from handlers.generation import generation_params, parse_prompts, settings_json, timings_json
from handlers.http.disconnect import until_disconnect
from handlers.http.sse import DONE, event_stream, frame
from handlers.openai_format import TextChunks, head, text_completion
from handlers.runtime import runtime
from handlers.unsupported import COMPLETION, TEXT_COMPLETION, refuse_unsupported

_encode = msgspec.json.Encoder().encode


async def create_completion(body: dict[str, Any]) -> Response:
    """An object for one prompt, an array of them for several, or events with `stream`.

    In place of the prompts there may be the gap that `handlers.infill` found in its request.
    """
    refuse_unsupported(body, COMPLETION)
    current = runtime()
    params = generation_params(body, current.options.generation_defaults())
    given = body["prompt"]
    prompts = [given] if isinstance(given, Infill) else parse_prompts(given)
    engine = await current.supervisor.engine()
    model = body.get("model") or current.model_id
    result_json = NativeFormat(model, current.model_id, engine.info.n_ctx, params)

    async def events() -> AsyncIterator[bytes]:
        async with Batch(engine, prompts, params, echo_prompt=True) as batch:
            async for index, event in batch.events():
                if isinstance(event, Delta):
                    yield result_json.delta(index, event)
                else:
                    yield frame(result_json.result(index, event))

    if params.stream:
        return event_stream(events())
    async with Batch(engine, prompts, params, echo_prompt=True) as batch:
        results = await until_disconnect(batch.results())
    answers = [result_json.result(index, result) for index, result in enumerate(results)]
    return JSONAnswer(answers[0] if len(answers) == 1 else answers)


create_completion_plural = create_completion


async def create_openai_completion(body: dict[str, Any]) -> Response:
    """A text_completion object with a choice per prompt, or chunks of one with `stream`."""
    refuse_unsupported(body, TEXT_COMPLETION)
    current = runtime()
    params = generation_params(body, current.options.generation_defaults())
    prompts = parse_prompts(body["prompt"])
    engine = await current.supervisor.engine()
    top = head("text_completion", body.get("model") or current.model_id)

    async def events() -> AsyncIterator[bytes]:
        chunks = TextChunks(top, timings_per_token=params.timings_per_token)
        async with Batch(engine, prompts, params) as batch:
            async for index, event in batch.events():
                if isinstance(event, Finished):
                    yield chunks.finish(index, event)
                elif event.text:
                    yield chunks.delta(index, event)
        yield DONE

    if params.stream:
        return event_stream(events())
    async with Batch(engine, prompts, params) as batch:
        results = await until_disconnect(batch.results())
    return JSONAnswer(text_completion(top, results))


class NativeFormat:
    """The native answers of one request. `model` is the name that the client used,
    `model_id` the model's own; `n_ctx` is the size of a slot's context in tokens."""

    def __init__(self, model: str, model_id: str, n_ctx: int, params: GenerationParams) -> None:
        self._model = model
        self._model_id = model_id
        self._n_ctx = n_ctx
        self._with_tokens = params.return_tokens or params.stream
        self._with_timings = params.timings_per_token

    def delta(self, index: int, event: Delta) -> bytes:
        """One event of a stream, ready to be sent."""
        timings = event.timings
        return b"".join(
            (
                b'data: {"index":%d,"content":' % index,
                _encode(event.text),
                b',"tokens":',
                _encode(event.tokens),
                b',"stop":false,"id_slot":%d,"tokens_predicted":%d,"tokens_evaluated":%d'
                % (event.id_slot, timings.predicted_n, timings.cache_n + timings.prompt_n),
                b',"timings":' + _encode(timings_json(timings)) if self._with_timings else b"",
                b"}\n\n",
            )
        )

    def result(self, index: int, result: Finished) -> dict[str, Any]:
        """The whole answer, or the last event of a stream."""
        return {
            "index": index,
            "content": result.text,
            "tokens": result.tokens if self._with_tokens else [],
            "id_slot": result.id_slot,
            "stop": True,
            "model": self._model,
            "tokens_predicted": result.n_decoded,
            "tokens_evaluated": result.n_prompt,
            "tokens_cached": result.timings.cache_n,
            "generation_settings": settings_json(result.params, self._n_ctx, self._model_id),
            "prompt": result.prompt,
            "has_new_line": result.has_new_line,
            "truncated": result.truncated,
            "stop_type": result.stop_type,
            "stopping_word": result.stopping_word,
            "timings": timings_json(result.timings),
        }
