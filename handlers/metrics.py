"""GET /metrics: what the server has done, for Prometheus."""

from starlette.responses import Response

from engine.errors import not_supported, unavailable
from handlers.runtime import runtime


async def get_metrics() -> Response:
    """The text format of Prometheus. Raises EngineError: not_supported_error without
    `--metrics`, unavailable_error while there is no engine to be asked (a scrape doesn't wait)."""
    current = runtime()
    if current.metrics is None:
        raise not_supported("GET /metrics is switched off; start the server with --metrics")
    if current.supervisor.state == "restarting":
        raise unavailable("the engine is restarting")
    engine = await current.supervisor.engine()
    content, media_type = current.metrics.render(await engine.stats())
    headers = {"Process-Start-Time-Unix": str(current.started)}
    return Response(content, media_type=media_type, headers=headers)
