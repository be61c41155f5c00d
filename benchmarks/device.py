"""`python -m benchmarks.device --model FILE --peer llama-server`: both servers on one card.

It suits a machine that is available for minutes only: each row is written to `DIR/rows.jsonl` as
soon as it is measured, the most important rows come first, and the second round begins after all
rows have been measured once. A scenario that fails or takes too long becomes a row with the reason.
The servers take turns; the other one is idle meanwhile. `--table` prints the goals and what
`DIR/rows.jsonl` has of them.
"""

import argparse
import asyncio
import contextlib
import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from rich.console import Console

from benchmarks import device_goals
from benchmarks.client import ClientError, Connection
from benchmarks.device_requests import Counts, Metrics, Plan, card_mib, device_steps
from benchmarks.device_scenarios import SCENARIOS
from benchmarks.device_states import LOGPROB, difference
from benchmarks.servers import Server, become_quiet, free_port
from benchmarks.serving import table

OURS, PEER = device_goals.OURS, device_goals.PEER
START_SECONDS = 120.0
SCENARIO_SECONDS = 200.0
"""The longest turn of a scenario. The slowest one known is llama-server's JSON: 180 seconds."""
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
    is_steady: bool = False
    """Whether the servers have the model of `--steady`."""
    alone: bool = False
    """Whether one server runs after the other: the memory of the card that is in use is that of all
    processes together."""


def phases(counts: Counts) -> list[Phase]:
    """Returns the phases, those first that say most in the least time. Each slot has room for a
    prompt and an answer; in the phase with long prompts, all slots share one cache."""
    many = ("-np", str(counts.slots), "-c", str(2048 * counts.slots))
    few = ("-np", "8", "-c", "32768")
    long = ("-np", "16", "--kv-unified", "-c", str(counts.long_context))
    metrics = ("--metrics",)
    drafting = (*few, "--spec-type", "ngram-simple")
    return [
        Phase("throughput", many, ("streams", "sampling"), metrics),
        Phase("long prompts", long, ("right", "stutter", "first token", "prefix")),
        Phase("sleep", (*few, "--sleep-idle-seconds", "2"), ("sleep",), alone=True),
        Phase("proposals", drafting, ("dictated",), is_steady=True),
        Phase("no proposals", few, ("dictated",), is_steady=True),
        Phase("backend sampling", (*many, "--backend-sampling"), ("sampling",), metrics),
        Phase("load", few, ("mixed load",)),
        Phase("JSON", many, ("json",), metrics),
    ]


@dataclass
class Rows:
    """All measurements. Each row is written to the file at once, as one line."""

    file: IO[str]
    console: Console
    model: str
    found: dict[str, dict[str, list[Metrics]]] = field(default_factory=dict)

    def add(self, phase: str, server: str, number: int, metrics: Metrics) -> None:
        turns = self.found.setdefault(phase, {OURS: [], PEER: []}).setdefault(server, [])
        while len(turns) <= number:
            turns.append({})
        turns[number] |= metrics
        for row, value in metrics.items():
            self._write(phase, server, row, round=number, value=value)

    def fail(self, phase: str, server: str, what: str, error: object) -> None:
        reason = f"{error}"[-2000:]
        self._write(phase, server, what, error=reason)
        self.console.print(f"{phase}, {server}, {what}: {reason}", style="red", markup=False)

    def _write(self, phase: str, server: str, row: str, **found: object) -> None:
        line = {"model": self.model, "phase": phase, "server": server, "row": row, **found}
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()

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
    name: str, command: Sequence[str], log: Path, rows: Rows, phase: Phase, number: int
) -> Iterator[Server]:
    """Runs a server until the block ends. Adds rows with its memory of the card and, if it runs
    alone, the time of its start. Raises ClientError if it doesn't start."""
    before = card_mib()
    port = free_port()
    began = time.perf_counter()
    with log.open("ab") as sink:
        process = subprocess.Popen(
            [*command, "--port", str(port)], stdin=subprocess.DEVNULL, stdout=sink, stderr=sink
        )
    server = Server(name, f"http://127.0.0.1:{port}", process.pid)
    try:
        asyncio.run(_first_token(server, process, is_quiet=not phase.alone))
        seconds = time.perf_counter() - began
        metrics: Metrics = {"start: first token s": seconds} if phase.alone else {}
        after = card_mib()
        if before is not None and after is not None:
            metrics["card: in use before MiB"] = before
            metrics["card: held MiB"] = after - before
        rows.add(phase.name, name, number, metrics)
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


async def _first_token(server: Server, process: subprocess.Popen[bytes], *, is_quiet: bool) -> None:
    body = {"prompt": "a", "n_predict": 1, "ignore_eos": True}
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if is_quiet:
                await become_quiet(server)
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
            try:
                asyncio.run(_turn(server, scenario, plan, rows, phase, number))
            except Exception as error:  # whatever it is, the other rows are worth having
                rows.fail(phase.name, server.name, scenario, repr(error))


async def _turn(
    server: Server, scenario: str, plan: Plan, rows: Rows, phase: Phase, number: int
) -> None:
    before = await device_steps(server)
    async with asyncio.timeout(SCENARIO_SECONDS):
        async for metrics in SCENARIOS[scenario](server, plan, 1000 * (number + 1)):
            rows.add(phase.name, server.name, number, metrics)
    after = await device_steps(server)
    if before is not None and after is not None:
        waited = {f"{scenario}: {row}": value for row, value in after.since(before).items()}
        rows.add(phase.name, server.name, number, waited)


def run_phase(phase: Phase, given: argparse.Namespace, plan: Plan, rows: Rows, number: int) -> None:
    card = shlex.split(given.options)
    path = given.steady if phase.is_steady and given.steady else given.model
    model = ("-m", str(path), "--host", "127.0.0.1", *card)
    commands = {OURS: [sys.executable, "-m", "specllama", *model, *phase.options, *phase.of_ours]}
    if given.peer:
        commands[PEER] = [*shlex.split(given.peer), *model, *phase.options]
    groups = [[name] for name in commands] if phase.alone else [[*commands]]
    for names in groups:
        with contextlib.ExitStack() as stack:
            servers = []
            for name in names:
                log = given.out / f"{name}.log"
                try:
                    run = started(name, commands[name], log, rows, phase, number)
                    servers.append(stack.enter_context(run))
                except (ClientError, OSError) as error:
                    rows.fail(phase.name, name, "start", error)
            for server in servers:  # warms up the kernels, graphs and caches of both
                with contextlib.suppress(Exception):
                    asyncio.run(_warm_up(server, plan))
            measure(servers, phase, plan, rows, number)


async def _warm_up(server: Server, plan: Plan) -> None:
    async with asyncio.timeout(SCENARIO_SECONDS):
        async for _ in SCENARIOS["streams"](server, plan.warming(), 7):
            pass


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.device",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, help="the file of the model")
    parser.add_argument(
        "--steady",
        type=Path,
        metavar="FILE",
        help="the model for texts that the prompt dictates (default: --model)",
    )
    parser.add_argument("--peer", help="command of a llama-server (default: only specllama runs)")
    parser.add_argument("--out", type=Path, default=Path("device"), metavar="DIR")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no phase after this time")
    parser.add_argument("--only", action="append", metavar="PHASE", help="may be repeated")
    parser.add_argument("--options", default=" ".join(ALL_LAYERS), help="options of both servers")
    parser.add_argument("--quick", action="store_true", help="a smoke run; figures mean little")
    parser.add_argument("--table", action="store_true", help="print the goals, measure nothing")
    given = parser.parse_args()
    if given.table:
        print(device_goals.tables(given.out / "rows.jsonl"), end="")
        return 0
    if given.model is None:
        parser.error("--model is missing")
    # The servers end with this process, also if a time limit ends it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    given.out.mkdir(parents=True, exist_ok=True)
    plan = Plan(Counts.quick() if given.quick else Counts())
    deadline = time.monotonic() + given.seconds
    path = given.out / "rows.jsonl"
    earlier = device_goals.stored(path).get(given.model.stem)
    first = earlier.n_rounds if earlier else 0
    with path.open("a", encoding="utf-8") as file:
        rows = Rows(file, Console(width=150), given.model.stem)
        for number in range(first, first + given.rounds):
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
