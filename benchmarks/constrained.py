"""`python -m benchmarks.constrained`: tokens per second under a grammar or a JSON schema, as a
share of the same server's tokens per second without constraint.

The three measurements alternate, round after round. A share is the median of the rounds' shares.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.client import Connection
from benchmarks.servers import Server, specllama_command, started
from specllama.engine.shipped import model_path
from tools.models.build import ensure

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 10, "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "colour": {"enum": ["red", "green", "blue"]},
        "notes": {"type": "array", "minItems": 2, "maxItems": 4, "items": {"type": "string"}},
    },
    "required": ["name", "age", "colour", "notes"],
    "additionalProperties": False,
}
GRAMMAR = r"""root ::= "[" (object ",")+
object ::= "{\"name\":" text ",\"age\":" [0-9]{1,3} "}"
text ::= "\"" [^"\\\x00-\x1f]{10,40} "\""
"""
KINDS: dict[str, dict[str, object]] = {
    "free": {},
    "JSON schema": {"json_schema": {"type": "array", "minItems": 500, "items": PERSON}},
    "GBNF": {"grammar": GRAMMAR},
}


async def measure(server: Server, options: dict[str, object], plan: argparse.Namespace) -> float:
    """Returns the tokens per second of streams that start together."""

    async def one(index: int) -> int:
        request = {
            "model": server.model,
            "prompt": f"{index} apples and {time.monotonic_ns()} pears",
            "max_tokens": plan.tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **options,
        }
        async with Connection(server.url) as connection:
            return (await connection.stream("/v1/completions", request)).n_tokens

    begun = time.perf_counter()
    counts = await asyncio.gather(*[one(index) for index in range(plan.streams)])
    return sum(counts) / (time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.constrained",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="bench-100m", help="bench-100m, shipped, or a file")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    plan = parser.parse_args()
    known: dict[str, Callable[[], Path]] = {
        "shipped": model_path,
        "bench-100m": lambda: ensure("bench-100m"),
    }
    model = known[plan.model]() if plan.model in known else Path(plan.model)
    results: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with started("specllama", specllama_command, model, plan.threads) as server:
        for options in KINDS.values():
            asyncio.run(measure(server, options, plan))  # warms up, and compiles the grammars
        for _ in range(plan.rounds):
            for kind, options in KINDS.items():
                results[kind].append(asyncio.run(measure(server, options, plan)))
    for kind, figures in results.items():
        shares = [one / free for one, free in zip(figures, results["free"], strict=True)]
        share, figure = statistics.median(shares), statistics.median(figures)
        print(f"{kind:12} {figure:8.1f} tokens/s   {share:5.2f} of free", flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
