"""One request can't occupy all slots."""

import json
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from contract_tests.kit import contract
from contract_tests.kit.bodies import body
from contract_tests.kit.server import Start, wait_until


def test_a_request_for_many_texts_shares_the_slots(own_server: Start) -> None:
    server = own_server("-np", "2")
    many = body("create_completion", n_cmpl=40, n_predict=100, ignore_eos=True)
    one = body("create_completion", n_predict=1)
    with ThreadPoolExecutor() as pool:
        texts = pool.submit(server.post, "/completion", many)
        server.wait_until_busy()
        for _ in range(3):  # each waits for one text of the other request, not for all of them
            contract.check(server.post("/completion", one))
            assert not texts.done()
        assert len(contract.check(texts.result())) == 40


@pytest.mark.skipif(os.name != "posix", reason="sizes of buffers")
def test_endless_unread_texts_give_up_their_slots(own_server: Start) -> None:
    """There are more endless streams than slots, and no client reads them."""
    server = own_server("-np", "2", "--metrics", "--context-shift", "--max-predict", "-1")
    one = body("create_completion", n_predict=8, ignore_eos=True)
    text = contract.check(server.post("/completion", one))["content"]
    endless = body("create_completion", n_predict=-1, ignore_eos=True, stream=True, n_probs=100)
    request = json.dumps(endless).encode()
    with ExitStack() as unread:
        for _ in range(4):
            connection = unread.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(server.address)
            connection.sendall(server.head("/completion", len(request)) + request)
        server.wait_until_busy(2)
        wait_until(lambda: "requests_deferred 4" in server.get("/metrics").text, "all have begun")
        server.wait_until_idle()
        for _ in range(3):
            assert contract.check(server.post("/completion", one))["content"] == text
        while not any(
            slot["is_processing"] for slot in server.slots()
        ):  # a client that reads again gets more
            assert connection.recv(1 << 16)
    server.wait_until_idle()
