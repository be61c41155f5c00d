"""The operations that a prediction can stand for, and the configured paths."""

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from specllama.engine.options import OptionError
from specllama.handlers.binding.vertex import Vertex, check_routes, format_of, operations
from specllama.handlers.http.subrequests import Subrequests
from specllama.handlers.options.tables.vertex import VertexOptions
from tests.support.options_support import server_options


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/chat/completions", "chatCompletions"),
        ("/apply-template", "applyTemplate"),
        ("/v1/messages/count_tokens", "messagesCountTokens"),
        ("/completion", "completion"),
        ("/v1", ""),
        ("/", ""),
    ],
)
def test_names_are_those_of_llama_server(path: str, name: str) -> None:
    assert format_of(path) == name


def post(access: str = "generate", kind: str = "application/json") -> Any:
    return {"post": {"x-access": access, "requestBody": {"content": {kind: {}}}}}


def test_only_some_operations_can_be_called() -> None:
    paths = {
        "/a": post(),
        "/v1/a": post("embed"),
        "/b": post("read"),
        "/predict": post(),
        "/c/{id}": post(),
        "/d": post("admin"),
        "/e": post("public"),
        "/f": post(kind="multipart/form-data"),
        "/g": {"get": post()["post"]},
        "/h": {"post": post()["post"] | {"x-refused": True}},
        "/i": {"post": {"x-access": "generate"}},
    }
    expected = {"/a": "/a", "/v1/a": "/v1/a", "/b": "/b", "a": "/v1/a", "b": "/b"}
    assert operations(paths) == expected


OPTIONS = VertexOptions(
    aip_mode="PREDICTION", aip_predict_route="/p/1:predict", aip_health_route="/alive"
)


def led(path: str, options: VertexOptions = OPTIONS, prefix: str = "", root: str = "") -> Any:
    """Returns the scope of a request for `path`, as it reaches the inner middlewares."""
    seen: list[Any] = []

    async def app(scope: Any, *_: Any) -> None:
        seen.append(scope)

    unused: Any = app

    vertex = Vertex(app)
    vertex.add_api({"paths": {"/predict": post(), "/props": {"get": {}}, "/a": post()}})
    server = server_options(api_prefix=prefix)
    state = SimpleNamespace(options=msgspec.structs.replace(server, vertex=options))
    scope = {"type": "http", "path": path, "root_path": root, "state": {"runtime": state}}
    asyncio.run(vertex(scope, unused, unused))
    return seen[0]


@pytest.mark.parametrize("base", ["", "/llm", "/v1"])
@pytest.mark.parametrize("root", ["", "/proxy"])
@pytest.mark.parametrize(
    ("path", "target", "may_request"),
    [
        ("/p/1:predict", "/predict", True),
        ("/p/1:predict/", "/predict", True),
        ("/predict", "/predict", True),
        ("/alive", "/health", False),
        ("/a", "/a", False),
        ("/p/1:predict//", "/p/1:predict//", False),
        ("/", "/", False),
    ],
)
def test_paths_lead_to_operations(
    path: str, target: str, may_request: bool, base: str, root: str
) -> None:
    scope = led(root + base + path, prefix=base, root=root)
    assert scope["path"] == root + base + target
    made = scope["state"].get("subrequests")
    assert isinstance(made, Subrequests) == may_request
    if made is not None:
        assert made.operations == {"/a": "/a", "a": "/a"}


def test_other_modes_change_nothing() -> None:
    off = VertexOptions(aip_mode="TRAINING", aip_predict_route="/p", aip_health_route="/alive")
    for path in ("/p", "/alive", "/predict"):
        scope = led(path, off)
        assert scope["path"] == path
        assert "subrequests" not in scope["state"]


def test_the_path_of_another_operation_stays_its_own() -> None:
    health = VertexOptions(aip_mode="PREDICTION", aip_health_route="/props")
    assert led("/props", health)["path"] == "/props"


def test_a_path_has_one_operation() -> None:
    paths: dict[str, Any] = {"/predict": {}, "/props": {}}
    check_routes(OPTIONS, paths)
    check_routes(VertexOptions(aip_predict_route="/predict", aip_health_route="/props"), paths)
    with pytest.raises(OptionError, match="/props is the path of another operation"):
        check_routes(VertexOptions(aip_predict_route="/props"), paths)
    with pytest.raises(OptionError, match="are both /x"):
        check_routes(VertexOptions(aip_predict_route="/x", aip_health_route="/x"), paths)
