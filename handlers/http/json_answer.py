"""Plain JSON answers."""

from typing import Any

import msgspec
from starlette.responses import Response

_encoder = msgspec.json.Encoder()


class JSONAnswer(Response):
    """A response whose content is any value that msgspec can encode."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return _encoder.encode(content)
