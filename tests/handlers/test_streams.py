"""Streams that go on without their clients, with an engine made of paper."""

from typing import Any

import httpx
import pytest

from contract_tests.kit.server import SECONDS
from tests.support.paper_server import Server

pytestmark = pytest.mark.slow

C = {"X-Conversation-Id": "c"}
QUERY = {"conv_id": "c"}


@pytest.fixture(autouse=True)
def clean(server: Server) -> None:
    server.http.delete("/v1/stream", params=QUERY)


def ask(server: Server, prompt: str, **body: Any) -> httpx.Response:
    return server.http.post(
        "/completion", json={"prompt": prompt, "stream": True, **body}, headers=C
    )


def found(server: Server) -> Any:
    return server.post("/v1/streams/lookup", conversation_ids=["c", "c"]).json()


def test_a_stream_is_shown_again(server: Server) -> None:
    sent = ask(server, "x").content
    assert server.http.get("/v1/stream", params=QUERY).content == sent
    later = server.http.get("/v1/stream", params={**QUERY, "from": 9})
    assert later.content == sent[9:]
    [status] = found(server)
    assert (status["conversation_id"], status["total_bytes"]) == ("c", len(sent))


def test_a_failure_is_kept_too(server: Server) -> None:
    sent = ask(server, "late")
    assert b'"message":"late"' in sent.content
    assert server.http.get("/v1/stream", params=QUERY).content == sent.content


def test_a_failure_before_the_beginning_is_not(server: Server) -> None:
    assert ask(server, "fail").status_code == 400
    assert found(server) == []
    assert server.get("/v1/stream", **QUERY).status_code == 404


def test_the_work_goes_on_and_ends_with_the_stream(server: Server) -> None:
    with server.http.stream(
        "POST", "/completion", json={"prompt": "hang", "stream": True}, headers=C
    ) as response:
        next(response.iter_raw())
    [generation] = server.engine.generations
    assert not generation.cancelled.is_set()
    [status] = found(server)
    assert not status["is_done"]
    with server.http.stream("GET", "/v1/stream", params=QUERY) as shown:
        chunks = shown.iter_raw()
        assert next(chunks)
        assert server.http.delete("/v1/stream", params=QUERY).status_code == 204
        assert not b"".join(chunks).endswith(b"[DONE]\n\n")
    assert generation.cancelled.wait(SECONDS)
    assert found(server) == []


def test_pings_are_a_part_of_the_stream(server: Server) -> None:
    body = {"prompt": "hang", "stream": True, "sse_ping_interval": 1}
    with server.http.stream("POST", "/completion", json=body, headers=C) as response:
        sent = b""
        for chunk in response.iter_raw():
            sent += chunk
            if b"\n\n:\n\n" in sent:
                break
    with server.http.stream("GET", "/v1/stream", params=QUERY) as shown:
        again = b""
        for chunk in shown.iter_raw():
            again += chunk
            if len(again) >= len(sent):
                break
    assert again.startswith(sent)


def test_who_falls_behind_sees_an_error(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.runtime.streams, "max_stream_bytes", 10)
    for path, kind in (("/completion", b"data: {"), ("/v1/messages", b"event: error\n")):
        body = {"prompt": "x", "messages": [{"role": "user", "content": "u"}], "stream": True}
        sent = server.http.post(path, json=body, headers=C).content
        assert sent.startswith(kind)
        assert b"Stream offset lost" in sent


def test_a_lost_beginning(server: Server) -> None:
    sent = ask(server, "x").content
    [stream] = server.runtime.streams.find("", ["c"])
    stream.drop(len(sent) - 100)
    lost = server.get("/v1/stream", **QUERY)
    assert lost.status_code == 400
    assert lost.json()["error"]["message"] == "Stream offset lost, please restart"
    rest = {**QUERY, "from": str(len(sent) - 100)}
    assert server.http.get("/v1/stream", params=rest).content == sent[-100:]


def test_too_many_streams_are_ordinary_ones(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.runtime.streams, "_max_streams", 0)
    assert ask(server, "x").status_code == 200
    assert found(server) == []


def test_an_answer_without_a_stream_is_not_kept(server: Server) -> None:
    ask(server, "x")
    assert len(found(server)) == 1
    assert ask(server, "x", stream=False).status_code == 200
    assert found(server) == []


def test_nothing_is_running_that_could_be_controlled(server: Server) -> None:
    answer = server.post("/v1/chat/completions/control", id="chatcmpl-0", action="reasoning_end")
    assert answer.json() == {"success": False, "message": "no active completion for this id"}
