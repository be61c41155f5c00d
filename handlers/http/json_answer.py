"""Plain JSON answers, and what identifies the server in them."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec
from starlette.responses import Response

_encoder = msgspec.json.Encoder()


class JSONAnswer(Response):
    """A response whose content is any value that msgspec can encode."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return _encoder.encode(content)


@cache
def build_info() -> str:
    """Name and version of this server."""
    try:
        return f"specllama-{version('specllama')}"
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "specllama"
