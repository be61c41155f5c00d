"""GET /metrics: the server's metrics for Prometheus."""

from starlette.responses import Response

from specllama.engine.errors import not_supported, unavailable
from specllama.handlers.http.api_keys import sees_other_keys
from specllama.handlers.running.metrics import without_other_keys
from specllama.handlers.running.resolve_model import resolve_model
from specllama.handlers.running.runtime import runtime


async def get_metrics() -> Response:
    """The text format of Prometheus. Raises EngineError: not_supported_error without
    `--metrics`, unavailable_error while no engine is running. A scrape neither loads nor wakes a
    model, and doesn't wait; for a sleeping model, it has the last values."""
    current = runtime()
    if current.metrics is None:
        raise not_supported(
            "This server does not support metrics endpoint. Start it with `--metrics`"
        )
    model = resolve_model()
    supervisor = current.pool.supervisor(model.name)
    engine = supervisor.awake_engine() if supervisor else None
    asleep = supervisor.sleeping_snapshot() if supervisor else None
    if engine is not None:
        stats = await engine.stats()
    elif asleep is not None:
        stats = asleep.stats
    else:
        state = current.pool.status(model.name).value
        raise unavailable(f"there are no metrics for {model.name!r} now: the model is {state}")
    content, media_type = current.metrics.render(
        model.name, stats if sees_other_keys() else without_other_keys(stats)
    )
    headers = {"Process-Start-Time-Unix": str(current.started)}
    return Response(content, media_type=media_type, headers=headers)
