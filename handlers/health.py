"""Is the server ready? Never waits for the engine, and wakes nothing."""

from specllama.engine.errors import unavailable
from specllama.handlers.http.json_answer import JSONAnswer
from specllama.handlers.running.runtime import runtime


async def get_health() -> JSONAnswer:
    """`{"status": "ok"}`. Raises EngineError (unavailable_error) while the one model of a server
    is not there; a router is always ready, since requests wait for their model."""
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
            raise unavailable("the model wakes up")
        case "restarting":
            raise unavailable("the engine is restarting")
        case "draining" | "stopped":
            raise unavailable("the server is shutting down")
        case "failed":
            raise unavailable(f"the model could not be loaded: {supervisor.failure}")


get_health_alias = get_health
ping = get_health
