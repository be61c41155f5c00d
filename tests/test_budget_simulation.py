"""The prompt budget on machines of many kinds: simulated, with counted seconds and seeded noise."""

import random
from collections.abc import Sequence

from hypothesis import strategies as st

from engine.budget import HARDLY, MIN_SHARE, PrefillBudget
from tests.machines import MACHINES, Machine

TARGET = 0.1
N_BATCH = 2048
SIZES = [*range(32, 256, 4), *range(256, N_BATCH + 1, 32)]
NOISE = 0.08
"""Standard deviation of the logarithm of a step's time."""
OUTLIERS = 0.03
"""Part of the steps that other work makes two to six times as long."""


class Run:
    """Prompts that come one after the other to a server with `n_generating` streams.

    `spent` has for every step with prompts what it costs, without the noise, and what its tokens
    would cost in steps of the best constant size; `overrun` the part of the time allowed that it
    takes. A size may take as long as the target says, or half as long again as a step without prompts, or
    hardly longer than the quickest one; of those it is the one with the most tokens per second.
    """

    def __init__(self, seed: int, n_generating: int = 2, n_longest: int = 3000) -> None:
        self.budget = PrefillBudget(TARGET, n_batch=N_BATCH, n_ubatch=512)
        self.spent: list[tuple[float, float]] = []
        self.overrun: list[float] = []
        self._random = random.Random(seed)
        self._n_generating = n_generating
        self._n_longest = n_longest
        self._n_past = self._n_prompt = 0

    def steps(self, machine: Machine, n: int) -> None:
        for _ in range(n):
            if self._n_past >= self._n_prompt:
                self._next_prompt(machine)
            limit = self.budget.limit(self._n_generating, self._n_past)
            assert 1 <= limit <= N_BATCH
            self._count(machine, limit)
            self._observe(machine, limit)
            self._n_past += limit

    def _next_prompt(self, machine: Machine) -> None:
        """What is left of the last one, then some tokens of the streams, then another one."""
        if self._n_past:
            self._observe(machine, self._random.randrange(1, 200))
        for _ in range(8):
            self._observe(machine, 0)
        self._n_past = self._random.choice((0, 0, self._random.randrange(self._n_longest)))
        self._n_prompt = self._n_past + self._random.randrange(200, self._n_longest)

    def _observe(self, machine: Machine, n: int) -> None:
        seconds = machine.seconds(self._n_generating, n, self._n_past)
        seconds *= self._random.lognormvariate(0, NOISE)
        if self._random.random() < OUTLIERS:
            seconds *= self._random.uniform(2, 6)
        self.budget.observe(self._n_generating, n, self._n_past, seconds)

    def _count(self, machine: Machine, n: int) -> None:
        g, length = self._n_generating, self._n_past
        seconds = {size: machine.seconds(g, size, length) for size in SIZES}
        most = max(
            TARGET,
            (1 + MIN_SHARE) * machine.seconds(g, 0, length),
            HARDLY * min(seconds.values()),
        )
        each = min(s / size for size, s in seconds.items() if s <= most)
        took = machine.seconds(g, n, length)
        self.spent.append((took, n * each))
        self.overrun.append(took / most)


def ratio(spent: Sequence[tuple[float, float]]) -> float:
    """Seconds taken, as a multiple of those with the best constant size."""
    return sum(took for took, _ in spent) / sum(best for _, best in spent)


def check(run: Run, start: int) -> None:
    """From the step `start` on, the run is as good as the constant size, and few steps take
    longer than allowed."""
    r = ratio(run.spent[start:])
    assert r <= 1.3, f"total {r}"
    for first in range(start, len(run.spent) - 60, 20):
        r = ratio(run.spent[first : first + 60])
        assert r <= 1.3, f"window {first} {r}"
    overrun = run.overrun[start:]
    n = sum(part > 1.3 for part in overrun)
    assert n <= 0.15 * len(overrun), f"{n} of {len(overrun)} too long"
    worst = sorted(overrun)[-4:]
    assert worst[-2] <= 3.5, f"worst {worst}"


machines = st.sampled_from(MACHINES)
