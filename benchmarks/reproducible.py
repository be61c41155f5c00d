"""`python -m benchmarks.reproducible`: the cost of `--reproducible`.

Two contexts of one model, with and without the option, take turns, round after round. A ratio is
the median of the rounds' ratios. No server runs.
"""

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from specllama.engine.options import EngineOptions, replaced
from specllama.engine.worker.backend import Context, Model, initialize
from tools.models.build import ensure

N_SLOTS = 8
PIECE = 512  # prompt tokens per step
PROMPTS = (500, 2000)  # tokens
STEPS = 40


def prompt_seconds(context: Context, sequence: int, n: int) -> float:
    """Returns the seconds for evaluating `n` tokens at the start of an empty sequence."""
    tokens = np.random.default_rng(n).integers(300, 4000, n, dtype=np.int32)
    begun = time.perf_counter()
    for start in range(0, n, PIECE):
        context.batch.clear()
        last = context.batch.add(tokens[start : start + PIECE], start, sequence)
        context.decode()
        context.logits(last)
    return time.perf_counter() - begun


def tokens_per_second(context: Context, sequences: Sequence[int], start: int) -> float:
    """Returns the tokens per second of sequences that all continue at position `start`."""
    n = len(sequences)
    begun = time.perf_counter()
    for step in range(STEPS):
        context.batch.clear()
        context.batch.add_singles([500 + step] * n, [start + step] * n, sequences, [True] * n)
        context.decode()
        context.logits(0)
    return n * STEPS / (time.perf_counter() - begun)


def measure(context: Context) -> dict[str, float]:
    """Returns the figures of one round by name; more is better."""
    found = {}

    def clear() -> None:
        for sequence in range(N_SLOTS):
            context.remove(sequence, 0)

    for n in PROMPTS:
        clear()
        found[f"prompt of {n} tokens: tokens/s"] = n / prompt_seconds(context, 0, n)
    found[f"1 stream after {n} tokens: tokens/s"] = tokens_per_second(context, [0], n)
    for n_streams in (1, N_SLOTS):
        clear()
        for sequence in range(n_streams):
            prompt_seconds(context, sequence, 32)
        streams = range(n_streams)
        found[f"{n_streams} streams: tokens/s"] = tokens_per_second(context, streams, 32)
    clear()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reproducible",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="bench-100m", help="recipe or file (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=-1)
    plan = parser.parse_args()

    initialize()
    path = plan.model if plan.model.endswith(".gguf") else str(ensure(plan.model))
    options = {
        name: replaced(
            EngineOptions(),
            model=path,
            ctx_size=N_SLOTS * 2304,  # room for the longest prompt; llama.cpp counts by 256
            parallel=N_SLOTS,
            threads=plan.threads,
            kv_unified=False,
            reproducible=name,
        )
        for name in ("off", "on")
    }
    model = Model(path, options["off"])
    contexts = {name: Context(model, each, N_SLOTS, False) for name, each in options.items()}
    for context in contexts.values():
        measure(context)  # the first round warms up
    rounds: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for number in range(plan.rounds):
        order = list(contexts) if number % 2 else list(reversed(contexts))
        for name in order:
            for what, value in measure(contexts[name]).items():
                rounds[what][name].append(value)
    for what, values in rounds.items():
        ratios = [on / off for on, off in zip(values["on"], values["off"], strict=True)]
        print(
            f"{what:36} off {statistics.median(values['off']):8.0f}  "
            f"on {statistics.median(values['on']):8.0f}  "
            f"x {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )


if __name__ == "__main__":
    main()
