"""Completions of a paper engine, native and OpenAI's."""

import time
from typing import Any

import pytest

from contract_tests.kit.server import SECONDS
from tests.support.paper_server import WORDS, Server

# ---- native completions ------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/completion", "/completions"])
def test_a_completion(server: Server, path: str) -> None:
    answer = server.post(path, prompt="x", n_predict=5, seed=1).json()
    assert answer["content"] == "".join(WORDS)
    assert answer["tokens"] == []
    assert (answer["tokens_evaluated"], answer["tokens_cached"]) == (7, 4)
    assert answer["tokens_predicted"] == 5
    assert (answer["model"], answer["generation_settings"]["n_predict"]) == ("a", 5)
    [generation] = server.engine.generations
    assert generation.cancelled.is_set()


def test_tokens_on_request(server: Server) -> None:
    assert server.post("/completion", prompt="x", return_tokens=True).json()["tokens"]


def test_several_prompts_come_back_in_order(server: Server) -> None:
    answers = server.post("/completion", prompt=["x", [1, "y"], {"prompt_string": "z"}]).json()
    assert [answer["index"] for answer in answers] == [0, 1, 2]
    assert [answer["prompt"] for answer in answers] == ["x", "1|y", "z"]


def test_a_stream(server: Server) -> None:
    *deltas, last = server.events("/completion", prompt="x")
    assert [delta["content"] for delta in deltas] == WORDS
    assert [delta["tokens"] for delta in deltas] == [[0], [1], [2], [3], [4]]
    assert [delta["tokens_predicted"] for delta in deltas] == [1, 2, 3, 4, 5]
    assert {(delta["tokens_evaluated"], delta["id_slot"]) for delta in deltas} == {(7, 1)}
    assert not any("timings" in delta or delta["stop"] for delta in deltas)
    assert last["stop"]
    assert last["content"] == ""
    assert last["timings"]["predicted_n"] == 5
    *deltas, _ = server.events("/completion", prompt="x", timings_per_token=True)
    assert [delta["timings"]["predicted_n"] for delta in deltas] == [1, 2, 3, 4, 5]


def test_a_stream_of_several_prompts(server: Server) -> None:
    events = server.events("/completion", prompt=["x", "y", "z"])
    for index in range(3):
        mine = [event for event in events if event["index"] == index]
        assert "".join(event["content"] for event in mine) == "".join(WORDS)
        assert [event["stop"] for event in mine] == [False] * 5 + [True]


def test_an_error_before_the_first_event_is_no_stream(server: Server) -> None:
    for stream in (False, True):
        for path in ("/completion", "/v1/completions"):
            response = server.post(path, prompt="fail", stream=stream)
            assert response.status_code == 400
            error = response.json()["error"]
            assert error["type"] == "exceed_context_size_error"
            assert (error["n_prompt_tokens"], error["n_ctx"]) == (99, 64)


def test_a_later_error_is_the_last_event(server: Server) -> None:
    first, last = server.events("/completion", prompt="late")
    assert first["content"] == WORDS[0]
    assert last["error"]["message"] == "late"


@pytest.mark.parametrize("stream", [False, True])
def test_one_failure_ends_all(server: Server, stream: bool) -> None:
    response = server.post("/completion", prompt=["hang", "fail"], stream=stream)
    assert response.status_code == 400
    assert "exceed_context_size_error" in response.text
    assert all(generation.cancelled.wait(SECONDS) for generation in server.engine.generations)


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
@pytest.mark.parametrize("prompt", ["hang", ["hang", "hang"]])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_cancels(server: Server, path: str, prompt: Any, stream: bool) -> None:
    n = 1 if prompt == "hang" else 2
    with server.asking(path, prompt=prompt, stream=stream) as connection:
        while len(server.engine.generations) < n:
            time.sleep(0.01)
        if stream:
            assert connection.recv(1), "it has begun"
    assert len(server.engine.generations) == n
    assert all(generation.cancelled.wait(SECONDS) for generation in server.engine.generations)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"prompt": []}, 400),
        ({"prompt": [[]]}, 400),
        ({"prompt": [1.5]}, 400),
        ({"prompt": [-1]}, 400),
        ({"prompt": None}, 400),
        ({}, 400),
        ({"prompt": ["x"] * 5, "n": 1000}, 400),
        ({"prompt": "x", "response_format": {"type": "json_object"}, "grammar": "root ::= x"}, 400),
    ],
)
@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
def test_refusals(server: Server, path: str, body: dict[str, Any], status: int) -> None:
    assert server.post(path, **body).status_code == status
    assert not server.engine.generations


# ---- OpenAI completions ------------------------------------------------------------------


def test_an_openai_completion(server: Server) -> None:
    answer = server.post("/v1/completions", prompt=["x", "y"], model="mine", max_tokens=5).json()
    assert [choice["text"] for choice in answer["choices"]] == ["".join(WORDS)] * 2
    assert answer["model"] == "a"  # the served one's, as llama-server says
    assert answer["usage"]["total_tokens"] == 24
    assert server.engine.generations[0].params.n_predict == 5


def test_an_openai_stream(server: Server) -> None:
    *chunks, last, done = server.events("/v1/completions", prompt="x")
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "".join(WORDS)
    assert last["choices"][0]["finish_reason"] == "length"
    assert last["usage"]["completion_tokens"] == 5
