"""The load of the server, in the forms of SGLang's servers: GET /v1/loads, /get_load and
/server_info."""

from collections.abc import Sequence
from datetime import UTC, datetime

from specllama.handlers.http import schemas
from specllama.handlers.http.json_answer import JSONAnswer
from specllama.handlers.running.model_load import ModelLoad, load_of, loads_of_all
from specllama.handlers.running.resolve_model import allowed_names, resolve_model
from specllama.handlers.running.runtime import runtime


async def get_loads(
    model: str | None = None, include: str | None = None, dp_rank: int = 0
) -> JSONAnswer:
    """The load of one model, or of all loaded models together. Raises EngineError:
    unavailable_error while the only model of a server has no engine."""
    loads = await _loads(model)
    answer: schemas.ServerLoads = {
        "timestamp": datetime.now(UTC).isoformat(),
        "dp_rank_count": 1,
        "loads": [_rank(loads)] if dp_rank == 0 else [],
    }
    return JSONAnswer(answer)


async def get_load(model: str | None = None) -> JSONAnswer:
    """The same in an older form. Raises as `get_loads` does."""
    rank = _rank(await _loads(model))
    answer: list[schemas.RankLoad] = [
        {
            "dp_rank": 0,
            "num_reqs": rank["num_total_reqs"],
            "num_waiting_reqs": rank["num_waiting_reqs"],
            "num_tokens": rank["num_total_tokens"],
        }
    ]
    return JSONAnswer(answer)


async def get_server_info() -> JSONAnswer:
    """The names by which a gateway registers the server. Loads no model."""
    answer: schemas.ServerInfo = {"served_model_name": runtime().catalog.default}
    return JSONAnswer(answer)


async def _loads(model: str | None) -> Sequence[ModelLoad]:
    current = runtime()
    if not current.catalog.router:
        return [await load_of(current, resolve_model().name)]
    loads = await loads_of_all(current, allowed_names(current))
    if not model:
        return loads
    name = resolve_model().name
    return [each for each in loads if each.model == name]


def _rank(loads: Sequence[ModelLoad]) -> schemas.ServerLoad:
    """Returns the sum of `loads`."""
    stats = [each.stats for each in loads]
    n_running = sum(each.n_processing for each in stats)
    n_waiting = sum(each.n_deferred for each in stats)
    n_queued = sum(each.n_tokens_waiting for each in stats)
    n_cached = sum(each.n_prompt_cached for each in stats)
    n_prompt = n_cached + sum(each.n_prompt for each in stats)
    n_slots = sum(each.n_slots for each in loads)
    return {
        "dp_rank": 0,
        "num_running_reqs": n_running,
        "num_waiting_reqs": n_waiting,
        "num_total_reqs": n_running + n_waiting,
        "num_used_tokens": sum(each.n_cells_running for each in stats),
        "num_waiting_uncached_tokens": n_queued,
        "num_total_tokens": n_queued + sum(each.n_tokens_running for each in stats),
        "max_total_num_tokens": sum(each.n_cells for each in stats),
        "token_usage": max((each.cache_usage() for each in stats), default=0.0),
        "gen_throughput": sum(each.tokens_per_second() for each in stats),
        "cache_hit_rate": n_cached / n_prompt if n_prompt else 0.0,
        "utilization": n_running / n_slots if n_slots else 0.0,
        "max_running_requests": n_slots,
    }
