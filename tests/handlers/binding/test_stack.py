"""The prepared ways through Connexion's middlewares lead where Connexion's own do."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from connexion.middleware.abstract import ROUTING_CONTEXT
from connexion.middleware.routing import RoutingMiddleware
from connexion.spec import Specification

from specllama.handlers.binding.stack import Routing
from specllama.handlers.description import description_path
from specllama.handlers.http.api_keys import KeyRing

METHODS = ("GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT")


@pytest.fixture(scope="module")
def specification() -> Specification:
    return Specification.load(description_path())


def destination(
    middleware: type[RoutingMiddleware], specification: Specification, base: str, **request: Any
) -> Any:
    """The notes about the operation, or the exception."""
    seen: list[Any] = []

    async def behind(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["extensions"][ROUTING_CONTEXT], scope["path_params"], scope["path"]))

    async def nothing(*_: Any) -> Any:
        return {"type": "http.disconnect"}

    async def route() -> None:
        routing = middleware(behind)
        routing.add_api(specification, base_path=base)
        scope: dict[str, Any] = {
            "type": "http",
            "headers": [],
            "query_string": b"",
            "app": None,
            **request,
        }
        await routing(scope, nothing, nothing)

    try:
        asyncio.run(route())
    except Exception as error:
        return repr(error)
    return seen


@pytest.mark.parametrize("base", ["", "/api"])
@pytest.mark.parametrize("root", ["", "/proxy"])
@pytest.mark.parametrize(
    "path",
    ["/tokenize", "/health", "/v1/responses", "/v1/responses/r1", "/slots/1", "/x"],
)
def test_same_destination(specification: Specification, base: str, root: str, path: str) -> None:
    for method in METHODS:
        request = {"method": method, "path": root + base + path, "root_path": root}
        ours = destination(Routing, specification, base, **request)
        assert ours == destination(RoutingMiddleware, specification, base, **request), request


@pytest.mark.parametrize("base", ["", "/api"])
@pytest.mark.parametrize("path", ["/tokenize", "/health", "/v1/models", "/v1/chat/completions"])
def test_a_slash_after_a_path_reveals_nothing(
    specification: Specification, base: str, path: str
) -> None:
    for method in ("GET", "POST"):
        ours = destination(Routing, specification, base, method=method, path=f"{base}{path}")
        if isinstance(ours, list):
            [(operation, parameters, _)] = ours
            slashed = destination(
                Routing, specification, base, method=method, path=f"{base}{path}/"
            )
            assert slashed == [(operation, parameters, f"{base}{path}/")]
            break
    else:
        pytest.fail("nothing is there")


@pytest.mark.parametrize("path", ["/slots/1/", "/x/", "/tokenize//"])
@pytest.mark.parametrize(("keys", "status"), [([], 404), (["key"], 401)])
def test_no_other_path_ends_with_a_slash(
    specification: Specification, path: str, keys: list[str], status: int
) -> None:
    state = {"runtime": SimpleNamespace(api_keys=KeyRing.of_secrets(keys))}
    for root in ("", "/proxy"):
        request: dict[str, Any] = {"path": root + path, "root_path": root, "state": state}
        for method in METHODS:
            raised = destination(Routing, specification, "", method=method, **request)
            assert raised.startswith(f"HTTPException(status_code={status}"), raised


def test_paths_without_parameters_are_known(specification: Specification) -> None:
    async def behind(scope: Any, receive: Any, send: Any) -> None:
        pass

    routing = Routing(behind)
    routing.add_api(specification, base_path="/api")
    literal = {
        (method.upper(), f"/api{path}")
        for path, item in specification["paths"].items()
        if "{" not in path
        for method in item
        if method in ("get", "post", "delete")
    }
    assert literal
    assert literal <= routing._known.keys()
