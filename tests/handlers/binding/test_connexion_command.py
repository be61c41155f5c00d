"""The whole description, launched in both ways, with a stand-in for the engine."""

import asyncio
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import connexion
import httpx
import openapi_spec_validator
import pytest
import yaml

import specllama.handlers.running.runtime
from contract_tests.kit.server import SECONDS
from specllama.engine.catalog.catalog import Catalog
from specllama.engine.options import Options
from specllama.engine.shipped import MODEL_NAME
from specllama.handlers.description import description_path
from specllama.handlers.http.description import bundle
from tests.support.http_support import PaperPool, served_app, serving

pytestmark = pytest.mark.slow

KEY = {"x-api-key": "key"}


class StandIn:
    """A supervisor whose engine is in the state that a test needs."""

    state = "loading"
    failure = ""
    info = None
    ended: ClassVar[list["StandIn"]] = []

    def __init__(self, options: Options) -> None:
        self.options = options

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        StandIn.ended.append(self)

    async def loaded(self) -> None:
        while StandIn.state == "loading":
            await asyncio.sleep(0.01)


def stand_in_pool(catalog: Catalog, **_: Any) -> PaperPool:
    return PaperPool(StandIn(catalog.entries[catalog.default].options))


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specllama.handlers.running.runtime, "ModelPool", stand_in_pool)
    monkeypatch.setenv("LLAMA_ARG_MODEL", MODEL_NAME)  # for Connexion's command line
    monkeypatch.setattr(StandIn, "state", "loading")
    monkeypatch.setattr(StandIn, "failure", "")
    monkeypatch.setattr(StandIn, "ended", [])


def launched_by_connexion(base_path: str | None = None) -> connexion.AsyncApp:
    """An application as connexion.cli makes it."""
    app = connexion.AsyncApp("connexion.cli")
    app.add_api(str(description_path()), base_path=base_path)
    return app


@pytest.fixture(params=["specllama", "connexion"])
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    if request.param == "specllama":
        app = served_app(api_key=("key",))
    else:
        monkeypatch.setenv("LLAMA_API_KEY", "key")
        app = launched_by_connexion()
    with (
        serving(app) as (host, port),
        httpx.Client(base_url=f"http://{host}:{port}", timeout=SECONDS) as client,
    ):
        yield client


PROBES: list[tuple[str, str, dict[str, Any]]] = [
    ("GET", "/health", {}),
    ("GET", "/health/", {}),
    ("GET", "/nope", {}),
    ("GET", "/ui", {}),
    ("DELETE", "/health", {}),
    ("GET", "/docs", {}),
    ("GET", "/docs/swagger-ui.css", {}),
    ("GET", "/docs/nope.css", {}),
    ("GET", "/docs/-", {}),
    ("GET", "/docs/..%2f..%2fserver.yaml", {}),
    ("GET", "/openapi.json", {}),
    ("GET", "/openapi.yaml", {"headers": {"origin": "http://x"}}),
    ("OPTIONS", "/tokenize", {"headers": {"origin": "a", "access-control-request-method": "PUT"}}),
    ("OPTIONS", "/tokenize", {}),
    ("POST", "/tokenize", {"content": b'{"content": ""}'}),
    ("POST", "/tokenize", {"content": b"{", "headers": KEY}),
    ("POST", "/tokenize", {"content": b"", "headers": KEY}),
    ("POST", "/tokenize", {"content": b'{"content": NaN}', "headers": KEY}),
    (
        "POST",
        "/tokenize",
        {"content": b'{"content": {}}', "headers": {**KEY, "origin": "http://x"}},
    ),
    ("POST", "/tokenize", {"content": b"{}", "headers": {**KEY, "content-type": "text/html"}}),
    ("POST", "/completion", {"json": {"prompt": "", "n_predict": "x"}, "headers": KEY}),
    ("POST", "/v1/chat/completions", {"json": {"messages": [{}]}, "headers": KEY}),
    ("GET", "/slots?fail_on_no_slot=x", {"headers": KEY}),
]


def test_both_launches_give_the_same_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(app: connexion.AsyncApp) -> list[Any]:
        fixed = {"x-request-id": "the-same"}
        with (
            serving(app) as (host, port),
            httpx.Client(
                base_url=f"http://{host}:{port}", headers=fixed, timeout=SECONDS
            ) as client,
        ):
            return [
                (method, path, response.status_code, headers(response, port), response.content)
                for method, path, extra in PROBES
                for response in [client.request(method, path, **extra)]
            ]

    def headers(response: httpx.Response, port: int) -> dict[str, str]:
        return {
            name: value.replace(str(port), "PORT")
            for name, value in response.headers.items()
            if name != "date"
        }

    ours = answers(served_app(api_key=("key",)))
    monkeypatch.setenv("LLAMA_API_KEY", "key")
    theirs = answers(launched_by_connexion())
    for one, other in zip(ours, theirs, strict=True):
        assert one == other
    assert len({status for _, _, status, _, _ in ours}) >= 7


def test_health(client: httpx.Client) -> None:
    def error(path: str) -> Any:
        response = client.get(path)
        assert response.status_code == 503
        assert response.json()["error"]["type"] == "unavailable_error"
        return response.json()["error"]["message"]

    for path in ("/health", "/v1/health"):
        StandIn.state = "loading"
        assert error(path) == "Loading model"
        StandIn.state = "restarting"
        assert "restarting" in error(path)
        StandIn.state, StandIn.failure = "failed", "no such file"
        assert "no such file" in error(path)
        StandIn.state = "ready"
        assert client.get(path).json() == {"status": "ok"}


def test_the_engine_is_stopped_once() -> None:
    for app in (served_app(), launched_by_connexion()):
        StandIn.ended.clear()
        with serving(app) as (host, port):
            assert httpx.get(f"http://{host}:{port}/health", timeout=SECONDS).status_code == 503
            assert not StandIn.ended
        assert len(StandIn.ended) == 1


def test_a_model_that_cannot_be_loaded_is_reported() -> None:
    reported: list[str] = []
    StandIn.failure = "no such file"
    with serving(served_app(reported.append)) as (host, port):
        StandIn.state = "failed"
        while not reported:
            httpx.get(f"http://{host}:{port}/health", timeout=SECONDS)
    assert reported == ["no such file"]


def test_two_servers_in_one_process() -> None:
    closed = served_app(api_key=("key",))
    with serving(closed) as a, serving(served_app(api_prefix="/x")) as b:
        assert (
            httpx.post(
                "http://{}:{}/tokenize".format(*a), content=b"{", timeout=SECONDS
            ).status_code
            == 401
        )
        assert (
            httpx.post(
                "http://{}:{}/x/tokenize".format(*b), content=b"{", timeout=SECONDS
            ).status_code
            == 400
        )


@pytest.mark.parametrize("prefix", ["", "/llm"])
def test_the_description_is_bundled_and_valid(prefix: str) -> None:
    with serving(served_app(api_prefix=prefix)) as (host, port):
        base = f"http://{host}:{port}{prefix}"
        document = httpx.get(f"{base}/openapi.json", timeout=SECONDS).json()
        assert (
            yaml.safe_load(httpx.get(f"{base}/openapi.yaml", timeout=SECONDS).content) == document
        )
        page = httpx.get(f"{base}/docs", timeout=SECONDS)
        asset = httpx.get(f"{base}/docs/swagger-ui-bundle.js", timeout=SECONDS)
    openapi_spec_validator.validate(document)
    assert document["servers"][0]["url"] == (prefix or "/")
    assert all(reference.startswith("#/") for reference in references(document))
    root = yaml.safe_load(description_path().read_text())
    assert list(document["paths"]) == list(root["paths"])
    text = str(document)
    assert "x-openapi-router-controller" not in text
    assert "InfoFunc" not in text
    assert "x-event-data-schema" in text
    assert 'url: "openapi.json"' in page.text
    assert asset.headers["content-type"].startswith("text/javascript")


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for child in node.values():
            yield from references(child)
    elif isinstance(node, list):
        for child in node:
            yield from references(child)


PATCHED = """
import importlib, pkgutil, sys
import specllama.handlers
from connexion.middleware.server_error import ServerErrorMiddleware

def patched():
    module = ServerErrorMiddleware.__call__.__module__
    return module == "specllama.handlers.binding.connexion_command"

for module in pkgutil.walk_packages(specllama.handlers.__path__, "specllama.handlers."):
    if module.name != "specllama.handlers.binding.connexion_command":
        importlib.import_module(module.name)
import specllama.serve
print(patched(), "specllama.handlers.binding.connexion_command" in sys.modules)
importlib.import_module("specllama.handlers.binding.connexion_command")
print(patched())
"""


def test_only_one_module_patches_connexion() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PATCHED], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False", "True"]


def test_connexions_base_path_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(launched_by_connexion("/api")) as (host, port):
        base = f"http://{host}:{port}/api"
        assert httpx.get(f"{base}/health", timeout=SECONDS).status_code == 503
        assert (
            httpx.get(f"{base}/openapi.json", timeout=SECONDS).json()["servers"][0]["url"] == "/api"
        )
    monkeypatch.setenv("LLAMA_ARG_API_PREFIX", "/llm")
    with pytest.raises(RuntimeError, match="did not start"), serving(launched_by_connexion()):
        pass


def test_bundling(tmp_path: Path) -> None:
    (tmp_path / "paths").mkdir()
    (tmp_path / "root.yaml").write_text(
        """
        paths: {/a: {$ref: "paths/a.yaml#/a"}, /b: {$ref: "paths/a.yaml#/b"}}
        components: {schemas: {Root: {type: string}}}
        """
    )
    (tmp_path / "paths" / "a.yaml").write_text(
        """
        a:
          post:
            parameters: [{$ref: "../parts.yaml#/parameters/P"}]
            requestBody: {$ref: "../parts.yaml#/Body"}
            responses: {"200": {$ref: "../parts.yaml#/Answer"}}
        b:
          get:
            responses:
              200:
                content: {json: {schema: {$ref: "../parts.yaml#/Thing"}, x-event: {$ref: "#/c"}}}
        c: {type: integer}
        """
    )
    (tmp_path / "parts.yaml").write_text(
        """
        parameters: {P: {schema: {$ref: "#/Thing"}}}
        Body: {content: {json: {schema: {$ref: "#/Thing"}}}}
        Answer: {headers: {h: {$ref: "#/Header"}}, content: {}}
        Header: {schema: {$ref: "root.yaml#/components/schemas/Root"}}
        Thing: {properties: {responses: {$ref: "#/Other"}, self: {$ref: "#/Thing"}}}
        Other: {enum: [1]}
        """
    )
    thing = {"$ref": "#/components/schemas/Thing"}
    assert bundle(tmp_path / "root.yaml") == {
        "paths": {
            "/a": {
                "post": {
                    "parameters": [{"$ref": "#/components/parameters/P"}],
                    "requestBody": {"$ref": "#/components/requestBodies/Body"},
                    "responses": {"200": {"$ref": "#/components/responses/Answer"}},
                }
            },
            "/b": {
                "get": {
                    "responses": {
                        "200": {
                            "content": {
                                "json": {
                                    "schema": thing,
                                    "x-event": {"$ref": "#/components/schemas/c"},
                                }
                            }
                        }
                    }
                }
            },
        },
        "components": {
            "schemas": {
                "Root": {"type": "string"},
                "Other": {"enum": [1]},
                "Thing": {
                    "properties": {
                        "responses": {"$ref": "#/components/schemas/Other"},
                        "self": thing,
                    }
                },
                "c": {"type": "integer"},
            },
            "parameters": {"P": {"schema": thing}},
            "requestBodies": {"Body": {"content": {"json": {"schema": thing}}}},
            "responses": {
                "Answer": {
                    "headers": {"h": {"$ref": "#/components/headers/Header"}},
                    "content": {},
                }
            },
            "headers": {"Header": {"schema": {"$ref": "#/components/schemas/Root"}}},
        },
    }


def test_two_things_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "root.yaml").write_text(
        'x: {schema: {a: {$ref: "a.yaml#/T"}, b: {$ref: "b.yaml#/T"}}}'
    )
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text("T: {}")
    with pytest.raises(ValueError, match="T is both"):
        bundle(tmp_path / "root.yaml")


def test_queries_are_not_logged() -> None:
    from specllama.handlers.binding.connexion_command import (
        without_query,  # which patches Connexion
    )

    arguments = ("127.0.0.1:1", "GET", "/props?api_key=sesame", "1.1", 401)
    record = logging.LogRecord(
        "uvicorn.access", 20, "", 0, '%s - "%s %s HTTP/%s" %d', arguments, None
    )
    assert without_query(record)
    assert record.getMessage() == '127.0.0.1:1 - "GET /props HTTP/1.1" 401'
