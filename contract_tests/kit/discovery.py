"""Discovers what a server offers.

Each operation of the description gets one small request that changes nothing. An operation is not
offered if the server doesn't have it (404, 405) or was not started for it (501; 403 with the type
`feature_disabled`). Any other answer, right or wrong, shows that the operation exists.
"""

import contextlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from contract_tests.kit import bodies, chat, contract, lint
from contract_tests.kit.server import Server

MISSING = "missing-model-of-the-kit"
OF_MISSING: Any = {"model": MISSING, "stream": False}
"""A valid body for an operation that would change something if the model existed."""
INSTEAD = {
    "POST /models": OF_MISSING,
    "POST /models/load": OF_MISSING,
    "POST /models/unload": OF_MISSING,
    "POST /api/pull": OF_MISSING,
}
WHERE = {
    "DELETE /models": f"/models?model={MISSING}",
    "POST /slots/{id_slot}": "/slots/0?action=erase",
}
COMPLETION, CHAT, RESPONSE = "/completion", "/v1/chat/completions", "/v1/responses"
CONVERSATION = "/v1/conversations"
NOT_THERE = (404, 405, 501)


class UnreachableError(ConnectionError):
    """No server answers at the address, or it needs another key. The text contains the reason."""


@dataclass
class Offer:
    """What one server offers."""

    url: str
    server: str = ""
    """The server's name."""
    models: list[str] = field(default_factory=list)
    key: bool = False
    """True if the server needs an API key."""
    absent: dict[str, str] = field(default_factory=dict)
    """The operations that the server doesn't have, each with the server's answer."""
    features: dict[str, str] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        """True if the server has the operation with this method and path, or this `operationId`."""
        if operation := contract.operations().get(name):
            name = operation.name
        return name not in self.absent


def discover(server: Server) -> Offer:
    """Discovers all operations and features of the server. Raises `UnreachableError`."""
    offer = Offer(server.url)
    _knock(server, offer)
    offer.models = _models(server)
    bodies.use_models(offer.models)
    with _stored(server) as ids:
        for operation in contract.operations().values():
            if reason := _absence(server, operation, ids):
                offer.absent[operation.name] = reason
    offer.features = _features(server, offer)
    return offer


# ---- reaching it ---------------------------------------------------------------------------


def _knock(server: Server, offer: Offer) -> None:
    """Finds the server's name, and whether it needs a key."""
    try:
        answer = server.get("/v1/models")
    except httpx.HTTPError as error:
        raise UnreachableError(f"no server answers at {server.url}: {error}") from error
    public = answer.status_code in (401, 403)
    # The list of models may be public on a server that needs a key.
    asked = [("GET", "/v1/models"), ("GET", "/props"), ("POST", "/tokenize"), ("POST", CHAT)]
    for method, path in asked:
        body = {"messages": 7} if path == CHAT else {"content": "a"} if method == "POST" else None
        with_key = _ask(server, method, path, json=body)
        if with_key is None:
            continue
        if with_key.status_code in (401, 403):
            raise UnreachableError(
                f"{server.url} refuses the API key: pass the right one with --api-key"
                if server.api_key
                else f"{server.url} needs an API key: pass it with --api-key"
            )
        if server.api_key:
            without = _ask(server, method, path, json=body, headers={"Authorization": ""})
            offer.key |= without is not None and without.status_code in (401, 403)
    if not offer.key and not public:
        server.api_key = None  # any key is accepted: keys can't be tested
    offer.server = _name(server, answer)


def _ask(server: Server, method: str, path: str, **options: Any) -> httpx.Response | None:
    """Returns the answer, or None if the connection fails."""
    try:
        return server.http.request(method, path, **options)
    except httpx.HTTPError:
        return None


def _name(server: Server, answer: httpx.Response) -> str:
    build = _document(server, "/props").get("build_info") or _document(server, "/version").get(
        "build_info"
    )
    return " ".join(filter(None, (answer.headers.get("server"), str(build or "")))) or "unknown"


def _document(server: Server, path: str) -> dict[str, Any]:
    """Returns the JSON object at `path`, or an empty object."""
    answer = _ask(server, "GET", path)
    if answer is None or answer.status_code != 200:
        return {}
    with contextlib.suppress(ValueError):
        document = answer.json()
        if isinstance(document, dict):
            return document
    return {}


def _models(server: Server) -> list[str]:
    """Returns the models' names, loaded models first."""
    for path, key, name in (("/v1/models", "data", "id"), ("/api/tags", "models", "name")):
        entries = _document(server, path).get(key)
        if isinstance(entries, list):
            found = [each for each in entries if isinstance(each, dict) and each.get(name)]
            found.sort(key=lambda each: _state(each) != "loaded")
            if found:
                return [str(each[name]) for each in found]
    return []


def _state(entry: dict[str, Any]) -> Any:
    status = entry.get("status")
    return status.get("value") if isinstance(status, dict) else "loaded"


# ---- each operation ------------------------------------------------------------------------


@contextlib.contextmanager
def _stored(server: Server) -> Iterator[dict[str, str]]:
    """Yields path parameters of stored things, if the server stores any: a response, a conversation
    and its item, a stream."""
    ids: dict[str, str] = {}
    body = bodies.BODIES["create_response"]
    answer = _ask(server, "POST", RESPONSE, json=body)
    if answer is not None and answer.status_code == 200:
        with contextlib.suppress(ValueError, AttributeError):
            ids["resp_0"] = str(answer.json().get("id"))
    body = bodies.BODIES["create_conversation"]
    answer = _ask(server, "POST", CONVERSATION, json=body)
    if answer is not None and answer.status_code == 200:
        with contextlib.suppress(ValueError, AttributeError, LookupError):
            ids["conv_0"] = str(answer.json().get("id"))
            listed = _ask(server, "GET", f"{CONVERSATION}/{ids['conv_0']}/items")
            if listed is not None:
                ids["msg_0"] = str(listed.json()["data"][0]["id"])
    conversation = f"contract-{secrets.token_hex(8)}"
    asked = {**bodies.BODIES["create_completion"], "stream": True}
    _ask(server, "POST", COMPLETION, json=asked, headers={"X-Conversation-Id": conversation})
    ids["contract-tests"] = conversation
    yield ids
    if "resp_0" in ids:
        _ask(server, "DELETE", f"{RESPONSE}/{ids['resp_0']}")
    if "conv_0" in ids:
        _ask(server, "DELETE", f"{CONVERSATION}/{ids['conv_0']}")


def _absence(server: Server, operation: lint.Operation, ids: dict[str, str]) -> str:
    """Returns why the operation counts as not offered; empty if the server has it."""
    name = operation.definition["operationId"]
    where = WHERE.get(operation.name, bodies.path(name))
    deletes = operation.method == "delete" and ("response" in name or "conversation" in name)
    if not deletes:  # a deletion would remove it for the operations after it
        for made_up, real in ids.items():
            where = where.replace(made_up, real)
    body = INSTEAD.get(operation.name, bodies.BODIES.get(name))
    try:
        with server.http.stream(operation.method.upper(), where, json=body) as answer:
            status = answer.status_code
            if status not in (*NOT_THERE, 403):
                return ""
            answer.read()
    except httpx.HTTPError:
        return ""  # the operation exists and fails: the tests report that
    if status == 403 and "feature_disabled" not in answer.text:
        return ""
    if status == 404 and MISSING in answer.text:
        return ""  # it looked for the model
    if "x-refused" in operation.definition or deletes:
        with contextlib.suppress(AssertionError, ValueError):
            contract.check(answer, status)
            return ""  # rejected as described
    return f"{status}: {_sentence(answer)}"


def _sentence(answer: httpx.Response) -> str:
    """Returns the message of an error in any format."""
    try:
        document: Any = answer.json()
    except ValueError:
        return answer.text[:120].strip()
    while isinstance(document, dict):
        known = [document[each] for each in ("error", "message", "detail") if each in document]
        if not known:
            break
        document = known[0]
    return str(document)[:160]


# ---- features ------------------------------------------------------------------------------


def _features(server: Server, offer: Offer) -> dict[str, str]:
    """Returns what there is besides operations, as texts for the report."""
    slots = _slots(server)
    context = next((each.get("n_ctx") for each in slots if each.get("n_ctx")), None)
    families = {
        "chat": f"POST {CHAT}",
        "Responses API": f"POST {RESPONSE}",
        "kept responses": f"GET {RESPONSE}/{{response_id}}",
        "Anthropic's API": "POST /v1/messages",
        "Ollama's API": "POST /api/chat",
        "native completions": f"POST {COMPLETION}",
        "infill": "POST /infill",
        "embeddings": "POST /v1/embeddings",
        "reranking": "POST /v1/rerank",
        "kept streams": "GET /v1/stream",
        "many models": "POST /models/load",
        "slots": "GET /slots",
        "slot files": "POST /slots/{id_slot}",
        "changes of properties": "POST /props",
        "metrics": "GET /metrics",
        "adapters": "GET /lora-adapters",
        "tools of the server": "GET /tools",
    }
    return {
        "models": ", ".join(offer.models) or "none listed",
        "API key": "required" if offer.key else "not required",
        "number of slots": str(len(slots) or "unknown"),
        "context of a slot": str(context or "unknown"),
        **{feature: "yes" if offer.has(name) else "no" for feature, name in families.items()},
        "tools": _yes(offer.has(f"POST {CHAT}") and _calls_tools(server)),
        "thinking": _yes(_thinks(server)),
    }


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _slots(server: Server) -> list[dict[str, Any]]:
    answer = _ask(server, "GET", "/slots")
    if answer is None or answer.status_code != 200:
        return []
    with contextlib.suppress(ValueError):
        document = answer.json()
        return [each for each in document if isinstance(each, dict)]
    return []


def _calls_tools(server: Server) -> bool:
    """True if the server calls a tool that it is forced to call."""
    answer = _ask(server, "POST", CHAT, json=chat.asking())
    if answer is None or answer.status_code != 200:
        return False
    with contextlib.suppress(ValueError, LookupError, TypeError):
        return bool(answer.json()["choices"][0]["message"]["tool_calls"])
    return False


def _thinks(server: Server) -> bool:
    """True if switching reasoning off changes the prompt of a conversation."""
    prompts = []
    for enabled in (True, False):
        asked = {"messages": bodies.MESSAGES, "chat_template_kwargs": {"enable_thinking": enabled}}
        answer = _ask(server, "POST", "/apply-template", json=asked)
        if answer is None or answer.status_code != 200:
            return False
        prompts.append(answer.text)
    return prompts[0] != prompts[1]
