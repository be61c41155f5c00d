"""Scenarios with concurrent requests: common prefixes, long prompts, schemas, many at once.

Each call is one turn of one server; `benchmarks.serving` alternates between servers. Sizes are in
tokens, as the server counts them.
"""

import asyncio
import json
import random
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from benchmarks.client import Connection, Stream
from benchmarks.servers import Server

WORDS = (
    *("river", "stone", "light", "engine", "paper", "window", "garden", "number", "simple"),
    *("morning", "letter", "music", "answer", "yellow", "table", "winter", "bridge", "market"),
    *("silver", "pocket", "forest", "history", "signal", "corner", "animal", "summer", "mirror"),
)
Metrics = dict[str, float]
"""Name to value. Names end with their unit; for "/s", more is better, for all others, less."""

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "notes": {"type": "array", "items": {"type": "string"}, "minItems": 40, "maxItems": 60},
    },
    "required": ["name", "notes"],
}
"""Its documents are so long that every generation ends at its token limit."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of the scenarios, in tokens and requests."""

    prefix: int = 1500
    long_prompt: int = 2000
    schema_tokens: int = 96
    together: int = 16
    short_requests: int = 200


SMALL = Sizes(prefix=120, long_prompt=160, schema_tokens=48, short_requests=20)


def words(seed: int, n: int) -> str:
    """Returns a text that is in no prompt cache, because each seed has its own words."""
    return " ".join(random.Random(seed).choices(WORDS, k=n))


def completion(server: Server, prompt: str, max_tokens: int, seed: int) -> dict[str, Any]:
    """Returns a request with the same sampling for every server, and without an end before
    `max_tokens`."""
    ends = {str(token): -100 for token in server.biased}
    return {
        **({"logit_bias": ends} if ends else {"ignore_eos": True}),
        "model": server.model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "seed": seed,
        "temperature": 0.8,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.05,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def text_of(server: Server, seed: int, n_tokens: int) -> str:
    """Returns words that are about `n_tokens` tokens for this server's model."""
    probe = {**completion(server, words(1, 100), 1, 1), "stream": False}
    del probe["stream_options"]
    async with Connection(server.url) as connection:
        answer = json.loads(await connection.request("POST", "/v1/completions", probe))
    per_word = answer["usage"]["prompt_tokens"] / 100
    return words(seed, round(n_tokens / per_word))


async def stream(server: Server, request: dict[str, Any]) -> Stream:
    async with Connection(server.url) as connection:
        return await connection.stream("/v1/completions", request)


async def shared_prefix(server: Server, sizes: Sizes, seed: int) -> Metrics:
    """Measures eight simultaneous requests with a common prefix, then eight more with new ends."""
    prefix = await text_of(server, seed, sizes.prefix)
    metrics: Metrics = {}
    for wave, label in enumerate(("cold", "second wave")):
        requests = [
            completion(server, f"{prefix} {words(seed + 10 * wave + i + 1, 12)}", 16, i)
            for i in range(8)
        ]
        streams = await asyncio.gather(*[stream(server, request) for request in requests])
        first = [s.time_to_first_token for s in streams]
        metrics[f"8 x common prefix, {label}: first token ms"] = 1e3 * statistics.median(first)
        metrics[f"8 x common prefix, {label}: last first token ms"] = 1e3 * max(first)
    return metrics


async def long_prompt(server: Server, sizes: Sizes, seed: int) -> Metrics:
    """Measures two running streams when a long prompt arrives."""
    prompt = await text_of(server, seed, sizes.long_prompt)
    running = [
        asyncio.create_task(stream(server, completion(server, words(seed + i, 20), 400, i)))
        for i in (1, 2)
    ]
    await asyncio.sleep(1.0)
    late = await stream(server, completion(server, prompt, 8, 3))
    streams = await asyncio.gather(*running)
    met = [
        after - before
        for s in streams
        for before, after in zip(s.token_times, s.token_times[1:], strict=False)
        if after > late.started and before < late.token_times[0]
    ]
    metrics = {"long prompt beside 2 streams: first token ms": 1e3 * late.time_to_first_token}
    if met:  # otherwise, the streams had ended
        metrics["long prompt beside 2 streams: worst gap ms"] = 1e3 * max(met)
    return metrics


async def together(server: Server, sizes: Sizes, seed: int) -> Metrics:
    """Measures simultaneous short prompts on open connections."""
    metrics: Metrics = {}
    for n in (1, 4, 8):
        async with AsyncExitStack() as stack:
            connections = [
                await stack.enter_async_context(Connection(server.url)) for _ in range(n)
            ]
            prompts = [await text_of(server, seed + 10 * n + i, sizes.together) for i in range(n)]
            streams = await asyncio.gather(
                *[
                    connection.stream("/v1/completions", completion(server, prompt, 8, i))
                    for i, (connection, prompt) in enumerate(zip(connections, prompts, strict=True))
                ]
            )
        first = [s.time_to_first_token for s in streams]
        metrics[f"{n} at the same time: first token ms"] = 1e3 * statistics.median(first)
        metrics[f"{n} at the same time: last first token ms"] = 1e3 * max(first)
    return metrics


async def schema(server: Server, sizes: Sizes, seed: int) -> Metrics:
    """Measures generation under a JSON schema, alone and four at once."""
    metrics: Metrics = {}
    for n in (1, 4):
        requests = [
            {
                "model": server.model,
                "messages": [{"role": "user", "content": words(seed + n + i, 10)}],
                "max_tokens": sizes.schema_tokens,
                "seed": i,
                "temperature": 0.8,
                "stream": True,
                "stream_options": {"include_usage": True},
                "response_format": {"type": "json_object", "schema": SCHEMA},
                "chat_template_kwargs": {"enable_thinking": False},
            }
            for i in range(n)
        ]

        async def one(request: dict[str, Any]) -> Stream:
            async with Connection(server.url) as connection:
                return await connection.stream("/v1/chat/completions", request)

        streams = await asyncio.gather(*[one(request) for request in requests])
        elapsed = max(s.finished for s in streams) - min(s.started for s in streams)
        metrics[f"JSON schema, {n} at once: tokens/s"] = sum(s.n_tokens for s in streams) / elapsed
    return metrics


async def short_requests(server: Server, sizes: Sizes, seed: int) -> Metrics:
    """Measures requests for one token, sixteen at once, on kept-alive and on new connections."""
    metrics: Metrics = {}
    for label, kept in (("kept-alive", True), ("new connections", False)):
        waiting = iter(range(sizes.short_requests))
        times: list[float] = []

        async def client(kept: bool, waiting: Any, times: list[float]) -> None:
            connection = Connection(server.url)
            async with connection:
                for number in waiting:
                    request = completion(server, words(seed * 7 + number, 8), 1, number)
                    request = {k: v for k, v in request.items() if not k.startswith("stream")}
                    started = time.perf_counter()
                    if kept:
                        await connection.request("POST", "/v1/completions", request)
                    else:
                        async with Connection(server.url) as fresh:
                            await fresh.request("POST", "/v1/completions", request)
                    times.append(time.perf_counter() - started)

        started = time.perf_counter()
        await asyncio.gather(*[client(kept, waiting, times) for _ in range(16)])
        elapsed = time.perf_counter() - started
        name = f"one-token requests, {label}"
        metrics[f"{name}: requests/s"] = len(times) / elapsed
        metrics[f"{name}: p99 ms"] = 1e3 * statistics.quantiles(times, n=100)[98]
    return metrics


Scenario = Callable[[Server, Sizes, int], Awaitable[Metrics]]
SCENARIOS: dict[str, Scenario] = {
    "prefix": shared_prefix,
    "long-prompt": long_prompt,
    "together": together,
    "schema": schema,
    "short": short_requests,
}
