"""The scenarios of `benchmarks.device`. Each call is one turn of one server.

Requests only use llama-server's API. They set `ignore_eos`, because a model with random weights may
end at any token. Each turn has its own words, so that no prompt is in the cache from an earlier
turn.
"""

import asyncio
import contextlib
import itertools
import json
import random
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from benchmarks.client import ClientError, Connection, Stream
from benchmarks.scenarios import completion, words
from benchmarks.servers import Server
from benchmarks.speculation import READING

Metrics = dict[str, float]
"""Name to value. For names that end with "/s", more is better; for all others, less."""

LOGPROB = "logprob of "
"""Prefix of the rows that only `difference` uses."""
SLEEP_SECONDS = 6.0
"""Time to wait until a server with `--sleep-idle-seconds 2` sleeps."""
CALM = 24
"""Tokens of each stream before the long prompt arrives (in `stutter`)."""
GREEDY = {"temperature": 0.0, "top_k": 1}
LETTERS = "root ::= [a-z] [a-z ]*"


@dataclass(frozen=True)
class Counts:
    """Sizes of all scenarios, in streams and tokens."""

    slots: int = 64
    streams: tuple[int, ...] = (32, 1, 64, 8, 16, 4)
    tokens: int = 256
    json: tuple[int, ...] = (1, 8, 32)
    sampled: int = 32
    long_context: int = 81_920
    prompts: tuple[int, ...] = (512, 4096, 32_768)
    prefix: int = 4096
    beside: int = 32_768
    tokens_beside: int = 700
    dictated: int = 192
    load_seconds: float = 30.0

    @classmethod
    def quick(cls) -> Self:
        return cls(
            slots=8,
            streams=(4, 1, 8),
            tokens=24,
            json=(1, 4),
            sampled=4,
            long_context=8192,
            prompts=(128, 512),
            prefix=300,
            beside=1024,
            dictated=48,
            load_seconds=4.0,
        )


@dataclass(frozen=True)
class Plan:
    counts: Counts

    def warming(self) -> "Plan":
        n = max(self.counts.streams)
        return Plan(replace(self.counts, streams=(1, min(8, n)), tokens=16))


@dataclass(frozen=True)
class DeviceSteps:
    """specllama's own counters of steps and of the time that the device waited for the host."""

    seconds: float
    n_steps: float
    idle_seconds: float

    def since(self, before: "DeviceSteps") -> Metrics:
        n = self.n_steps - before.n_steps
        idle = self.idle_seconds - before.idle_seconds
        if not n:
            return {}
        return {
            "device idle ms/step": 1e3 * idle / n,
            "device idle %": 100 * idle / (self.seconds - before.seconds),
        }


async def device_steps(server: Server) -> DeviceSteps | None:
    """Returns None if the server doesn't have these metrics."""
    try:
        async with Connection(server.url) as connection:
            text = (await connection.request("GET", "/metrics")).decode()
    except ClientError:
        return None
    found = {
        name: re.search(rf"(?m)^{name}(?:_total)? (\S+)", text)
        for name in ("llamacpp:n_decode", "specllama_device_idle_seconds")
    }
    if not all(found.values()):
        return None
    n, idle = (float(match[1]) for match in found.values() if match)
    return DeviceSteps(time.perf_counter(), n, idle)


def card_mib() -> int | None:
    """Returns the MiB of the first card in use by all processes; None without NVIDIA's tool."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    with contextlib.suppress(OSError, subprocess.CalledProcessError, ValueError):
        answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return int(answer.splitlines()[0])
    return None


# ---- requests ----------------------------------------------------------------------------------


def _stream_request(
    server: Server, prompt: str, n: int, seed: int, **fields: Any
) -> dict[str, Any]:
    return {**completion(server, prompt, n, seed), "ignore_eos": True, **fields}


async def _stream(server: Server, request: dict[str, Any]) -> Stream:
    async with Connection(server.url) as connection:
        return await connection.stream("/v1/completions", request)


async def _ask(server: Server, body: dict[str, Any], path: str = "/completion") -> dict[str, Any]:
    async with Connection(server.url) as connection:
        answer: dict[str, Any] = json.loads(await connection.request("POST", path, body))
        return answer


async def _streams(
    server: Server, n: int, n_tokens: int, seed: int, label: str, **fields: Any
) -> Metrics:
    """Measures `n` streams that begin together."""
    requests = [
        _stream_request(server, words(seed * 1000 + i, 40), n_tokens, seed * 1000 + i, **fields)
        for i in range(n)
    ]
    streams = await asyncio.gather(*[_stream(server, each) for each in requests])
    elapsed = max(s.finished for s in streams) - min(s.started for s in streams)
    gaps = sorted(gap for stream in streams for gap in stream.gaps)
    return {
        f"{label}: tokens/s": sum(s.n_tokens for s in streams) / elapsed,
        f"{label}: first token ms": 1e3 * statistics.median(s.time_to_first_token for s in streams),
        f"{label}: gap p50 ms": 1e3 * gaps[len(gaps) // 2],
        f"{label}: gap p99 ms": 1e3 * gaps[len(gaps) * 99 // 100],
    }


async def _tokens(server: Server, seed: int, n: int) -> list[int]:
    """Returns the first `n` tokens of a text with this seed."""
    answer = await _ask(server, {"content": words(seed, n)}, "/tokenize")
    return list(answer["tokens"])[:n]


# ---- scenarios ---------------------------------------------------------------------------------


async def streams(server: Server, plan: Plan, seed: int) -> Metrics:
    metrics: Metrics = {}
    for n in plan.counts.streams:
        metrics |= await _streams(server, n, plan.counts.tokens, seed + n, f"{n} streams")
    return metrics


async def greedy(server: Server, plan: Plan, seed: int) -> Metrics:
    metrics: Metrics = {}
    for n in (1, plan.counts.sampled):
        label = f"{n} streams, greedy"
        metrics |= await _streams(server, n, plan.counts.tokens, seed + n, label, **GREEDY)
    return metrics


async def sampling(server: Server, plan: Plan, seed: int) -> Metrics:
    """Measures the same streams with different work per token."""
    counts = plan.counts
    forms: dict[str, tuple[int, dict[str, Any]]] = {
        "greedy": (2, GREEDY),
        "5 logprobs": (4, {"logprobs": 5}),
        "penalties": (4, {"repeat_penalty": 1.1, "presence_penalty": 0.1}),
        "grammar": (8, {"grammar": LETTERS}),
    }
    """The divisor of the number of tokens, as some servers are slow there, and the fields."""
    metrics: Metrics = {}
    for name, (part, fields) in forms.items():
        label = f"{counts.sampled} streams, {name}"
        n_tokens = counts.tokens // part
        metrics |= await _streams(server, counts.sampled, n_tokens, seed + 3, label, **fields)
    return metrics


async def documents(server: Server, plan: Plan, seed: int) -> Metrics:
    """Measures JSON documents with eight keys. A single client requests four of them in a row;
    with n clients, each requests 4 / n, but at least one."""
    metrics: Metrics = {}
    for n in plan.counts.json:

        async def one(index: int, n_documents: int = max(1, 4 // n)) -> list[dict[str, Any]]:
            answers = []
            for i in range(n_documents):
                number = seed * 1000 + 10 * index + i
                body = {"prompt": words(number, 12), "n_predict": 400, "seed": number}
                body |= {"json_schema": READING, "temperature": 1.0}
                answers.append(await _ask(server, body))
            return answers

        began = time.perf_counter()
        answers = [a for each in await asyncio.gather(*map(one, range(n))) for a in each]
        elapsed = time.perf_counter() - began
        whole = sum(answer.get("stop_type") == "eos" for answer in answers)
        n_tokens = sum(answer["tokens_predicted"] for answer in answers)
        metrics[f"JSON, {n} at once: documents/s"] = whole / elapsed
        metrics[f"JSON, {n} at once: tokens/s"] = n_tokens / elapsed
    return metrics


async def stutter(server: Server, plan: Plan, seed: int) -> Metrics:
    """Measures eight running streams when a long prompt arrives."""
    counts = plan.counts
    prompt = await _tokens(server, seed, counts.beside)
    times: list[list[float]] = [[] for _ in range(8)]

    async def follow(mine: list[float], number: int) -> None:
        request = _stream_request(server, words(seed + number, 20), counts.tokens_beside, number)
        async with Connection(server.url) as connection:
            async for at, _ in connection.events("/v1/completions", request):
                mine.append(at)

    running = [asyncio.create_task(follow(mine, i + 1)) for i, mine in enumerate(times)]
    while not all(
        len(mine) > CALM or task.done() for mine, task in zip(times, running, strict=True)
    ):
        await asyncio.sleep(0.01)
    began = time.perf_counter()
    await _ask(server, {"prompt": prompt, "n_predict": 1, "ignore_eos": True})
    ended = time.perf_counter()
    await asyncio.gather(*running)
    found = [pair for mine in times for pair in itertools.pairwise(mine)]
    met = sorted(b - a for a, b in found if b > began and a < ended)
    calm = sorted(b - a for a, b in found if b <= began)
    size = f"{len(prompt)} tokens beside 8 streams"
    return {
        f"{size}: first token ms": 1e3 * (ended - began),
        f"{size}: worst gap ms": 1e3 * met[-1],
        f"{size}: median gap ms": 1e3 * met[len(met) // 2],
        "8 streams alone: median gap ms": 1e3 * calm[len(calm) // 2],
    }


async def first_token(server: Server, plan: Plan, seed: int) -> Metrics:
    """Measures single prompts on an idle server."""
    metrics: Metrics = {}
    for n in plan.counts.prompts:
        times = []
        for i in range(2):
            prompt = await _tokens(server, seed + n + i, n)
            began = time.perf_counter()
            await _ask(server, {"prompt": prompt, "n_predict": 1, "ignore_eos": True})
            times.append(time.perf_counter() - began)
        metrics[f"prompt of {n} alone: first token ms"] = 1e3 * min(times)
    return metrics


async def prefix(server: Server, plan: Plan, seed: int) -> Metrics:
    """Measures eight simultaneous prompts with a common prefix, then eight more with new ends."""
    common = await _tokens(server, seed, plan.counts.prefix)
    metrics: Metrics = {}
    for wave, label in enumerate(("cold", "again")):
        ends = [await _tokens(server, seed + 10 * wave + i + 1, 16) for i in range(8)]

        async def one(end: list[int]) -> float:
            began = time.perf_counter()
            await _ask(server, {"prompt": common + end, "n_predict": 1, "ignore_eos": True})
            return time.perf_counter() - began

        times = await asyncio.gather(*map(one, ends))
        name = f"8 with {len(common)} tokens in common, {label}"
        metrics[f"{name}: first token ms"] = 1e3 * statistics.median(times)
        metrics[f"{name}: last first token ms"] = 1e3 * max(times)
    return metrics


async def right(server: Server, plan: Plan, seed: int) -> Metrics:
    """Compares the most likely tokens and their log probabilities of the same prompts alone and
    beside other streams. The words are the same in each round and for each server, so that the
    `logprob` rows of two servers can be compared."""
    prompts = [words(n, 30) for n in range(1, 9)]
    alone = [await _likeliest(server, prompt) for prompt in prompts]
    crowd = [
        asyncio.create_task(_stream(server, _stream_request(server, words(i, 200), 200, i)))
        for i in range(100, 107)
    ]
    await asyncio.sleep(0.3)
    company = [await _likeliest(server, prompt) for prompt in prompts]
    await asyncio.gather(*crowd)
    pairs = [
        abs(a[token] - b[token])
        for a, b in zip(alone, company, strict=True)
        for token in a.keys() & b.keys()
    ]
    metrics = {"in company: largest difference of logprobs": max(pairs)}
    metrics["in company: mean difference of logprobs"] = statistics.mean(pairs)
    return metrics | {
        f"{LOGPROB}text {n}, token {token}": value
        for n, found in enumerate(alone)
        for token, value in found.items()
    }


def difference(ours: Metrics, peers: Metrics) -> Metrics:
    """Returns the largest difference of two servers' log probabilities of the same tokens."""
    both = [name for name in ours.keys() & peers.keys() if name.startswith(LOGPROB)]
    found = [abs(ours[name] - peers[name]) for name in both]
    return {"to the other server: largest difference of logprobs": max(found)} if found else {}


async def _likeliest(server: Server, prompt: str) -> dict[int, float]:
    body = {"prompt": prompt, "n_predict": 1, "temperature": 0.0, "n_probs": 10}
    answer = await _ask(server, {**body, "cache_prompt": False, "ignore_eos": True})
    [token] = answer["completion_probabilities"]
    return {each["id"]: each["logprob"] for each in token["top_logprobs"]}


async def dictated(server: Server, plan: Plan, seed: int) -> Metrics:
    """Measures a greedy text whose prompt already contains its continuation."""
    n = plan.counts.dictated
    metrics: Metrics = {}
    for n_streams in (1, 4):
        prompts = []
        for i in range(n_streams):
            start = await _tokens(server, seed + 10 * n_streams + i, 12)
            first = {"prompt": start, "n_predict": n, "return_tokens": True, "ignore_eos": True}
            answer = await _ask(server, {**first, **GREEDY})
            prompts.append([*start, *answer["tokens"], *start])
        began = time.perf_counter()
        bodies = [
            {"prompt": prompt, "n_predict": n, "ignore_eos": True, **GREEDY} for prompt in prompts
        ]
        answers = await asyncio.gather(*[_ask(server, body) for body in bodies])
        elapsed = time.perf_counter() - began
        label = f"dictated, {n_streams} streams"
        metrics[f"{label}: tokens/s"] = n * n_streams / elapsed
        drafted = sum(answer["timings"].get("draft_n", 0) for answer in answers)
        accepted = sum(answer["timings"].get("draft_n_accepted", 0) for answer in answers)
        metrics[f"{label}: drafted"] = drafted
        metrics[f"{label}: accepted"] = accepted
    return metrics


async def mixed_load(server: Server, plan: Plan, seed: int) -> Metrics:
    """Runs twelve clients with mixed requests, many of which are cancelled. Then waits until no
    slot is busy, and measures how much log probabilities have changed."""
    before = await _likeliest(server, words(1, 30))
    end = time.monotonic() + plan.counts.load_seconds
    done = cancelled = 0

    async def client(number: int) -> None:
        nonlocal done, cancelled
        rng = random.Random(seed + number)
        while time.monotonic() < end:
            choice = rng.randrange(4)
            prompt = words(rng.randrange(1 << 30), rng.choice((5, 50, 500, 1500)))
            n = rng.choice((1, 20, 120))
            if choice == 0:
                await _ask(server, {"prompt": prompt, "n_predict": n, "ignore_eos": True})
            elif choice == 1:
                schema = {"json_schema": READING, "n_predict": 200}
                await _ask(server, {"prompt": prompt[:200], **schema})
            elif choice == 2:
                request = _stream_request(server, prompt, n, number)
                await _stream(server, request)
            else:
                request = _stream_request(server, prompt, 400, number)
                left = rng.randrange(30)
                async with Connection(server.url) as connection:
                    async for _ in connection.events("/v1/completions", request):
                        left -= 1
                        if left < 0:
                            cancelled += 1
                            break
            done += 1

    await asyncio.gather(*map(client, range(12)))
    while any(slot["is_processing"] for slot in await _slots(server)):
        await asyncio.sleep(0.05)
    after = await _likeliest(server, words(1, 30))
    common = before.keys() & after.keys()
    return {
        "mixed load: requests": done,
        "mixed load: cancelled": cancelled,
        "mixed load: difference of logprobs after it": max(
            abs(before[token] - after[token]) for token in common
        ),
    }


async def sleep(server: Server, plan: Plan, seed: int) -> Metrics:
    """Measures the memory of the card that a sleeping model uses, and the time of its wake-up."""
    metrics: Metrics = {}
    least = card_mib()
    end = time.monotonic() + SLEEP_SECONDS
    while least is not None and time.monotonic() < end:
        await asyncio.sleep(0.2)
        least = min(least, card_mib() or least)
    if least is not None:
        metrics["asleep: card in use MiB"] = least
    else:
        await asyncio.sleep(SLEEP_SECONDS)
    began = time.perf_counter()
    await _ask(server, {"prompt": words(seed, 5), "n_predict": 1, "ignore_eos": True})
    return metrics | {"awake again: first token ms": 1e3 * (time.perf_counter() - began)}


async def _slots(server: Server) -> Sequence[dict[str, Any]]:
    async with Connection(server.url) as connection:
        found: list[dict[str, Any]] = json.loads(await connection.request("GET", "/slots"))
        return found


Scenario = Callable[[Server, Plan, int], Coroutine[Any, Any, Metrics]]
SCENARIOS: dict[str, Scenario] = {
    "streams": streams,
    "greedy": greedy,
    "sampling": sampling,
    "json": documents,
    "stutter": stutter,
    "first token": first_token,
    "prefix": prefix,
    "right": right,
    "dictated": dictated,
    "mixed load": mixed_load,
    "sleep": sleep,
}
