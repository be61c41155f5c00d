"""POST /infill: what belongs between two texts."""

from typing import Any

from starlette.responses import Response

from specllama.engine.wire.requests import Infill
from specllama.handlers.apis.native.request import parse_part
from specllama.handlers.apis.unsupported import INFILL, refuse_unsupported
from specllama.handlers.completion import create_completion
from specllama.handlers.running.run_in_thread import run_in_thread


async def create_infill(body: dict[str, Any]) -> Response:
    """A native completion of a prompt that the engine makes of the texts around the gap."""
    refuse_unsupported(body, INFILL)
    return await create_completion({**body, "prompt": await run_in_thread(_gap, body)})


def _gap(body: dict[str, Any]) -> Infill:
    return Infill(
        prefix=parse_part(body["input_prefix"], "input_prefix"),
        suffix=parse_part(body["input_suffix"], "input_suffix"),
        middle=body.get("prompt") or "",
        extra=[
            (snippet.get("filename") or "tmp", snippet["text"])
            for snippet in body.get("input_extra") or ()
        ],
    )
