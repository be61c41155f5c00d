"""`python -m tests.simulation`: random histories of a server, each from its seed.

A history that fails is shrunk. The command prints the story of the shrunk history and the command
that plays it again.
"""

import argparse
import logging
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator

from tests.simulation.events import SOMETIMES
from tests.simulation.history import History
from tests.simulation.mutant import FINDS
from tests.simulation.mutants import MUTANTS
from tests.simulation.shrinking import Shrinker

MANY = 1000
"""The number of histories after which every event of `SOMETIMES` has to have happened."""


def seeds(arguments: argparse.Namespace) -> Iterator[int]:
    """Yields the seed of `--seed`; without it, the seeds from `--first` on, for `--minutes`."""
    if arguments.seed is not None:
        yield arguments.seed
        return
    end = time.monotonic() + 60 * arguments.minutes
    seed = arguments.first
    while time.monotonic() < end:
        yield seed
        seed += 1


def report(history: History, error: Exception, seconds: float) -> None:
    """Shrinks a failed history for up to `seconds`, and prints the story of the smallest one."""
    print(f"seed {history.seed}: {type(error).__name__}: {error}")
    smaller = Shrinker(history.seed, seconds).smallest(history)
    if smaller is not history:
        try:
            smaller = History(history.seed, smaller.order, smaller.omitted)
            smaller.run()
        except Exception as again:
            error = again
    print("\n".join(smaller.story))
    print("".join(traceback.format_exception(error)[-8:]))
    omit = f" --omit '{','.join(sorted(smaller.omitted))}'" if smaller.omitted else ""
    order = f" --order {smaller.order}" if smaller.order else ""
    print(f"again: python -m tests.simulation --seed {history.seed}{order}{omit}")


def find(words: str, first: int) -> int:
    """Prints the first seed that finds each mutant. Returns 1 if one isn't found."""
    n_missed = 0
    for mutant in MUTANTS:
        if words in mutant.name:
            seed = mutant.first_seed(range(first, first + FINDS))
            n_missed += seed is None
            print(f"{'not found' if seed is None else seed:>9}  {mutant.name}", flush=True)
    return int(n_missed > 0)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, help="play this history, and print its story")
    parser.add_argument("--order", type=int, default=0, help="another order of tasks (default 0)")
    parser.add_argument("--omit", default="", help="parts that don't happen, separated by commas")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument(
        "--minutes", type=float, default=1.0, help="time for all seeds without --seed (default 1)"
    )
    parser.add_argument(
        "--shrink", type=float, default=60.0, help="seconds to make a failure smaller (default 60)"
    )
    parser.add_argument("--events", action="store_true", help="print the number of events by kind")
    parser.add_argument(
        "--mutants",
        nargs="?",
        const="",
        metavar="WORDS",
        help=f"look for the first of {FINDS} seeds that finds each mutant (with WORDS in its name)",
    )
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if arguments.mutants is not None:
        return find(arguments.mutants, arguments.first)
    omitted = frozenset(filter(None, arguments.omit.split(",")))
    n_histories = n_steps = n_failed = 0
    events: Counter[str] = Counter()
    started = time.monotonic()
    for seed in seeds(arguments):
        history = History(seed, arguments.order, omitted)
        n_histories += 1
        try:
            history.run()
        except Exception as error:  # any failure of a history; the next ones are still played
            n_failed += 1
            report(history, error, 0.0 if omitted else arguments.shrink)
        else:
            if arguments.seed is not None:
                print("\n".join(history.story))
        n_steps += history.n_steps
        events += history.world.events
    seconds = time.monotonic() - started
    if arguments.events:
        for kind in sorted(SOMETIMES | events.keys()):
            print(f"{events[kind]:8} {kind}")
    never = sorted(SOMETIMES - events.keys()) if n_histories >= MANY else []
    for kind in never:
        print(f"never happened: {kind}")
    print(
        f"{n_histories} histories, {n_steps} steps, {n_steps / seconds:.0f} steps/s, "
        f"{n_failed} failed"
    )
    return 1 if n_failed or never else 0


if __name__ == "__main__":
    sys.exit(main())
