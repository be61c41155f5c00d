"""GET and POST /props: what is served, and how."""

from typing import Any

from starlette.responses import Response

from engine.errors import not_supported
from engine.protocol import ModelInfo
from handlers.answers import JSONAnswer, build_info
from handlers.model_details import model_file
from handlers.runtime import Runtime, runtime
from handlers.slots import slot_json, unused_slot
from handlers.templates import description, template_source


async def get_props() -> Response:
    """The properties. Raises EngineError (unavailable_error) until the model has been loaded
    once; after that, a restarting engine is not waited for."""
    current = runtime()
    info = current.supervisor.info or (await current.supervisor.engine()).info
    return JSONAnswer(await _props_json(current, info))


async def set_props(body: dict[str, Any] | None = None) -> Response:
    """Nothing can be changed yet. Raises EngineError (not_supported_error) without `--props`."""
    if not runtime().options.props:
        raise not_supported("POST /props is switched off; start the server with --props")
    return JSONAnswer({"success": True})


async def _props_json(current: Runtime, info: ModelInfo) -> dict[str, Any]:
    options = current.options
    source = template_source(options, info)
    described = await description(current, info, source)
    return {
        "default_generation_settings": slot_json(
            unused_slot(info.n_ctx), options.generation_defaults(), current.model_id
        ),
        "total_slots": info.n_slots,
        "model_alias": current.model_id,
        "model_path": model_file(options),
        "modalities": {"vision": False, "audio": False, "video": False},
        "endpoint_slots": options.slots,
        "endpoint_props": options.props,
        "endpoint_metrics": options.metrics,
        "chat_template": source,
        "chat_template_caps": described.caps if described else {},
        "bos_token": info.bos_token,
        "eos_token": info.eos_token,
        "build_info": build_info(),
        "is_sleeping": False,
    }
