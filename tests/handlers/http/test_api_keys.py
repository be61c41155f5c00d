"""API keys: all or nothing, before anything else is looked at."""

import types
from collections.abc import Iterator

import httpx
import pytest

from contract_tests.kit.server import SECONDS
from tests.support.http_support import handlers_module, serving, small_app

pytestmark = pytest.mark.slow

KEYS = ("first key", "second")


def handlers() -> types.ModuleType:
    async def get_open() -> dict[str, bool]:
        return {"open": True}

    async def get_echo(n: int) -> dict[str, int]:
        return {"n": n}

    async def echo(body: dict[str, str]) -> dict[str, str]:
        return body

    return handlers_module(get_open=get_open, get_echo=get_echo, echo=echo)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    app = small_app(tmp_path_factory.mktemp("api"), handlers(), api_key=KEYS)
    with (
        serving(app) as (host, port),
        httpx.Client(base_url=f"http://{host}:{port}", timeout=SECONDS) as client,
    ):
        yield client


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer first key"},
        {"authorization": "bearer second"},
        {"x-api-key": "second"},
        {"x-api-key": "first key", "authorization": "Bearer wrong"},
        {"x-api-key": "second", "authorization": "nonsense"},
    ],
)
def test_right_keys(client: httpx.Client, headers: dict[str, str]) -> None:
    assert client.get("/echo", headers=headers).json() == {"n": 3}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer wrong"},
        {"authorization": "Basic second"},
        {"authorization": "second"},
        {"authorization": "Bearer secon"},
        {"authorization": "Bearer second2"},
        {"x-api-key": ""},
        {"x-api-key": "schlüssel".encode()},
    ],
)
def test_wrong_keys(client: httpx.Client, headers: dict[str, str]) -> None:
    response = client.get("/echo", headers=headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.json() == {
        "error": {"code": 401, "message": "Invalid API Key", "type": "authentication_error"}
    }


def test_the_key_is_asked_for_first(client: httpx.Client) -> None:
    assert client.post("/echo", content=b"{").status_code == 401
    assert client.post("/echo", content=b"x", headers={"content-type": "a/b"}).status_code == 401


def test_public_operations_and_unknown_paths(client: httpx.Client) -> None:
    assert client.get("/open").status_code == 200
    assert client.get("/open", headers={"authorization": "Bearer wrong"}).status_code == 200
    assert client.get("/nope").status_code == 401  # existing paths are not revealed
    known = {"authorization": "Bearer first key"}
    assert client.get("/nope", headers=known).status_code == 404


def test_without_keys_everybody_may(tmp_path_factory: pytest.TempPathFactory) -> None:
    with serving(small_app(tmp_path_factory.mktemp("api"), handlers())) as (host, port):
        base = f"http://{host}:{port}"
        for headers in ({}, {"authorization": "Bearer any"}, {"x-api-key": "any"}):
            assert httpx.get(f"{base}/echo", headers=headers, timeout=SECONDS).status_code == 200
