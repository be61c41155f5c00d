"""Compares the routing of a fleet with Ray Serve's default, on real engine processes.

Starts replicas of a model on this machine. Conversations run side by side, each for some turns, and
each turn sends the whole text so far. Turn by turn, the same conversations run with specllama's
rules (`engine.fleet.placing`) and with power of two choices, each time on empty caches. Ray is not
needed: the rule of its default router is a few lines.

    python -m benchmarks.fleet --replicas 2 4

Prints, as medians of the rounds, the share of prompt tokens that were cached, the time to the first
token, and the share of the requests that each replica had at most.
"""

import argparse
import asyncio
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.scenarios import words
from specllama import __version__
from specllama.engine.fleet.gate import Gate
from specllama.engine.fleet.placing import PlacedRequest, Placing, WantedPrompt
from specllama.engine.fleet.replicas import Replicas, WaitsForReplicas
from specllama.engine.models.client import EngineClient
from specllama.engine.models.supervisor import Supervisor
from specllama.engine.options import Options
from specllama.engine.options.declaration import replaced
from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import Finished
from specllama.engine.wire.stats import BLOCK
from tools.models.build import ensure

SLOTS = 4
SYSTEM_WORDS, MESSAGE_WORDS = 200, 30


class PowerOfTwo(Placing):
    """Of two random replicas, the one with fewer open requests: the rule of Ray Serve's default."""

    def __init__(self) -> None:
        super().__init__(random.Random(1), BLOCK)
        self._choice = random.Random(2)
        self._n_open: Counter[Hashable] = Counter()

    def place(
        self, wanted: WantedPrompt, now: float, without: Collection[Hashable] = ()
    ) -> PlacedRequest | None:
        names = sorted(str(name) for name in self.names.difference(without))
        if not names:
            return None
        pair = self._choice.choices(names, k=2)
        chosen = min(pair, key=lambda name: self._n_open[name])
        self._n_open[chosen] += 1
        return super().place(wanted, now, self.names - {chosen})

    def ended(self, placed: PlacedRequest, now: float) -> None:
        self._n_open[placed.member] -= 1
        super().ended(placed, now)


RULES: dict[str, Callable[[], Placing]] = {
    "specllama": lambda: Placing(random.Random(1), BLOCK),
    "power of two": PowerOfTwo,
}


class Turns:
    """The results of the requests of one round."""

    def __init__(self) -> None:
        self.n_prompt = 0
        self.n_cached = 0
        self.first: list[float] = []
        self.places: Counter[int] = Counter()

    def metrics(self) -> list[float]:
        times = statistics.quantiles(self.first, n=100, method="inclusive")
        most = max(self.places.values()) / sum(self.places.values())
        return [self.n_cached / self.n_prompt, 1e3 * times[49], 1e3 * times[98], most]


async def converse(
    engine: EngineClient, number: int, n_turns: int, n_answer: int, pause: float, turns: Turns
) -> None:
    """Runs one conversation, with a mean `pause` of seconds between its turns. Every fifth one has
    the same beginning."""
    text = words(number % 5, SYSTEM_WORDS)
    pauses = random.Random(number)
    for turn in range(n_turns):
        text += " " + words(1000 * number + turn + 10, MESSAGE_WORDS)
        params = GenerationParams(
            n_predict=n_answer, temperature=0.0, ignore_eos=True, stream=True, cache_prompt=True
        )
        started, first = time.perf_counter(), 0.0
        [generation] = engine.generate_all([text], [params])
        async for event in generation:
            first = first or time.perf_counter()
            if isinstance(event, Finished):
                turns.n_prompt += event.n_prompt
                turns.n_cached += event.timings.cache_n
                turns.places[event.id_slot // SLOTS] += 1
            else:
                text += event.text
        turns.first.append(first - started)
        await asyncio.sleep(pauses.random() * 2 * pause)


async def run(rule: str, n_replicas: int, options: Options, plan: argparse.Namespace) -> Turns:
    """Runs all conversations on new replicas."""
    gates, supervisors, known = [], [], {}
    for number in range(n_replicas):
        gate = Gate(__version__)
        supervisor = Supervisor(options, start_process=gate.start_process)
        gate.guard(supervisor)
        supervisor.start()
        await supervisor.loaded()
        known[f"replica {number}"] = await gate.open("127.0.0.1")
        gates.append(gate)
        supervisors.append(supervisor)
    replicas = Replicas(__version__, lambda name, own: None, new_placing=RULES[rule])
    ingress = Supervisor(options, start_process=replicas.start_process, restarts=WaitsForReplicas())
    replicas.update(known)
    ingress.start()
    try:
        await ingress.loaded()
        engine = await ingress.engine()
        while engine.info.n_slots < n_replicas * SLOTS:
            await asyncio.sleep(0.01)
        turns = Turns()
        await asyncio.gather(
            *(
                converse(engine, number, plan.turns, plan.answer, plan.pause, turns)
                for number in range(plan.conversations)
            )
        )
        return turns
    finally:
        await ingress.stop()
        await replicas.close()
        for gate, supervisor in zip(gates, supervisors, strict=True):
            await gate.close()
            await supervisor.stop()


def table(results: dict[tuple[int, str], list[Turns]]) -> Table:
    """Returns the medians of all rounds."""
    view = Table()
    view.add_column("replicas", justify="right")
    view.add_column("rule")
    for name in ("cached", "first token p50 ms", "p99 ms", "requests of one replica"):
        view.add_column(name, justify="right")
    for (n_replicas, rule), rounds in results.items():
        columns = zip(*(each.metrics() for each in rounds), strict=True)
        cached, median, late, most = (statistics.median(column) for column in columns)
        view.add_row(
            str(n_replicas), rule, f"{cached:.1%}", f"{median:,.0f}", f"{late:,.0f}", f"{most:.0%}"
        )
    return view


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--replicas", type=int, nargs="+", default=[2, 4], metavar="N")
    parser.add_argument("--model", type=Path, help="a GGUF file (default: bench-100m)")
    parser.add_argument("--conversations", type=int, default=20, metavar="N")
    parser.add_argument("--turns", type=int, default=10, metavar="N")
    parser.add_argument("--answer", type=int, default=16, metavar="N", help="tokens of an answer")
    parser.add_argument(
        "--pause", type=float, default=4.0, metavar="SECONDS", help="mean, between two turns"
    )
    parser.add_argument(
        "--ctx-size", type=int, default=16384, metavar="N", help="cells of each replica's KV cache"
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--threads", type=int, default=1, help="of each engine process")
    plan = parser.parse_args(argv)
    model = plan.model or ensure("bench-100m")
    options = replaced(
        Options(),
        model=str(model),
        parallel=SLOTS,
        kv_unified=True,
        ctx_size=plan.ctx_size,
        threads=plan.threads,
    )
    results: dict[tuple[int, str], list[Turns]] = {}
    for number in range(plan.rounds):
        for n_replicas in plan.replicas:
            for rule in RULES if number % 2 == 0 else reversed(RULES):
                turns = asyncio.run(run(rule, n_replicas, options, plan))
                results.setdefault((n_replicas, rule), []).append(turns)
    Console().print(table(results))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
