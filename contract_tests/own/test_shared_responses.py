"""Stored responses that several servers share, in a file or in Redis."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from contract_tests.kit import contract
from contract_tests.kit.bodies import body
from contract_tests.kit.server import OwnServer, Server, Start, wait_until
from tests.support.redis_servers import RedisProcess, redis_server

LONG = {"n_predict": 8000, "ignore_eos": True, "max_output_tokens": None}
ARGV = ("-c", "16384", "-np", "2")
LOST = "couldn't store it"
RUNNING = ("queued", "in_progress")


def ask(server: Server, **changes: Any) -> Any:
    return contract.check(server.post("/v1/responses", body("create_response", **changes)))


def get(server: Server, id: str) -> Any:
    return contract.check(server.get(f"/v1/responses/{id}"))


@contextmanager
def redis_client(redis: RedisProcess) -> Iterator[Any]:
    client = pytest.importorskip("redis").Redis.from_url(redis.url)
    try:
        yield client
    finally:
        client.close()


@pytest.fixture(params=["file", "redis"])
def servers(
    request: pytest.FixtureRequest, own_server: Start, tmp_path: Path
) -> Iterator[list[OwnServer]]:
    """Two servers with the same store."""
    if request.param == "file":
        where = str(tmp_path / "responses.db")
        yield [own_server(*ARGV, "--responses-db", where) for _ in range(2)]
        return
    with redis_server(tmp_path) as redis:
        yield [own_server(*ARGV, "--responses-db", redis.url) for _ in range(2)]


def test_each_finds_the_responses_of_the_other(servers: list[OwnServer]) -> None:
    one, other = servers
    first = ask(one, input="My name is Ann.")
    assert get(other, first["id"])["output"] == first["output"]
    page = contract.check(other.get(f"/v1/responses/{first['id']}/input_items"))
    assert [each["role"] for each in page["data"]] == ["user"]
    second = ask(other, previous_response_id=first["id"])
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    third = ask(one, previous_response_id=second["id"])
    assert third["usage"]["input_tokens"] > second["usage"]["input_tokens"]
    contract.check(other.http.delete(f"/v1/responses/{first['id']}"))
    contract.check(one.get(f"/v1/responses/{first['id']}"), 404)
    refused = one.post("/v1/responses", body("create_response", previous_response_id=third["id"]))
    assert first["id"] in contract.message(refused)


def test_each_continues_the_conversations_of_the_other(servers: list[OwnServer]) -> None:
    one, other = servers
    talk = one.ask("/v1/conversations", {"items": [{"role": "user", "content": "I am Ann."}]})
    where, n = f"/v1/conversations/{talk['id']}/items", 8
    sealed = ["reasoning.encrypted_content"]

    def asked(index: int) -> Any:
        background = {"background": index % 4 == 3, "include": sealed}
        return ask(servers[index % 2], input=str(index), conversation=talk["id"], **background)

    with ThreadPoolExecutor(n) as pool:
        made = [each["id"] for each in pool.map(asked, range(n))]

    def all_ended() -> bool:
        return not any(get(other, id)["status"] in RUNNING for id in made)

    wait_until(all_ended, "they end")
    items = contract.check(other.get(f"{where}?order=asc&limit=100"))["data"]
    assert items == contract.check(one.get(f"{where}?order=asc&limit=100"))["data"]
    groups = {
        each["content"][0]["text"]: index for index, each in enumerate(items[1:]) if each["id"]
    }
    for index, id in enumerate(made):
        start = 1 + groups[str(index)]
        output = get(one, id)["output"]
        assert items[start + 1 : start + 1 + len(output)] == output
    assert len(items) == 1 + n + sum(len(get(one, id)["output"]) for id in made)
    contract.check(other.http.delete(f"/v1/conversations/{talk['id']}"))
    contract.check(one.get(where), 404)


def test_each_reads_the_sealed_reasoning_of_the_other(servers: list[OwnServer]) -> None:
    one, other = servers
    sealed = sealed_thought(one)
    assert read_thought(other, sealed) == read_thought(one, sealed) != []


def test_sealed_reasoning_survives_a_restart(own_server: Start, tmp_path: Path) -> None:
    sealed = sealed_thought(own_server(*ARGV))
    assert read_thought(own_server(*ARGV), sealed)
    key = str(tmp_path / "secret")
    first, second = (own_server(*ARGV, "--responses-key-file", key) for _ in range(2))
    assert not read_thought(first, sealed)
    assert read_thought(second, sealed_thought(first))


def sealed_thought(server: Server) -> str:
    """Returns the sealed reasoning of a response."""
    thinking = {"reasoning_budget_tokens": 8, "thinking_forced_open": True, "ignore_eos": True}
    include = ["reasoning.encrypted_content"]
    asked = {"chat_template_kwargs": {"enable_thinking": True}, "max_output_tokens": 48}
    made = ask(server, include=include, **asked, **thinking)
    return str(
        next(each for each in made["output"] if each["type"] == "reasoning")["encrypted_content"]
    )


def read_thought(server: Server, sealed: str) -> list[Any]:
    """Returns the content that the server reads from sealed reasoning."""
    item = {"type": "reasoning", "summary": [], "encrypted_content": sealed}
    made = ask(server, input=[{"role": "user", "content": "Hello"}, item])
    page = contract.check(server.get(f"/v1/responses/{made['id']}/input_items"))
    content: list[Any] = page["data"][0]["content"]
    return content


def test_a_response_in_the_background_is_everywhere(servers: list[OwnServer]) -> None:
    one, other = servers
    id = ask(one, background=True, **LONG)["id"]
    wait_until(lambda: get(other, id)["status"] == "in_progress", "its state is stored")
    page = contract.check(other.get(f"/v1/responses/{id}/input_items"))
    assert [each["role"] for each in page["data"]] == ["user"]
    refused = other.post("/v1/responses", body("create_response", previous_response_id=id))
    contract.check(refused, 400)
    assert "has not ended" in contract.message(refused)
    cancelled = contract.check(other.post(f"/v1/responses/{id}/cancel", None))
    assert (cancelled["status"], cancelled["output"]) == ("cancelled", [])
    [slot, _] = one.wait_until_idle()
    assert slot["next_token"]["n_decoded"] < LONG["n_predict"], "it was served to its end"
    for server in servers:
        assert get(server, id) == cancelled
        assert contract.check(server.post(f"/v1/responses/{id}/cancel", None)) == cancelled
    id = ask(one, background=True, **LONG)["id"]
    contract.check(other.http.delete(f"/v1/responses/{id}"))
    one.wait_until_idle()
    contract.check(one.get(f"/v1/responses/{id}"), 404)
    id = ask(one, background=True)["id"]
    wait_until(lambda: get(other, id)["status"] not in ("queued", "in_progress"), "it ends")
    assert get(other, id) == get(one, id)
    assert get(other, id)["output"]


def test_a_response_of_a_killed_server_is_lost(own_server: Start, tmp_path: Path) -> None:
    with redis_server(tmp_path) as redis, redis_client(redis) as client:
        options = (*ARGV, "--responses-db", redis.url)
        one, other = (own_server(*options) for _ in range(2))
        id = ask(one, background=True, **LONG)["id"]
        one.process.kill()
        one.process.wait()
        assert get(other, id)["status"] in ("queued", "in_progress")
        client.hset(f"specllama:responses:response:{id}", "claimed_until", "1")
        lost = get(other, id)
        assert (lost["status"], lost["error"]["code"]) == ("failed", "server_error")
        assert LOST in lost["error"]["message"]
        assert contract.check(other.post(f"/v1/responses/{id}/cancel", None)) == lost
        ask(other, previous_response_id=id)


def test_a_server_stops_the_generation_of_a_lost_response(
    own_server: Start, tmp_path: Path
) -> None:
    with redis_server(tmp_path) as redis, redis_client(redis) as client:
        server = own_server(*ARGV, "--responses-db", redis.url)
        id = ask(server, background=True, **LONG)["id"]
        client.hset(f"specllama:responses:response:{id}", "claimed_until", "1")
        server.wait_until_idle()
        assert get(server, id)["status"] == "failed"


def test_requests_that_need_a_missing_store_are_refused(own_server: Start, tmp_path: Path) -> None:
    with redis_server(tmp_path) as redis:
        server = own_server(*ARGV, "--responses-db", redis.url)
        id = ask(server)["id"]
        redis.kill()
        for changes in ({}, {"stream": True}, {"background": True}, {"previous_response_id": id}):
            refused = server.post("/v1/responses", body("create_response", **changes))
            contract.check(refused, 503)
            assert int(refused.headers["Retry-After"]) > 0
        for refused in (
            server.get(f"/v1/responses/{id}"),
            server.get(f"/v1/responses/{id}/input_items"),
            server.http.delete(f"/v1/responses/{id}"),
            server.post(f"/v1/responses/{id}/cancel", None),
        ):
            contract.check(refused, 503)
            assert int(refused.headers["Retry-After"]) > 0
        assert "are refused: the Redis server" in server.log.read_text("utf-8")
        ask(server, store=False)
        redis.start()
        assert get(server, ask(server)["id"])["output"]


def test_a_password_is_not_in_the_log(own_server: Start, tmp_path: Path) -> None:
    with redis_server(tmp_path, "--requirepass", "r1ght") as redis:
        for password in ("r1ght", "wr0ng"):
            url = redis.url.replace("//", f"//:{password}@")
            server = own_server(*ARGV, "--responses-db", url, "--quota-store", url)
            answer = server.post("/v1/responses", body("create_response"))
            contract.check(answer, 200 if password == "r1ght" else 503)
            assert password not in server.log.read_text("utf-8")
