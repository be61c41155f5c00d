"""GET /models: the model that is served."""

from typing import Any

from starlette.responses import Response

from engine.protocol import ModelInfo
from handlers.answers import JSONAnswer
from handlers.model_details import details, modified_at
from handlers.runtime import Runtime, runtime


async def list_models() -> Response:
    """The model in OpenAI's format (`data`) and in Ollama's (`models`). Never waits for the
    engine: `meta` is null, and `details` say little, until the model has been loaded."""
    return JSONAnswer(model_list(runtime()))


list_models_v1 = list_models


def model_list(current: Runtime) -> dict[str, Any]:
    name = current.model_id
    info = current.supervisor.info
    model = {
        "id": name,
        "aliases": current.aliases,
        "tags": [],
        "object": "model",
        "created": current.started,
        "owned_by": "llamacpp",
        "meta": _meta(info) if info else None,
    }
    return {"object": "list", "data": [model], "models": [_summary(current, info)]}


def _meta(info: ModelInfo) -> dict[str, Any]:
    return {
        "vocab_type": info.vocab_type,
        "n_vocab": info.n_vocab,
        "n_ctx": info.n_ctx,
        "n_ctx_train": info.n_ctx_train,
        "n_embd": info.n_embd,
        "n_params": info.n_params,
        "size": info.size,
    }


def _summary(current: Runtime, info: ModelInfo | None) -> dict[str, Any]:
    # Ollama's clients want all of these fields to be there.
    return {
        "name": current.model_id,
        "model": current.model_id,
        "modified_at": modified_at(current.options, current.started),
        "size": info.size if info else 0,
        "digest": "",
        "type": "model",
        "description": "",
        "tags": [""],
        "capabilities": ["completion"],
        "parameters": "",
        "details": details(info),
    }
