"""GET /api/tags, POST /api/show and POST /api/chat: what Ollama's clients ask for."""

import json
from typing import Any

import msgspec
from connexion import context
from starlette.responses import Response

from engine.options import Options
from engine.params import RANDOM_SEED
from engine.protocol.messages import ModelInfo
from handlers.apis.native.probabilities import chat_probabilities
from handlers.apis.native.request import generation_params
from handlers.apis.ollama.details import Facts, details, model_info_json, model_path, modified_at
from handlers.apis.ollama.format import OllamaFormat
from handlers.apis.ollama.request import is_in_ollama_form, openai_body, openai_messages
from handlers.apis.openai.request import chat_request
from handlers.apis.unsupported import CHAT, refuse_unsupported
from handlers.chat import create_chat_completion
from handlers.http.envelopes.ollama import NDJSON, answer_as_ollama, is_ollama_client
from handlers.http.json_answer import JSONAnswer
from handlers.models import model_list
from handlers.running.chat_batch import ChatBatch, prepare
from handlers.running.respond import respond
from handlers.running.runtime import runtime
from handlers.running.served import Served, served
from handlers.running.templates import description, template_source


async def list_ollama_models() -> Response:
    """The same list as `GET /models`."""
    return JSONAnswer(model_list(runtime()))


async def show_ollama_model(body: dict[str, Any]) -> Response:
    """Details of the model, as far as they are known. Raises EngineError (unavailable_error) until
    it has been loaded once."""
    named = {"model": body.get("model") or body.get("name")}
    model = served(named, unknown="not_found_error")
    info = model.info or (await model.engine()).info
    return JSONAnswer(await _model_json(model, info))


async def create_ollama_chat(body: dict[str, Any]) -> Response:
    """The answer in Ollama's format if the request is Ollama's, else in OpenAI's."""
    scope = context.scope
    if is_ollama_client(scope) or is_in_ollama_form(body):
        answer_as_ollama(scope)
        return await _ollama_answer(openai_body(body))
    return await create_chat_completion({**body, "messages": openai_messages(body["messages"])})


async def _ollama_answer(body: dict[str, Any]) -> Response:
    refuse_unsupported(body, CHAT)
    model = served(body, unknown="not_found_error")
    params = generation_params(body, model.options.engine.generation_defaults())
    params.return_progress = False
    form = OllamaFormat(body.get("model") or model.name, chat_probabilities(body, params))
    engine = await model.engine()
    request = msgspec.structs.replace(chat_request(body, model.options), repeat_given=False)
    prepared = await prepare(model, engine, request, params)
    return await respond(
        lambda: ChatBatch(engine, prepared), form, stream=params.stream, media_type=NDJSON
    )


# ---- the model ---------------------------------------------------------------------------

_INSERT = [f"tokenizer.ggml.fim_{part}_token_id" for part in ("pre", "suf", "mid")]


async def _model_json(model: Served, info: ModelInfo) -> dict[str, Any]:
    """The answer of `POST /api/show`."""
    options = model.options
    path = model_path(model.current, model.entry)
    parameters = _parameters(options, info)
    described = {
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


async def _capabilities(model: Served, info: ModelInfo) -> list[str]:
    """In Ollama's words: what the model, with its chat template, can do in this server."""
    if info.pooling is not None:
        return [] if info.pooling == "rank" else ["embedding"]
    found = ["completion"]
    if all(key in info.metadata for key in _INSERT):
        found.append("insert")
    described = await description(model, info, template_source(model.options, info))
    if described is not None:
        if described.caps["supports_tools"]:
            found.append("tools")
        if described.syntax.reasoning is not None or described.syntax.harmony:
            found.append("thinking")
    return found


def _parameters(options: Options, info: ModelInfo) -> list[str]:
    """The defaults of `options` in a request, one line each, by Ollama's names."""
    params = options.engine.generation_defaults()
    values: dict[str, Any] = {
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
