"""The scenarios of `benchmarks.device` that check results and memory: log probabilities alone, in
company, and of both servers; a mixed load; a model that sleeps."""

import asyncio
import json
import random
import statistics
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from benchmarks.client import Connection
from benchmarks.device_requests import (
    Metrics,
    Plan,
    ask,
    card_mib,
    stream,
    stream_request,
)
from benchmarks.scenarios import words
from benchmarks.servers import Server
from benchmarks.speculation import READING

LOGPROB = "logprob of "
"""Prefix of the rows that only `difference` uses."""
TOLERANCE = 0.25
"""The largest difference of a token's log probability that counts as rounding. Another batch size
selects other kernels, whose sums have another order: on an H200, this changed values by 0.18."""
ASLEEP = "asleep: card in use MiB"
SLEEP_SECONDS = 6.0
"""Time to wait until a server with `--sleep-idle-seconds 2` sleeps."""
LogProbabilities = Mapping[int, float]
"""The log probabilities of the likeliest tokens, by token."""


async def right(server: Server, plan: Plan, seed: int) -> AsyncIterator[Metrics]:
    """Compares the most likely tokens and their log probabilities of the same prompts alone and
    beside other streams. The words are the same in each round and for each server, so that the
    `logprob` rows of two servers can be compared."""
    prompts = [words(n, 30) for n in range(1, 9)]
    alone = [await _likeliest(server, prompt) for prompt in prompts]
    crowd = [
        asyncio.create_task(stream(server, stream_request(server, words(i, 200), 200, i)))
        for i in range(100, 107)
    ]
    await asyncio.sleep(0.3)
    company = [await _likeliest(server, prompt) for prompt in prompts]
    await asyncio.gather(*crowd)
    yield {
        f"{LOGPROB}text {n}, token {token}": value
        for n, found in enumerate(alone)
        for token, value in found.items()
    }
    differences = [each for a, b in zip(alone, company, strict=True) for each in _differences(a, b)]
    yield {
        "in company: largest difference of logprobs": max(differences),
        "in company: mean difference of logprobs": statistics.mean(differences),
        "in company: wrong texts": n_wrong(alone, company),
    }


def _differences(one: LogProbabilities, other: LogProbabilities) -> list[float]:
    """Returns the absolute differences for the tokens that both have. Raises ValueError if more
    than half of the tokens are only in one."""
    common = one.keys() & other.keys()
    if 2 * len(common) < len(one):
        raise ValueError(f"other tokens are likely: {[*one]} and {[*other]}")
    return [abs(one[token] - other[token]) for token in common]


def n_wrong(ones: Sequence[LogProbabilities], others: Sequence[LogProbabilities]) -> int:
    """Returns the number of texts with other likely tokens, or with a difference of more than
    `TOLERANCE`."""
    wrong = 0
    for one, other in zip(ones, others, strict=True):
        try:
            wrong += max(_differences(one, other)) > TOLERANCE
        except ValueError:
            wrong += 1
    return wrong


def difference(ours: Metrics, peers: Metrics) -> Metrics:
    """Returns the largest difference of two servers' log probabilities of the same tokens, and the
    number of texts that differ by more than `TOLERANCE`."""
    texts, others = _texts(ours), _texts(peers)
    both = sorted(texts.keys() & others.keys())
    if not both:
        return {}
    pairs = [(texts[name], others[name]) for name in both]
    found = [abs(a[token] - b[token]) for a, b in pairs for token in a.keys() & b.keys()]
    return {
        "to the other server: largest difference of logprobs": max(found, default=0.0),
        "to the other server: wrong texts": n_wrong(*zip(*pairs, strict=True)),
    }


def _texts(metrics: Metrics) -> dict[str, dict[int, float]]:
    """Returns the log probabilities in these rows, by text."""
    found: dict[str, dict[int, float]] = {}
    for name, value in metrics.items():
        if name.startswith(LOGPROB):
            text, token = name.removeprefix(LOGPROB).rsplit(", token ", 1)
            found.setdefault(text, {})[int(token)] = value
    return found


async def _likeliest(server: Server, prompt: str) -> dict[int, float]:
    body = {"prompt": prompt, "n_predict": 1, "temperature": 0.0, "n_probs": 10}
    answer = await ask(server, {**body, "cache_prompt": False, "ignore_eos": True})
    [token] = answer["completion_probabilities"]
    return {each["id"]: each["logprob"] for each in token["top_logprobs"]}


async def mixed_load(server: Server, plan: Plan, seed: int) -> AsyncIterator[Metrics]:
    """Runs twelve clients with mixed requests, many of which are cancelled. Then waits until no
    slot is busy, and measures how much log probabilities have changed, and how much the memory of
    the card has grown since half of the time."""
    before = await _likeliest(server, words(1, 30))
    end = time.monotonic() + plan.counts.load_seconds
    done = cancelled = 0

    async def in_use_at_half() -> int | None:
        await asyncio.sleep(plan.counts.load_seconds / 2)
        return await asyncio.to_thread(card_mib)

    async def client(number: int) -> None:
        nonlocal done, cancelled
        rng = random.Random(seed + number)
        while time.monotonic() < end:
            choice = rng.randrange(4)
            prompt = words(rng.randrange(1 << 30), rng.choice((5, 50, 500, 1500)))
            n = rng.choice((1, 20, 120))
            if choice == 0:
                await ask(server, {"prompt": prompt, "n_predict": n, "ignore_eos": True})
            elif choice == 1:
                schema = {"json_schema": READING, "n_predict": 200}
                await ask(server, {"prompt": prompt[:200], **schema})
            elif choice == 2:
                request = stream_request(server, prompt, n, number)
                await stream(server, request)
            else:
                request = stream_request(server, prompt, 400, number)
                left = rng.randrange(30)
                async with Connection(server.url) as connection:
                    async for _ in connection.events("/v1/completions", request):
                        left -= 1
                        if left < 0:
                            cancelled += 1
                            break
            done += 1

    half, *_ = await asyncio.gather(in_use_at_half(), *map(client, range(12)))
    while any(slot["is_processing"] for slot in await _slots(server)):
        await asyncio.sleep(0.05)
    after = await _likeliest(server, words(1, 30))
    yield {
        "mixed load: requests": done,
        "mixed load: cancelled": cancelled,
        "mixed load: difference of logprobs after it": max(_differences(before, after)),
    }
    if half is not None and (in_use := card_mib()) is not None:
        yield {"mixed load: card grows MiB": in_use - half}


async def sleep(server: Server, plan: Plan, seed: int) -> AsyncIterator[Metrics]:
    """Measures the memory of the card that a sleeping model uses, and the time of its wake-up."""
    found = []
    end = time.monotonic() + SLEEP_SECONDS
    while time.monotonic() < end:
        await asyncio.sleep(0.2)
        found.append(card_mib())
    if in_use := [each for each in found if each is not None]:
        yield {ASLEEP: min(in_use)}
    began = time.perf_counter()
    await ask(server, {"prompt": words(seed, 5), "n_predict": 1, "ignore_eos": True})
    yield {"awake again: first token ms": 1e3 * (time.perf_counter() - began)}


async def _slots(server: Server) -> Sequence[dict[str, Any]]:
    async with Connection(server.url) as connection:
        found: list[dict[str, Any]] = json.loads(await connection.request("GET", "/slots"))
        return found
