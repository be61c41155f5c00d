"""A router limits the calls of all its models that wait."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from contract_tests.kit import contract
from contract_tests.kit.bodies import body
from contract_tests.kit.server import OwnServer, Start, wait_until
from tools.models.zoo import CHAT, OTHER_CHAT, PRESETS, Zoo

PROMPT = [5] * 200  # as tokens, so that their number is known
LIMITS = [["--max-queue", "1"], ["--max-queue-tokens", "300"]]


def n_waiting(server: OwnServer, model: str) -> int:
    listed = contract.check(server.get("/queue", params={"model": model}))
    return int(listed["n_waiting"])


@pytest.mark.parametrize("limit", LIMITS, ids=lambda each: each[0])
def test_the_sum_over_all_models_is_limited(
    limit: list[str], own_server: Start, zoo: Zoo, hub: Mapping[str, str], tmp_path: Path
) -> None:
    presets = tmp_path / "models.ini"
    presets.write_text(PRESETS, "utf-8")
    files = ["--models-dir", str(zoo.directory), "--models-preset", str(presets)]
    more = ["--models-max", "0", "-np", "1", "--max-predict", "-1", "--context-shift", "--metrics"]
    server = own_server(*files, *more, *limit, router=True, variables=hub)
    endless = {"stream": True, "n_predict": -1, "ignore_eos": True}
    path = "/completion"
    with ThreadPoolExecutor(1) as pool, ExitStack() as streams:
        for model in (CHAT, OTHER_CHAT):
            request = body("create_completion", model=model, **endless)
            stream = streams.enter_context(server.http.stream("POST", path, json=request))
            assert stream.status_code == 200, "it has the only slot"
        one = body("create_completion", prompt=PROMPT, n_predict=1)
        waits = pool.submit(server.post, path, {**one, "model": CHAT})
        wait_until(lambda: n_waiting(server, CHAT) == 1, "a request waits")
        assert n_waiting(server, OTHER_CHAT) == 0, "its engine would accept one"
        refused = server.post(path, {**one, "model": OTHER_CHAT})
        message = contract.check(refused, 503)["error"]["message"]
        assert "the models of this server" in message
        assert limit[0] in message
        assert int(refused.headers["Retry-After"]) >= 1
        rows = contract.check(server.get("/v1/usage", params={"group_by": "model"}))["data"]
        assert {row["model"]: row["refused"] for row in rows} == {CHAT: 0, OTHER_CHAT: 1}
        metrics = server.get("/metrics", params={"model": OTHER_CHAT}).text
        assert "specllama_requests_refused_total 1.0" in metrics
        streams.close()
        contract.check(waits.result())
    contract.check(server.post(path, {**one, "model": OTHER_CHAT}))
