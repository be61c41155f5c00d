"""The scenarios of `benchmarks.device` that measure times. `SCENARIOS` has all scenarios."""

import asyncio
import itertools
import statistics
import time
from collections.abc import AsyncIterator
from typing import Any

from benchmarks.client import Connection
from benchmarks.device_requests import (
    Metrics,
    Plan,
    Scenario,
    ask,
    measured_streams,
    stream_request,
    tokens,
)
from benchmarks.device_states import mixed_load, right, sleep
from benchmarks.scenarios import words
from benchmarks.servers import Server
from benchmarks.speculation import READING

CALM = 24
"""Tokens of each stream before the long prompt arrives (in `stutter`)."""
GREEDY = {"temperature": 0.0, "top_k": 1}
LETTERS = "root ::= [a-z] [a-z ]*"


async def streams(server: Server, plan: Plan, seed: int) -> AsyncIterator[Metrics]:
    for n in plan.counts.streams:
        yield await measured_streams(server, n, plan.counts.tokens, seed + n, f"{n} streams")


async def sampling(server: Server, plan: Plan, seed: int) -> AsyncIterator[Metrics]:
    """Measures the same streams with different work per token, then single streams."""
    counts = plan.counts
    forms: dict[str, tuple[int, dict[str, Any]]] = {
        "default": (2, {}),
        "greedy": (2, GREEDY),
        "5 logprobs": (4, {"logprobs": 5}),
        "penalties": (4, {"repeat_penalty": 1.1, "presence_penalty": 0.1}),
        "grammar": (8, {"grammar": LETTERS}),
    }
    """The divisor of the number of tokens, as some servers are slow there, and the fields."""
    for n, names in ((counts.sampled, [*forms]), (1, ["default", "greedy"])):
        for name in names:
            part, fields = forms[name]
            n_tokens = counts.tokens // part
            label = f"{n} streams, {name}"
            yield await measured_streams(server, n, n_tokens, seed + 3, label, **fields)


async def documents(server: Server, plan: Plan, seed: int) -> AsyncIterator[Metrics]:
    """Measures JSON documents with eight keys. A single client requests four of them in a row;
    with n clients, each requests 4 / n, but at least one."""
    for n in plan.counts.json:

        async def one(index: int, n_documents: int = max(1, 4 // n)) -> list[dict[str, Any]]:
            answers = []
            for i in range(n_documents):
                number = seed * 1000 + 10 * index + i
                body = {"prompt": words(number, 12), "n_predict": 400, "seed": number}
                body |= {"json_schema": READING, "temperature": 1.0}
                answers.append(await ask(server, body))
            return answers

        began = time.perf_counter()
        answers = [a for each in await asyncio.gather(*map(one, range(n))) for a in each]
        elapsed = time.perf_counter() - began
        whole = sum(answer.get("stop_type") == "eos" for answer in answers)
        n_tokens = sum(answer["tokens_predicted"] for answer in answers)
        yield {
            f"JSON, {n} at once: documents/s": whole / elapsed,
            f"JSON, {n} at once: tokens/s": n_tokens / elapsed,
        }


async def stutter(server: Server, plan: Plan, seed: int) -> AsyncIterator[Metrics]:
    """Measures eight running streams when a long prompt arrives."""
    counts = plan.counts
    prompt = await tokens(server, seed, counts.beside)
    times: list[list[float]] = [[] for _ in range(8)]

    async def follow(mine: list[float], number: int) -> None:
        request = stream_request(server, words(seed + number, 20), counts.tokens_beside, number)
        async with Connection(server.url) as connection:
            async for at, _ in connection.events("/v1/completions", request):
                mine.append(at)

    running = [asyncio.create_task(follow(mine, i + 1)) for i, mine in enumerate(times)]
    while not all(
        len(mine) > CALM or task.done() for mine, task in zip(times, running, strict=True)
    ):
        await asyncio.sleep(0.01)
    began = time.perf_counter()
    await ask(server, {"prompt": prompt, "n_predict": 1, "ignore_eos": True})
    ended = time.perf_counter()
    await asyncio.gather(*running)
    found = [pair for mine in times for pair in itertools.pairwise(mine)]
    met = sorted(b - a for a, b in found if b > began and a < ended)
    calm = sorted(b - a for a, b in found if b <= began)
    size = f"{len(prompt)} tokens beside 8 streams"
    yield {
        f"{size}: first token ms": 1e3 * (ended - began),
        f"{size}: worst gap ms": 1e3 * met[-1],
        f"{size}: median gap ms": 1e3 * met[len(met) // 2],
        "8 streams alone: median gap ms": 1e3 * calm[len(calm) // 2],
    }


async def first_token(server: Server, plan: Plan, seed: int) -> AsyncIterator[Metrics]:
    """Measures single prompts on an idle server."""
    for n in plan.counts.prompts:
        times = []
        for i in range(2):
            prompt = await tokens(server, seed + n + i, n)
            began = time.perf_counter()
            await ask(server, {"prompt": prompt, "n_predict": 1, "ignore_eos": True})
            times.append(time.perf_counter() - began)
        yield {f"prompt of {n} alone: first token ms": 1e3 * min(times)}


async def prefix(server: Server, plan: Plan, seed: int) -> AsyncIterator[Metrics]:
    """Measures eight simultaneous prompts with a common prefix, then eight more with new ends."""
    common = await tokens(server, seed, plan.counts.prefix)
    for wave, label in enumerate(("cold", "again")):
        ends = [await tokens(server, seed + 10 * wave + i + 1, 16) for i in range(8)]

        async def one(end: list[int]) -> float:
            began = time.perf_counter()
            await ask(server, {"prompt": common + end, "n_predict": 1, "ignore_eos": True})
            return time.perf_counter() - began

        times = await asyncio.gather(*map(one, ends))
        name = f"8 with {len(common)} tokens in common, {label}"
        yield {
            f"{name}: first token ms": 1e3 * statistics.median(times),
            f"{name}: last first token ms": 1e3 * max(times),
        }


async def dictated(server: Server, plan: Plan, seed: int) -> AsyncIterator[Metrics]:
    """Measures a greedy text whose prompt already contains its continuation."""
    n = plan.counts.dictated
    for n_streams in (1, 4):
        prompts = []
        for i in range(n_streams):
            start = await tokens(server, seed + 10 * n_streams + i, 12)
            first = {"prompt": start, "n_predict": n, "return_tokens": True, "ignore_eos": True}
            answer = await ask(server, {**first, **GREEDY})
            prompts.append([*start, *answer["tokens"], *start])
        began = time.perf_counter()
        bodies = [
            {"prompt": prompt, "n_predict": n, "ignore_eos": True, **GREEDY} for prompt in prompts
        ]
        answers = await asyncio.gather(*[ask(server, body) for body in bodies])
        elapsed = time.perf_counter() - began
        label = f"dictated, {n_streams} streams"
        drafted = sum(answer["timings"].get("draft_n", 0) for answer in answers)
        accepted = sum(answer["timings"].get("draft_n_accepted", 0) for answer in answers)
        yield {
            f"{label}: tokens/s": n * n_streams / elapsed,
            f"{label}: drafted": drafted,
            f"{label}: accepted": accepted,
        }


SCENARIOS: dict[str, Scenario] = {
    "streams": streams,
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
