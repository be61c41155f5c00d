"""POST /completion in the native format, POST /v1/completions in OpenAI's."""

from typing import Any, cast, get_args

from starlette.responses import Response

from specllama.engine.chat.request import ReasoningFormat
from specllama.engine.options import Options
from specllama.engine.wire.requests import Infill, Prompt
from specllama.handlers.apis.native.format import NativeFormat
from specllama.handlers.apis.native.probabilities import text_probabilities
from specllama.handlers.apis.native.request import generation_params, parse_prompts, ping_of
from specllama.handlers.apis.openai.format import TextFormat, head, wants_verbose
from specllama.handlers.running.batch import AnswerBatch
from specllama.handlers.running.choices import candidates, texts_per_prompt
from specllama.handlers.running.media import resolved, without_media
from specllama.handlers.running.prompt_text import prompts_with_probabilities, text_of
from specllama.handlers.running.resolve_model import resolve_model
from specllama.handlers.running.respond import respond
from specllama.handlers.running.run_in_thread import run_in_thread


async def create_completion(body: dict[str, Any]) -> Response:
    """An object for one prompt, an array of them for several, or events with `stream`.

    In place of the prompts there may be the gap that `handlers.infill` found in its request.
    """
    model = resolve_model(body)
    params = await run_in_thread(
        generation_params, body, model.options.engine.generation_defaults()
    )
    given = body["prompt"]
    gap = given if isinstance(given, Infill) else None
    asked = [] if gap else await run_in_thread(parse_prompts, given, images=body.get("image_data"))
    n = texts_per_prompt(body, [gap] if gap else asked)
    params, probabilities = text_probabilities(body, params)
    engine = await model.engine()
    prompts: list[Prompt] = [gap] if gap else [*await resolved(model, engine, asked)]
    native = NativeFormat(
        model.name,
        engine.info.n_ctx,
        params,
        reasoning_format=_reasoning_format(body, model.options),
        probabilities=probabilities,
        response_fields=body.get("response_fields") or (),
    )

    def start() -> AnswerBatch:
        return AnswerBatch(engine, prompts, params, n=n, echo_prompt=True)

    ping = ping_of(body, model.options)
    return await respond(start, native, stream=params.stream, ping=ping)


def _reasoning_format(body: dict[str, Any], options: Options) -> ReasoningFormat:
    """What `generation_settings` shows: these operations don't parse their answers, so that any
    value does."""
    for known in get_args(ReasoningFormat):
        if body.get("reasoning_format") == known:
            return cast(ReasoningFormat, known)
    return options.chat.reasoning_format


create_completion_alias = create_completion


async def create_openai_completion(body: dict[str, Any]) -> Response:
    """A text_completion object with a choice per prompt, or chunks of one with `stream`."""
    model = resolve_model(body)
    params = await run_in_thread(
        generation_params, body, model.options.engine.generation_defaults()
    )
    given = await run_in_thread(parse_prompts, body["prompt"], images=body.get("image_data"))
    n = texts_per_prompt(body, given)
    params, probabilities = text_probabilities(body, params)
    n_candidates, params = candidates(body, n, len(given), params)
    engine = await model.engine()
    prompts = await resolved(model, engine, given)
    asked: list[Prompt] = [*prompts]
    if suffix := body.get("suffix"):
        asked = [Infill(prefix=without_media(each), suffix=[suffix]) for each in given]
    echoes = [await text_of(engine, prompt) for prompt in prompts] if body.get("echo") else ()
    has_prompt_probs = bool(echoes) and probabilities is not None
    if has_prompt_probs:
        asked = await prompts_with_probabilities(engine, asked, params, n_candidates)
    native = None
    if verbose := wants_verbose(body, model.current.options.log):
        native = NativeFormat(
            model.name,
            engine.info.n_ctx,
            params,
            reasoning_format=model.options.chat.reasoning_format,
            probabilities=probabilities,
            response_fields=body.get("response_fields") or (),
        )
    begin = head("text_completion", model.name)
    form = TextFormat(
        begin,
        timings_per_token=params.timings_per_token,
        n=n,
        n_candidates=n_candidates,
        echoes=echoes,
        has_prompt_probs=has_prompt_probs,
        probabilities=probabilities,
        native=native,
    )

    def start() -> AnswerBatch:
        return AnswerBatch(
            engine,
            asked,
            params,
            n=n_candidates,
            echo_prompt=verbose,
            prompt_probs=has_prompt_probs,
            id=begin["id"],
        )

    ping = ping_of(body, model.options)
    return await respond(start, form, stream=params.stream, ping=ping)
