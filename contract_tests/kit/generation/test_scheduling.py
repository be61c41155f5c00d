"""Concurrent requests share prefixes, and don't change each other's answers."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from contract_tests.kit.server import OwnServer, Start

EXACT = ("--flash-attn", "off", "--cache-type-k", "f32", "--cache-type-v", "f32")
"""Arithmetic on the CPU in which a sequence's numbers don't depend on its batch, if its cells are
its own: in a unified cache, sums are rounded by the position of their cells."""
ROUNDING = 0.25
"""The bound for a change of a log probability by rounding. Q8_0 amplifies small differences; a few
hundredths were measured."""
PREFIX = "import os\nimport sys\n\n\ndef first(a, b):\n    return a + b\n\n\n" * 6
GREEDY: dict[str, Any] = {"n_predict": 16, "temperature": 0, "ignore_eos": True, "n_probs": 5}


@pytest.fixture(scope="module", params=["--kv-unified", "--no-kv-unified"])
def sharing(request: pytest.FixtureRequest, module_server: Start) -> OwnServer:
    return module_server(
        "--parallel", "6", "--ctx-size", "6144", "--metrics", request.param, *EXACT
    )


def complete(server: OwnServer, prompt: str, **more: Any) -> Any:
    return server.ask("/completion", {"prompt": prompt, **GREEDY, **more})


def at_once(server: OwnServer, prompts: list[str], **more: Any) -> list[Any]:
    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(lambda prompt: complete(server, prompt, **more), prompts))


def is_unified(server: OwnServer) -> bool:
    """True if one slot may use all of the cache."""
    return bool(server.get("/props").json()["default_generation_settings"]["n_ctx"] > 1024)


def check_same(server: OwnServer, answer: Any, alone: Any) -> None:
    """Checks that the texts are equal; with a unified cache, up to a token that was nearly a
    tie."""
    if not is_unified(server):
        assert answer["content"] == alone["content"]
        return
    tokens = [each["completion_probabilities"] for each in (answer, alone)]
    for one, other in zip(*tokens, strict=True):
        rivals = {rival["id"]: rival["logprob"] for rival in other["top_logprobs"]}
        assert one["id"] in rivals, "another text"
        assert one["logprob"] == pytest.approx(rivals[one["id"]], abs=ROUNDING)
        if one["id"] != other["id"]:
            assert rivals[one["id"]] == pytest.approx(other["logprob"], abs=ROUNDING)
            return


def metric(server: OwnServer, name: str) -> float:
    lines = server.get("/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(name + " "))


def test_a_common_prefix_is_computed_once(sharing: OwnServer) -> None:
    prompts = [f"{PREFIX}# {i}\ndef function_{i}(self, value):" for i in range(6)]
    n_prefix = len(sharing.ask("/tokenize", {"content": PREFIX})["tokens"])
    answers = at_once(sharing, prompts)
    computed = sorted(answer["timings"]["prompt_n"] for answer in answers)
    assert computed[-1] > n_prefix - 2
    assert all(n < 40 for n in computed[:-1]), computed
    for prompt, answer in zip(prompts, answers, strict=True):
        alone = complete(sharing, prompt, cache_prompt=False)
        assert alone["timings"]["cache_n"] == 0
        check_same(sharing, answer, alone)


def test_a_pinned_request_shares_the_prefix_too(sharing: OwnServer) -> None:
    prompt = "class Pinned(Base):\n    attribute = 'text'\n" * 8
    complete(sharing, prompt, id_slot=1)
    before = metric(sharing, "specllama_prompt_tokens_shared_total")
    answer = complete(sharing, prompt + "    pass", id_slot=4)
    assert answer["id_slot"] == 4
    assert answer["timings"]["cache_n"] > 60
    slot = sharing.slots()[4]
    assert slot["n_prompt_tokens_shared"] > 60
    assert slot["n_prompt_tokens_shared"] <= slot["n_prompt_tokens_cache"]
    shared = metric(sharing, "specllama_prompt_tokens_shared_total") - before
    assert shared == slot["n_prompt_tokens_shared"]
    assert metric(sharing, "specllama_step_seconds_count") > 0


def test_a_cancelled_leader_hands_over(sharing: OwnServer) -> None:
    prefix = "".join(f"value_{i} = {i}\n" for i in range(60))
    body = {"prompt": prefix + "leader", **GREEDY, "n_predict": 300}
    with ThreadPoolExecutor(3) as pool:
        with sharing.stream("/completion", body) as (_, events):
            followers = [pool.submit(complete, sharing, f"{prefix}follower {i}") for i in range(3)]
            next(events)
        answers = [follower.result() for follower in followers]
    for i, answer in enumerate(answers):
        alone = complete(sharing, f"{prefix}follower {i}", cache_prompt=False)
        check_same(sharing, answer, alone)


def test_a_long_prompt_changes_no_other_text(sharing: OwnServer) -> None:
    alone = complete(sharing, "def short(", n_predict=60, cache_prompt=False)
    long = "".join(f"name_{i} = {i * i}\n" for i in range(60))
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(complete, sharing, "def short(", n_predict=60, cache_prompt=False)
        complete(sharing, long, cache_prompt=False)
        check_same(sharing, running.result(), alone)


def test_no_bound_on_steps(own_server: Start) -> None:
    server = own_server("--target-itl-ms", "0")
    prompts = ["def a(", PREFIX]
    assert len(at_once(server, prompts)) == 2
