"""POST /infill: the text between two texts."""

from starlette.responses import Response

from specllama.handlers.apis.generate import NO_IMAGES, Dialect, generate
from specllama.handlers.apis.native.format import completion_form
from specllama.handlers.apis.native.request import read_infill
from specllama.handlers.http import schemas

_INFILL = Dialect(read=read_infill, form=completion_form, supported=NO_IMAGES)


async def create_infill(body: schemas.InfillRequest) -> Response:
    """A native completion; the engine makes the prompt from the texts around the gap."""
    return await generate(_INFILL, body)
