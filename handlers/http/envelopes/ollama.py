"""Ollama's clients: how they are known, and errors in the form that they read.

{"error": <str>}

Python's client shows whatever `error` is, but fails on anything but a text in a stream.
"""

from starlette.types import Scope

from engine.errors import ErrorInfo

NDJSON = "application/x-ndjson"
_STATE = "answers_as_ollama"


def is_ollama_client(scope: Scope) -> bool:
    """Does the request come from one of Ollama's own clients? They say so in their User-Agent
    (a browser may not let them); the one in Go also asks for lines of JSON."""
    for name, value in scope["headers"]:
        if name == b"user-agent" and value[:6].lower() == b"ollama":
            return True
        if name == b"accept" and NDJSON.encode() in value.lower():
            return True
    return False


def answer_as_ollama(scope: Scope) -> None:
    """Notes that the request of `scope` is in Ollama's form, whichever client sent it."""
    scope["state"][_STATE] = True  # the request's own copy of the lifespan's state


def wants_ollama_errors(scope: Scope) -> bool:
    if scope.get("state", {}).get(_STATE):
        return True
    path = scope["path"]  # those with a version are LM Studio's
    return "/api/" in path and "/api/v0/" not in path and is_ollama_client(scope)


def ollama_error(info: ErrorInfo) -> dict[str, str]:
    """The JSON body, also the last line of a stream that fails."""
    return {"error": info.message}
