"""A request to both servers, as plain data."""

import importlib
import json
import pkgutil
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

GREEDY: dict[str, Any] = {"temperature": 0}
SMALL: dict[str, Any] = {"max_tokens": 8, "temperature": 0}
"""Fields for the OpenAI family that make an answer short and deterministic."""
USER: list[Any] = [{"role": "user", "content": "Tell me about llamas."}]
PROMPT = "Once upon a time"


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request. `stage` names the options of both servers, see `servers.STAGES`."""

    name: str
    path: str
    body: Any = None
    raw: bytes | None = None
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    stage: str = "default"

    @property
    def decided(self) -> bool:
        """True if both servers have to generate the same text: it is the likeliest one, or has a
        seed."""
        if not re.search("completion|responses|messages|infill|/api/chat", self.path):
            return True
        if self.path.endswith("_tokens"):
            return True
        body = self.body if isinstance(self.body, dict) else {}
        cold = isinstance(body.get("temperature"), int | float) and body["temperature"] <= 0
        if isinstance(samplers := body.get("samplers"), list | str):
            cold &= bool(
                {"temperature", "temp", "t"} & set(samplers)
            )  # else all tokens are sampled
        seeded = type(body.get("seed")) is int and 0 <= body["seed"] < 2**32 - 1
        return cold or seeded or body.get("top_k") == 1


def get(name: str, path: str, **rest: Any) -> Request:
    return Request(name=name, path=path, method="GET", **rest)


def post(name: str, path: str, body: Any, **rest: Any) -> Request:
    return Request(name=name, path=path, body=body, **rest)


def both_ways(name: str, path: str, body: dict[str, Any], **rest: Any) -> list[Request]:
    """Returns the request with a plain answer, and the same with a stream."""
    return [
        post(name, path, body, **rest),
        post(f"{name}, streamed", path, {**body, "stream": True}, **rest),
    ]


def _without_thoughts(request: Request) -> Request:
    """Returns the request with reasoning switched off if its answer is bound to a schema: reasoning
    before such an answer is unbounded, and the texts of two servers would diverge there."""
    body = request.body
    if "/chat/completions" not in request.path or not isinstance(body, dict):
        return request
    named = body.get("response_format")
    bound = isinstance(named, dict) and str(named.get("type")).startswith("json")
    if "chat_template_kwargs" in body or not (bound or "json_schema" in body):
        return request
    return replace(request, body={**body, "chat_template_kwargs": {"enable_thinking": False}})


def recorded() -> list[Request]:
    """Returns the requests in `recordings/`, which `contract_tests.clients` writes."""
    found = []
    for file in sorted(Path(__file__).with_name("recordings").glob("*.json")):
        for number, each in enumerate(json.loads(file.read_text("utf-8"))):
            name = f"recorded-{file.stem}: {number} {each.pop('case')}"
            stage = "embedding" if "embed" in each["path"] else "recorded"
            found.append(Request(name=name, stage=stage, **each))
    return found


def all_requests() -> list[Request]:
    """Returns the requests of every module in `clients/` and `endpoints/`, under the module's name,
    and the recorded requests of client libraries."""
    found = recorded()
    for folder in ("endpoints", "clients"):
        for module in sorted(pkgutil.iter_modules([str(Path(__file__).with_name(folder))])):
            loaded = importlib.import_module(f"contract_tests.peer.{folder}.{module.name}")
            for each in loaded.REQUESTS:
                label = module.name.replace("_", "-")
                found.append(replace(_without_thoughts(each), name=f"{label}: {each.name}"))
    return found
