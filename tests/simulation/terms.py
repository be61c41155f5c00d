"""Terms of random requests: time limits, priorities, weights; and what their meters receive."""

from collections.abc import Callable, Sequence
from random import Random

from specllama.engine.wire.replies import Timings
from specllama.engine.wire.requests import NO_TERMS, Terms

LIMITS = (0, 1, 20, 200, 2000)
"""Time limits in ms; 0 is none."""
PRIORITIES = (-5, 0, 0, 3)
WEIGHTS = (0.5, 1.0, 1.0, 4.0)
LATE = 1.0
"""Simulated seconds after its time limit within which a text has to end, in a history without
failures: a step in progress ends before, and others may have to be prepared."""


class TermsHabits:
    """The probabilities in one history that a request has time limits, a priority and a meter."""

    def __init__(self, random_of: Callable[[str], Random]) -> None:
        self.limited = random_of("time limits").choice([0.0, 0.0, 0.3])
        self.ranked = random_of("priorities").choice([0.0, 0.5])
        self.metered = random_of("meters").choice([0.0, 0.5])
        self._random_of = random_of

    def terms(self, number: int) -> Terms:
        """Returns the terms of request `number`."""
        prompt_ms = timeout_ms = 0
        random = self._random_of(f"terms {number}")
        if random.random() < self.limited:
            prompt_ms, timeout_ms = random.choice(LIMITS), random.choice(LIMITS)
        random = self._random_of(f"priority {number}")
        if random.random() < self.ranked:
            return Terms(
                prompt_ms=prompt_ms,
                timeout_ms=timeout_ms,
                priority=random.choice(PRIORITIES),
                weight=random.choice(WEIGHTS),
            )
        if not (prompt_ms or timeout_ms):
            return NO_TERMS
        return Terms(prompt_ms=prompt_ms, timeout_ms=timeout_ms)

    def meter(self, number: int, n_texts: int) -> "Readings | None":
        """Returns a meter for the `n_texts` texts of request `number`; None if it has no meter."""
        is_metered = self._random_of(f"meter {number}").random() < self.metered
        return Readings(number, n_texts) if is_metered else None


class Readings:
    """A meter: what it has received of `n_texts` texts."""

    def __init__(self, number: int, n_texts: int) -> None:
        self.number = number
        self.n_texts = n_texts
        self.reserved: list[int] = []
        self.used: list[Timings | None] = []

    def accepted(self, n_tokens: int) -> None:
        self.reserved.append(n_tokens)

    def ended(self, timings: Timings | None) -> None:
        self.used.append(timings)

    def wrong(self, ends: Sequence[Timings | None]) -> str:
        """Returns what is wrong with the readings for texts whose results have the timings `ends`
        (None: no result); "" if nothing is."""
        if len(self.used) != self.n_texts:
            return f"its meter has {len(self.used)} ends of {self.n_texts} texts"
        if len(self.reserved) > self.n_texts:
            return f"its meter has reserved tokens for {len(self.reserved)} texts"
        missing = [each for each in ends if each is not None and each not in self.used]
        return f"its meter doesn't know {missing[0]}" if missing else ""
