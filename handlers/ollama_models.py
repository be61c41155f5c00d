"""Ollama's operations on models and the server: lists, loaded models, details, downloads."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.responses import Response

from specllama.engine.helpers.render.renderer import template_source
from specllama.engine.options import Options
from specllama.engine.params import RANDOM_SEED
from specllama.engine.wire.replies import ModelInfo
from specllama.handlers.apis.ollama.details import (
    Facts,
    details,
    model_info_json,
    model_path,
    modified_at,
    process_json,
)
from specllama.handlers.apis.ollama.pull import SUCCESS, pull, wanted
from specllama.handlers.http import schemas
from specllama.handlers.http.current import until_disconnect
from specllama.handlers.http.envelopes.ollama import NDJSON, ollama_error
from specllama.handlers.http.errors import HttpFailure
from specllama.handlers.http.json_answer import JSONAnswer
from specllama.handlers.http.streams import event_stream, line
from specllama.handlers.models import model_list
from specllama.handlers.running.chat_batch import description
from specllama.handlers.running.resolve_model import ResolvedModel, is_allowed, resolve_model
from specllama.handlers.running.runtime import runtime

API_VERSION = "0.12.11"
"""The version of Ollama whose API this server has. Clients infer from it which features exist."""


async def get_ollama_version() -> Response:
    answer: schemas.OllamaVersion = {"version": API_VERSION}
    return JSONAnswer(answer)


async def list_ollama_models() -> Response:
    """The same list as `GET /models`."""
    return JSONAnswer(model_list(runtime()))


async def list_ollama_processes() -> Response:
    """The loaded models."""
    current = runtime()
    loaded = [
        entry
        for entry in current.catalog.entries.values()
        if current.pool.status(entry.name).value == "loaded" and is_allowed(entry)
    ]
    paths = [path for entry in loaded if (path := model_path(current, entry))]
    await current.files.read_all(paths)  # models that were added after the server's start
    found = [process_json(current, entry) for entry in loaded]
    answer: schemas.OllamaProcesses = {"models": [each for each in found if each is not None]}
    return JSONAnswer(answer)


async def pull_ollama_model(body: schemas.OllamaPullRequest) -> Response:
    """The progress of a download, followed by its result; with `stream: false`, only the result.

    Raises EngineError: not_found_error for a name that is neither a model's nor a repository's,
    unavailable_error if the download fails, server_error if the catalog can't be reloaded after it.
    """
    current = runtime()
    steps = pull(current, wanted(current, body.get("model") or body.get("name") or ""))
    if body.get("stream") is False:
        await until_disconnect(_to_the_end(steps))
        answer: schemas.OllamaStatus = {"status": SUCCESS}
        return JSONAnswer(answer)
    return event_stream((line(each) async for each in steps), failed=_failed, media_type=NDJSON)


async def _to_the_end(steps: AsyncGenerator[schemas.OllamaPullProgress, None]) -> None:
    async with aclosing(steps):
        async for _ in steps:
            pass


def _failed(failure: HttpFailure) -> bytes:
    return line(ollama_error(failure.info))


async def show_ollama_model(body: schemas.OllamaShowRequest) -> Response:
    """Details of the model. Raises EngineError (unavailable_error) until it has been loaded
    once."""
    named = {"model": body.get("model") or body.get("name")}
    model = resolve_model(named, unknown="not_found_error")
    info = model.info or (await model.engine()).info
    return JSONAnswer(await _model_json(model, info))


_INSERT = [f"tokenizer.ggml.fim_{part}_token_id" for part in ("pre", "suf", "mid")]


async def _model_json(model: ResolvedModel, info: ModelInfo) -> schemas.OllamaShowResponse:
    """Returns the answer of `POST /api/show`."""
    options = model.options
    path = model_path(model.current, model.entry)
    parameters = _parameters(options, info)
    described: schemas.OllamaShowResponse = {
        "modelfile": "\n".join([f"FROM {path}", *(f"PARAMETER {line}" for line in parameters)]),
        "parameters": "\n".join(parameters),
        "template": template_source(options, info),
        "details": details(Facts.of_info(info)),
        "model_info": model_info_json(info),
        "capabilities": await _capabilities(model, info),
        "modified_at": modified_at(path, model.current.started),
    }
    if license := info.metadata.get("general.license"):
        described["license"] = license
    return described


async def _capabilities(model: ResolvedModel, info: ModelInfo) -> list[schemas.OllamaCapability]:
    """Returns the capabilities of the model and its chat template in this server, by Ollama's
    names."""
    if info.pooling is not None:
        return [] if info.pooling == "rank" else ["embedding"]
    found: list[schemas.OllamaCapability] = ["completion"]
    if all(key in info.metadata for key in _INSERT):
        found.append("insert")
    described = await description(model, info, template_source(model.options, info))
    if described is not None:
        if described.caps["supports_tools"]:
            found.append("tools")
        if described.syntax.reasoning is not None or described.syntax.harmony:
            found.append("thinking")
    return [*found, *info.modalities]  # Ollama has the same names for modalities


def _parameters(options: Options, info: ModelInfo) -> list[str]:
    """Returns the default parameters of requests, one line each, by Ollama's names."""
    params = options.engine.generation_defaults(info.metadata)
    values: dict[str, float] = {
        "num_ctx": info.n_ctx,
        "num_predict": params.n_predict,
        "num_keep": params.n_keep,
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "typical_p": params.typical_p,
        "repeat_last_n": params.repeat_last_n,
        "repeat_penalty": params.repeat_penalty,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "mirostat": params.mirostat,
        "mirostat_tau": params.mirostat_tau,
        "mirostat_eta": params.mirostat_eta,
    }
    if params.seed != RANDOM_SEED:
        values["seed"] = params.seed
    lines = [f"{name} {value}" for name, value in values.items()]
    return lines + [f"stop {json.dumps(stop, ensure_ascii=False)}" for stop in params.stop]
