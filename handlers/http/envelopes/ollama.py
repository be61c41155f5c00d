"""Detection of Ollama's and OpenAI's clients on Ollama's paths, and errors in Ollama's form.

{"error": <str>}

In a stream, Ollama's Python client requires `error` to be a text.
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
    """Whether the request is from one of Ollama's own clients. They have a User-Agent of their own,
    except in some browsers; the client in Go also accepts lines of JSON."""
    for name, value in scope["headers"]:
        if name == b"user-agent" and value[:6].lower() == b"ollama":
            return True
        if name == b"accept" and NDJSON.encode() in value.lower():
            return True
    return False


def is_openai_client(scope: Scope) -> bool:
    """Whether the request is from a client of OpenAI's API. OpenAI's libraries have a User-Agent
    and headers of their own, and only that API streams server-sent events."""
    for name, value in scope["headers"]:
        if name == b"user-agent" and value[:6].lower() == b"openai":
            return True
        if name.startswith(b"x-stainless-"):
            return True
        if name == b"accept" and EVENT_STREAM.encode() in value.lower():
            return True
    return False


def answer_as_openai(scope: Scope) -> None:
    """Marks the request of `scope` as one in OpenAI's form."""
    scope["state"][_STATE] = True  # the request's own copy of the lifespan's state


def wants_ollama_errors(scope: Scope) -> bool:
    """Whether errors have Ollama's form, on a path that both APIs have. Until the body has been
    read, this depends only on the client."""
    if scope.get("state", {}).get(_STATE):
        return False
    return is_ollama_client(scope) or not is_openai_client(scope)


def ollama_error(info: ErrorInfo) -> schemas.OllamaError:
    """Returns the JSON body, which is also the last line of a failed stream."""
    return {"error": info.message}
