"""GET /models: the model that is served."""

from typing import Any

from starlette.responses import Response

from engine.protocol import ModelInfo
from handlers.answers import JSONAnswer
from handlers.runtime import Runtime, runtime


async def list_models() -> Response:
    """The model in OpenAI's format (`data`) and in Ollama's (`models`). Never waits for the
    engine: `meta` is null until the model has been loaded."""
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
    return {"object": "list", "data": [model], "models": [_summary(name)]}


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


def _summary(name: str) -> dict[str, Any]:
    # Ollama's clients want these fields to be there; there is nothing to say in most of them.
    return {
        "name": name,
        "model": name,
        "modified_at": "",
        "size": "",
        "digest": "",
        "type": "model",
        "description": "",
        "tags": [""],
        "capabilities": ["completion"],
        "parameters": "",
        "details": {
            "parent_model": "",
            "format": "gguf",
            "family": "",
            "families": [""],
            "parameter_size": "",
            "quantization_level": "",
        },
    }
