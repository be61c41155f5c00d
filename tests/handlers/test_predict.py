"""The predictions of one request: their order, their limits, and their failures."""

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from specllama.handlers import predict
from specllama.handlers.http.subrequests import Subanswer


class Requests:
    """Answers each request with its body, or as `answers` say, in several turns of the loop."""

    def __init__(self, **answers: Subanswer) -> None:
        self.operations = {"a": "/a", "/a": "/a", "b": "/b"}
        self._answers = answers
        self.n_running = self.n_most = 0

    async def post(self, path: str, body: bytes, take: Callable[[int], bool]) -> Subanswer:
        self.n_running += 1
        self.n_most = max(self.n_most, self.n_running)
        for _ in range(json.loads(body).get("turns", 1)):
            await asyncio.sleep(0)
        self.n_running -= 1
        answer = self._answers.get(path[1:], Subanswer(200, "application/json", body))
        has_room = take(len(answer.content))
        return answer if has_room else answer._replace(content=b"", is_cut=True)


@pytest.fixture(autouse=True)
def _runs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    monkeypatch.setattr(predict, "run_in_thread", run)
    monkeypatch.setattr(predict, "current_key", lambda: None)


def predictions(requests: Any, *instances: Any) -> list[Any]:
    async def run() -> bytes:
        return await predict._Predictions(requests).of([*instances])

    answer = json.loads(asyncio.run(run()))
    assert answer.keys() == {"predictions"}
    found: list[Any] = answer["predictions"]
    return found


def instance(**fields: Any) -> dict[str, Any]:
    return {predict.FORMAT: "a", **fields}


def test_answers_are_in_the_order_of_the_instances() -> None:
    found = predictions(Requests(), *(instance(turns=9 - i, stream=i % 2 == 0) for i in range(9)))
    assert found == [{"turns": 9 - i, "stream": False} for i in range(9)]


def test_answers_of_other_kinds() -> None:
    requests = Requests(
        a=Subanswer(200, "text/plain", 'a "text"\xff'.encode("latin-1")),
        b=Subanswer(204, "", b""),
    )
    assert predictions(requests, instance(), {predict.FORMAT: "b"}) == ['a "text"\ufffd', None]
    empty = Requests(a=Subanswer(200, "application/json", b""))
    assert predictions(empty, instance()) == [None]


def test_there_is_room_for_some(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(json.dumps({"stream": False}, separators=(",", ":")))
    monkeypatch.setattr(predict, "MAX_ANSWERS", 2 * size)
    found = predictions(Requests(), *[instance()] * 3)
    assert found[:2] == [{"stream": False}] * 2
    assert f"more than {2 * size} bytes" in found[2]["error"]["message"]
    assert found[2]["error"]["code"] == 400


@pytest.mark.parametrize(("limit", "n_most"), [(0, 6), (1, 1), (4, 4)])
def test_a_key_runs_as_many_as_it_may(
    limit: int, n_most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predict, "current_key", lambda: SimpleNamespace(concurrency=limit))
    requests = Requests()
    assert len(predictions(requests, *[instance(turns=5)] * 6)) == 6
    assert requests.n_most == n_most


def test_an_instance_without_an_operation() -> None:
    found = predictions(Requests(), {}, {predict.FORMAT: "c"}, instance())
    messages = [each.get("error", {}).get("message", "") for each in found]
    assert messages[0] == "@requestFormat: this field of an instance is required"
    assert messages[1] == "@requestFormat: there is no such operation; there are a, b"
    assert messages[2] == ""
