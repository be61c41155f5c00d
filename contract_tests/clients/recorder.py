"""A forwarding server that records requests for `contract_tests/peer/recordings/`."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvicorn
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from contract_tests.kit.server import SECONDS, wait_until

HEADERS = ("accept", "content-type", "anthropic-version", "anthropic-beta", "openai-beta")
"""Headers that an API gives a meaning. Keys, hosts, and the client's platform are left out."""
PREFIX = "/recorded/"
_ONE_HOP = {"connection", "keep-alive", "transfer-encoding", "host", "content-length", "date"}
_IDS = {"id", "call_id", "tool_call_id", "tool_use_id", "item_id"}
_UNKEPT = ("error", "conformance", "probabilities")
"""Cases whose bodies are only long, belong to a conformance kit, or use features that llama-server
lacks."""


@dataclass
class Recorder:
    """Forwards `/recorded/<library>/<case>/PATH` to `upstream` as `/PATH`, and records it. Other
    paths are forwarded without a recording, because some clients drop the path of their server's
    address."""

    upstream: str
    kept: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        body = await request.body()
        path = request.url.path
        if path.startswith(PREFIX):
            library, case, path = path.removeprefix(PREFIX).split("/", 2)
            path = f"/{path}"
            if not case.startswith(_UNKEPT):
                self._keep(library, case, request, path, body)
        headers = [(k, v) for k, v in request.headers.items() if k not in _ONE_HOP]
        client = httpx.AsyncClient(base_url=self.upstream, timeout=SECONDS)
        asked = client.build_request(
            request.method, path, params=request.query_params, headers=headers, content=body
        )
        answer = await client.send(asked, stream=True)
        kept = {k: v for k, v in answer.headers.items() if k not in _ONE_HOP}
        response = StreamingResponse(answer.aiter_raw(), answer.status_code, kept)
        try:
            await response(scope, receive, send)
        finally:
            await answer.aclose()
            await client.aclose()

    def _keep(self, library: str, case: str, request: Request, path: str, body: bytes) -> None:
        query = f"?{request.url.query}" if request.url.query else ""
        entry = {
            "case": case,
            "method": request.method,
            "path": path + query,
            "headers": {k: v for k, v in request.headers.items() if k in HEADERS},
            "body": _with_plain_ids(json.loads(body), {}) if body else None,
        }
        kept = self.kept.setdefault(library, [])
        if entry not in kept:
            kept.append(entry)


def _with_plain_ids(value: Any, names: dict[str, str]) -> Any:
    """Replaces ids that a server drew by numbers in their order, so that new recordings are
    equal."""
    if isinstance(value, list):
        return [_with_plain_ids(each, names) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: names.setdefault(each, f"id_{len(names)}")
        if key in _IDS and isinstance(each, str)
        else _with_plain_ids(each, names)
        for key, each in value.items()
    }


@contextmanager
def serving(app: ASGIApp) -> Iterator[str]:
    """Yields the address of the running application."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started, "the recorder listens")
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
