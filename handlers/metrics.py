"""GET /metrics: the server's metrics for Prometheus."""

import msgspec
from starlette.datastructures import QueryParams
from starlette.responses import Response

from specllama.engine.errors import not_supported
from specllama.engine.wire.stats import Stats
from specllama.handlers.http.api_keys import sees_other_keys
from specllama.handlers.http.current import current_scope
from specllama.handlers.running.model_load import load_of, loads_of_all
from specllama.handlers.running.resolve_model import allowed_names, resolve_model
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
    loads = [await load_of(current, model.name)]
    if len(current.catalog.entries) > 1 and not _names_model():
        others = [name for name in allowed_names(current) if name != model.name]
        loads += await loads_of_all(current, others)
    stats = {each.model: each.stats for each in loads}
    if not sees_other_keys():
        stats = {name: without_other_keys(each) for name, each in stats.items()}
    content, media_type = current.metrics.render(model.name, stats)
    headers = {"Process-Start-Time-Unix": str(current.started)}
    return Response(content, media_type=media_type, headers=headers)


def without_other_keys(stats: Stats) -> Stats:
    """Returns `stats` without a hint at texts of other keys: what is cached for another key counts
    as new."""
    missed = dict(stats.n_prompt_missed)
    if n := missed.pop("key", 0):
        missed["new"] = missed.get("new", 0) + n
    return msgspec.structs.replace(stats, n_prompt_missed=missed)


def _names_model() -> bool:
    return bool(QueryParams(current_scope()["query_string"]).get("model"))
