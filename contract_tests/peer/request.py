"""A request that both servers get, as plain data."""

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
"""Of the OpenAI family: short, and the same text each time."""
USER: list[Any] = [{"role": "user", "content": "Tell me about llamas."}]
PROMPT = "Once upon a time"


@dataclass(frozen=True, kw_only=True)
class Request:
    """`stage` names the options that both servers are started with, see `servers.STAGES`."""

    name: str
    path: str
    body: Any = None
    raw: bytes | None = None
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    stage: str = "default"

    @property
    def decided(self) -> bool:
        """Both servers have to answer with the same text: it is the likeliest one, or drawn with a
        seed."""
        if not re.search("completion|responses|messages|infill|/api/chat", self.path):
            return True
        if self.path.endswith("_tokens"):
            return True
        body = self.body if isinstance(self.body, dict) else {}
        cold = isinstance(body.get("temperature"), int | float) and body["temperature"] <= 0
        if isinstance(samplers := body.get("samplers"), list | str):
            cold &= bool({"temperature", "temp", "t"} & set(samplers))  # without, all is drawn
        seeded = type(body.get("seed")) is int and 0 <= body["seed"] < 2**32 - 1
        return cold or seeded or body.get("top_k") == 1


def get(name: str, path: str, **rest: Any) -> Request:
    return Request(name=name, path=path, method="GET", **rest)


def post(name: str, path: str, body: Any, **rest: Any) -> Request:
    return Request(name=name, path=path, body=body, **rest)


def both_ways(name: str, path: str, body: dict[str, Any], **rest: Any) -> list[Request]:
    """The request, and the same as a stream."""
    return [
        post(name, path, body, **rest),
        post(f"{name}, streamed", path, {**body, "stream": True}, **rest),
    ]


def _without_thoughts(request: Request) -> Request:
    """The request, for an answer without thoughts if it is bound to a schema: what stands before
    such an answer in thoughts has no bounds, and the texts of two servers part there."""
    body = request.body
    if "/chat/completions" not in request.path or not isinstance(body, dict):
        return request
    named = body.get("response_format")
    bound = isinstance(named, dict) and str(named.get("type")).startswith("json")
    if "chat_template_kwargs" in body or not (bound or "json_schema" in body):
        return request
    return replace(request, body={**body, "chat_template_kwargs": {"enable_thinking": False}})


def recorded() -> list[Request]:
    """Those in `recordings/`, which `contract_tests.clients` writes."""
    found = []
    for file in sorted(Path(__file__).with_name("recordings").glob("*.json")):
        for number, each in enumerate(json.loads(file.read_text("utf-8"))):
            name = f"recorded-{file.stem}: {number} {each.pop('case')}"
            stage = "embedding" if "embed" in each["path"] else "recorded"
            found.append(Request(name=name, stage=stage, **each))
    return found


def all_requests() -> list[Request]:
    """Those of every module in `clients/` and `endpoints/`, under the module's name, and those that
    client libraries were seen to send."""
    found = recorded()
    for folder in ("endpoints", "clients"):
        for module in sorted(pkgutil.iter_modules([str(Path(__file__).with_name(folder))])):
            loaded = importlib.import_module(f"contract_tests.peer.{folder}.{module.name}")
            for each in loaded.REQUESTS:
                label = module.name.replace("_", "-")
                found.append(replace(_without_thoughts(each), name=f"{label}: {each.name}"))
    return found
