"""The whole application of a server, with clients that speak ASGI to it."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from specllama.engine.catalog.catalog import Catalog
from specllama.handlers.binding.application import serve_description
from specllama.handlers.binding.validation import _Compiled
from specllama.handlers.description import description_path
from specllama.handlers.options import ServerOptions
from specllama.handlers.running.runtime import Runtime, lifespan
from tests.simulation.library import replaced

_present: list[tuple[ServerOptions, Catalog]] = []
"""Sets what the application serves after its next start."""


@cache
def application() -> Any:
    """One application for all histories, because creating one takes a second."""

    @asynccontextmanager
    async def states(_: Any) -> AsyncIterator[dict[str, Any]]:
        options, catalog = _present[-1]
        async with lifespan(options, catalog) as runtime:
            yield {"runtime": runtime}

    return serve_description(description_path(), "", states)


@dataclass
class Answer:
    """A client's received data. `is_whole`: all of the body has arrived; `is_left`: the client left
    before that."""

    status: int = 0
    body: bytearray = field(default_factory=bytearray)
    is_whole: bool = False
    is_left: bool = False


class Application:
    """A started application."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state
        self.runtime: Runtime = state["runtime"]

    async def ask(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        pace: float = 0.0,
        patience: float | None = None,
        headers: Mapping[str, str] | None = None,
        is_half: bool = False,
    ) -> Answer:
        """Returns the answer to one request. The client reads a part each `pace` seconds, and
        leaves after `patience` seconds; then the answer is the received part. If `is_half`, the
        client leaves in the middle of the request's body."""
        answer, has_left = Answer(), asyncio.Event()
        data = b"" if body is None else json.dumps(body).encode()
        sent = data[: len(data) // 2] if is_half else data
        unread = [{"type": "http.request", "body": sent, "more_body": is_half}]

        async def receive() -> dict[str, Any]:
            if unread:
                return unread.pop()
            if not is_half:
                await has_left.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            if has_left.is_set():
                return
            if message["type"] == "http.response.start":
                answer.status = message["status"]
            else:
                answer.body += message.get("body", b"")
                answer.is_whole = not message.get("more_body", False)
                if pace:
                    await asyncio.sleep(pace)

        scope = self._scope(method, path, data, headers or {})
        task = asyncio.ensure_future(application()(scope, receive, send))
        await asyncio.wait([task], timeout=patience)
        answer.is_left = is_half or not task.done()
        has_left.set()
        await task
        return answer

    def _scope(
        self, method: str, path: str, data: bytes, headers: Mapping[str, str]
    ) -> dict[str, Any]:
        path, _, query = path.partition("?")
        all_headers = {
            "host": "localhost",
            "content-type": "application/json",
            "content-length": str(len(data)),
            **headers,
        }
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.encode(), each.encode()) for name, each in all_headers.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            "state": {**self._state},
        }


@asynccontextmanager
async def started(options: ServerOptions, catalog: Catalog) -> AsyncIterator[Application]:
    """Serves these models by the application while the context is open."""
    _present[:] = [(options, catalog)]
    state: dict[str, Any] = {}
    orders: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    reports: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    call: Callable[..., Awaitable[None]] = application()
    scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": state}
    task = asyncio.ensure_future(call(scope, orders.get, reports.put))
    await orders.put({"type": "lifespan.startup"})
    report = await reports.get()
    assert report["type"] == "lifespan.startup.complete", report
    # Schemas stay compiled: a thread that does it would take part in the first history alone.
    compiled = replaced(_Compiled, {"known": _Compiled.get})
    try:
        with compiled:
            yield Application(state)
    finally:
        await orders.put({"type": "lifespan.shutdown"})
        await reports.get()
        await task
