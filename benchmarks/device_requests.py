"""The sizes of the scenarios of `benchmarks.device`, their requests, and the counters of a device.

Requests only use llama-server's API. They set `ignore_eos`, because a model with random weights may
end at any token.
"""

import asyncio
import contextlib
import json
import re
import statistics
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any, Self

from benchmarks.client import ClientError, Connection, Stream
from benchmarks.scenarios import completion, words
from benchmarks.servers import Server

Metrics = dict[str, float]
"""Name to value. For names that end with "/s", more is better; for all others, less."""


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
    load_seconds: float = 60.0

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


def stream_request(server: Server, prompt: str, n: int, seed: int, **fields: Any) -> dict[str, Any]:
    return {**completion(server, prompt, n, seed), "ignore_eos": True, **fields}


async def stream(server: Server, request: dict[str, Any]) -> Stream:
    async with Connection(server.url) as connection:
        return await connection.stream("/v1/completions", request)


async def ask(server: Server, body: dict[str, Any], path: str = "/completion") -> dict[str, Any]:
    async with Connection(server.url) as connection:
        answer: dict[str, Any] = json.loads(await connection.request("POST", path, body))
        return answer


async def measured_streams(
    server: Server, n: int, n_tokens: int, seed: int, label: str, **fields: Any
) -> Metrics:
    """Measures `n` streams that begin together, and the time that the device waited for the host
    meanwhile, if the server counts it."""
    requests = [
        stream_request(server, words(seed * 1000 + i, 40), n_tokens, seed * 1000 + i, **fields)
        for i in range(n)
    ]
    before = await device_steps(server)
    streams = await asyncio.gather(*[stream(server, each) for each in requests])
    after = await device_steps(server)
    elapsed = max(s.finished for s in streams) - min(s.started for s in streams)
    gaps = sorted(gap for each in streams for gap in each.gaps)
    metrics = {
        f"{label}: tokens/s": sum(s.n_tokens for s in streams) / elapsed,
        f"{label}: first token ms": 1e3 * statistics.median(s.time_to_first_token for s in streams),
    }
    if gaps:
        metrics[f"{label}: gap p50 ms"] = 1e3 * gaps[len(gaps) // 2]
        metrics[f"{label}: gap p99 ms"] = 1e3 * gaps[len(gaps) * 99 // 100]
    if before is not None and after is not None:
        metrics |= {f"{label}: {row}": value for row, value in after.since(before).items()}
    return metrics


async def tokens(server: Server, seed: int, n: int) -> list[int]:
    """Returns the first `n` tokens of a text with this seed."""
    answer = await ask(server, {"content": words(seed, n)}, "/tokenize")
    return list(answer["tokens"])[:n]


Scenario = Callable[[Server, Plan, int], AsyncIterator[Metrics]]
"""Yields the rows of one turn of one server, each as soon as it is measured. The number is a seed:
each turn has its own words, so that no prompt is in the cache from an earlier turn."""
