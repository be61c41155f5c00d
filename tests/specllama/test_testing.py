"""The server for other programs' tests."""

import json
import urllib.request

import pytest

from specllama.testing import ServerError, llm_server


def test_it_answers_and_ends() -> None:
    with llm_server("--threads", "1") as server:
        body = {"model": server.model, "prompt": "a", "max_tokens": 3}
        request = urllib.request.Request(
            f"{server.base_url}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] <= 3
        assert server.process.poll() is None
    assert server.process.poll() == 0
    assert not server.log.exists()


def test_options_of_the_environment_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_API_KEY", "secret")
    with (
        llm_server("--threads", "1") as server,
        urllib.request.urlopen(f"{server.base_url}/v1/models") as answer,
    ):
        assert answer.status == 200


def test_a_server_that_ends_is_an_error_with_its_log() -> None:
    with (
        pytest.raises(ServerError, match=r"ended with code 1:\n[^\n]*--no-such-option"),
        llm_server("--no-such-option"),
    ):
        pass


def test_an_error_of_the_block_ends_the_server() -> None:
    with pytest.raises(ZeroDivisionError), llm_server("--threads", "1") as server:
        _ = 1 / 0
    assert server.process.poll() == 0
