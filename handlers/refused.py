"""Operations of other servers that this one refuses.

An undocumented path would be answered with 404, like a mistyped address. These answers say instead
that the feature isn't available. The requests' bodies are not read.
"""

from starlette.responses import Response

from specllama.engine.errors import EngineError


async def get_through_proxy() -> Response:
    """Raises EngineError (feature_disabled)."""
    raise EngineError.of("feature_disabled", "this feature is disabled")


post_through_proxy = get_through_proxy
