"""GET /health: whether the server is ready. GET /livez: whether it answers. Neither waits for an
engine nor wakes one."""

from specllama.engine.errors import unavailable
from specllama.engine.models.supervisor import Supervisor
from specllama.handlers.http.json_answer import JSONAnswer
from specllama.handlers.running.runtime import runtime


async def get_health() -> JSONAnswer:
    """`{"status": "ok"}`. Raises EngineError (unavailable_error) while the only model of a server,
    or a model of a deployment, is not ready. A router is always ready, since requests wait for
    their model."""
    current = runtime()
    if current.catalog.is_complete:
        for name in current.catalog.entries:
            supervisor = current.pool.supervisor(name)
            if supervisor is not None and (reason := _unavailable(supervisor)):
                raise unavailable(f"{name}: {reason}" if current.catalog.router else reason)
    return JSONAnswer({"status": "ok"})


async def get_liveness() -> JSONAnswer:
    """`{"status": "ok"}`, whatever the models' states are."""
    return JSONAnswer({"status": "ok"})


def _unavailable(supervisor: Supervisor) -> str:
    """Returns why requests for a model would fail; "" if they wouldn't."""
    match supervisor.state:
        case "ready" | "dozing" | "sleeping":
            return ""
        case "downloading":
            return f"Downloading model ({supervisor.progress:.0%})"
        case "loading" | "downloaded":
            return "Loading model"
        case "waking":
            return "the model is waking up"
        case "restarting":
            return "the engine is restarting"
        case "draining" | "stopped":
            return "the server is shutting down"
        case "failed":
            return f"the model could not be loaded: {supervisor.failure}"


get_health_alias = get_health
ping = get_health
