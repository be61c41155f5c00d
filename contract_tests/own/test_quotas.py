"""Quotas of API keys, as official clients see them, and the usage of keys."""

import contextlib
import re
import sqlite3
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from contract_tests.kit import contract
from contract_tests.kit.bodies import body
from contract_tests.kit.server import SECONDS, OwnServer, Start, wait_until
from contract_tests.own.launching import posix
from contract_tests.own.servers import model_file
from tests.support.redis_servers import redis_server

KEYS = """
[keys.alice]
key = "sk-alice"
requests_per_minute = 2
tokens_per_minute = 100000

[keys.bob]
key = "sk-bob"
tokens_per_day = 60

[keys.carol]
key = "sk-carol"
concurrency = 1

[keys.dave]
key = "sk-dave"
requests_per_minute = 1000000

[keys.erin]
key = "sk-erin"
concurrency = 1
tokens_per_minute = 100000
"""
OPENAI = "x-ratelimit-{name}-{kind}"
ANTHROPIC = "anthropic-ratelimit-{kind}-{name}"
MESSAGES: list[Any] = [{"role": "user", "content": "hello"}]


def auth(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer sk-{name}"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quotas")
    (keys := folder / "keys.toml").write_text(KEYS, "ascii")
    keys.chmod(0o600)
    return folder


@pytest.fixture(scope="module")
def limited(module_server: Start, folder: Path) -> OwnServer:
    """A server whose buckets are in a file, where a test can turn the time forward."""
    options = ("--keys-file", str(folder / "keys.toml"), "--cors-origins", "https://a.example")
    return module_server(*options, "--quota-store", str(folder / "quotas.db"), api_key="root")


def pass_time(folder: Path, seconds: float) -> None:
    """Changes the file with the buckets as if time had passed."""
    with contextlib.closing(sqlite3.connect(folder / "quotas.db", SECONDS)) as connection:
        connection.execute("UPDATE buckets SET at = at - ?", (seconds,))
        connection.commit()


@pytest.fixture
def refilled(limited: OwnServer, folder: Path) -> OwnServer:
    pass_time(folder, 1e9)
    return limited


def use_up(server: OwnServer, name: str) -> httpx.Response:
    """Sends requests until one is refused, which is returned."""
    while True:
        response = server.post("/completion", body("create_completion"), headers=auth(name))
        if response.status_code == 429:
            contract.check(response, 429)
            return response


# ---- headers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "where", "status"),
    [
        ("POST", "/completion", 200),
        ("POST", "/v1/chat/completions", 400),
        ("GET", "/v1/models", 200),
        ("GET", "/nothing", 404),
        ("POST", "/v1/messages", 400),
        ("GET", "/v1/messages/x", 404),
    ],
)
def test_every_answer_has_the_limits(
    method: str, where: str, status: int, refilled: OwnServer
) -> None:
    sent = body("create_completion") if status == 200 and method == "POST" else {}
    headers = {**auth("alice"), "Origin": "https://a.example"}
    response = refilled.http.request(method, where, json=sent, headers=headers)
    assert response.status_code == status
    described = contract.document()["x-every-operation"]["headers"]
    is_anthropic = where.startswith("/v1/messages")
    exposed = response.headers["access-control-expose-headers"].lower().split(", ")
    for kind, limit in (("requests", 2), ("tokens", 100_000)):
        for name in ("limit", "remaining", "reset"):
            expected, absent = OPENAI, ANTHROPIC
            if is_anthropic:
                expected, absent = absent, expected
            header = expected.format(name=name, kind=kind)
            assert absent.format(name=name, kind=kind) not in response.headers
            assert header in exposed
            value, schema = response.headers[header], described[header]["schema"]
            if name == "limit":
                assert int(value) == limit
            elif name == "remaining":
                assert limit - 100 <= int(value) <= limit
            elif is_anthropic:
                moment = datetime.fromisoformat(value)
                assert moment.tzinfo == UTC
                assert abs(moment.timestamp() - time.time()) < SECONDS
            else:
                assert re.fullmatch(schema["pattern"], value)


def test_keys_without_limits_get_no_headers(limited: OwnServer) -> None:
    for name in ("carol", None):
        headers = auth(name) if name else None
        response = limited.post("/completion", body("create_completion"), headers=headers)
        assert response.status_code == 200
        assert not [name for name in response.headers if "ratelimit" in name]


def test_a_request_takes_one_of_its_limit(refilled: OwnServer) -> None:
    for remaining in (1, 0):
        response = refilled.post("/completion", body("create_completion"), headers=auth("alice"))
        assert int(response.headers["x-ratelimit-remaining-requests"]) == remaining
    refused = refilled.post("/completion", body("create_completion"), headers=auth("alice"))
    contract.check(refused, 429)
    assert 1 <= int(refused.headers["retry-after"]) <= 30
    assert "x-should-retry" not in refused.headers
    for uncounted in ("/v1/models", "/props"):
        assert refilled.get(uncounted, headers=auth("alice")).status_code == 200


def test_a_stream_is_refused_before_it_begins(refilled: OwnServer) -> None:
    use_up(refilled, "alice")
    request = body("create_completion", stream=True)
    response = refilled.post("/completion", request, headers=auth("alice"))
    contract.check(response, 429)


@pytest.mark.parametrize("name", ["carol", "erin"])
def test_running_requests(name: str, limited: OwnServer) -> None:
    endless = body("create_completion", n_predict=-1, ignore_eos=True, stream=True)
    with limited.http.stream("POST", "/completion", json=endless, headers=auth(name)) as first:
        parts = first.iter_bytes()
        next(parts)
        refused = limited.post("/completion", body("create_completion"), headers=auth(name))
        contract.check(refused, 429)
        assert int(refused.headers["retry-after"]) >= 1
        has_limits = "x-ratelimit-remaining-tokens" in refused.headers
        assert has_limits == (name == "erin")

    def is_admitted() -> bool:
        again = limited.post("/completion", body("create_completion"), headers=auth(name))
        return again.status_code == 200

    wait_until(is_admitted, "the first request has ended")


# ---- official clients --------------------------------------------------------------------------

Ask = Callable[[OwnServer, str], object]


def ask_openai(server: OwnServer, name: str) -> object:
    key, url = f"sk-{name}", f"{server.url}/v1"
    with openai.OpenAI(base_url=url, api_key=key, timeout=SECONDS) as client:
        return client.chat.completions.create(model="any", messages=MESSAGES, max_tokens=2)


def ask_anthropic(server: OwnServer, name: str) -> object:
    key, url = f"sk-{name}", server.url
    with anthropic.Anthropic(base_url=url, api_key=key, timeout=SECONDS) as client:
        return client.messages.create(model="any", messages=MESSAGES, max_tokens=2)


@pytest.fixture
def slept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of clients, which take no time: the buckets are refilled instead."""
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        pass_time(folder, seconds)

    monkeypatch.setattr(time, "sleep", sleep)
    return pauses


@pytest.mark.parametrize("ask", [ask_openai, ask_anthropic])
def test_clients_wait_for_as_long_as_they_have_to(
    ask: Ask, refilled: OwnServer, slept: list[float]
) -> None:
    seconds = int(use_up(refilled, "alice").headers["retry-after"])
    ask(refilled, "alice")
    assert len(slept) == 1, "one retry is enough"
    assert seconds / 2 < slept[0] <= seconds, "and it wasn't the client's own back-off"
    assert slept[0] > 8, "which is shorter"


def test_a_request_that_needs_too_much_is_not_repeated(refilled: OwnServer) -> None:
    for stream in (False, True):
        request = body("create_completion", n_predict=100, stream=stream)
        response = refilled.post("/completion", request, headers=auth("bob"))
        contract.check(response, 429)
        assert "more than the limit" in contract.message(response)
        assert response.headers["x-should-retry"] == "false"
        assert "retry-after" not in response.headers
        assert response.headers["x-ratelimit-remaining-tokens"] == "60"


def test_an_answer_that_is_given_up_costs_what_it_used(refilled: OwnServer) -> None:
    request = body("create_completion", n_predict=5000, ignore_eos=True, stream=True)
    with refilled.http.stream("POST", "/completion", json=request, headers=auth("alice")) as answer:
        assert int(answer.headers["x-ratelimit-remaining-tokens"]) < 95_000 + 50
        parts = answer.iter_bytes()
        next(parts)

    def is_settled() -> bool:
        models = refilled.get("/v1/models", headers=auth("alice"))
        return int(models.headers["x-ratelimit-remaining-tokens"]) > 95_500

    wait_until(is_settled, "the tokens are given back")


@pytest.mark.parametrize("ask", [ask_openai, ask_anthropic])
def test_clients_do_not_wait_for_hours(ask: Ask, refilled: OwnServer, slept: list[float]) -> None:
    refused = use_up(refilled, "bob")
    assert int(refused.headers["retry-after"]) > 120
    assert refused.headers["x-should-retry"] == "false"
    with pytest.raises((openai.RateLimitError, anthropic.RateLimitError)):
        ask(refilled, "bob")
    assert not slept


# ---- stores ------------------------------------------------------------------------------------


def test_quotas_survive_a_restart(own_server: Start, folder: Path, tmp_path: Path) -> None:
    options = ("--keys-file", str(folder / "keys.toml"), "--quota-store", str(tmp_path / "q.db"))
    first = own_server(*options)
    contract.check(first.post("/completion", body("create_completion"), headers=auth("dave")))
    first.process.kill()
    first.process.wait()
    second = own_server(*options)
    again = second.get("/v1/models", headers=auth("dave"))
    assert int(again.headers["x-ratelimit-limit-requests"]) == 1_000_000
    with contextlib.closing(sqlite3.connect(tmp_path / "q.db", SECONDS)) as connection:
        [(level,)] = connection.execute("SELECT level FROM buckets")
    assert 999_999 <= level <= 1_000_000
    connection = sqlite3.connect(tmp_path / "q.db", SECONDS)
    with contextlib.closing(connection), connection:
        connection.execute("UPDATE buckets SET level = 0.0, at = at + 30")
    assert use_up(second, "dave").status_code == 429


def test_servers_share_quotas_and_refuse_without_their_store(
    own_server: Start, folder: Path, tmp_path: Path
) -> None:
    with redis_server(tmp_path) as redis:
        options = ("--keys-file", str(folder / "keys.toml"), "--quota-store", redis.url)
        servers = [own_server(*options, api_key="root") for _ in range(2)]
        use_up(servers[0], "bob")
        refused = servers[1].post("/completion", body("create_completion"), headers=auth("bob"))
        contract.check(refused, 429)
    for server in servers:
        refused = server.post("/completion", body("create_completion"), headers=auth("alice"))
        contract.check(refused, 503)
        assert int(refused.headers["Retry-After"]) > 0
        assert "quotas" in contract.message(refused)
        assert "are refused: the Redis server" in server.log.read_text("utf-8")
        assert server.post("/completion", body("create_completion")).status_code == 200


# ---- usage -------------------------------------------------------------------------------------


def rows(server: OwnServer, query: str = "", name: str = "") -> list[dict[str, Any]]:
    headers = auth(name) if name else None
    answer = contract.check(server.get(f"/v1/usage{query}", headers=headers))
    found: list[dict[str, Any]] = answer["data"]
    return found


def total(server: OwnServer, name: str = "") -> dict[str, Any]:
    """Returns the sums of one key."""
    query = "?group_by=key"
    [row] = [row for row in rows(server, query) if row["key"] == name]
    return row


def test_usage_is_what_the_answers_say(own_server: Start, folder: Path) -> None:
    server = own_server("--keys-file", str(folder / "keys.toml"), api_key="root")
    request = body("create_completion", prompt="A llama and a bus.", n_predict=5, n_cmpl=2)
    texts = contract.check(server.post("/completion", request, headers=auth("dave")))
    streamed = body("create_completion", n_predict=7, ignore_eos=True, stream=True)
    last = contract.check(server.post("/completion", streamed, headers=auth("dave")))[-1]
    use_up(server, "alice")
    timings = [each["timings"] for each in (*texts, last)]
    [mine] = rows(server, name="dave")
    assert mine["key"] == "dave"
    assert mine["model"] == last["model"]
    assert mine["hour"] % 3600 == 0
    assert mine["requests"] == 2
    assert mine["refused"] == 0
    assert mine["generated_tokens"] == sum(each["predicted_n"] for each in timings)
    assert mine["cached_tokens"] == sum(each["cache_n"] for each in timings)
    assert mine["prompt_tokens"] == sum(each["cache_n"] + each["prompt_n"] for each in timings)
    assert mine["seconds"] > 0
    alices = total(server, "alice")
    assert (alices["requests"], alices["refused"]) == (2, 1)
    keys = [row["key"] for row in rows(server, "?group_by=key")]
    assert keys == ["alice", "dave"]
    assert rows(server, "?group_by=key&limit=1&offset=1") == [total(server, "dave")]
    assert not rows(server, f"?since={mine['hour'] + 3600 * 24}")
    assert not rows(server, f"?until={mine['hour']}", name="dave")


@pytest.mark.parametrize("mode", ["--embeddings", "--reranking"])
def test_usage_of_inputs(mode: str, own_server: Start) -> None:
    if mode == "--embeddings":
        server = own_server(mode, "--pooling", "mean")
        request: dict[str, Any] = {"input": ["a llama", "a bus"] * 100}
        answer = contract.check(server.post("/v1/embeddings", request))
    else:
        server = own_server("-m", model_file("tiny-rerank"), mode, named=True)
        request = {"query": "wool", "documents": ["a llama", "a bus"] * 100}
        answer = contract.check(server.post("/v1/rerank", request))
    row = total(server)
    assert row["requests"] == 1
    assert row["prompt_tokens"] == answer["usage"]["prompt_tokens"] > 400


@posix
def test_a_killed_server_loses_at_most_a_second(own_server: Start, tmp_path: Path) -> None:
    path = tmp_path / "usage.db"
    server = own_server("--usage-db", str(path))
    for _ in range(3):
        contract.check(server.post("/completion", body("create_completion", n_predict=5)))

    def written() -> int | None:
        with contextlib.closing(sqlite3.connect(path, SECONDS)) as connection:
            [(n,)] = connection.execute("SELECT sum(generated_tokens) FROM usage")
        return n if n == 15 else None

    wait_until(written, "the last second is written")
    server.process.kill()
    server.process.wait()
    others = [own_server("--usage-db", str(path)) for _ in range(2)]
    for other in others:
        contract.check(other.post("/completion", body("create_completion", n_predict=5)))
        other.stop()
    last = own_server("--usage-db", str(path))
    row = total(last)
    assert (row["requests"], row["generated_tokens"]) == (5, 25)
