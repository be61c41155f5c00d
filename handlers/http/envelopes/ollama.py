"""Ollama's clients and OpenAI's on Ollama's paths: how they are known, and errors in Ollama's form.

{"error": <str>}

Python's client shows whatever `error` is, but fails on anything but a text in a stream.
"""

from starlette.types import Scope

from specllama.engine.errors import ErrorInfo
from specllama.handlers.http import schemas

NDJSON = "application/x-ndjson"
EVENT_STREAM = "text/event-stream"
UNSERVED = ("create", "copy", "delete", "push", "blobs")
"""Ollama's paths below `/api/` that this server doesn't have."""
_STATE = "answers_as_openai"


def is_ollama_client(scope: Scope) -> bool:
    """Does the request come from one of Ollama's own clients? They say so in their User-Agent
    (a browser may not let them); the one in Go also asks for lines of JSON."""
    for name, value in scope["headers"]:
        if name == b"user-agent" and value[:6].lower() == b"ollama":
            return True
        if name == b"accept" and NDJSON.encode() in value.lower():
            return True
    return False


def is_openai_client(scope: Scope) -> bool:
    """Does the request come from a client that reads OpenAI's answers? Its libraries say so in
    their User-Agent and in headers of their own; only its streams are events."""
    for name, value in scope["headers"]:
        if name == b"user-agent" and value[:6].lower() == b"openai":
            return True
        if name.startswith(b"x-stainless-"):
            return True
        if name == b"accept" and EVENT_STREAM.encode() in value.lower():
            return True
    return False


def answer_as_openai(scope: Scope) -> None:
    """Notes that the request of `scope` is in OpenAI's form, whichever client sent it."""
    scope["state"][_STATE] = True  # the request's own copy of the lifespan's state


def wants_ollama_errors(scope: Scope) -> bool:
    """The form of errors on a path that both APIs have. Before the body is read, the client alone
    decides."""
    if scope.get("state", {}).get(_STATE):
        return False
    return is_ollama_client(scope) or not is_openai_client(scope)


def ollama_error(info: ErrorInfo) -> schemas.OllamaError:
    """The JSON body, also the last line of a stream that fails."""
    return {"error": info.message}
