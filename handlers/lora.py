"""GET and POST /lora-adapters: the LoRA adapters and their scales."""

import msgspec
from starlette.responses import Response

from specllama.handlers.apis.parameters import parse_lora
from specllama.handlers.http import schemas
from specllama.handlers.http.json_answer import JSONAnswer
from specllama.handlers.running.resolve_model import resolve_model


async def list_lora_adapters() -> Response:
    """All adapters, with their default scales."""
    engine = await resolve_model().engine()
    return JSONAnswer([msgspec.structs.asdict(adapter) for adapter in await engine.adapters()])


async def set_lora_adapters(body: schemas.LoraScaleList) -> Response:
    """Sets the default scales; unknown ids are ignored."""
    scales = parse_lora(body)
    supervisor = (await resolve_model().lease()).supervisor
    engine = await supervisor.engine()
    await engine.set_adapters(scales)
    supervisor.adapter_scales = scales  # for an engine that replaces this one
    return JSONAnswer({"success": True})
