"""Four clients send stories to one server in rounds, with a check of its processes after each."""

import heapq
import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import httpx

from contract_tests.fuzz.judging import STRICT, Fault, Rules, judge
from contract_tests.fuzz.shrinking import shrunk
from contract_tests.fuzz.stories import STORIES
from contract_tests.fuzz.talking import PATIENCE, Board, Exchange, Talk
from contract_tests.fuzz.watching import Watch
from contract_tests.fuzz.wire import Connection, End, Sent, Target
from contract_tests.kit.server import Server

CLIENTS = 4
ROUND = 240
"""Stories per round."""
SAME = 120
"""Consecutive stories that use the same one of several models."""
SHRINKS = 3.0
"""The longest duration in seconds of a request that is shrunk."""
SLOWEST = 20
ANSWER_KINDS = ("server error", "status", "answer", "accepted", "http")
"""Kinds of faults of a single request, which can be shrunk."""


@dataclass
class Found:
    """A fault, the first story with it, and the number of times."""

    fault: Fault
    number: int
    """The number of the story."""
    story: str
    sent: Sent | None = None
    command: str = ""
    times: int = 1
    replay: str = ""


@dataclass
class Outcome:
    """The result of fuzzing one configuration."""

    requests: int = 0
    stories: int = 0
    seconds: float = 0.0
    statuses: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    found: dict[str, Found] = field(default_factory=dict)
    slowest: list[tuple[float, int, str, str]] = field(default_factory=list)
    """The slowest answers: seconds, story, operation, beginning of the body."""
    growth: Mapping[str, int] = field(default_factory=dict)


def target_of(server: Server) -> Target:
    prefix = httpx.URL(server.url).path.rstrip("/")
    return Target(server.address, prefix, tuple(server.auth.items()))


class Campaign:
    """Fuzzes one server. `watch` checks its processes if this command started it."""

    def __init__(
        self,
        server: Server,
        name: str,
        seed: int,
        mix: Mapping[str, float],
        rules: Rules = STRICT,
        watch: Watch | None = None,
        rests: float = 0.0,
    ) -> None:
        self.outcome = Outcome()
        self._server = server
        self._target = target_of(server)
        self._name, self._seed = name, seed
        self._stories, self._shares = [*mix], [*mix.values()]
        self._rules = rules
        self._watch = watch
        self._rests = rests
        self._board = Board(self._models())
        self._lock = threading.Lock()

    def _models(self) -> Sequence[str]:
        listed = self._server.get("/v1/models").json()["data"]
        return tuple(str(each["id"]) for each in listed)

    def run(self, goes_on: Callable[[Outcome], bool], first: int = 0) -> Outcome:
        """Runs rounds until `goes_on` returns False."""
        begun, number = time.monotonic(), first
        while goes_on(self.outcome) and self._is_alive():
            self._round(range(number, number + ROUND), goes_on)
            number += ROUND
            self._look(number - ROUND)
            self.outcome.seconds = time.monotonic() - begun
            self._shrink()
        if self._watch is not None:
            self.outcome.growth = self._watch.growth()
            for fault in self._watch.judged_growth():
                self._add(Found(fault, first, "all"))
        return self.outcome

    def only(self, numbers: Sequence[int]) -> Outcome:
        """Runs some stories alone, one after the other."""
        with Connection(self._target) as connection:
            for number in numbers:
                for each in self._tell(number, connection):
                    sent, answer = each.sent, each.answer
                    what = f"{answer.status or ''} {answer.end.value}, {answer.seconds:.2f} s"
                    print(f"{sent.command(self._target)}\n  {what}: {answer.content[:400]!r}")
        self._look(numbers[-1])
        return self.outcome

    def _is_alive(self) -> bool:
        return self._watch is None or self._watch.is_alive()

    def _round(self, numbers: Sequence[int], goes_on: Callable[[Outcome], bool]) -> None:
        waiting = iter(numbers)

        def client() -> None:
            with Connection(self._target) as connection:
                while True:
                    with self._lock:
                        number = next(waiting, None)
                    if number is None or not goes_on(self.outcome) or not self._is_alive():
                        return
                    self._tell(number, connection)

        threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def story_of(self, number: int) -> tuple[str, str]:
        """Returns the name of a story, and the seed of its random choices."""
        seed = f"{self._name}/{self._seed}/{number}"
        return random.Random(seed).choices(self._stories, self._shares)[0], f"{seed}/choices"

    def _named(self, number: int) -> str:
        """Returns the model that most requests of a story use. On a router, consecutive stories use
        the same model, because loading takes longer than anything else."""
        models = self._board.models
        return models[number // SAME % len(models)] if len(models) > 1 else ""

    def _tell(self, number: int, connection: Connection) -> list[Exchange]:
        name, seed = self.story_of(number)
        talk = Talk(seed, connection, self._board, self._rules, self._named(number))
        try:
            STORIES[name](talk)
        except OSError as error:
            talk.failed(f"no connection: {error}")
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            # An answer lacks a part that the description promises.
            talk.failed(f"the story {name} could not go on: {type(error).__name__}: {error}")
        with self._lock:
            self._count(number, name, talk.exchanges)
        return talk.exchanges

    def _count(self, number: int, story: str, exchanges: Sequence[Exchange]) -> None:
        outcome = self.outcome
        outcome.stories += 1
        outcome.requests += len(exchanges)
        for each in exchanges:
            sent, answer = each.sent, each.answer
            name = sent.operation or "other"
            is_status = answer.end is End.WHOLE
            outcome.statuses[str(answer.status) if is_status else answer.end.name.lower()] += 1
            outcome.operations[name] += 1
            if answer.end in (End.WHOLE, End.LATE):
                shown = (sent.content or b"")[:300].decode("utf-8", "replace")
                heapq.heappush(outcome.slowest, (answer.seconds, number, name, shown))
                if len(outcome.slowest) > SLOWEST:
                    heapq.heappop(outcome.slowest)
            for fault in each.faults:
                self._add(Found(fault, number, story, sent))

    def _add(self, found: Found) -> None:
        known = self.outcome.found.get(found.fault.signature)
        if known is not None:
            known.times += 1
            return
        found.replay = (
            f"python -m contract_tests.fuzz --configuration {self._name}"
            f" --seed {self._seed} --only {found.number}"
        )
        self.outcome.found[found.fault.signature] = found

    def _look(self, number: int) -> None:
        """Checks the server between two rounds."""
        if self._watch is None:
            return
        self._watch.wait_until_idle()
        for fault in self._watch.look():
            self._add(Found(fault, number, f"one of {ROUND} from this one on"))
        time.sleep(self._rests)

    def _shrink(self) -> None:
        """Adds to each new fault a command that reproduces it, with a body as small as possible."""
        for found in self.outcome.found.values():
            if found.sent is None or found.command or not self._is_alive():
                continue
            least = found.sent
            if found.fault.kind in ANSWER_KINDS and self._fails(found, least):
                least = shrunk(least, partial(self._fails, found))
            found.command = least.command(self._target)

    def _fails(self, found: Found, sent: Sent) -> bool:
        """True if a request has the fault on a new connection."""
        leaves = sent.leaves or SHRINKS  # without its length, a text is long
        try:
            with Connection(self._target) as connection:
                answer = connection.exchange(replace(sent, leaves=leaves), PATIENCE)
        except OSError:
            return False
        seen = {each.signature for each in judge(sent, answer, self._rules)}
        return found.fault.signature in seen


def until(minutes: float | None, requests: int | None) -> Callable[[Outcome], bool]:
    """Returns a function that is true until the time is over or enough requests were sent."""
    end = None if minutes is None else time.monotonic() + 60 * minutes

    def goes_on(outcome: Outcome) -> bool:
        if requests is not None and outcome.requests >= requests:
            return False
        return end is None or time.monotonic() < end

    return goes_on


def as_text(outcome: Outcome) -> Iterator[str]:
    """Yields lines on the faults and the slowest answers, for people."""
    for found in sorted(outcome.found.values(), key=lambda each: each.number):
        fault = found.fault
        yield f"FAULT {fault.kind} ({found.times} times) {fault.operation}: {fault.what}"
        yield f"  story {found.number}, {found.story}: {found.replay}"
        if found.command:
            yield f"  {found.command}"
    for seconds, number, name, body in itertools.islice(
        sorted(outcome.slowest, reverse=True), SLOWEST
    ):
        yield f"slow: {seconds:6.2f} s, story {number}, {name} {body[:160]!r}"


def as_data(outcome: Outcome) -> dict[str, Any]:
    """Returns the figures of a configuration."""
    return {
        "requests": outcome.requests,
        "stories": outcome.stories,
        "seconds": round(outcome.seconds),
        "statuses": dict(sorted(outcome.statuses.items())),
        "operations": len(outcome.operations.keys() - {"other"}),
        "slowest": round(max((each[0] for each in outcome.slowest), default=0.0), 1),
        "growth": dict(outcome.growth),
        "faults": [
            {"kind": each.fault.kind, "operation": each.fault.operation, "times": each.times,
             "story": each.number}
            for each in outcome.found.values()
        ],
    }  # fmt: skip
