"""`python -m benchmarks.serving`: specllama compared with other servers, over HTTP.

Servers take turns, round after round, with the same requests. Figures are medians over the rounds.
A ratio is the median of the rounds' ratios, so that a temporarily slow machine affects both sides.
README.md explains the method.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

from gguf import GGUFReader
from rich.console import Console
from rich.table import Table

from benchmarks.client import ClientError, Connection, Stream
from benchmarks.processes import ALL, spent
from benchmarks.scenarios import SCENARIOS, SMALL, Metrics, Sizes, completion, words
from benchmarks.servers import PEER, Server, peer_command, running, specllama_command, started
from specllama.engine.shipped import model_path
from tools.models.build import ensure

MODELS: dict[str, Callable[[], Path]] = {
    "shipped": model_path,
    "random": lambda: ensure("random"),
    "bench-100m": lambda: ensure("bench-100m"),
}
RANDOM = ("random", "bench-100m")
"""Models with random weights, whose texts don't end by themselves."""
STREAMS = (1, 4, 8)
BASICS = "basics"
WARM_UP_SEED = 100_000  # no round uses it
IDLE_SHARE = 0.05
"""The largest share of one processor that a waiting server may use without a warning."""


@dataclass(frozen=True)
class Plan:
    """The amount to measure: `max_tokens` by number of streams, and times in seconds."""

    rounds: int
    max_tokens: dict[int, int]
    prompt_words: int
    request_seconds: float
    sizes: Sizes


FULL = Plan(
    rounds=5,
    max_tokens={1: 256, 4: 128, 8: 96},
    prompt_words=60,
    request_seconds=2.0,
    sizes=Sizes(),
)
QUICK = Plan(
    rounds=1,
    max_tokens={1: 24, 4: 12, 8: 8},
    prompt_words=10,
    request_seconds=0.2,
    sizes=SMALL,
)


async def measure_streams(server: Server, n_streams: int, plan: Plan, seed: int) -> Metrics:
    """Measures streams that start at once, until the last one has ended."""

    async def one(index: int) -> Stream:
        number = seed * 1000 + index
        prompt = words(number, plan.prompt_words)
        request = completion(server, prompt, plan.max_tokens[n_streams], number)
        async with Connection(server.url) as connection:
            return await connection.stream("/v1/completions", request)

    before = server.cpu_times()
    streams = await asyncio.gather(*[one(index) for index in range(n_streams)])
    used = spent(before, server.cpu_times())
    elapsed = max(s.finished for s in streams) - min(s.started for s in streams)
    gaps = [gap for stream in streams for gap in stream.gaps]
    n_tokens = sum(stream.n_tokens for stream in streams)
    label = f"{n_streams} stream{'s' if n_streams > 1 else ''}: "
    metrics = {
        label + "tokens/s": n_tokens / elapsed,
        label + "first token ms": 1e3 * statistics.median(s.time_to_first_token for s in streams),
    }
    if len(gaps) > 1:
        percentiles = statistics.quantiles(gaps, n=100, method="inclusive")
        metrics[label + "gap p50 ms"] = 1e3 * percentiles[49]
        metrics[label + "gap p99 ms"] = 1e3 * percentiles[98]
    return metrics | per_unit(f"{label}CPU s/1000 tokens", 1e3, used, n_tokens)


def per_unit(label: str, scale: float, used: dict[str, float], n: int) -> Metrics:
    """Returns the processor time by role, per unit of `n`."""
    return {
        label if role == ALL else f"{label}, {role}": scale * seconds / n
        for role, seconds in used.items()
    }


async def measure_requests(
    server: Server, label: str, method: str, path: str, body: object, plan: Plan
) -> Metrics:
    """Measures the time of a request with one client, then requests per second with four."""
    times: list[float] = []

    async def client(seconds: float) -> int:
        n = 0
        async with Connection(server.url) as connection:
            end = time.perf_counter() + seconds
            while (started_at := time.perf_counter()) < end:
                await connection.request(method, path, body)
                times.append(time.perf_counter() - started_at)
                n += 1
        return n

    await client(plan.request_seconds)
    alone = 1e3 * statistics.median(times)
    before, started_at = server.cpu_times(), time.perf_counter()
    counts = await asyncio.gather(*[client(plan.request_seconds) for _ in range(4)])
    elapsed = time.perf_counter() - started_at
    used = spent(before, server.cpu_times())
    metrics = {f"{label}: median ms": alone, f"{label}: requests/s": sum(counts) / elapsed}
    return metrics | per_unit(f"{label}: CPU s/1000 requests", 1e3, used, sum(counts))


async def measure(server: Server, plan: Plan, seed: int, wanted: Collection[str]) -> Metrics:
    """Returns the figures of one turn of one server."""
    metrics: Metrics = {}
    for number, (name, scenario) in enumerate(SCENARIOS.items()):
        if name in wanted:
            metrics |= await scenario(server, plan.sizes, 10_000 * (seed + 1) + 1000 * number)
    if BASICS in wanted:
        metrics |= await measure_basics(server, plan, seed)
    return metrics


async def measure_basics(server: Server, plan: Plan, seed: int) -> Metrics:
    """Measures single and concurrent streams, and requests without generation."""
    metrics: Metrics = {}
    for n_streams in STREAMS:
        metrics |= await measure_streams(server, n_streams, plan, seed * 10 + n_streams)
    if server.has_health:
        metrics |= await measure_requests(server, "GET /health", "GET", "/health", None, plan)
    metrics |= await measure_requests(server, "GET /v1/models", "GET", "/v1/models", None, plan)
    if server.tokenizer is not None:
        path, text_field = server.tokenizer
        body = {text_field: "The quick brown fox jumps over the lazy dog."}
        metrics |= await measure_requests(server, "POST /tokenize", "POST", path, body, plan)
    return metrics


def warm_up(server: Server, plan: Plan, wanted: Collection[str], seconds: float) -> None:
    """Warms up a server for at least `seconds`. Its first requests are slow, because of imports
    and of memory that is touched for the first time; what a server learns takes longer to show."""
    asyncio.run(measure(server, QUICK, WARM_UP_SEED, wanted))
    end = time.monotonic() + seconds
    seed = WARM_UP_SEED
    while time.monotonic() < end:
        seed += 1
        asyncio.run(measure(server, plan, seed, wanted))


def run_rounds(
    servers: list[Server], plan: Plan, console: Console, wanted: Collection[str], work: float
) -> dict[str, list[Metrics]]:
    """Returns the metrics of every round by server, after `work` seconds of warming up each."""
    results: dict[str, list[Metrics]] = defaultdict(list)
    for server in servers:
        warm_up(server, plan, wanted, work)
    for number in range(plan.rounds):
        # Every other round has the reverse order, so that no server always follows the same one.
        for server in servers if number % 2 == 0 else reversed(servers):
            console.print(f"round {number + 1}/{plan.rounds}: {server.name}", style="dim")
            others = [other for other in servers if other is not server]
            before = [other.cpu_times() for other in others]
            started_at = time.perf_counter()
            results[server.name].append(asyncio.run(measure(server, plan, number, wanted)))
            elapsed = time.perf_counter() - started_at
            for other, used_before in zip(others, before, strict=True):
                share = spent(used_before, other.cpu_times()).get(ALL, 0.0) / elapsed
                if share > IDLE_SHARE:
                    message = f"{other.name} used {share:.0%} of a processor while idle"
                    console.print(message, style="yellow")
    return results


def table(title: str, results: dict[str, list[Metrics]]) -> Table:
    """Returns a table with the medians of every server, and the ratios by which the first one is
    better than each other: the median of the rounds, and the worst round."""
    first, *others = results
    view = Table(title=title, caption="x: factor by which specllama is better; below 1 it is worse")
    view.add_column("", no_wrap=True)
    for name in results:
        view.add_column(name, justify="right", no_wrap=True)
    for name in others:
        view.add_column(f"x {name}", justify="right", style="bold", no_wrap=True)
        view.add_column("worst", justify="right", no_wrap=True)
    every = [turn for rounds in results.values() for turn in rounds]
    metrics = dict.fromkeys(metric for turn in every for metric in turn)
    for metric in metrics:
        values = {name: [r[metric] for r in results[name] if metric in r] for name in results}
        row = [f"{statistics.median(v):,.2f}" if v else "-" for v in values.values()]
        for name in others:
            better = [
                a / b if metric.endswith("/s") else b / a
                for a, b in zip(values[first], values[name], strict=False)
                if a > 0 and b > 0  # events that arrive together have no gap
            ]
            row.append(f"{statistics.median(better):.2f}" if better else "-")
            row.append(f"{min(better):.2f}" if better else "-")
        view.add_row(metric, *row)
    return view


def end_tokens(path: Path) -> tuple[int, ...]:
    """Returns the tokens of a GGUF file that end a text."""
    fields = GGUFReader(path).fields
    keys = (f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot"))
    return tuple({int(fields[key].contents()) for key in keys if key in fields})


def main() -> int:
    arguments = parse_arguments()
    console = Console()
    plan = QUICK if arguments.quick else FULL
    if arguments.rounds:
        plan = replace(plan, rounds=arguments.rounds)
    collected = {}
    try:
        for name in arguments.model:
            path = MODELS[name]() if name in MODELS else Path(name)
            with contextlib.ExitStack() as stack:
                commands = [("specllama", specllama_command)]
                if not arguments.no_peer:
                    commands.append((PEER, peer_command))
                servers = [
                    stack.enter_context(started(who, command, path, arguments.threads))
                    for who, command in commands
                ]
                for server in servers:
                    if server.name == PEER and name not in RANDOM:
                        server.biased = end_tokens(path)
                servers += [running(who, url) for who, url in arguments.server]
                collected[name] = run_rounds(
                    servers, plan, console, arguments.scenario, arguments.work
                )
            console.print(table(f"{name} ({path.stat().st_size / 1e6:.0f} MB)", collected[name]))
    except ClientError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        arguments.json.write_text(json.dumps(collected, indent=2))
    return 0


def parse_arguments() -> argparse.Namespace:
    def named_url(text: str) -> tuple[str, str]:
        name, found, url = text.partition("=")
        if not found or not name or not url:
            raise argparse.ArgumentTypeError(f"{text!r} is not NAME=URL")
        return name, url

    def positive(text: str) -> int:
        value = int(text)
        if value < 1:
            raise argparse.ArgumentTypeError(f"{value} is less than 1")
        return value

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--model",
        action="append",
        metavar="MODEL",
        help=f"{', '.join(MODELS)}, or a GGUF file; may be repeated (default: all of these names)",
    )
    parser.add_argument(
        "--server",
        action="append",
        default=[],
        type=named_url,
        metavar="NAME=URL",
        help="also measure this running server, which has the same model",
    )
    parser.add_argument(
        "--scenario",
        action="append",
        choices=[BASICS, *SCENARIOS],
        help="scenario to measure; may be repeated (default: all)",
    )
    parser.add_argument("--no-peer", action="store_true", help=f"leave {PEER} out")
    parser.add_argument(
        "--threads",
        type=positive,
        default=os.cpu_count() or 1,
        help="threads of every started server (default: %(default)s, one per processor)",
    )
    parser.add_argument(
        "--rounds", type=positive, help=f"turns of each server (default {FULL.rounds}; --quick: 1)"
    )
    parser.add_argument(
        "--work",
        type=positive,
        default=0,
        metavar="SECONDS",
        help="warm up every server with the same requests for at least this time",
    )
    parser.add_argument("--quick", action="store_true", help="a smoke run; the figures mean little")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's figures")
    arguments = parser.parse_args()
    arguments.model = arguments.model or list(MODELS)
    arguments.scenario = arguments.scenario or [BASICS, *SCENARIOS]
    return arguments


if __name__ == "__main__":
    sys.exit(main())
