"""The rules that `benchmarks.routing` compares for the choice of a replica."""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Collection
from math import ceil
from random import Random

import numpy as np

from benchmarks.routing_replicas import Running
from benchmarks.routing_requests import Request, mixed
from specllama.engine.fleet.placing import (
    SILENT_SECONDS,
    WORK_WEIGHT,
    PlacedRequest,
    Placing,
    WantedPrompt,
)
from specllama.engine.wire.stats import ReplicaLoad


class Policy(ABC):
    """Chooses a replica, by its number. It knows at once when an answer begins and ends."""

    report_seconds: float | None = None
    """The time between the reports of a replica; None if it reads no reports."""

    def __init__(self, n: int) -> None:
        self.n_open = np.zeros(n, np.int64)  # requests without an end, by replica

    def place(self, request: Request, now: float) -> int:
        """Chooses the replica for a request."""
        chosen = self.choose(request, now)
        self.n_open[chosen] += 1
        return chosen

    @abstractmethod
    def choose(self, request: Request, now: float) -> int:
        """Returns the number of a replica."""

    def began(self, running: Running, now: float) -> None:
        """Notes that a prompt has been evaluated. Most rules don't need it."""
        return

    def ended(self, running: Running, now: float) -> None:
        """Notes the end of an answer."""
        self.n_open[running.replica] -= 1

    def report(
        self,
        replica: int,
        load: ReplicaLoad,
        added: Collection[int],
        removed: Collection[int],
        now: float,
    ) -> None:
        """Receives a report, if there is a time between reports."""
        return


class Ours(Policy):
    """`engine.fleet.placing`."""

    def __init__(
        self,
        n: int,
        block: int,
        seed: int,
        report_seconds: float,
        n_slots: int,
        work_weight: float = WORK_WEIGHT,
    ) -> None:
        super().__init__(n)
        self.report_seconds = report_seconds
        # Otherwise, each cache would be unknown for most of a long interval.
        silent = max(SILENT_SECONDS, 2.5 * report_seconds)
        self._placing = Placing(Random(seed), block, silent_seconds=silent, work_weight=work_weight)
        self._placed: dict[int, PlacedRequest] = {}
        for number in range(n):
            self._placing.join(number, ReplicaLoad(n_slots), 0.0)

    def choose(self, request: Request, now: float) -> int:
        placed = self._placing.place(WantedPrompt(request.n_tokens, request.blocks), now)
        assert placed is not None
        assert isinstance(placed.member, int)
        self._placed[id(request)] = placed
        return placed.member

    def began(self, running: Running, now: float) -> None:
        self._placing.began(self._placed[id(running.request)], now)

    def ended(self, running: Running, now: float) -> None:
        super().ended(running, now)
        self._placing.ended(self._placed.pop(id(running.request)), now)

    def report(
        self,
        replica: int,
        load: ReplicaLoad,
        added: Collection[int],
        removed: Collection[int],
        now: float,
    ) -> None:
        self._placing.report(replica, load, added, removed, now)


class RoundRobin(Policy):
    """Each replica in its turn."""

    _next = -1

    def choose(self, request: Request, now: float) -> int:
        self._next = (self._next + 1) % len(self.n_open)
        return self._next


class LeastLoaded(Policy):
    """A replica with the fewest open requests, at random among equal ones."""

    def __init__(self, n: int, seed: int) -> None:
        super().__init__(n)
        self._random = Random(seed)

    def choose(self, request: Request, now: float) -> int:
        return int(self._random.choice(np.flatnonzero(self.n_open == self.n_open.min())))


class PowerOfTwo(Policy):
    """Of two random replicas, the one with fewer open requests. Ray Serve's default is similar."""

    def __init__(self, n: int, seed: int) -> None:
        super().__init__(n)
        self._random = Random(seed)

    def choose(self, request: Request, now: float) -> int:
        a, b = (self._random.randrange(len(self.n_open)) for _ in range(2))
        return a if self.n_open[a] <= self.n_open[b] else b


N_POINTS = 100
"""The places of each replica on the ring."""
BOUND = 1.25
"""A replica gets no request if it has more than so many times the mean number of open ones."""
N_KEY_BLOCKS = 4
"""The first blocks of a prompt, which are its key."""


class ConsistentHashing(Policy):
    """Consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2016): the first
    replica after the key's place on a ring that isn't overloaded. The key is the conversation, or
    the first blocks of the prompt."""

    def __init__(self, n: int, *, by_conversation: bool) -> None:
        super().__init__(n)
        self._by_conversation = by_conversation
        self._ring = sorted(
            (mixed(number, i), number) for number in range(n) for i in range(N_POINTS)
        )
        self._points = [point for point, _ in self._ring]

    def choose(self, request: Request, now: float) -> int:
        n_blocks = min(N_KEY_BLOCKS, request.n_blocks)
        if self._by_conversation or not n_blocks:
            key = mixed(request.conversation, 4)
        else:
            key = mixed(request.text[n_blocks - 1], 4)
        most = ceil(BOUND * (int(self.n_open.sum()) + 1) / len(self.n_open))
        start = bisect_left(self._points, key)
        for i in range(len(self._ring)):
            _, number = self._ring[(start + i) % len(self._ring)]
            if self.n_open[number] < most:
                return number
        raise AssertionError("all replicas have more than the mean number of requests")
