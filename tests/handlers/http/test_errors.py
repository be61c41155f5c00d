"""Every failure of a request is the error envelope with the right status."""

import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from contract_tests.kit.server import SECONDS
from specllama.engine.errors import EngineError, ErrorInfo, not_supported, server_error, unavailable
from specllama.handlers.options import parse
from tests.support.http_support import handlers_module, serving, small_app

pytestmark = pytest.mark.slow

ORIGIN = {"origin": "https://page.example"}
FAILURES = {
    "bug": ValueError("a secret"),
    "busy": unavailable("Loading model"),
    "later": not_supported("not yet"),
    "never": server_error("too large", final=True),
    "limit": EngineError(ErrorInfo("rate_limit_error", "too many", retry_after=7)),
    "soon": EngineError(ErrorInfo("unavailable_error", "restarting", retry_after=7)),
    "long": EngineError(ErrorInfo("exceed_context_size_error", "too long", 10, 5)),
}


async def fail(how: str) -> None:
    raise FAILURES[how]


async def echo(body: dict[str, Any]) -> Any:
    return body if "quiet" not in body else {}


async def optional(body: Any) -> Any:
    return {"got": body}


async def get_echo(n: int) -> Any:
    return {"n": n}


@pytest.fixture(scope="module")
def handlers() -> types.ModuleType:
    return handlers_module(fail=fail, echo=echo, optional=optional, get_echo=get_echo)


@pytest.fixture(scope="module")
def client(
    tmp_path_factory: pytest.TempPathFactory, handlers: types.ModuleType
) -> Iterator[httpx.Client]:
    app = small_app(tmp_path_factory.mktemp("api"), handlers, max_body_size=1)
    with (
        serving(app) as (host, port),
        httpx.Client(base_url=f"http://{host}:{port}", timeout=SECONDS) as client,
    ):
        yield client


def error_of(response: httpx.Response, status: int, type: str = "invalid_request_error") -> Any:
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert (error["code"], error["type"]) == (status, type)
    assert error["message"]
    return error


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "empty"),
        (b" ", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"text": NaN}', "not valid JSON"),
        (b'{"text": Infinity}', "not valid JSON"),
        (b'{"n": 1e400}', "not valid JSON"),
        (b'{"text": "a"} x', "not valid JSON"),
        (b'{"text": "\xff"}', "UTF-8"),
        (b'{"text": "\xed\xa0\x80"}', "UTF-8"),
        (b"[" * 1000 + b"]" * 1000, "nested"),
        (b"[" * 100_000, "nested"),
        (b"null", "null is not an object"),
        (b"{}", '"text" is a required property'),
        (b'{"text": 1}', "text: 1 is not a string"),
        (b'{"text": "a", "n": 1e30}', "n: 1e30 is greater than the maximum of 100"),
        (b'{"text": "a", "n": ' + b"9" * 400 + b"}", "n: "),
        (b'{"text": "a", "n": "x"}', "is not an integer or null"),
    ],
)
def test_bad_bodies(client: httpx.Client, body: bytes, words: str) -> None:
    response = client.post("/echo", content=body, headers={"content-type": "application/json"})
    assert words in error_of(response, 400)["message"]


def test_good_bodies(client: httpx.Client) -> None:
    for body in ({"text": ""}, {"text": "a", "n": None}, {"text": "a", "n": 1, "unknown": [1]}):
        response = client.post("/echo", json=body)
        assert response.status_code == 200
        assert response.json() == body


def test_a_whole_float_is_an_integer(client: httpx.Client) -> None:
    assert client.post("/echo", content=b'{"text": "", "n": 1.0}').status_code == 200


def test_a_chunked_body(client: httpx.Client) -> None:
    response = client.post("/echo", content=iter([b'{"te', b'xt": "a"}']))
    assert response.json() == {"text": "a"}


def test_an_optional_body(client: httpx.Client) -> None:
    assert client.post("/optional").json() == {"got": {}}
    assert client.post("/optional", content=b'{"a": 1}').json() == {"got": {"a": 1}}
    error_of(client.post("/optional", content=b"[]"), 400)


@pytest.mark.parametrize(
    "kind",
    [
        "application/json",
        "application/json; charset=utf-8",
        "Application/JSON",
        "application/x-www-form-urlencoded",
        "",
        None,
    ],
)
def test_types_that_are_taken_for_json(client: httpx.Client, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    response = client.post("/echo", content=b'{"text": "a"}', headers=headers)
    assert response.json() == {"text": "a"}


@pytest.mark.parametrize("kind", ["text/html", "multipart/form-data", "nonsense", "a/b; c=d"])
def test_other_types(client: httpx.Client, kind: str) -> None:
    response = client.post("/echo", content=b'{"text": "a"}', headers={"content-type": kind})
    assert kind.partition(";")[0] in error_of(response, 415)["message"]


def test_a_large_body_is_refused_and_the_connection_survives(client: httpx.Client) -> None:
    large = b'{"text": "' + b"a" * (30 << 20) + b'"}'
    error_of(client.post("/echo", content=large), 413)
    error_of(client.post("/echo", content=iter([large[: 1 << 19]] * 40)), 413)
    assert client.post("/echo", json={"text": "a"}).status_code == 200


def test_the_largest_body_is_taken(client: httpx.Client) -> None:
    frame = len(b'{"quiet":1,"text":""}')
    body = b'{"quiet":1,"text":"' + b"a" * ((1 << 20) - frame) + b'"}'
    assert len(body) == 1 << 20
    assert client.post("/echo", content=body).status_code == 200
    error_of(client.post("/echo", content=body + b" "), 413)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("n=50", "n: 50 is greater than the maximum of 9"),
        ("n=x", 'n: "x" is not an integer'),
        ("n=", "is not an integer"),
        ("n=%ff%00", "is not an integer"),
        ("n=" + "9" * 5000, "n: "),
    ],
)
def test_bad_parameters(client: httpx.Client, query: str, words: str) -> None:
    message = error_of(client.get(f"/echo?{query}"), 400)["message"]
    assert words in message
    assert "\n" not in message
    assert len(message) < 200


def test_parameters(client: httpx.Client) -> None:
    assert client.get("/echo").json() == {"n": 3}
    assert client.get("/echo?n=5&other=1").json() == {"n": 5}


def test_unknown_paths(client: httpx.Client) -> None:
    for path in ("/", "/nope", "/echo/more", "/%00", "/" + "a" * 3000):
        message = error_of(client.get(path), 404, "not_found_error")["message"]
        assert len(message) < 200


def test_wrong_methods_name_all_that_are_right(client: httpx.Client) -> None:
    response = client.put("/echo", json={})
    error_of(response, 405)
    assert response.headers["allow"] == "GET, HEAD, POST"
    assert client.delete("/optional").headers["allow"] == "POST"
    error_of(client.options("/echo"), 405)


def test_head(client: httpx.Client) -> None:
    response = client.head("/echo")
    assert (response.status_code, response.content) == (200, b"")
    response = client.head("/nope")
    assert (response.status_code, response.content) == (404, b"")


def test_engine_errors(client: httpx.Client) -> None:
    busy, soon = client.get("/fail/busy"), client.get("/fail/soon")
    for response in (busy, soon):
        error = error_of(response, 503, "unavailable_error")
        assert error.keys() == {"code", "message", "type"}
    assert ("Retry-After" in busy.headers, soon.headers["Retry-After"]) == (False, "7")
    limited = client.get("/fail/limit")
    error_of(limited, 429, "rate_limit_error")
    assert limited.headers["Retry-After"] == "7"
    refused = client.get("/fail/later")
    error_of(refused, 501, "not_supported_error")
    assert refused.headers["X-Should-Retry"] == "false"
    assert "X-Should-Retry" not in client.get("/fail/long").headers
    never = client.get("/fail/never")
    assert error_of(never, 500, "server_error").keys() == {"code", "message", "type"}
    assert never.headers["X-Should-Retry"] == "false"
    error = error_of(client.get("/fail/long"), 400, "exceed_context_size_error")
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (10, 5)


def test_a_bug_is_logged_and_hidden_from_the_client(
    client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    response = client.get("/fail/bug")
    error_of(response, 500, "server_error")
    assert "secret" not in response.text
    assert "a secret" in caplog.text


def test_cors(client: httpx.Client) -> None:
    response = client.get("/echo", headers=ORIGIN)
    assert response.headers["access-control-allow-origin"] == "https://page.example"
    response = client.get("/nope", headers=ORIGIN)
    assert response.headers["access-control-allow-origin"] == "https://page.example"
    assert response.headers["access-control-allow-credentials"] == "true"
    assert "access-control-allow-origin" not in client.get("/echo").headers


def test_preflight(client: httpx.Client) -> None:
    wish = {**ORIGIN, "access-control-request-method": "POST"}
    response = client.options("/echo", headers=wish)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == "https://page.example"
    assert response.headers["access-control-allow-methods"] == "GET, POST, DELETE, OPTIONS"
    assert response.headers["access-control-allow-headers"] == "*"


@pytest.mark.parametrize("names", ["authorization", "authorization,content-type, x-api-key"])
def test_a_preflight_names_the_fields_that_were_asked_for(client: httpx.Client, names: str) -> None:
    wish = {
        **ORIGIN,
        "access-control-request-method": "POST",
        "access-control-request-headers": names,
        "access-control-request-private-network": "true",
    }
    headers = client.options("/echo", headers=wish).headers
    assert headers["access-control-allow-headers"] == names
    assert headers["access-control-allow-private-network"] == "true"
    assert (
        "access-control-allow-private-network"
        not in client.options(
            "/echo", headers={**wish, "access-control-request-private-network": "false"}
        ).headers
    )
    odd = client.options("/echo", headers={**wish, "access-control-request-headers": "a b(c)"})
    assert odd.headers["access-control-allow-headers"] == "*"


@pytest.mark.parametrize(
    ("origins", "origin", "allowed"),
    [
        ("*", "https://page.example", True),
        ("https://page.example,https://b.example", "https://b.example", True),
        ("https://page.example", "https://page.example:81", False),
        ("https://page.example", "null", False),
        ("localhost", "http://localhost:5173", True),
        ("localhost", "http://127.0.0.1", True),
        ("localhost", "http://[::1]:80", True),
        ("localhost", "http://localhost.page.example", False),
        ("localhost", "http://[", False),
    ],
)
def test_origins_that_may_use_the_server(
    tmp_path: Path, handlers: types.ModuleType, origins: str, origin: str, allowed: bool
) -> None:
    given = parse(["--cors-origins", origins], {}).http.cors_origins
    with serving(small_app(tmp_path, handlers, cors_origins=given)) as (host, port):
        for method in ("GET", "OPTIONS"):
            wish = {"origin": origin, "access-control-request-method": "POST"}
            headers = httpx.request(
                method, f"http://{host}:{port}/echo", headers=wish, timeout=SECONDS
            ).headers
            assert headers.get("access-control-allow-origin") == (origin if allowed else None)
            assert ("access-control-allow-credentials" in headers) is allowed
            assert headers["vary"] == "Origin"
            network = {**wish, "access-control-request-private-network": "true"}
            headers = httpx.options(f"http://{host}:{port}/echo", headers=network).headers
            assert ("access-control-allow-private-network" in headers) is allowed


def test_permissions_of_pages(tmp_path: Path, handlers: types.ModuleType) -> None:
    options: dict[str, Any] = {
        "cors_methods": ("GET",),
        "cors_headers": ("x-a", "x-b"),
        "cors_credentials": False,
    }
    wish = {**ORIGIN, "access-control-request-method": "GET"}
    with serving(small_app(tmp_path, handlers, **options)) as (host, port):
        headers = httpx.options(f"http://{host}:{port}/echo", headers=wish, timeout=SECONDS).headers
    assert headers["access-control-allow-origin"] == "https://page.example"
    assert headers["access-control-allow-methods"] == "GET"
    assert headers["access-control-allow-headers"] == "x-a, x-b"
    assert "access-control-allow-credentials" not in headers


def test_a_base_path(tmp_path: Path, handlers: types.ModuleType) -> None:
    with serving(small_app(tmp_path, handlers, base_path="/llm/")) as (host, port):
        base = f"http://{host}:{port}"
        assert httpx.get(f"{base}/llm/echo", timeout=SECONDS).json() == {"n": 3}
        error_of(httpx.get(f"{base}/echo", timeout=SECONDS), 404, "not_found_error")
        assert httpx.put(f"{base}/llm/echo", timeout=SECONDS).headers["allow"] == "GET, HEAD, POST"


@pytest.mark.parametrize("prefix", ["", "/a/b"])
def test_a_path_may_have_the_envelope_of_another_api(prefix: str, tmp_path: Path) -> None:
    async def other(body: dict[str, Any]) -> None:
        raise FAILURES[body["how"]]

    app = small_app(tmp_path, handlers_module(other=other), prefix, max_body_size=1)
    kind = {"content-type": "application/json"}
    with (
        serving(app) as (host, port),
        httpx.Client(base_url=f"http://{host}:{port}", timeout=SECONDS) as client,
    ):
        where = f"{prefix}/other"
        for response, status, type_ in (
            (client.post(where, json=[]), 400, "invalid_request_error"),
            (client.post(where, content=b"{", headers=kind), 400, "invalid_request_error"),
            (client.get(where), 405, "invalid_request_error"),
            (client.get(f"{where}/below"), 404, "not_found_error"),
            (client.post(where, content=b"a" * (2 << 20)), 413, "request_too_large"),
            (client.post(where, content=b"a", headers={"content-type": "a/b"}), 415, None),
            (client.post(where, json={"how": "bug"}), 500, "api_error"),
            (client.post(where, json={"how": "busy"}), 503, "overloaded_error"),
            (client.post(where, json={"how": "limit"}), 429, "rate_limit_error"),
            (client.post(where, json={"how": "later"}), 501, "invalid_request_error"),
        ):
            document = response.json()
            assert response.status_code == status
            assert document["type"] == "error"
            assert type_ in (None, document["error"]["type"])
            assert document["request_id"] == response.headers["request-id"]
            assert "secret" not in response.text
            assert response.headers.get("allow") == ("POST" if status == 405 else None)
        for elsewhere in (f"{prefix}/others", f"{prefix}/open/other", "/"):
            assert client.get(elsewhere).json()["error"]["code"] == 404
