"""Is the server ready? Never waits for the engine."""

from engine.errors import unavailable
from handlers.answers import JSONAnswer
from handlers.runtime import runtime


async def get_health() -> JSONAnswer:
    """`{"status": "ok"}`. Raises EngineError (unavailable_error) while there is no engine."""
    supervisor = runtime().supervisor
    match supervisor.state:
        case "ready" | "sleeping" | "waking":
            return JSONAnswer({"status": "ok"})
        case "downloading" | "downloaded":
            raise unavailable("Downloading model")
        case "loading":
            raise unavailable("Loading model")
        case "restarting":
            raise unavailable("The engine is restarting")
        case "stopped":
            raise unavailable("The server is shutting down")
        case "failed":
            raise unavailable(f"The model could not be loaded: {supervisor.failure}")


get_health_v1 = get_health
