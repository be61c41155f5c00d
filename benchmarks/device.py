"""`python -m benchmarks.device --model FILE --peer llama-server`: both servers on one card.

It suits a machine that is available for minutes only: each row is written to `DIR/rows.jsonl` as
soon as it is measured, the most important rows come first, and the second round begins after all
rows have been measured once. The servers take turns; the other one is idle meanwhile. README.md
lists the rows.
"""

import argparse
import asyncio
import contextlib
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from rich.console import Console

from benchmarks.client import ClientError, Connection
from benchmarks.device_scenarios import (
    LOGPROB,
    SCENARIOS,
    Counts,
    Metrics,
    Plan,
    card_mib,
    device_steps,
    difference,
)
from benchmarks.servers import Server, free_port
from benchmarks.serving import table

OURS = "specllama"
PEER = "llama-server"
START_SECONDS = 120.0
POLL = 0.01  # seconds between two attempts
ALL_LAYERS = ("-ngl", "99", "-fa", "on")


@dataclass(frozen=True)
class Phase:
    """Two servers with the same `options`, and the scenarios that both run in turns. `of_ours` are
    additional options of specllama, which the peer doesn't have."""

    name: str
    options: tuple[str, ...]
    scenarios: tuple[str, ...]
    of_ours: tuple[str, ...] = ()
    alone: bool = False
    """Whether the peer doesn't run: memory of the card is measured for all processes together."""


def phases(counts: Counts) -> list[Phase]:
    """Returns the phases, the most important first. Each slot has room for a prompt and an answer;
    in the phase with long prompts, all slots share one cache."""
    many = ("-np", str(counts.slots), "-c", str(2048 * counts.slots))
    few = ("-np", "8", "-c", "32768")
    long = ("-np", "16", "--kv-unified", "-c", str(counts.long_context))
    return [
        Phase("throughput", many, ("streams", "sampling", "json"), ("--metrics",)),
        Phase("long prompts", long, ("right", "stutter", "first token", "prefix")),
        Phase("backend sampling", (*many, "--backend-sampling"), ("streams", "greedy")),
        Phase(
            "proposals",
            (*few, "--spec-type", "ngram-simple"),
            ("dictated",),
        ),
        Phase("no proposals", few, ("dictated", "mixed load")),
        Phase("sleep", (*few, "--sleep-idle-seconds", "2"), ("sleep",), alone=True),
    ]


@dataclass
class Rows:
    """All measurements. Each row is written to the file at once, as one line."""

    file: IO[str]
    console: Console
    found: dict[str, dict[str, list[Metrics]]] = field(default_factory=dict)

    def add(self, phase: str, server: str, number: int, metrics: Metrics) -> None:
        turns = self.found.setdefault(phase, {OURS: [], PEER: []}).setdefault(server, [])
        while len(turns) <= number:
            turns.append({})
        turns[number] |= metrics
        for row, value in metrics.items():
            line = {"phase": phase, "round": number, "server": server, "row": row, "value": value}
            self.file.write(json.dumps(line) + "\n")
        self.file.flush()

    def fail(self, phase: str, server: str, what: str, error: object) -> None:
        line = {"phase": phase, "server": server, "row": what, "error": f"{error}"[-2000:]}
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()
        self.console.print(f"{phase}, {server}, {what}: {line['error']}", style="red", markup=False)

    def show(self) -> None:
        for phase, results in self.found.items():
            for ours, peers in zip(results[OURS], results[PEER], strict=False):
                ours |= difference(ours, peers)
            for turn in [turn for turns in results.values() for turn in turns]:
                for row in [row for row in turn if row.startswith(LOGPROB)]:
                    del turn[row]
            shown = {server: turns for server, turns in results.items() if turns}
            if OURS in shown:
                self.console.print(table(phase, shown))


@contextlib.contextmanager
def started(
    name: str, command: Sequence[str], log: Path, rows: Rows, phase: str, number: int
) -> Iterator[Server]:
    """Runs a server until the block ends. Adds rows with the time of its start and its memory of
    the card. Raises ClientError if it doesn't start."""
    before = card_mib()
    port = free_port()
    began = time.perf_counter()
    with log.open("ab") as sink:
        process = subprocess.Popen(
            [*command, "--port", str(port)], stdin=subprocess.DEVNULL, stdout=sink, stderr=sink
        )
    server = Server(name, f"http://127.0.0.1:{port}", process.pid)
    try:
        asyncio.run(_first_token(server, process))
        metrics = {"start: first token s": time.perf_counter() - began}
        after = card_mib()
        if before is not None and after is not None:
            metrics["card: in use before MiB"] = before
            metrics["card: held MiB"] = after - before
        rows.add(phase, name, number, metrics)
        asyncio.run(server.probe())
        yield server
    except ClientError as error:
        text = log.read_text("utf-8", "replace")[-3000:]
        raise ClientError(f"{error}\n{text}") from error
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def _first_token(server: Server, process: subprocess.Popen[bytes]) -> None:
    body = {"prompt": "a", "n_predict": 1, "ignore_eos": True}
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            async with Connection(server.url) as connection:
                await connection.request("POST", "/completion", body)
                return
        except (ClientError, OSError):
            await asyncio.sleep(POLL)
    raise ClientError(f"{server.name} did not start: {process.poll()}")


def measure(servers: list[Server], phase: Phase, plan: Plan, rows: Rows, number: int) -> None:
    """Runs each scenario of the phase on one server after the other."""
    for scenario in phase.scenarios:
        for server in servers if number % 2 == 0 else servers[::-1]:
            rows.console.print(
                f"{phase.name}, {number + 1}: {scenario}, {server.name}", style="dim"
            )
            steps = asyncio.run(device_steps(server)) if server.name == OURS else None
            try:
                metrics = asyncio.run(SCENARIOS[scenario](server, plan, 1000 * (number + 1)))
            except (ClientError, OSError, KeyError, ValueError) as error:
                rows.fail(phase.name, server.name, scenario, repr(error))
                continue
            if steps is not None and (after := asyncio.run(device_steps(server))) is not None:
                metrics |= {f"{scenario}: {row}": v for row, v in after.since(steps).items()}
            rows.add(phase.name, server.name, number, metrics)


def run_phase(phase: Phase, given: argparse.Namespace, plan: Plan, rows: Rows, number: int) -> None:
    card = shlex.split(given.options)
    model = ("-m", str(given.model), "--host", "127.0.0.1", *card)
    commands = {OURS: [sys.executable, "-m", "specllama", *model, *phase.options, *phase.of_ours]}
    if given.peer and not phase.alone:
        commands[PEER] = [*shlex.split(given.peer), *model, *phase.options]
    with contextlib.ExitStack() as stack:
        servers = []
        for name, command in commands.items():
            log = given.out / f"{name}.log"
            try:
                run = started(name, command, log, rows, phase.name, number)
                servers.append(stack.enter_context(run))
            except ClientError as error:
                rows.fail(phase.name, name, "start", error)
        for server in servers:  # warms up the kernels, graphs and caches of both
            with contextlib.suppress(ClientError, OSError, KeyError):
                asyncio.run(SCENARIOS["streams"](server, plan.warming(), 7))
        measure(servers, phase, plan, rows, number)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.device",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--peer", help="command of a llama-server (default: only specllama runs)")
    parser.add_argument("--out", type=Path, default=Path("device"), metavar="DIR")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no phase after this time")
    parser.add_argument("--only", action="append", metavar="PHASE", help="may be repeated")
    parser.add_argument("--options", default=" ".join(ALL_LAYERS), help="options of both servers")
    parser.add_argument("--quick", action="store_true", help="a smoke run; figures mean little")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    plan = Plan(Counts.quick() if given.quick else Counts())
    deadline = time.monotonic() + given.seconds
    with (given.out / "rows.jsonl").open("a", encoding="utf-8") as file:
        rows = Rows(file, Console(width=150))
        for number in range(given.rounds):
            for phase in phases(plan.counts):
                if given.only and phase.name not in given.only:
                    continue
                if time.monotonic() < deadline:
                    began = time.perf_counter()
                    run_phase(phase, given, plan, rows, number)
                    seconds = time.perf_counter() - began
                    rows.console.print(f"{phase.name}: {seconds:.0f} s", style="bold")
        rows.show()
    return 0


if __name__ == "__main__":
    sys.exit(main())
