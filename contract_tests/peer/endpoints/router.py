"""A server of several models: the model of a request, and operations on models."""

from typing import Any

from contract_tests.peer.request import GREEDY, PROMPT, SMALL, USER, Request, get, post

SHORT: dict[str, Any] = {"prompt": PROMPT, "n_predict": 4, **GREEDY}
CHAT: dict[str, Any] = {"messages": USER, **SMALL}


def delete(name: str, path: str) -> Request:
    return Request(name=name, path=path, method="DELETE")


_REQUESTS = [
    get("models", "/models"),
    get("models, versioned", "/v1/models"),
    get("props of the server", "/props"),
    get("props of a model unknown", "/props?model=missing"),
    get("slots of a model unknown", "/slots?model=missing"),
    get("slots of a model not loaded", "/slots?model=another&autoload=false"),
    get("metrics of a model unknown", "/metrics?model=missing"),
    post("a model unknown", "/completion", {**SHORT, "model": "missing"}),
    post("a model unknown, streamed", "/completion", {**SHORT, "model": "missing", "stream": True}),
    post("a chat, model unknown", "/v1/chat/completions", {**CHAT, "model": "missing"}),
    post("a message, model unknown", "/v1/messages", {**CHAT, "model": "missing"}),
    post("tokens, model unknown", "/tokenize", {"content": "a", "model": "missing"}),
    post("no model", "/completion", SHORT),
    post("a model not loaded", "/completion?autoload=false", {**SHORT, "model": "another"}),
    post("load, unknown", "/models/load", {"model": "missing"}),
    post("unload, unknown", "/models/unload", {"model": "missing"}),
    post("unload, not loaded", "/models/unload", {"model": "another"}),
    delete("remove, unknown", "/models?model=missing"),
    delete("remove, not in the cache", "/models?model=another"),
    delete("remove, no name", "/models"),
    post("download, no name", "/models", {"model": ""}),
    post("download, no repository", "/models", {"model": "missing"}),
    post("a model by its name", "/completion", {**SHORT, "model": "a-model"}),
    post("a model by its alias", "/completion", {**SHORT, "model": "first"}),
    post("a chat by the alias", "/v1/chat/completions", {**CHAT, "model": "first"}),
    get("props of a model", "/props?model=a-model"),
    get("models, one loaded", "/models"),
    post("load, loaded", "/models/load", {"model": "a-model"}),
    get("models looked for again", "/models?reload=1"),
]
REQUESTS = [Request(**{**each.__dict__, "stage": "router"}) for each in _REQUESTS]
