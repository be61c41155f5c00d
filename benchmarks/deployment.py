"""Measures what the way through a deployment on Ray costs: tokens per second, and processor time
per token, of 8 and 32 streams through `specllama deploy` against a plain server.

Both run on this machine, with the same model and options, and are measured in turns; the waiting
one is idle. The processor time is that of all processes, Ray's included.

    python -m benchmarks.deployment
"""

import argparse
import asyncio
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.client import ClientError
from benchmarks.scenarios import Metrics, Sizes
from benchmarks.servers import Server, started
from benchmarks.serving import Plan, measure_streams, table
from tools.models.build import ensure

STREAMS = (8, 32)
SLOTS = 32
CONTEXT = SLOTS * 512
DEPLOYMENT = """
server:
  host: 127.0.0.1
  port: {port}
models:
  {name}:
    cpus: 0
    options:
      model: {model}
      parallel: {slots}
      ctx-size: {context}
      threads: {threads}
ingress:
  cpus: 0
"""


def plain_command(model: Path, port: int, threads: int) -> list[str]:
    """Returns the command of the plain server."""
    command = [sys.executable, "-m", "specllama", "-m", str(model), "--port", str(port)]
    command += ["--parallel", str(SLOTS), "--ctx-size", str(CONTEXT)]
    return [*command, "--threads", str(threads)]


def deploy_command(folder: Path, model: Path, port: int, threads: int) -> list[str]:
    """Returns the command of the deployment, whose file is written to `folder`."""
    file = folder / "deploy.yaml"
    text = DEPLOYMENT.format(
        port=port, name=model.stem, model=model, slots=SLOTS, context=CONTEXT, threads=threads
    )
    file.write_text(text, "utf-8")
    return [sys.executable, "-m", "specllama", "deploy", str(file)]


async def turn(server: Server, plan: Plan, seed: int) -> Metrics:
    """Returns the figures of one turn of one server."""
    metrics: Metrics = {}
    for n_streams in STREAMS:
        metrics |= await measure_streams(server, n_streams, plan, seed * 100 + n_streams)
    return metrics


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.deployment",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, help="a GGUF file (default: bench-100m)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--tokens", type=int, default=64, metavar="N", help="of each stream")
    parser.add_argument("--threads", type=int, default=2, help="of the engine process")
    given = parser.parse_args(argv)
    model = given.model or ensure("bench-100m")
    plan = Plan(
        rounds=given.rounds,
        max_tokens=dict.fromkeys(STREAMS, given.tokens),
        prompt_words=20,
        request_seconds=0.0,
        sizes=Sizes(),
    )
    console = Console()
    results: dict[str, list[Metrics]] = defaultdict(list)
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            started("plain", plain_command, model, given.threads) as plain,
            started(
                "deployment",
                lambda model, port, threads: deploy_command(Path(folder), model, port, threads),
                model,
                given.threads,
            ) as deployment,
        ):
            for server in (deployment, plain):
                asyncio.run(turn(server, plan, 1000))  # warms up
            for number in range(plan.rounds):
                pair = (deployment, plain) if number % 2 == 0 else (plain, deployment)
                for server in pair:
                    console.print(f"round {number + 1}/{plan.rounds}: {server.name}", style="dim")
                    results[server.name].append(asyncio.run(turn(server, plan, number)))
    except ClientError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    console.print(table("a deployment with one replica", dict(results)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
