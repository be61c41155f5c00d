"""POST /completion in the native format, POST /v1/completions in OpenAI's."""

from typing import Any, cast, get_args

from starlette.responses import Response

from engine.chat.request import ReasoningFormat
from engine.options import Options
from engine.protocol.messages import Infill, Prompt
from handlers.apis.native.format import NativeFormat
from handlers.apis.native.probabilities import text_probabilities
from handlers.apis.native.request import generation_params, parse_prompts, ping_of
from handlers.apis.openai.format import TextFormat, head, wants_verbose
from handlers.apis.unsupported import COMPLETION, refuse_unsupported
from handlers.running.aside import aside
from handlers.running.batch import Batch
from handlers.running.choices import candidates, texts_per_prompt
from handlers.running.prompt_text import text_of
from handlers.running.respond import respond
from handlers.running.served import served


async def create_completion(body: dict[str, Any]) -> Response:
    """An object for one prompt, an array of them for several, or events with `stream`.

    In place of the prompts there may be the gap that `handlers.infill` found in its request.
    """
    refuse_unsupported(body, COMPLETION)
    model = served(body)
    params = await aside(generation_params, body, model.options.engine.generation_defaults())
    given = body["prompt"]
    prompts = [given] if isinstance(given, Infill) else await aside(parse_prompts, given)
    n = texts_per_prompt(body, prompts)
    probabilities = text_probabilities(body, params)
    engine = await model.engine()
    native = NativeFormat(
        model.name,
        engine.info.n_ctx,
        params,
        reasoning_format=_reasoning_format(body, model.options),
        probabilities=probabilities,
        response_fields=body.get("response_fields") or (),
    )

    def start() -> Batch:
        return Batch(engine, prompts, params, n=n, echo_prompt=True)

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
    refuse_unsupported(body, COMPLETION)
    model = served(body)
    params = await aside(generation_params, body, model.options.engine.generation_defaults())
    prompts = await aside(parse_prompts, body["prompt"])
    n = texts_per_prompt(body, prompts)
    probabilities = text_probabilities(body, params)
    n_candidates = candidates(body, n, len(prompts), params)
    asked: list[Prompt] = [*prompts]
    if suffix := body.get("suffix"):
        asked = [Infill(prefix=prompt, suffix=[suffix]) for prompt in prompts]
    engine = await model.engine()
    echoes = [await text_of(engine, prompt) for prompt in prompts] if body.get("echo") else ()
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
        probabilities=probabilities,
        native=native,
    )

    def start() -> Batch:
        return Batch(engine, asked, params, n=n_candidates, echo_prompt=verbose, id=begin["id"])

    ping = ping_of(body, model.options)
    return await respond(start, form, stream=params.stream, ping=ping)
