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
