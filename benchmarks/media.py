"""`python -m benchmarks.media`: running streams while images arrive.

Servers take turns, round after round. In each round, some streams generate. Then all images arrive
at once, each in its own chat. Then all chats continue, with the same images. Then texts with as
many tokens as the images arrive. Each round has new images. A figure is the median over the rounds.
"""

import argparse
import asyncio
import base64
import contextlib
import io
import json
import shlex
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

from benchmarks.client import ClientError, Connection
from benchmarks.scenarios import words
from benchmarks.servers import Server, started
from tools.models.build import ensure

MODELS = {"bench-100m": "bench-mmproj", "random": "tiny-mmproj"}
"""Models of `tools.models.build`, with their projectors."""
TOKENS_PER_WORD = 1.3  # approximately
N_CTX = 4096  # tokens of a slot
PAUSE = 1.0
"""Seconds in which the streams generate before other requests arrive."""


@dataclass
class Turn:
    """Measurements of a server while requests of one kind arrived. Times are in seconds."""

    seconds: float
    answered: list[float]
    gaps: list[float]
    n_tokens: int
    n_prompt: int = 0

    @property
    def worst_gap(self) -> float:
        """The longest time without a token in any of the streams."""
        return max(self.gaps, default=self.seconds)


@dataclass
class Streams:
    """Requests that generate until the block ends."""

    server: Server
    n: int
    seed: int
    times: list[list[float]] = field(default_factory=list)
    """Times of the tokens, for each stream."""

    async def __aenter__(self) -> "Streams":
        self.times = [[] for _ in range(self.n)]
        self._tasks = [asyncio.create_task(self._run(i)) for i in range(self.n)]
        while not all(self.times):
            for task in self._tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.01)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, index: int) -> None:
        while True:
            body = {
                "prompt": words(1000 * self.seed + index, 20),
                "n_predict": N_CTX - 300,
                "stream": True,
                "ignore_eos": True,
                "cache_prompt": False,
            }
            async with Connection(self.server.url) as connection:
                async for at, _ in connection.events("/completion", body):
                    self.times[index].append(at)


def image(seed: str, pixels: int) -> str:
    """Returns a data URL of a square image of coloured squares, different for each `seed`."""
    rng = np.random.default_rng([*seed.encode()])
    squares = rng.integers(0, 256, (-(-pixels // 8), -(-pixels // 8), 3), np.uint8)
    array = squares.repeat(8, axis=0).repeat(8, axis=1)[:pixels, :pixels]
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def question(url: str) -> list[dict[str, Any]]:
    """Returns the messages of a chat about an image."""
    parts = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": "What is this?"},
    ]
    return [{"role": "user", "content": parts}]


async def ask(server: Server, messages: list[dict[str, Any]]) -> tuple[float, dict[str, Any]]:
    """Returns the seconds until an answer of a few tokens, and the answer."""
    body = {"messages": messages, "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    begun = time.perf_counter()
    async with Connection(server.url) as connection:
        answer = await connection.request("POST", "/v1/chat/completions", body)
    return time.perf_counter() - begun, json.loads(answer)


async def turn(
    streams: Streams, requests: Sequence[Awaitable[tuple[float, dict[str, Any]]]]
) -> tuple[Turn, list[dict[str, Any]]]:
    """Sends all `requests` at once, beside the streams. Returns the figures and the answers."""
    await asyncio.sleep(PAUSE)
    begun = time.perf_counter()
    found = await asyncio.gather(*requests)
    ended = time.perf_counter()
    gaps, n_tokens = [], 0
    for times in streams.times:
        inside = [at for at in times if begun <= at <= ended]
        n_tokens += len(inside)
        gaps += [later - earlier for earlier, later in pairwise([begun, *inside, ended])]
    answers = [answer for _, answer in found]
    n_prompt = max(answer["usage"]["prompt_tokens"] for answer in answers)
    return Turn(ended - begun, [s for s, _ in found], gaps, n_tokens, n_prompt), answers


async def measure(server: Server, plan: argparse.Namespace, seed: int) -> dict[str, Turn]:
    """Runs one round of a server. Returns its turns by kind of request."""
    urls = [image(f"{seed}.{i}", plan.pixels) for i in range(plan.images)]
    chats = [question(url) for url in urls]
    found: dict[str, Turn] = {}
    async with Streams(server, plan.streams, seed) as streams:
        found["images"], answers = await turn(streams, [ask(server, chat) for chat in chats])
        again = [
            [*chat, answer["choices"][0]["message"], {"role": "user", "content": "And now?"}]
            for chat, answer in zip(chats, answers, strict=True)
        ]
        found["the same images"], _ = await turn(streams, [ask(server, chat) for chat in again])
        n_words = int(found["images"].n_prompt / TOKENS_PER_WORD)
        texts = [words(1000 * seed + 500 + i, n_words) for i in range(len(chats))]
        found["texts"], _ = await turn(
            streams, [ask(server, [{"role": "user", "content": text}]) for text in texts]
        )
    return found


async def warm_up(server: Server, plan: argparse.Namespace) -> None:
    """Sends a request with a single image."""
    await ask(server, question(image("warm-up", plan.pixels)))


def our_command(
    options: str, projector: Path, plan: argparse.Namespace, model: Path, port: int, threads: int
) -> list[str]:
    n_slots = plan.streams + plan.images
    return [
        *(sys.executable, "-m", "specllama", "-m", str(model), "--mmproj", str(projector)),
        *("--port", str(port), "--threads", str(threads), "--parallel", str(n_slots)),
        *("--ctx-size", str(n_slots * N_CTX), *shlex.split(options)),
    ]


def peer_command(
    command: str, projector: Path, plan: argparse.Namespace, model: Path, port: int, threads: int
) -> list[str]:
    n_slots = plan.streams + plan.images
    values = {"model": model, "mmproj": projector, "port": port, "threads": threads}
    values |= {"slots": n_slots, "ctx": n_slots * N_CTX}
    return [part.format(**values) for part in shlex.split(command)]


Results = dict[str, dict[str, list[Turn]]]
"""The turns of all rounds, by kind of request and by server."""


def table(what: str, servers: dict[str, list[Turn]]) -> Table:
    view = Table(title=what, caption="medians of the rounds; (the worst)")
    view.add_column("")
    columns: dict[str, Callable[[Turn], float]] = {
        "worst gap, s": lambda t: t.worst_gap,
        "a gap of 100, s": lambda t: float(np.quantile(t.gaps, 0.99)),
        "tokens/s": lambda t: t.n_tokens / t.seconds,
        "first answer, s": lambda t: min(t.answered),
        "median, s": lambda t: statistics.median(t.answered),
        "last, s": lambda t: max(t.answered),
    }
    for name in columns:
        view.add_column(name, justify="right", no_wrap=True)
    for server, turns in servers.items():
        row = [server]
        for name, value in columns.items():
            values = [value(each) for each in turns]
            worst = min(values) if name == "tokens/s" else max(values)
            row.append(f"{statistics.median(values):.2f} ({worst:.2f})")
        view.add_row(*row)
    return view


@contextlib.contextmanager
def all_servers(plan: argparse.Namespace) -> Iterator[list[Server]]:
    """Runs all servers of the command line until the block ends."""
    if plan.model in MODELS:
        model, projector = ensure(plan.model), ensure(MODELS[plan.model])
    else:
        model, projector = Path(plan.model), Path(plan.mmproj)
    commands = {
        name: partial(our_command, options, projector, plan)
        for name, options in [("specllama", ""), *plan.variant]
    }
    commands |= {
        name: partial(peer_command, command, projector, plan) for name, command in plan.peer
    }
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(started(name, command, model, plan.threads))
            for name, command in commands.items()
        ]


def run(plan: argparse.Namespace, console: Console) -> Results:
    results: Results = {}
    with all_servers(plan) as servers:
        for server in servers:
            asyncio.run(warm_up(server, plan))
        for number in range(plan.rounds):
            for server in servers if number % 2 else [*reversed(servers)]:
                for what, turn in asyncio.run(measure(server, plan, number)).items():
                    results.setdefault(what, {}).setdefault(server.name, []).append(turn)
                console.print(f"round {number + 1}: {server.name}", style="dim")
    return results


def main() -> int:
    plan = parse_arguments()
    console = Console() if sys.stdout.isatty() else Console(width=140)
    try:
        results = run(plan, console)
    except ClientError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for what, servers in results.items():
        console.print(table(what, servers))
    if plan.json:
        plan.json.write_text(json.dumps(results, indent=2, default=vars))
    return 0


def parse_arguments() -> argparse.Namespace:
    def named(text: str) -> tuple[str, str]:
        name, found, rest = text.partition("=")
        if not found or not name or not rest:
            raise argparse.ArgumentTypeError(f"{text!r} is not NAME=...")
        return name, rest

    def positive(text: str) -> int:
        value = int(text)
        if value < 1:
            raise argparse.ArgumentTypeError(f"{value} is less than 1")
        return value

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.media",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--model", default="bench-100m", help=f"{', '.join(MODELS)}, or a file (%(default)s)"
    )
    parser.add_argument("--mmproj", metavar="FILE", help="projector of a --model that is a file")
    parser.add_argument(
        "--variant",
        action="append",
        default=[],
        type=named,
        metavar="NAME=OPTIONS",
        help="another specllama with these options",
    )
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        type=named,
        metavar="NAME=COMMAND",
        help="another server; {model}, {mmproj}, {port}, {threads}, {slots} and {ctx} (the tokens "
        "of all slots) are filled in",
    )
    parser.add_argument("--threads", type=positive, default=2, help="default: %(default)s")
    parser.add_argument("--streams", type=positive, default=2, help="default: %(default)s")
    parser.add_argument("--images", type=positive, default=8, help="default: %(default)s")
    parser.add_argument("--pixels", type=positive, default=1000, help="image width (%(default)s)")
    parser.add_argument("--rounds", type=positive, default=3, help="default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's figures")
    plan = parser.parse_args()
    if plan.model not in MODELS and not plan.mmproj:
        parser.error("--model with a file needs --mmproj")
    return plan


if __name__ == "__main__":
    sys.exit(main())
