"""GET and POST /props: the properties of a model. GET /version: the version of the server."""

from typing import cast

import msgspec
from starlette.datastructures import QueryParams
from starlette.responses import Response

from specllama.engine.errors import not_supported
from specllama.engine.helpers.render.renderer import template_source, tool_template_source
from specllama.engine.wire.replies import ModelInfo
from specllama.handlers.apis.ollama.details import model_path
from specllama.handlers.http import schemas
from specllama.handlers.http.build_info import build_info, server_version
from specllama.handlers.http.current import current_scope
from specllama.handlers.http.json_answer import JSONAnswer
from specllama.handlers.running.chat_batch import description
from specllama.handlers.running.media import accepts_videos, media_marker
from specllama.handlers.running.resolve_model import ResolvedModel, resolve_model
from specllama.handlers.running.runtime import runtime
from specllama.handlers.slots import slot_json, unused_slot


async def get_props() -> Response:
    """The properties of a model. A model that the request names is loaded first if it was never
    loaded. A sleeping or restarting model is neither woken nor waited for.

    Raises EngineError (unavailable_error) until the only model of a server has been loaded once.
    """
    model = resolve_model()
    info = model.info
    if info is None and (_names_model() or not model.current.catalog.router):
        info = (await model.engine()).info
    return JSONAnswer(await _props_json(model, info))


async def get_version() -> Response:
    """The version of the server. Doesn't wait."""
    return JSONAnswer({"version": server_version() or "unknown", "build_info": build_info()})


async def set_props(body: schemas.PropsChange | None = None) -> Response:
    """Changes nothing yet. Raises EngineError (not_supported_error) without `--props`."""
    if not runtime().options.model.operations.props:
        raise not_supported(
            "This server does not support changing global properties. Start it with `--props`"
        )
    return JSONAnswer({"success": True})


def _names_model() -> bool:
    return bool(QueryParams(current_scope()["query_string"]).get("model"))


async def _props_json(model: ResolvedModel, info: ModelInfo | None) -> schemas.Props:
    """Returns the answer of `GET /props`. `info` is None for a model that hasn't been loaded; the
    fields that depend on it are empty then."""
    options, server = model.options, model.current.options
    source, tool_source = options.chat.chat_template, ""
    caps: schemas.ChatTemplateCaps = {}
    if info is not None:
        source, tool_source = template_source(options, info), tool_template_source(options, info)
        described = await description(model, info, tool_source or source)
        caps = cast(schemas.ChatTemplateCaps, dict(described.caps)) if described else {}
    props: schemas.Props = {
        "default_generation_settings": slot_json(unused_slot(info.n_ctx if info else 0), model),
        "total_slots": info.n_slots if info else options.engine.context.n_slots(),
        "model_alias": model.name,
        "model_ftype": info.ftype if info else "",
        "model_path": model_path(model.current, model.entry),
        "modalities": {
            "vision": info is not None and "vision" in info.modalities,
            "audio": info is not None and "audio" in info.modalities,
            "video": info is not None and accepts_videos(info),
        },
        "media_marker": media_marker(),
        "endpoint_slots": options.operations.slots,
        "endpoint_props": server.model.operations.props,
        "endpoint_metrics": server.model.operations.metrics,
        "ui": server.page.ui,
        "ui_settings": model.current.page_settings,
        "chat_template": source.removesuffix("\n"),  # as Jinja does
        "chat_template_caps": caps,
        "bos_token": info.bos_token if info else "",
        "eos_token": info.eos_token if info else "",
        "build_info": build_info(),
        "devices": msgspec.to_builtins(info.devices) if info else [],
        "is_sleeping": model.current.pool.status(model.name).value == "sleeping",
        "cors_proxy_enabled": False,
        "role": "model",
    }
    if tool_source:
        props["chat_template_tool_use"] = tool_source
    if model.current.catalog.router:
        props["role"] = "router"
        props["max_instances"] = server.router.models_max
        props["models_autoload"] = server.router.models_autoload
    return props
