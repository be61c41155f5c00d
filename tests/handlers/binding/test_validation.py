"""Bodies of many values are held to their schemas by another process."""

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from contract_tests.kit.server import SECONDS
from specllama.engine.formats.schema_check import compile_schema
from specllama.engine.helpers.check.check_jobs import BodyVerdict
from specllama.engine.helpers.check.checker import Checker
from specllama.handlers.binding import validation
from specllama.handlers.http.bodies import FEW, LARGE
from tests.support.http_support import handlers_module, serving, small_app

pytestmark = pytest.mark.slow

JSON = {"content-type": "application/json"}


async def echo(body: dict[str, Any]) -> dict[str, Any]:
    return {"text": body["text"], "n_values": len(body.get("value") or ())}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    app = small_app(tmp_path, handlers_module(echo=echo))
    with (
        serving(app) as (host, port),
        httpx.Client(base_url=f"http://{host}:{port}", timeout=SECONDS) as client,
    ):
        yield client


def content(size: int, **fields: Any) -> bytes:
    return json.dumps({"text": "a", "value": {str(i): i for i in range(size)}, **fields}).encode()


class Seen:
    """Compiled validators that tell how often they were asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.n = 0
        original = compile_schema

        def compiled(schema: dict[str, Any]) -> Any:
            validator = original(schema)

            def is_valid(body: Any) -> bool:
                self.n += 1
                return validator.is_valid(body)

            return SimpleNamespace(is_valid=is_valid, iter_errors=validator.iter_errors)

        monkeypatch.setattr(validation, "compile_schema", compiled)


def test_the_server_process_validates_small_bodies_alone(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen(monkeypatch)
    for n in (LARGE, 3 * LARGE):
        answer = client.post("/echo", content=content(n), headers=JSON)
        assert answer.json() == {"text": "a", "n_values": n}
        answer = client.post("/echo", content=content(n, n="x"), headers=JSON)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == 'n: "x" is not an integer or null'
    broken = client.post("/echo", content=content(LARGE)[:-1], headers=JSON)
    assert "not valid JSON" in broken.json()["error"]["message"]
    before = seen.n
    assert before == 0
    assert client.post("/echo", content=content(3), headers=JSON).status_code == 200
    assert seen.n == 1


def test_another_process_finds_the_reason_of_an_invalid_body(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen(monkeypatch)
    answer = client.post("/echo", content=content(FEW, n=101), headers=JSON)
    assert "maximum of 100" in answer.json()["error"]["message"]
    assert seen.n == 1


def test_long_texts_stay_where_they_are(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Media are long, and one value: no other process has to see them."""
    checked: list[bytes] = []

    async def check(self: Checker, schema: Any, body: bytes) -> BodyVerdict:
        checked.append(body)
        return BodyVerdict()

    monkeypatch.setattr(Checker, "check", check)
    for text in ("x" * 10**7, '",:[{' * 10**6):
        answer = client.post("/echo", json={"text": text})
        assert answer.json()["text"] == text
    assert not checked


def test_others_are_answered_while_a_body_is_checked(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, answered = threading.Event(), threading.Event()
    original = Checker.check

    async def check(self: Checker, schema: Any, body: bytes) -> BodyVerdict:
        begun.set()
        while not answered.is_set():
            await asyncio.sleep(0)
        return await original(self, schema, body)

    monkeypatch.setattr(Checker, "check", check)
    with ThreadPoolExecutor(1) as thread:
        large = thread.submit(client.post, "/echo", content=content(LARGE), headers=JSON)
        begun.wait()
        for _ in range(3):
            assert client.post("/echo", json={"text": "b"}).json()["text"] == "b"
        answered.set()
        assert large.result().json()["n_values"] == LARGE
