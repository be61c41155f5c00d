"""GET and POST /props: what is served, and how."""

from typing import Any

from connexion import context
from starlette.datastructures import QueryParams
from starlette.responses import Response

from engine.errors import not_supported
from engine.protocol.messages import ModelInfo
from handlers.apis.ollama.details import model_path
from handlers.http.json_answer import JSONAnswer, build_info
from handlers.running.runtime import runtime
from handlers.running.served import Served, served
from handlers.running.templates import description, template_source, tool_template_source
from handlers.slots import slot_json, unused_slot


async def get_props() -> Response:
    """The properties of a model. One that the request names is loaded for it, if need be; a
    sleeping or restarting one is neither woken nor waited for.

    Raises EngineError (unavailable_error) until the only model of a server has been loaded once.
    """
    model = served()
    info = model.info
    if info is None and (_names_model() or not model.current.catalog.router):
        info = (await model.engine()).info
    return JSONAnswer(await _props_json(model, info))


async def set_props(body: dict[str, Any] | None = None) -> Response:
    """Nothing can be changed yet. Raises EngineError (not_supported_error) without `--props`."""
    if not runtime().options.props:
        raise not_supported("POST /props is switched off; start the server with --props")
    return JSONAnswer({"success": True})


def _names_model() -> bool:
    return bool(QueryParams(context.scope["query_string"]).get("model"))


async def _props_json(model: Served, info: ModelInfo | None) -> dict[str, Any]:
    """`info` is None for a model that hasn't been loaded; what only it tells is empty then."""
    options, server = model.options, model.current.options
    source, caps, tool_source = options.chat_template, {}, None
    if info is not None:
        source = template_source(options, info)
        tool_source = tool_template_source(options, info)
        described = await description(model, info, tool_source or source)
        caps = dict(described.caps) if described else {}
    props = {
        "default_generation_settings": slot_json(
            unused_slot(info.n_ctx if info else 0), options.generation_defaults(), model.name
        ),
        "total_slots": info.n_slots if info else options.n_slots(),
        "model_alias": model.name,
        "model_path": model_path(model.current, model.entry),
        "modalities": {"vision": False, "audio": False, "video": False},
        "endpoint_slots": options.slots,
        "endpoint_props": server.props,
        "endpoint_metrics": server.metrics,
        "chat_template": source,
        "chat_template_caps": caps,
        "bos_token": info.bos_token if info else "",
        "eos_token": info.eos_token if info else "",
        "build_info": build_info(),
        "is_sleeping": model.current.pool.status(model.name).value == "sleeping",
        "role": "model",
    }
    if tool_source is not None:
        props["chat_template_tool_use"] = tool_source
    if model.current.catalog.router:
        props |= {
            "role": "router",
            "max_instances": server.models_max,
            "models_autoload": server.models_autoload,
        }
    return props
