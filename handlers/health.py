"""GET /health: whether the server is ready. Neither waits for an engine nor wakes one."""

from specllama.engine.errors import unavailable
from specllama.handlers.http.json_answer import JSONAnswer
from specllama.handlers.running.runtime import runtime


async def get_health() -> JSONAnswer:
    """`{"status": "ok"}`. Raises EngineError (unavailable_error) while the only model of a server
    is not ready. A router is always ready, since requests wait for their model."""
    current = runtime()
    supervisor = current.pool.supervisor(current.catalog.default)
    if current.catalog.router or supervisor is None:
        return JSONAnswer({"status": "ok"})
    match supervisor.state:
        case "ready" | "dozing" | "sleeping":
            return JSONAnswer({"status": "ok"})
        case "downloading":
            raise unavailable(f"Downloading model ({supervisor.progress:.0%})")
        case "loading" | "downloaded":
            raise unavailable("Loading model")
        case "waking":
            raise unavailable("the model is waking up")
        case "restarting":
            raise unavailable("the engine is restarting")
        case "draining" | "stopped":
            raise unavailable("the server is shutting down")
        case "failed":
            raise unavailable(f"the model could not be loaded: {supervisor.failure}")


get_health_alias = get_health
ping = get_health
