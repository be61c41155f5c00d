"""`python -m tests.simulation`: random histories of an engine, each from its seed.

A history that fails prints its story, and the command that plays it again.
"""

import argparse
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterator

from tests.simulation.events import SOMETIMES
from tests.simulation.history import History, HistoryError


def seeds(arguments: argparse.Namespace) -> Iterator[int]:
    """The one that is asked for; else those from `--first` on, until the minutes are over."""
    if arguments.seed is not None:
        yield arguments.seed
        return
    end = time.monotonic() + 60 * arguments.minutes
    seed = arguments.first
    while time.monotonic() < end:
        yield seed
        seed += 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this history, and tell its story")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument(
        "--minutes", type=float, default=1.0, help="how long to go on with other seeds (default 1)"
    )
    parser.add_argument("--events", action="store_true", help="count what has happened, by kind")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    n_histories = n_steps = n_failed = 0
    events: Counter[str] = Counter()
    started = time.monotonic()
    for seed in seeds(arguments):
        history = History(seed)
        n_histories += 1
        try:
            history.run()
        except Exception as error:  # whatever a history ends with, the others go on
            n_failed += 1
            print("\n".join(history.story))
            print(f"seed {seed}: {type(error).__name__}: {error}")
            print(f"again: python -m tests.simulation --seed {seed}")
            if not isinstance(error, HistoryError) and arguments.seed is not None:
                raise
        else:
            if arguments.seed is not None:
                print("\n".join(history.story))
        n_steps += history.n_steps
        events += history.world.events
    seconds = time.monotonic() - started
    if arguments.events:
        for kind in sorted(SOMETIMES | events.keys()):
            print(f"{events[kind]:8} {kind}")
    print(
        f"{n_histories} histories, {n_steps} steps, {n_steps / seconds:.0f} steps/s, "
        f"{n_failed} failed"
    )
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
