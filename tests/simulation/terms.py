"""The terms of the requests of a history, and the meters that check that each text ends once."""

from random import Random

import msgspec

from specllama.engine.wire.replies import Timings
from specllama.engine.wire.requests import Terms

PRIORITIES = (0, 0, 0, 1, 5, -1)


def any_terms(random: Random, limits: Terms) -> Terms:
    """Returns the terms of a request with the time limits of `limits`: often those of a server
    without keys."""
    if random.random() < 0.3:
        return limits
    return msgspec.structs.replace(
        limits,
        weight=random.choice([0.5, 1.0, 2.0]),
        priority=random.choice(PRIORITIES),
        shows_queue=random.random() < 0.3,
    )


class HistoryMeter:
    """Counts what the texts of one call have used. `name` is for messages."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.n_texts = 0
        """The number of texts that were sent."""
        self.n_slices = 0
        self.n_accepted = 0
        self.ends: list[Timings | None] = []

    def accepted(self, n_tokens: int) -> None:
        self.n_accepted += 1

    def ended(self, timings: Timings | None) -> None:
        self.ends.append(timings)

    @property
    def wrong(self) -> str:
        """What is wrong after the end of the call; "" if nothing is."""
        if len(self.ends) != self.n_texts:
            return f"{self.name}: {len(self.ends)} ends of {self.n_texts} texts are metered"
        if self.n_accepted > max(self.n_texts, self.n_slices):
            return f"{self.name}: {self.n_accepted} of {self.n_texts} texts are accepted"
        if any(each is not None and min(each.prompt_n, each.cache_n) < 0 for each in self.ends):
            return f"{self.name}: {self.ends}"
        return ""
