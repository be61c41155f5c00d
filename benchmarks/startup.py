"""Measures the time from a server's command to its first answers.

    python -m benchmarks.startup [--starts N] [--model FILE] [--command "llama-server ..."]

Three times are measured, each with its own starts: until an answer to `GET /health`, until the
first token of a completion, and until the first token of a chat. The table compares them with a
lower bound for servers of the same modules: the time in which a bare Python process starts and
imports the modules of the serving process. Starts of different servers take turns. The last lines
compare specllama with each other server, by the median of the ratios of all turns.
"""

import argparse
import asyncio
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from benchmarks.client import ClientError, Connection
from benchmarks.servers import free_port
from tools.models.build import ensure

TIMEOUT = 120.0  # seconds for one start
POLL = 0.02  # seconds between two attempts; with few cores, more of them would delay the start
PATHS: dict[str, tuple[str, str, object]] = {
    "answer": ("GET", "/health", None),
    "completion": ("POST", "/completion", {"prompt": "a", "n_predict": 1}),
    "chat": (
        "POST",
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1},
    ),
}
OURS = (sys.executable, "-m", "specllama")
PROBE = """
import atexit, runpy, sys
atexit.register(lambda: print(*sys.modules, sep=","))
runpy.run_module("specllama", run_name="__main__")
"""
"""A server that prints the names of its imported modules when it ends."""
IMPORT = """
import gc, importlib, sys
gc.disable()
for name in sys.argv[1].split(","):
    if name not in sys.modules:
        try:
            importlib.import_module(name)
        except ImportError:
            pass  # another module creates it, and is imported later
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table."""
    options = _arguments(argv)
    model = str(ensure("bench-100m") if options.model == "bench-100m" else options.model)
    ours = [*OURS, "-m", model] if model else list(OURS)
    commands = {"specllama": ours, **{text: shlex.split(text) for text in options.command}}
    modules = _imported_modules(ours)
    imports: list[float] = []
    figures: dict[tuple[str, str], list[float]] = {}
    lines = options.only or [*PATHS]
    for turn in range(options.starts):
        imports.append(_import_seconds(modules))
        for name, command in [*commands.items()][:: -1 if turn % 2 else 1]:
            for line in lines:
                seconds = asyncio.run(_first_answer(command, line, is_first=options.first))
                figures.setdefault((name, line), []).append(seconds)
    floor = statistics.median(imports)
    print(f"Python and {len(modules)} modules: {floor * 1000:.0f} ms")
    for (name, line), values in sorted(figures.items()):
        median = statistics.median(values)
        spread = f"{min(values) * 1000:.0f}..{max(values) * 1000:.0f}"
        print(f"{name}: {line}: {median * 1000:.0f} ms ({spread}), {median / floor:.2f} of that")
    for (name, line), values in sorted(figures.items()):
        if name != "specllama":
            pairs = zip(figures["specllama", line], values, strict=True)
            ratio = statistics.median(mine / other for mine, other in pairs)
            print(f"specllama takes {ratio:.2f} times as long as {name}: {line}")
    return 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.startup",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--starts", type=int, default=7, help="starts of each kind (default: 7)")
    parser.add_argument(
        "--model", default="", help="a file, or bench-100m (default: the shipped model)"
    )
    parser.add_argument(
        "--command", action="append", default=[], help="command of another server; --port is added"
    )
    parser.add_argument("--only", action="append", choices=PATHS, help="may be repeated")
    parser.add_argument(
        "--first", action="store_true", help="start each server with an empty cache directory"
    )
    return parser.parse_args(argv)


async def _first_answer(command: Sequence[str], line: str, *, is_first: bool) -> float:
    """Returns the seconds from the start of `command` to the answer to the request `line`. Raises
    ClientError."""
    port = free_port()
    with tempfile.TemporaryDirectory() as empty:
        begun = time.perf_counter()
        process = subprocess.Popen(
            [*command, "--port", str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **({"XDG_CACHE_HOME": empty} if is_first else {})},
        )
        try:
            await _ask(port, line, process)
            return time.perf_counter() - begun
        finally:
            process.terminate()
            process.wait()


async def _ask(port: int, line: str, process: subprocess.Popen[bytes]) -> None:
    """Repeats the request `line` until it is answered. Raises ClientError after TIMEOUT."""
    deadline = time.perf_counter() + TIMEOUT
    while time.perf_counter() < deadline and process.poll() is None:
        try:
            async with Connection(f"http://127.0.0.1:{port}") as connection:
                await connection.request(*PATHS[line])
                return
        except (ClientError, OSError):
            await asyncio.sleep(POLL)
    raise ClientError(f"no answer to {PATHS[line][1]}")


def _imported_modules(command: Sequence[str]) -> list[str]:
    """Returns the modules that the server process of `command` imports until its first chat."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-c", PROBE, *command[len(OURS) :], "--port", str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        asyncio.run(_ask(port, "chat", process))
    finally:
        process.terminate()
        output, _ = process.communicate()
    return output.decode().strip().split(",")


def _import_seconds(modules: Sequence[str]) -> float:
    """Returns the seconds in which a Python process starts, imports `modules` and ends."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", IMPORT, ",".join(modules)], check=True)
    return time.perf_counter() - begun


if __name__ == "__main__":
    sys.exit(main())
