"""Google's Gemini API below /v1beta: content, whole (:generateContent) and in pieces
(:streamGenerateContent), token counts (:countTokens), and models."""

from dataclasses import replace
from functools import partial

from starlette.responses import Response

from specllama.engine.catalog.entry import CatalogEntry
from specllama.engine.errors import EngineError
from specllama.handlers.apis.gemini.format import array_form, content_form
from specllama.handlers.apis.gemini.request import SUPPORTED, read_content, read_content_input
from specllama.handlers.apis.generate import Dialect, count_input, generate
from specllama.handlers.apis.ollama.details import facts
from specllama.handlers.http import schemas
from specllama.handlers.http.json_answer import JSONAnswer
from specllama.handlers.running.resolve_model import is_allowed, listed, not_found
from specllama.handlers.running.runtime import Runtime, runtime

PREFIX = "models/"
"""The prefix of a model's name."""
METHODS: list[schemas.GeminiMethod] = ["generateContent", "streamGenerateContent", "countTokens"]

_CONTENT = Dialect(
    read=read_content, form=content_form, supported=SUPPORTED, unknown="not_found_error"
)
_EVENTS = replace(_CONTENT, read=partial(read_content, stream=True))
_ARRAY = replace(_EVENTS, form=array_form, media_type="application/json")


async def generate_gemini_content(body: schemas.GeminiRequest, model_id: str) -> Response:
    """The whole answer."""
    return await generate(_CONTENT, body, name=_name(model_id))


generate_gemini_content_alias = generate_gemini_content


async def stream_gemini_content(
    body: schemas.GeminiRequest, model_id: str, alt: schemas.GeminiAlt = "json"
) -> Response:
    """The pieces of the answer."""
    dialect = _EVENTS if alt == "sse" else _ARRAY
    return await generate(dialect, body, name=_name(model_id))


stream_gemini_content_alias = stream_gemini_content


async def count_gemini_tokens(body: schemas.GeminiCountRequest, model_id: str) -> Response:
    """The number of tokens in the prompt for a conversation."""
    n = await count_input(
        read_content_input, body, {}, name=_name(model_id), unknown="not_found_error"
    )
    counted: schemas.GeminiTokenCount = {"totalTokens": n}
    return JSONAnswer(counted)


count_gemini_tokens_alias = count_gemini_tokens


async def list_gemini_models(pageSize: int = 0, pageToken: str = "0") -> Response:  # noqa: N803
    """One page of the models; without `pageSize`, all of them. Doesn't wait."""
    current = runtime()
    entries = listed(current)
    first = int(pageToken)
    end = first + pageSize if pageSize else len(entries)
    page: schemas.GeminiModelList = {
        "models": [_model(current, entry) for entry in entries[first:end]]
    }
    if end < len(entries):
        page["nextPageToken"] = str(end)
    return JSONAnswer(page)


async def get_gemini_model(model_id: str) -> Response:
    """The model with this id or alias. Raises EngineError (not_found_error) for an unknown name,
    even in a server of one model."""
    current, name = runtime(), _name(model_id)
    for entry in current.catalog.entries.values():
        if name in (entry.name, *entry.aliases) and is_allowed(entry):
            return JSONAnswer(_model(current, entry))
    raise EngineError.of("not_found_error", not_found(current, name))


def _name(model_id: str) -> str:
    return model_id.removeprefix(PREFIX) or model_id


def _model(current: Runtime, entry: CatalogEntry) -> schemas.GeminiModel:
    known, engine = facts(current, entry), entry.options.engine
    info = current.pool.status(entry.name).info
    params = engine.generation_defaults(info.metadata if info else {})
    model: schemas.GeminiModel = {
        "name": PREFIX + entry.name,
        "version": known.quantization if known else "",
        "displayName": entry.name,
        "supportedGenerationMethods": [] if engine.embedding.embeds() else METHODS,
        "temperature": params.temperature,
        "topP": params.top_p,
        "topK": params.top_k,
    }
    if known is not None:
        model["inputTokenLimit"] = model["outputTokenLimit"] = known.n_ctx or known.n_ctx_train
        if known.description:
            model["description"] = known.description
    return model
