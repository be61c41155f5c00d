"""Small requests that cause much work or a large answer."""

import contextlib
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest

from contract_tests.kit import contract
from contract_tests.kit.bodies import body
from contract_tests.kit.server import OwnServer, Start, wait_until

MIB = 1 << 20

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux reports a process's peak memory"
)


def largest(server: OwnServer) -> int:
    """Returns the server process's peak memory in bytes."""
    with open(f"/proc/{server.process.pid}/status") as status:
        [line] = [line for line in status if line.startswith("VmHWM")]
    return int(line.split()[1]) << 10


def test_a_long_prompt_for_many_texts_costs_one_prompt(own_server: Start) -> None:
    server = own_server("-np", "2")
    prompt = "word " * MIB  # 5 MiB
    before = largest(server)
    with ThreadPoolExecutor() as pool:
        many = body("create_completion", prompt=prompt, n_cmpl=1024, n_predict=1)
        refused = pool.submit(server.post, "/completion", many)
        for _ in range(3):
            contract.check(server.post("/completion", body("create_completion", n_predict=1)))
        answer = refused.result()
    error = contract.check(answer, 400)["error"]
    assert error["type"] == "exceed_context_size_error"
    assert largest(server) - before < 128 * MIB, "1,024 prompts have 5 GiB"
    assert psutil.pid_exists(server.engine().pid)


def test_probabilities_of_many_texts_are_refused_or_bounded(own_server: Start) -> None:
    server = own_server("-np", "2", "-c", "4096")
    before = largest(server)
    large = {"n_cmpl": 1024, "n_probs": 1024, "ignore_eos": True}
    answer = server.post("/completion", body("create_completion", **large, n_predict=2000))
    message = contract.check(answer, 400)["error"]["message"]
    for name in ("n_cmpl", "n_probs", "n_predict"):
        assert name in message
    large["n_cmpl"] = 256
    bounded = body("create_completion", **large, n_predict=-1)
    texts = server.post("/completion", bounded)
    assert texts.status_code == 200
    assert texts.content.count(b'"top_logprobs"') == 256, "one token of each text"
    assert largest(server) - before < 1536 * MIB


def test_a_body_of_too_many_values_is_refused_before_it_is_decoded(own_server: Start) -> None:
    server = own_server("-np", "2")
    before = largest(server)
    shapes: list[Any] = [
        {str(i): 0 for i in range(1_200_000)},
        [[]] * 2_400_000,
        [{"a": [0]}] * 700_000,
    ]
    for shape in shapes:
        answer = server.post("/completion", body("create_completion", unknown=shape))
        error = contract.check(answer, 413)["error"]
        assert "keys" in error["message"]
    assert largest(server) - before < 128 * MIB


def test_a_body_of_many_values_is_checked_and_answered(own_server: Start) -> None:
    """A separate process checks the body, with the same error."""
    server = own_server("-np", "2")
    many = {f"unknown {i}": i for i in range(50_000)}
    contract.check(server.post("/completion", body("create_completion", **many)))
    for each in ({}, many):
        wrong = body("create_completion", **each, temperature="x")
        error = contract.check(server.post("/completion", wrong), 400)["error"]
        assert error["message"] == 'temperature: "x" is not a number or null'
    messages = [{"role": "user", "content": "a"}] * 20_000
    answer = server.post("/v1/chat/completions", {"messages": messages})
    assert contract.check(answer, 400)["error"]["type"] == "exceed_context_size_error"


def test_a_large_answer_comes_in_parts(own_server: Start) -> None:
    server = own_server("-np", "2")
    asked = body("create_completion", n_predict=50, n_probs=500, ignore_eos=True)
    answer = server.post("/completion", asked)
    tokens = contract.check(answer)["completion_probabilities"]
    assert [len(token["top_logprobs"]) for token in tokens] == [500] * 50
    assert "content-length" not in answer.headers
    one = contract.check(server.post("/completion", body("create_completion", n_predict=1)))
    assert one["content"] is not None


def test_texts_for_counting_are_bounded(own_server: Start) -> None:
    server = own_server("-np", "2")
    text = "word " * (4 * MIB)
    answer = server.post("/completion", body("create_completion", prompt=text))
    error = contract.check(answer, 400)["error"]
    assert error["n_prompt_tokens_is_lower_bound"] is True
    assert error["n_prompt_tokens"] >= MIB
    message = {"messages": [{"role": "user", "content": text}], "max_tokens": 1}
    counted = contract.check(server.post("/v1/messages", message), 400)["error"]
    assert counted["n_prompt_tokens_is_lower_bound"] is True
    assert counted["n_prompt_tokens"] >= error["n_prompt_tokens"]


def test_a_text_full_of_commas_is_one_value(own_server: Start) -> None:
    server = own_server("-np", "2")
    prompt = '",[{:\\' * (2 * MIB)
    answer = server.post("/completion", body("create_completion", prompt=prompt))
    assert contract.check(answer, 400)["error"]["type"] == "exceed_context_size_error"


def test_small_operations_accept_only_small_bodies(own_server: Start) -> None:
    server = own_server("--props", "--max-body-size", "20")
    long = "x" * (17 * MIB)
    contract.check(server.post("/tokenize", body("tokenize", content=long)), 413)
    contract.check(server.post("/props", {"unknown": long[: 2 * MIB]}), 413)
    contract.check(server.post("/completion", body("create_completion", unknown=long)))


def test_bodies_have_a_share_of_the_memory(own_server: Start) -> None:
    server = own_server("--max-body-size", "2")
    long = "x" * int(1.9 * MIB)
    full = body("create_completion", unknown=long)
    with contextlib.ExitStack() as stack:

        def begun() -> None:
            """Opens a body whose last byte is never sent."""
            connection = stack.enter_context(socket.create_connection(server.address))
            connection.sendall(server.head("/completion", len(long) + 1) + long.encode())

        def refused() -> httpx.Response | None:
            begun()  # one more, because any earlier one may have been refused
            answer = server.post("/completion", full)
            return answer if answer.status_code == 503 else None

        answer = wait_until(refused, "there is no room for another body")
        contract.check(answer, 503)
        assert int(answer.headers["retry-after"]) > 0
        contract.check(server.post("/completion", body("create_completion", n_predict=1)))
    wait_until(lambda: server.post("/completion", full).status_code == 200, "the others have gone")
