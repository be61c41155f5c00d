"""The paths of Vertex AI's API, which environment variables name, and the operations that its
predictions can stand for.

Source: "Custom container requirements for prediction" of Google Cloud, and llama-server.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from connexion.middleware.abstract import SpecMiddleware
from connexion.spec import Specification
from starlette.types import ASGIApp, Receive, Scope, Send

from specllama.engine.options import OptionError
from specllama.handlers.http.subrequests import Subrequests
from specllama.handlers.options import ServerOptions
from specllama.handlers.options.tables.vertex import VertexOptions

HEALTH, PREDICT = "/health", "/predict"
_GROUPS = frozenset({"generate", "embed", "read"})
"""The groups of operations (`x-access`) that a prediction can stand for."""


class Vertex(SpecMiddleware):  # type: ignore[misc]  # connexion has no types
    """The outermost middleware: with `--aip-mode PREDICTION`, sends requests for the configured
    paths to `GET /health` and `POST /predict`, and lets the latter make requests."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._operations: dict[str, str] = {}
        self._described: set[str] = set()

    def add_api(self, specification: Specification, **_: Any) -> None:
        self._described |= {*specification["paths"]}
        self._operations |= operations(specification["paths"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            options: ServerOptions = scope["state"]["runtime"].options
            if options.vertex.is_on():
                scope = self._led(scope, options)
        await self.app(scope, receive, send)

    def _led(self, scope: Scope, options: ServerOptions) -> Scope:
        base = str(scope.get("root_path", "")) + options.http.api_prefix
        if not scope["path"].startswith(f"{base}/"):
            return scope
        path = scope["path"][len(base) :]
        path = path if path == "/" else path.removesuffix("/")
        target = self._target(path, options.vertex)
        if target == PREDICT:
            made = Subrequests(self.app, scope, base, self._operations)
            scope = {**scope, "path": base + target}
            made.attach(scope)
        elif target:
            scope = {**scope, "path": base + target}
        return scope

    def _target(self, path: str, vertex: VertexOptions) -> str:
        """Returns the described path that a configured `path` stands for; "" for any other one."""
        if path in (PREDICT, vertex.aip_predict_route):
            return PREDICT
        is_health = path == vertex.aip_health_route and path not in self._described
        return HEALTH if is_health else ""


def check_routes(vertex: VertexOptions, paths: Mapping[str, Any]) -> None:
    """Raises OptionError if a prediction would have the path of another operation in `paths`."""
    route = vertex.aip_predict_route
    if route != PREDICT and route in paths:
        raise OptionError(f"--aip-predict-route: {route} is the path of another operation")
    if route and route == vertex.aip_health_route:
        raise OptionError(f"--aip-predict-route and --aip-health-route are both {route}")


def operations(paths: Mapping[str, Any]) -> dict[str, str]:
    """Returns the paths of the operations that a prediction can stand for, by the values of
    `@requestFormat`: the path itself, and a name made of it. If two paths have the same name, it
    means the one below `/v1`."""
    found = [*_eligible(paths)]
    named: dict[str, str] = {}
    for path in sorted(found, key=lambda path: not path.startswith("/v1/")):
        named.setdefault(format_of(path), path)
    return {path: path for path in found} | named


def _eligible(paths: Mapping[str, Any]) -> Iterator[str]:
    for path, item in paths.items():
        operation = item.get("post", {})
        is_json = "application/json" in operation.get("requestBody", {}).get("content", {})
        is_open = operation.get("x-access") in _GROUPS and "x-refused" not in operation
        if is_json and is_open and "{" not in path and path != PREDICT:
            yield path


def format_of(path: str) -> str:
    """Returns the name of a path, as in llama-server: `chatCompletions` for
    `/v1/chat/completions`."""
    words = path.removeprefix("/v1").strip("/").replace("-", "/").replace("_", "/").split("/")
    return words[0] + "".join(word[:1].upper() + word[1:] for word in words[1:])
