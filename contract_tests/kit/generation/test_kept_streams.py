"""Streams that continue without their clients: reading them later, and ending them."""

import contextlib
import itertools
import json
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from contract_tests.kit import contract
from contract_tests.kit.bodies import STREAMING, body, path
from contract_tests.kit.events import read_events, text_of
from contract_tests.kit.server import SECONDS, Server, Start, wait_until

CHAT = "create_chat_completion"
KEPT = [name for name in STREAMING if "ollama" not in name]
LONG: dict[str, Any] = {"max_tokens": 100, "ignore_eos": True, "temperature": 0}
ENDLESS: dict[str, Any] = {"max_tokens": 7000, "ignore_eos": True}


def new_id() -> str:
    return f"contract tests/{secrets.token_hex(8)}"


@contextlib.contextmanager
def stream(
    server: Server, conversation: str, name: str = CHAT, **changes: Any
) -> Iterator[httpx.Response]:
    with server.http.stream(
        "POST",
        path(name),
        json=body(name, stream=True, **changes),
        headers={"X-Conversation-Id": conversation},
    ) as response:
        assert response.status_code == 200, response.read()
        yield response


def again(server: Server, conversation: str, **query: Any) -> httpx.Response:
    return server.get("/v1/stream", params={"conv_id": conversation, **query})


def found(server: Server, *conversations: str) -> Any:
    return contract.check(
        server.post("/v1/streams/lookup", {"conversation_ids": list(conversations)})
    )


@pytest.mark.parametrize("name", KEPT)
def test_a_complete_stream_comes_back(name: str, server: Server) -> None:
    conversation = new_id()
    with stream(server, conversation, name) as response:
        sent = response.read()
    assert sent
    shown = again(server, conversation)
    assert shown.content == sent
    assert shown.headers["content-type"] == response.headers["content-type"]
    assert again(server, conversation, **{"from": 7}).content == sent[7:]
    assert again(server, conversation, **{"from": len(sent) + 7}).content == b""
    [status] = found(server, conversation)
    assert (status["is_done"], status["total_bytes"]) == (True, len(sent))
    assert 0 < status["started_at"] <= status["completed_at"]


@pytest.mark.parametrize("name", KEPT)
def test_offsets_count_escapes(name: str, server: Server) -> None:
    """U+2028 has three bytes, but its escape in a stream has six."""
    grammar = 'root ::= "a\u2028\u2029\x85b"'
    conversation = new_id()
    with stream(server, conversation, name, grammar=grammar) as response:
        sent = response.read()
    assert b"\\u2028" in sent
    [status] = found(server, conversation)
    assert status["total_bytes"] == len(sent)
    for offset in range(len(sent) - 300, len(sent)):
        assert again(server, conversation, **{"from": offset}).content == sent[offset:]


def test_a_stream_goes_on_without_its_client(server: Server) -> None:
    conversation = new_id()
    whole = server.ask(path(CHAT), body(CHAT, **LONG))["choices"][0]["message"]
    with stream(server, conversation, **LONG) as response:
        begin = next(response.iter_raw())
    rest = again(server, conversation, **{"from": len(begin)})
    events = [*read_events([begin, rest.content])]
    said = "".join(map(text_of, contract.check_stream(contract.operations()[CHAT], events)))
    assert said == whole["content"]
    assert events[-1].data == "[DONE]"
    server.wait_until_idle()


def test_many_clients_read_a_running_stream(server: Server) -> None:
    conversation = new_id()
    with stream(server, conversation, **LONG) as response:
        chunks = response.iter_raw()
        sent = next(chunks)
        with server.http.stream(
            "GET", "/v1/stream", params={"conv_id": conversation}
        ) as second, server.http.stream(
            "GET", "/v1/stream", params={"conv_id": conversation, "from": 5}
        ) as third:  # fmt: skip
            early = next(second.iter_raw())
            sent += b"".join(chunks)
            assert sent.startswith(early)
            assert third.read() == sent[5:]
    assert again(server, conversation).content == sent


def test_a_client_ends_a_stream(server: Server) -> None:
    conversation = new_id()
    with stream(server, conversation, **ENDLESS) as response:
        chunks = response.iter_raw()
        sent = next(chunks)
        [status] = found(server, conversation)
        assert (status["is_done"], status["completed_at"]) == (False, 0)
        assert server.http.delete("/v1/stream", params={"conv_id": conversation}).status_code == 204
        sent += b"".join(chunks)
    assert b"[DONE]" not in sent
    assert not [*read_events([sent])][-1].data.startswith('{"error"')
    contract.check(again(server, conversation), 404)
    assert found(server, conversation) == []
    server.wait_until_idle()


def test_the_next_answer_replaces_the_last(server: Server) -> None:
    for streams in (True, False):
        conversation = new_id()
        with stream(server, conversation, **ENDLESS) as first:
            chunks = first.iter_raw()
            sent = next(chunks)
            response = server.post(
                path(CHAT),
                body(CHAT, stream=streams),
                headers={"X-Conversation-Id": conversation},
            )
            sent += b"".join(chunks)
        assert b"[DONE]" not in sent
        if streams:
            assert again(server, conversation).content == response.content
        else:
            contract.check(response)
            assert found(server, conversation) == []
    server.wait_until_idle()


def test_a_stream_that_fails_at_its_start_is_not_kept(server: Server) -> None:
    conversation = new_id()
    response = server.post(
        path(CHAT),
        body(CHAT, stream=True, grammar="root ::= ("),
        headers={"X-Conversation-Id": conversation},
    )
    contract.check(response, 400)
    contract.check(again(server, conversation), 404)


def test_names_of_models_behind_conversations(server: Server) -> None:
    one, other = new_id(), new_id()
    names = [f"{one}::a/b", f"{one}::c", other]
    for name in names:
        with stream(server, name) as response:
            response.read()
    assert [each["conversation_id"] for each in found(server, other, one)] == [other, *names[:2]]
    assert found(server, one[:-1], "", one + ":") == []
    assert again(server, names[0]).status_code == 200


def test_a_stream_waits_for_a_slot(own_server: Start) -> None:
    """Readers wait as well. A stream whose client leaves before its begin waits on."""
    server = own_server("-np", "1")
    with stream(server, "first", **ENDLESS) as first:
        next(first.iter_raw())
        data = body(CHAT, stream=True)
        content = httpx.Request("POST", server.url, json=data).content
        head = server.head(path(CHAT), len(content), **{"X-Conversation-Id": "second"})
        with server.raw(head + content):
            wait_until(lambda: bool(found(server, "second")), "the second stream waits")
        with ThreadPoolExecutor(2) as pool:
            reading = pool.submit(again, server, "second")
            waiting = pool.submit(
                server.post, path(CHAT), json.loads(content), headers={"X-Conversation-Id": "third"}
            )
            wait_until(lambda: bool(found(server, "third")), "the third stream waits")
            assert server.http.delete("/v1/stream", params={"conv_id": "third"}).is_success
            assert (waiting.result().status_code, waiting.result().content) == (200, b"")
            assert not reading.done()
            assert server.http.delete("/v1/stream", params={"conv_id": "first"}).status_code == 204
            contract.check_stream(
                contract.operations()[CHAT], [*read_events([reading.result().content])]
            )


@pytest.mark.parametrize("field", ["authorization", "x-api-key"])
def test_streams_belong_to_keys(field: str, own_server: Start) -> None:
    server = own_server("--api-key", "one,two")
    keys = {"authorization": "Bearer {}", "x-api-key": "{}"}
    mine, other = ({field: keys[field].format(key)} for key in ("one", "two"))
    conversation = {"X-Conversation-Id": "c"}
    with httpx.Client(base_url=server.url, timeout=SECONDS) as http:
        sent = http.post(path(CHAT), json=body(CHAT, stream=True), headers=mine | conversation)
        query = {"conv_id": "c"}

        def seen(headers: dict[str, str]) -> tuple[int, int]:
            look = http.post(
                "/v1/streams/lookup", json={"conversation_ids": ["c"]}, headers=headers
            )
            return http.get("/v1/stream", params=query, headers=headers).status_code, len(
                look.json()
            )

        assert seen(mine) == (200, 1)
        assert seen(other) == (404, 0)
        assert http.delete("/v1/stream", params=query, headers=other).status_code == 204
        assert http.get("/v1/stream", params=query, headers=mine).content == sent.content
        assert seen({}) == (401, 1), "the error is one member"


# ---- the end of thoughts ---------------------------------------------------------------------

THINKING: dict[str, Any] = {
    "thinking_forced_open": True,
    "reasoning_format": "deepseek",
    "max_tokens": 2000,
    "ignore_eos": True,
    # Reasoning that the model would end itself is over before a client can end it.
    "logit_bias": [["</think>", -50]],
    "reasoning_budget_message": " Enough of that.",
}


def control(server: Server, id: str) -> Any:
    return contract.check(
        server.post("/v1/chat/completions/control", {"id": id, "action": "reasoning_end"})
    )


@pytest.mark.parametrize("n", [1, 2])
def test_a_client_ends_the_reasoning(n: int, server: Server) -> None:
    thoughts, content = [""] * n, [""] * n
    request = body(CHAT, n=n, reasoning_control=True, **THINKING)
    with server.stream(path(CHAT), request) as (_, events):
        for event in itertools.takewhile(lambda each: each.data != "[DONE]", events):
            asked = all(thoughts)
            for choice in event.json["choices"]:
                delta = choice["delta"]
                thoughts[choice["index"]] += delta.get("reasoning_content") or ""
                content[choice["index"]] += delta.get("content") or ""
            if all(thoughts) and not asked:
                assert control(server, event.json["id"]) == {"success": True}
            if all(content):
                break
    for each in thoughts:
        assert each.endswith(" Enough of that.")
        assert each.count("Enough of that.") == 1
    assert all(content)
    server.wait_until_idle()
    assert control(server, event.json["id"]) == {
        "success": False,
        "message": "no active completion for this id",
    }


def test_reasoning_can_only_be_ended_if_the_request_allows_it(server: Server) -> None:
    with server.stream(path(CHAT), body(CHAT, **THINKING)) as (_, events):
        answer = control(server, next(events).json["id"])
    assert answer["success"] is False
    assert "not enabled" in answer["message"]
    server.wait_until_idle()


def test_budgets_have_a_message(server: Server) -> None:
    request = body(CHAT, **{**THINKING, "max_tokens": 64}, reasoning_budget_tokens=4)
    message = server.ask(path(CHAT), request)["choices"][0]["message"]
    assert message["reasoning_content"].endswith(" Enough of that.")
    assert message["content"]


def test_a_server_has_a_message(own_server: Start) -> None:
    options = ("--reasoning-budget", "4", "--reasoning-budget-message", " That will do.")
    server = own_server(*options)
    request = {**THINKING, "max_tokens": 64}
    del request["reasoning_budget_message"]
    message = server.ask(path(CHAT), body(CHAT, **request))["choices"][0]["message"]
    assert message["reasoning_content"].endswith(" That will do.")
    response = server.ask("/v1/responses", {"input": "Hello", "max_output_tokens": 64})
    assert response["output"]


def test_budgets_outside_of_chats(server: Server) -> None:
    request = {
        "prompt": "Once upon a time",
        "generation_prompt": "<think>",
        "reasoning_budget_start_tag": "<think>",
        "reasoning_budget_end_tags": ["</think>"],
        "reasoning_budget_tokens": 3,
        "reasoning_budget_message": " Enough.",
        "n_predict": 40,
        "temperature": 0,
    }
    endless = {**request, "ignore_eos": True}
    free = server.ask("/completion", {**endless, "reasoning_budget_tokens": -1, "n_predict": 3})
    text = server.ask("/completion", endless)["content"]
    assert text.startswith(free["content"] + " Enough.</think>")
    begun = {"grammar": 'root ::= "abc"', "grammar_type": "tool_calls", "generation_prompt": "a"}
    assert server.ask("/completion", {**request, **begun})["content"] == "bc"
