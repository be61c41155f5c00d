"""Requests whose parts are small, or said once, but whose work or answer is large."""

import sys
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from contract_tests.kit import contract
from contract_tests.kit.bodies import body
from contract_tests.kit.server import OwnServer, Start

MIB = 1 << 20

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells the most memory that a process has had"
)


def largest(server: OwnServer) -> int:
    """Bytes that the server process has had at most."""
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
    bounded = body("create_completion", **large, n_predict=-1)
    texts = server.post("/completion", bounded)
    assert texts.status_code == 200
    assert texts.content.count(b'"top_logprobs"') == 1024, "one token of each text"
    assert largest(server) - before < 1536 * MIB
