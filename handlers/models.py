"""GET, POST and DELETE /models: list, download and remove models. GET /v1/models/{id}: one model.
GET /api/v0/models: the list in LM Studio's form. POST /models/load, /models/unload: load and unload
models. GET /models/sse: their events."""

from collections.abc import AsyncIterator, Mapping
from contextlib import closing
from typing import cast

import msgspec
from starlette.responses import Response

from specllama.engine.catalog.entry import CatalogEntry
from specllama.engine.errors import EngineError, not_supported
from specllama.engine.models.events import EVERY_MODEL, ModelStatus
from specllama.handlers.apis.ollama.details import (
    details,
    digest,
    facts,
    file_facts,
    memory_json,
    modalities,
    model_path,
    modified_at,
)
from specllama.handlers.http import schemas
from specllama.handlers.http.api_keys import current_key, is_known, require_access, require_key
from specllama.handlers.http.current import current_scope, until_disconnect
from specllama.handlers.http.json_answer import JSONAnswer
from specllama.handlers.http.streams import Ping, event_stream, sse_event
from specllama.handlers.options.arguments import arguments, preset
from specllama.handlers.running.resolve_model import (
    check_allowed,
    find,
    is_allowed,
    listed,
    not_found,
)
from specllama.handlers.running.runtime import Runtime, runtime

_KINDS: Mapping[str, schemas.ModelModality] = {"vision": "image", "audio": "audio"}
PING = Ping(10.0, b": still here\n\n")


async def list_models(reload: str = "") -> Response:
    """The models in OpenAI's format (`data`) and in Ollama's (`models`). Doesn't wait: until a
    model's file has been read, its `meta` is null, and its `details` are mostly empty. With
    `reload`, a router first looks for models again. Raises EngineError: server_error if that
    fails, permission_error for `reload` with a key that isn't an administrator's; and HTTPException
    (401) for `reload` without an API key."""
    current = runtime()
    if reload:
        require_key(current_scope())
        require_access("admin")
        if current.catalog.router:
            await current.inventory.reload()
    return JSONAnswer(model_list(current))


list_openai_models = list_models


async def list_lmstudio_models() -> Response:
    """The models in the form of LM Studio's list."""
    current = runtime()
    data = [_lmstudio_model(current, entry) for entry in listed(current)]
    return JSONAnswer({"object": "list", "data": data})


async def get_model(model_id: str) -> Response:
    """The model with this id or alias. Raises EngineError (not_found_error) for an unknown name,
    even in a server of one model: the request asks whether the name exists."""
    current = runtime()
    for entry in current.catalog.entries.values():
        names = (entry.name, *entry.aliases)
        if model_id.removesuffix(":latest") in names and is_allowed(entry):
            return JSONAnswer(_model(current, entry))
    raise EngineError.of("not_found_error", not_found(current, model_id))


async def download_model(body: schemas.ModelDownload) -> Response:
    """Starts a download, after the hub has confirmed that the model exists. Raises EngineError:
    invalid_request_error for a model that is here already or doesn't exist, not_supported_error in
    a server of one model."""
    current = _router()
    check_allowed(body["model"])
    await until_disconnect(current.inventory.download(body["model"]))
    return JSONAnswer({"success": True})


async def remove_model(model: str) -> Response:
    """Removes a downloaded model, also an incomplete one. Raises EngineError: not_found_error for
    an unknown name, invalid_request_error for a model that wasn't downloaded, server_error if its
    files can't be removed, not_supported_error in a server of one model."""
    current = _router()
    entry = current.catalog.named(model)
    check_allowed(model, *(entry.aliases if entry else ()))
    await current.inventory.remove(model)
    return JSONAnswer({"success": True})


async def load_model(body: schemas.ModelRequest) -> Response:
    """Starts loading a model. Raises EngineError: not_found_error for an unknown name,
    invalid_request_error if the model is already loaded, not_supported_error in a server of one
    model."""
    current = _router()
    await current.pool.load(find(current, body["model"], "not_found_error").name)
    return JSONAnswer({"success": True})


async def unload_model(body: schemas.ModelRequest) -> Response:
    """Starts unloading a model. Raises EngineError: invalid_request_error for an unknown name or a
    model that isn't loaded, not_supported_error in a server of one model."""
    current = _router()
    current.pool.begin_unload(find(current, body["model"], "invalid_request_error").name)
    return JSONAnswer({"success": True})


async def stream_model_events() -> Response:
    """The status of every model, then every change, until the client disconnects. Only of the
    models that its API key allows."""
    current, key = runtime(), current_key()

    def is_shown(name: str) -> bool:
        entry = current.catalog.entries.get(name)
        return key is None or key.may_use((name, *(entry.aliases if entry else ())))

    async def events() -> AsyncIterator[bytes]:
        with closing(current.pool.subscribe()) as events:
            for entry in listed(current):
                data = {"status": current.pool.status(entry.name).value}
                yield sse_event({"model": entry.name, "event": "model_status", "data": data})
            async for event in events:
                if event.model == EVERY_MODEL or is_shown(event.model):
                    yield sse_event(msgspec.structs.asdict(event))

    return event_stream(events(), ping=PING)


def _router() -> Runtime:
    current = runtime()
    if not current.catalog.router:
        raise not_supported(
            "this server has one model; start it without --model to load and unload models"
        )
    return current


def model_list(current: Runtime) -> schemas.ModelList:
    entries = listed(current)
    key = current_key()
    has_key = is_known(current_scope()) and (key is None or "read" in key.access)
    return {
        "object": "list",
        "data": [(_model if has_key else _named)(current, entry) for entry in entries],
        "models": [_summary(current, entry, has_key=has_key) for entry in entries],
    }


def _named(current: Runtime, entry: CatalogEntry) -> schemas.NamedModel:
    """Returns the minimum that OpenAI's clients need, for requests without an API key that may read
    more."""
    return {
        "id": entry.name,
        "aliases": _aliases(current, entry),
        "object": "model",
        "created": current.started,
        "owned_by": "llamacpp",
    }


def _aliases(current: Runtime, entry: CatalogEntry) -> list[str]:
    return [*entry.aliases] or ([] if current.catalog.router else [entry.name])


def _model(current: Runtime, entry: CatalogEntry) -> schemas.Model:
    status = current.pool.status(entry.name)
    known = facts(current, entry)
    return {
        **_named(current, entry),
        "tags": [*entry.tags],
        "path": model_path(current, entry),
        "in_cache": _in_cache(current, entry),
        "source": entry.source,
        "can_remove": entry.removable,
        "architecture": {
            "input_modalities": ["text", *(_KINDS[each] for each in modalities(current, entry))],
            "output_modalities": ["text"],
        },
        "status": _status_json(current, entry, status),
        "memory": memory_json(current, entry),
        "meta": known.meta() if known else None,
    }


def _lmstudio_model(current: Runtime, entry: CatalogEntry) -> schemas.LmStudioModel:
    status, known = current.pool.status(entry.name), facts(current, entry)
    kind: schemas.LmStudioModelType = "vlm" if "vision" in modalities(current, entry) else "llm"
    user, slash, _ = entry.options.source.hf_repo.partition("/")
    shown: schemas.LmStudioModel = {
        "id": entry.name,
        "object": "model",
        "type": "embeddings" if entry.options.engine.embedding.embeds() else kind,
        "publisher": user if slash else "local",
        "arch": known.family if known else "",
        "compatibility_type": "gguf",
        "quantization": known.quantization if known else "",
        "state": status.value if status.value in ("loaded", "loading") else "not-loaded",
        "capabilities": ["tool_use"] if "tools" in _capabilities(current, entry) else [],
    }
    if known:
        shown["max_context_length"] = known.n_ctx_train
    if known and known.n_ctx is not None and status.value == "loaded":
        shown["loaded_context_length"] = known.n_ctx
    return shown


def _in_cache(current: Runtime, entry: CatalogEntry) -> bool:
    """Whether the model is in the cache, also if it was downloaded after the server's start."""
    return entry.in_cache or bool(entry.options.source.hf_repo and model_path(current, entry))


def _status_json(current: Runtime, entry: CatalogEntry, status: ModelStatus) -> schemas.ModelStatus:
    words, section = _written_options(current, entry)
    shown: schemas.ModelStatus = {
        "value": status.value,
        "args": words,
        "preset": section,
        "progress": 1.0 if status.value == "loaded" else status.progress,
        "failed": status.failed,
    }
    if status.waiting:
        shown["waiting"] = True
    if status.failed:
        shown["error"] = status.failure
        if status.exit_code is not None:
            shown["exit_code"] = status.exit_code
    if status.transfer is not None and status.value == "downloading":
        transfer = msgspec.structs.asdict(status.transfer)
        shown["download"] = cast(schemas.ModelDownloadState, transfer)
    return shown


def _written_options(current: Runtime, entry: CatalogEntry) -> tuple[list[str], str]:
    """Returns the command line and the preset of a model."""
    if entry.name not in current.written_options:
        made = arguments(entry.options), preset(entry.name, entry.options)
        current.written_options[entry.name] = made
    return current.written_options[entry.name]


def _summary(current: Runtime, entry: CatalogEntry, *, has_key: bool) -> schemas.ModelSummary:
    known = facts(current, entry) if has_key else None
    # Ollama's clients require all of these fields.
    return {
        "name": entry.name,
        "model": entry.name,
        "modified_at": modified_at(model_path(current, entry) if has_key else "", current.started),
        "size": known.size if known else 0,
        "digest": digest(current, entry) if has_key else "",
        "type": "model",
        "description": "",
        "tags": (list(entry.tags) if has_key else []) or [""],
        "capabilities": _capabilities(current, entry) if has_key else ["completion"],
        "parameters": "",
        "details": details(known),
    }


def _capabilities(current: Runtime, entry: CatalogEntry) -> list[schemas.ModelCapability]:
    """Returns the capabilities from the model's file; only "completion" until the file has been
    read."""
    metadata = file_facts(current, entry)
    found: list[schemas.ModelCapability] = ["completion"]
    if metadata is not None:
        found = cast("list[schemas.ModelCapability]", metadata.capabilities)
    return [*found, "multimodal"] if modalities(current, entry) else found
