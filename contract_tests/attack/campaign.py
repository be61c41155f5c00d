"""Runs one attack after the other, next to honest clients, and collects the results."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from contract_tests.attack.attackers import Attackers, is_envelope
from contract_tests.attack.honest import Crowd
from contract_tests.attack.shape import CLOSED, Harm, Launch, Shape
from contract_tests.attack.target import MIB, Target
from contract_tests.kit.server import wait_until

UNDISTURBED = 60
"""Answers that each honest client gets before the attacks."""
MEANWHILE = 3
"""Answers that each honest client has to get during an attack."""
LASTS = 30
"""Answers that each honest client may get before attackers leave, so that an attack lasts."""
SLOWER = 500
"""A wait for progress lasts at least this many times the longest gap of the undisturbed run,
because a busy machine is no harm."""
LIMIT = 5
"""Every wait ends after this many times its patience."""
MARGIN = 512 * MIB
"""Bytes of growth that are allowed: compiled grammars up to 256 MiB, cached texts up to 64 MiB, and
what allocators keep. A successful attack would leave gigabytes."""


@dataclass
class Outcome:
    """The result of one shape. `gap` is the longest time between two answers to an honest client,
    divided by that of the undisturbed run. `peak` and `kept` are MiB above the server's memory
    before."""

    answers: dict[str, int] = field(default_factory=dict)
    gap: float | None = None
    peak: int | None = None
    kept: int | None = None
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Patience:
    """The limit of the wait for an attacker's answer. It is over after `seconds`, but not before
    each honest client has had `answers` answers, as many as in that time without an attack,
    because a busy machine delays both."""

    seconds: float
    answers: float

    def is_over(self, elapsed: float, progress: int) -> bool:
        if elapsed < self.seconds:
            return False
        return progress >= self.answers or elapsed >= LIMIT * self.seconds


class Memory:
    """Samples the server's memory until the end of `with`, and keeps the maximum."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.before = self.peak = target.memory()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.1):
            self.peak = max(self.peak, self._target.memory())


class Campaign:
    def __init__(self, target: Target, patience: float) -> None:
        self.target = target
        self.patience = patience
        self._expected: dict[str, set[str]] = {}
        self._usual = 0.0
        self._rate = 0.0  # answers to each honest client per second
        self._begun = 0

    def undisturbed(self) -> None:
        """Records the honest clients' texts and waits without an attack."""
        with Crowd(self.target.server, self.patience) as crowd:
            assert crowd.wait(MEANWHILE, self.target.alive), crowd.seen()  # warms up
            crowd.mark()
            begun = time.monotonic()
            assert crowd.wait(UNDISTURBED, self.target.alive), crowd.seen()
            self._rate = crowd.progress() / (time.monotonic() - begun)
            seen = crowd.seen()
        self._expected = {name: each.texts for name, each in seen.items()}
        self._usual = max(each.longest for each in seen.values())
        self.patience = max(self.patience, SLOWER * self._usual)
        self._begun = self.target.memory()

    def unstable(self) -> list[str]:
        """Returns the honest clients whose texts differ without an attack."""
        return [name for name, texts in self._expected.items() if len(texts) != 1]

    def run(self, shape: Shape) -> Outcome:
        if isinstance(shape.sends, Launch):
            return self._launched(shape, shape.sends)
        outcome = Outcome()
        ids = self.target.ids()
        attackers = None
        if not isinstance(shape.sends, Harm):
            attackers = Attackers(self.target.server, shape)
        with Memory(self.target) as memory, Crowd(self.target.server, self.patience) as crowd:
            if not crowd.wait(1, self.target.alive):
                outcome.problems.append("no client was served before")
            crowd.mark()
            if isinstance(shape.sends, Harm):
                self._harm(shape.sends, shape.times, crowd, outcome)
            if attackers is not None:
                self._attack(shape, attackers, crowd, outcome)
            self._honest(shape, crowd, outcome)
        if not self.target.alive():
            outcome.problems.append("the server has ended")
        elif shape.sends is not Harm.KILL_ENGINE and self.target.ids() != ids:
            outcome.problems.append("the engine process was replaced")
        if memory.before:
            outcome.kept = self._kept(memory.before) // MIB
            outcome.peak = max((memory.peak - memory.before) // MIB, outcome.kept)
            if self.target.memory() - self._begun > MARGIN:
                outcome.problems.append("the memory was kept")
        return outcome

    def _attack(self, shape: Shape, attackers: Attackers, crowd: Crowd, outcome: Outcome) -> None:
        patience = Patience(self.patience, self.patience * self._rate)
        begun = time.monotonic()
        attackers.begin()
        if not crowd.wait(LASTS, self.target.alive):
            outcome.problems += _starved(crowd, "meanwhile")
        if shape.leaves:
            attackers.leave()
        attackers.wait(lambda: patience.is_over(time.monotonic() - begun, crowd.progress()))
        outcome.answers = _by_status(attackers.statuses)
        outcome.problems += attackers.problems
        if self.target.ours:
            outcome.problems += _undocumented(shape, attackers.statuses, attackers.bare)

    def _harm(self, harm: Harm, times: int, crowd: Crowd, outcome: Outcome) -> None:
        for i in range(times):
            self.target.harm(harm)
            if not crowd.wait(MEANWHILE * (i + 1), self.target.alive):
                outcome.problems += _starved(crowd, "afterwards")
                return

    def _honest(self, shape: Shape, crowd: Crowd, outcome: Outcome) -> None:
        """Adds the problems of the honest clients."""
        seen = crowd.seen()
        outcome.gap = round(max(each.gap() for each in seen.values()) / self._usual, 1)
        for name, each in seen.items():
            if each.texts - self._expected[name]:
                outcome.problems.append(f"another text for the honest {name}")
            # A killed engine process ends its requests with an error.
            if each.errors and shape.sends is not Harm.KILL_ENGINE:
                outcome.problems.append(f"an error for the honest {name}: {each.errors[0]}")

    def _kept(self, before: int) -> int:
        """Returns the growth of the memory in bytes. Waits for memory that is given back late,
        above all if the growth would be a fault."""

        def back() -> bool:
            return self.target.memory() - before < MARGIN // 8

        def within_bounds() -> bool:
            return self.target.memory() - self._begun <= MARGIN

        for what, seconds in ((back, 10.0), (within_bounds, self.patience)):
            with suppress(AssertionError):  # the caller reports it
                wait_until(what, "the memory is back", seconds=seconds)
        return max(0, self.target.memory() - before)

    def _launched(self, shape: Shape, launch: Launch) -> Outcome:
        outcome = Outcome()
        try:
            with self._launch(launch) as ask:
                response = ask()
        except AssertionError as error:  # it didn't start
            outcome.answers = {"no start": 1}
            if "Traceback" in str(error) or "code -" in str(error):
                outcome.problems.append("the start ended in a crash")
            return outcome
        except httpx.HTTPError as error:
            outcome.problems.append(f"no answer: {type(error).__name__}")
            return outcome
        status = response.status_code
        outcome.answers = _by_status(Counter([status]))
        if self.target.ours:
            bare = status >= 400 and not is_envelope(status, response.content)
            outcome.problems += _undocumented(shape, Counter([status]), {status} if bare else set())
        return outcome

    @contextmanager
    def _launch(self, launch: Launch) -> Iterator[Callable[[], httpx.Response]]:
        server = self.target.launch(launch)
        body: Any = {"prompt": "Once upon a time", "n_predict": 4}
        try:
            yield lambda: server.post("/completion", body, timeout=self.patience)
        finally:
            server.close()


def _starved(crowd: Crowd, when: str) -> list[str]:
    slow = {name: each.answers for name, each in crowd.seen().items() if each.answers < MEANWHILE}
    return [f"the honest {name} had {n} answers {when}" for name, n in slow.items()]


def _by_status(statuses: Counter[int]) -> dict[str, int]:
    return {
        "closed" if status == CLOSED else str(status): n for status, n in sorted(statuses.items())
    }


def _undocumented(shape: Shape, statuses: Counter[int], bare: set[int]) -> list[str]:
    wrong = Counter({status: n for status, n in statuses.items() if status not in shape.statuses})
    return [
        *(f"answered {each}" for each in _by_status(wrong)),
        *(f"{each} without the error envelope" for each in sorted(bare)),
    ]
