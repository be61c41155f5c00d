"""A small API of its own, served over real sockets, for the tests of the HTTP layer."""

import asyncio
import contextlib
import socket
import sys
import threading
import types
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from connexion import AsyncApp

from specllama.app import create_app
from specllama.engine.catalog.catalog import Catalog, open_catalog
from specllama.engine.catalog.entry import CatalogEntry
from specllama.engine.models.accounts import MemoryView
from specllama.engine.models.events import ModelStatus, Subscription
from specllama.engine.models.records import Lease
from specllama.engine.options import Options
from specllama.engine.shipped import MODEL_NAME
from specllama.handlers.binding.application import serve_description
from specllama.handlers.http.current import _scope
from specllama.handlers.options import ServerOptions, given
from specllama.handlers.running.runtime import Runtime
from tests.support.options_support import server_options

DESCRIPTION = """
openapi: 3.0.3
info: {title: small, version: "1"}
security: [{bearer: []}, {apiKey: []}]
components:
  securitySchemes:
    bearer:
      {type: http, scheme: bearer,
       x-bearerInfoFunc: specllama.handlers.binding.security.bearer_info}
    apiKey:
      {type: apiKey, in: header, name: x-api-key,
       x-apikeyInfoFunc: specllama.handlers.binding.security.api_key_info}
paths:
  /open:
    get:
      operationId: get_open
      x-openapi-router-controller: small_handlers
      security: []
      responses: {"200": {description: ok, content: {application/json: {schema: {}}}}}
  /echo:
    get:
      operationId: get_echo
      x-openapi-router-controller: small_handlers
      parameters:
        - {name: n, in: query, schema: {type: integer, minimum: 0, maximum: 9, default: 3}}
      responses: {"200": {description: ok, content: {application/json: {schema: {}}}}}
    post:
      operationId: echo
      x-openapi-router-controller: small_handlers
      requestBody:
        required: true
        content:
          application/json:
            schema:
              type: object
              required: [text]
              properties:
                text: {type: string, maxLength: 100000000}
                n: {type: integer, minimum: -1, maximum: 100, nullable: true}
                value: {type: object}
      responses: {"200": {description: ok, content: {application/json: {schema: {}}}}}
  /optional:
    post:
      operationId: optional
      x-openapi-router-controller: small_handlers
      requestBody:
        content: {application/json: {schema: {type: object}}}
      responses: {"200": {description: ok, content: {application/json: {schema: {}}}}}
  /other:
    x-error-envelope: anthropic
    post:
      operationId: other
      x-openapi-router-controller: small_handlers
      requestBody: {required: true, content: {application/json: {schema: {type: object}}}}
      responses: {"200": {description: ok, content: {application/json: {schema: {}}}}}
  /fail/{how}:
    get:
      operationId: fail
      x-openapi-router-controller: small_handlers
      parameters: [{name: how, in: path, required: true, schema: {type: string}}]
      responses: {"200": {description: ok, content: {application/json: {schema: {}}}}}
  /slow:
    post:
      operationId: slow
      x-openapi-router-controller: small_handlers
      requestBody: {required: true, content: {application/json: {schema: {type: object}}}}
      responses: {"200": {description: ok, content: {application/json: {schema: {}}}}}
  /stream:
    post:
      operationId: stream
      x-openapi-router-controller: small_handlers
      requestBody: {required: true, content: {application/json: {schema: {type: object}}}}
      responses:
        "200":
          description: ok
          content: {application/json: {schema: {}}, text/event-stream: {schema: {type: object}}}
"""


def handlers_module(**functions: Any) -> types.ModuleType:
    """Returns a module with a function for every operation: the given ones, and default ones that
    do nothing."""

    async def nothing() -> dict[str, Any]:
        return {}

    module = types.ModuleType("small_handlers")
    for name in ("get_open", "get_echo", "echo", "optional", "other", "fail", "slow", "stream"):
        setattr(module, name, functions.get(name, nothing))
    return module


def small_runtime(**chosen: Any) -> Runtime:
    """The runtime of a server of one model, whose engine is never started."""
    options = server_options(**{"model": MODEL_NAME, **chosen})
    return Runtime.of(options, _catalog(options))


def _catalog(options: ServerOptions) -> Catalog:
    return open_catalog(options.model, options.router, given((), {}))


class PaperPool:
    """A pool of one model with a stand-in for its supervisor."""

    def __init__(self, supervisor: Any) -> None:
        self._supervisor = supervisor
        self.members: Any = None  # the models never change

    async def start(self) -> None:
        await self._supervisor.start()

    async def stop(self) -> None:
        await self._supervisor.stop()

    def subscribe(self) -> Subscription:
        return Subscription()

    def supervisor(self, name: str) -> Any:
        return self._supervisor

    def options(self, name: str) -> Options:
        options: Options = self._supervisor.options
        return options

    def status(self, name: str) -> ModelStatus:
        return ModelStatus(value="loaded", info=self._supervisor.info)

    def memory(self, name: str) -> MemoryView:
        return MemoryView({}, {})

    def lease_now(self, entry: CatalogEntry) -> Lease:
        return Lease(entry, self._supervisor, lambda: None)


def served_app(on_fatal: Callable[[str], None] | None = None, **chosen: Any) -> AsyncApp:
    """Returns the whole application for one model."""
    options = server_options(**{"model": MODEL_NAME, **chosen})
    return create_app(options, _catalog(options), on_fatal)


def small_app(
    directory: Path, handlers: types.ModuleType, base_path: str = "", **options: Any
) -> AsyncApp:
    """Returns the small API with `handlers`."""
    path = directory / "small.yaml"
    path.write_text(DESCRIPTION)
    sys.modules["small_handlers"] = handlers

    @asynccontextmanager
    async def states(_: Any) -> AsyncIterator[dict[str, Any]]:
        runtime = small_runtime(**options)
        try:
            yield {"runtime": runtime}
        finally:
            await runtime.checker.stop()

    return serve_description(path, base_path, states)


@contextlib.contextmanager
def request_with(n_values: int = 0) -> Iterator[None]:
    """A context in which handlers get a request with `n_values` values in its body."""
    token = _scope.set({"state": {"n_values": n_values}})
    try:
        yield
    finally:
        _scope.reset(token)


@contextlib.contextmanager
def serving(app: Any, **config: Any) -> Iterator[tuple[str, int]]:
    """Serves `app` by uvicorn in a thread, and yields its address."""
    # Without the protocol's number asyncio doesn't switch Nagle's algorithm off.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(app, lifespan="on", log_level="error", access_log=False, **config)
    )

    def run() -> None:
        with contextlib.suppress(SystemExit):  # uvicorn can't start; `started` stays false
            asyncio.run(server.serve([listener]))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        while not server.started and thread.is_alive():
            threading.Event().wait(0.01)
        if not server.started:
            raise RuntimeError("the server did not start")
        yield listener.getsockname()
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
