"""Very many requests of all kinds, many of them cut short: no answer is lost, and no resource
leaks.

`--soak N` sets their number; `nox -s exhaustive` sends 20,000. `nox -s soak` (contract_tests/soak)
measures the growth over a long time.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from contract_tests.kit.server import SECONDS, OwnServer, Start

CLIENTS = 16
MARGIN = 48 << 20
"""The allowed growth of a process in bytes. Allocators and caches fill up slowly."""
WORDS = ("def", "return", "class", "import", "for", "value", "self", "None", "(", "):\n", "    ")
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2, 3]}}, "required": ["a"]}


@pytest.fixture(scope="module")
def soaked(module_server: Start) -> OwnServer:
    slots = ("--parallel", "6", "--kv-unified", "--ctx-size", "2048")
    # Texts that leave the KV cache are kept in a small cache, because memory is measured.
    return module_server(*slots, "--cache-ram", "8", "--metrics")


def prefixes(seed: int) -> list[str]:
    """Returns the beginnings that most prompts share."""
    dice = random.Random(seed)
    return ["".join(f" {dice.choice(WORDS)}" for _ in range(n)) for n in (3, 20, 60, 120)]


def request(dice: random.Random, common: list[str]) -> tuple[str, dict[str, Any]]:
    """Returns a path and a body: mostly short, mostly valid."""
    text = dice.choice(common) + "".join(f" {dice.choice(WORDS)}" for _ in range(dice.randrange(8)))
    body: dict[str, Any] = {
        "prompt": text,
        "n_predict": dice.choice((0, 1, 1, 2, 4, 8, 24)),
        "seed": dice.randrange(1 << 30),
        "temperature": dice.choice((0.0, 0.8, 1.5)),
        "cache_prompt": dice.random() < 0.9,
        "stream": dice.random() < 0.5,
    }
    kind = dice.random()
    if kind < 0.05:
        return "/completion", {**body, "id_slot": dice.randrange(6)}
    if kind < 0.10:
        return "/completion", {**body, "json_schema": SCHEMA, "n_predict": 40}
    if kind < 0.15:
        return "/completion", {**body, "n_probs": 3}
    if kind < 0.20:
        return "/completion", {**body, "stop": [dice.choice(WORDS)], "n_cmpl": dice.choice((1, 3))}
    if kind < 0.23:
        return "/completion", {**body, "prompt": "x " * 4000}  # too long
    if kind < 0.26:
        return "/completion", {**body, "top_k": "many"}
    if kind < 0.40:
        del body["prompt"]
        return "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": text}]}
    if kind < 0.45:
        return "/tokenize", {"content": text}
    return "/completion", body


async def client(url: str, numbers: Iterator[int], common: list[str], seen: Counter[Any]) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=SECONDS) as http:
        for number in numbers:
            dice = random.Random(number)
            path, body = request(dice, common)
            hurry = dice.random()
            if hurry < 0.15:
                # Leaves at any moment, before or during the answer.
                try:
                    async with asyncio.timeout(dice.random() * 0.03):
                        await http.post(path, json=body)
                except TimeoutError:
                    seen["left"] += 1
                else:
                    seen["was too fast"] += 1
            elif hurry < 0.25 and body.get("stream"):
                async with http.stream("POST", path, json=body) as response:
                    async for _ in response.aiter_raw():
                        break
                seen["left a stream"] += 1
            else:
                response = await http.post(path, json=body)
                seen[response.status_code] += 1


async def soak(url: str, n: int, seed: int) -> Counter[Any]:
    seen: Counter[Any] = Counter()
    numbers = iter(range(seed, seed + n))
    common = prefixes(seed)
    await asyncio.gather(*[client(url, numbers, common, seen) for _ in range(CLIENTS)])
    return seen


def memory(server: OwnServer) -> dict[str, int]:
    """Returns the resident bytes by kind of process."""
    root = psutil.Process(server.process.pid)
    return {
        " ".join(process.cmdline()[-3:]): process.memory_info().rss
        for process in (root, *root.children(recursive=True))
    }


def metric(server: OwnServer, name: str) -> float:
    lines = server.get("/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(name + " "))


def test_soak(soaked: OwnServer, pytestconfig: pytest.Config) -> None:
    n = pytestconfig.getoption("--soak")
    asyncio.run(soak(soaked.url, min(n, 1000), seed=1))  # warms the allocators up
    soaked.wait_until_idle()
    processes, memory_before = set(memory(soaked)), memory(soaked)
    begun = time.monotonic()
    seen = asyncio.run(soak(soaked.url, n, seed=10_000))
    soaked.wait_until_idle()
    print(f"{n} requests in {time.monotonic() - begun:.0f} s: {dict(seen)}")
    assert sum(seen.values()) == n
    assert not {status for status in seen if isinstance(status, int)} - {200, 400}
    assert seen[200] > seen[400] > 0
    assert seen["left"] + seen["left a stream"] > n / 20
    memory_after = memory(soaked)
    assert set(memory_after) == processes, "a process was replaced"
    grown = {name: memory_after[name] - memory_before[name] for name in processes}
    assert max(grown.values()) < MARGIN, grown
    assert metric(soaked, "llamacpp:requests_processing") == 0
    assert metric(soaked, "llamacpp:requests_deferred") == 0
    assert metric(soaked, "llamacpp:kv_cache_usage_ratio") <= 1
    answer = soaked.ask("/completion", {"prompt": "def f(", "n_predict": 4, "ignore_eos": True})
    assert answer["tokens_predicted"] == 4
