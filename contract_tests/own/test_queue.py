"""The queue is limited. Requests beyond the limit are refused at once."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from contract_tests.kit import contract
from contract_tests.kit.bodies import body
from contract_tests.kit.server import OwnServer, Start, wait_until

LONG = {"n_predict": 1500, "ignore_eos": True, "stream": True}
REFUSED = {"--max-queue": "1", "--max-queue-tokens": "60"}


def occupy(server: OwnServer, clients: ExitStack) -> None:
    """Two long texts: one has the only slot, the other one waits."""
    for n in range(2):
        text = f"{n} is the number of a long text about a river and a garden:"
        one = json.dumps(body("create_completion", prompt=text, **LONG)).encode()
        clients.enter_context(server.raw(server.head("/completion", len(one)) + one))
        server.wait_until_busy()


@pytest.mark.parametrize("option", REFUSED)
def test_a_full_queue_refuses_with_the_estimated_wait(own_server: Start, option: str) -> None:
    server = own_server("-np", "1", "--metrics", "-c", "2048", option, REFUSED[option])
    with ExitStack() as clients:
        occupy(server, clients)
        wait_until(lambda: "requests_deferred 1" in server.get("/metrics").text, "one waits")
        prompt = "Another text, about a window and a light. " * 9
        refused = server.post("/completion", body("create_completion", prompt=prompt))
        error = contract.check(refused, 503)["error"]
        assert option in error["message"]
        assert error["estimated_wait_ms"] >= 0
        assert int(refused.headers["retry-after"]) >= 1
    server.wait_until_idle()
    contract.check(server.post("/completion", body("create_completion", prompt=prompt)))


@pytest.mark.parametrize("option", REFUSED)
def test_the_only_request_of_a_key_is_not_refused(
    own_server: Start, option: str, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[keys.single]\nkey = "sk-single"\n', "utf-8")
    more = ["--metrics", option, REFUSED[option], "--keys-file", str(keys)]
    server = own_server("-np", "1", "-c", "2048", *more, api_key="root")
    one = {"Authorization": "Bearer sk-single"}
    asked = body("create_completion", prompt="A text about a window and a light. " * 9)
    with ThreadPoolExecutor(1) as pool:
        with ExitStack() as clients:
            occupy(server, clients)
            wait_until(lambda: server.get("/queue").json()["n_waiting"] == 1, "one waits")
            answer = pool.submit(server.post, "/completion", asked, headers=one)
            wait_until(lambda: server.get("/queue").json()["n_waiting"] == 2, "another one waits")
            waiting = contract.check(server.get("/queue"))["waiting"]
            assert sorted(each["key_name"] for each in waiting) == ["api-key-1", "single"]
            assert [slot["key_name"] for slot in server.slots()] == ["api-key-1"]
            assert (
                option in contract.check(server.post("/completion", asked), 503)["error"]["message"]
            )
            second = server.http.post("/completion", json=asked, headers=one)
            assert option in contract.check(second, 503)["error"]["message"]
        contract.check(answer.result())
