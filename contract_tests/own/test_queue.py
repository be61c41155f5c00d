"""The queue is limited. Requests beyond the limit are refused at once."""

import json
from contextlib import ExitStack

import pytest

from contract_tests.kit import contract
from contract_tests.kit.bodies import body
from contract_tests.kit.server import Start, wait_until

REFUSED = {"--max-queue": "1", "--max-queue-tokens": "60"}


@pytest.mark.parametrize("option", REFUSED)
def test_a_full_queue_refuses_with_the_estimated_wait(own_server: Start, option: str) -> None:
    server = own_server("-np", "1", "--metrics", "-c", "2048", option, REFUSED[option])
    long = {"n_predict": 1500, "ignore_eos": True, "stream": True}
    with ExitStack() as clients:
        for n in range(2):
            text = f"{n} is the number of a long text about a river and a garden:"
            one = json.dumps(body("create_completion", prompt=text, **long)).encode()
            clients.enter_context(server.raw(server.head("/completion", len(one)) + one))
            server.wait_until_busy()
        wait_until(lambda: "requests_deferred 1" in server.get("/metrics").text, "one waits")
        prompt = "Another text, about a window and a light. " * 9
        refused = server.post("/completion", body("create_completion", prompt=prompt))
        error = contract.check(refused, 503)["error"]
        assert option in error["message"]
        assert error["estimated_wait_ms"] >= 0
        assert int(refused.headers["retry-after"]) >= 1
    server.wait_until_idle()
    contract.check(server.post("/completion", body("create_completion", prompt=prompt)))
