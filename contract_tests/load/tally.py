"""What happened to the requests of an overload, and what of it was wrong."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from contract_tests.load.fleet import MIB
from contract_tests.load.flood import Answer, fault_of_refusal

LIMITS = {"requests": 60, "tokens": 600}
"""The limits per minute of the hostile key."""
PEAK, PER_REQUEST = 256 * MIB, 64 * 1024
"""Bytes that the processes may grow by during the load: a fixed part, and one for each request."""
KEPT = 0.5
"""The share of that growth which allocators and caches may keep."""


@dataclass
class Load:
    """What happened in one scenario. `memory` has the bytes of all processes of the server."""

    name: str
    streams: list[Answer] = field(default_factory=list)
    crowd: list[Answer] = field(default_factory=list)
    hostile: list[Answer] = field(default_factory=list)
    honest: list[Answer] = field(default_factory=list)
    health: list[Answer] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    most_waiting: int = 0
    most_open: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def n_requests(self) -> int:
        return len(self.streams) + len(self.crowd) + len(self.hostile)

    @property
    def n_ended(self) -> int:
        return sum(1 for each in self.crowd if each.ended)

    def rows(self) -> list[tuple[str, str]]:
        """Returns the lines of the report, as names and values."""
        return [
            ("open streams", _counts(self.streams)),
            ("requests", _counts(self.crowd)),
            ("requests of the hostile key", _counts(self.hostile)),
            ("honest chats", _counts(self.honest)),
            ("longest honest chat", _longest(self.honest)),
            ("`/health`", _counts(self.health)),
            ("`/health`, median and longest", f"{_median(self.health)}, {_longest(self.health)}"),
            ("most streams open at once", f"{self.most_open:,}"),
            ("longest queue", f"{self.most_waiting:,}"),
            ("memory: before, most, afterwards", _memory(self.memory)),
            ("until all had ended", f"{self.seconds:.0f} s"),
        ]


def _counts(answers: list[Answer]) -> str:
    by = Counter(_outcome(each) for each in answers)
    return ", ".join(f"{n:,} {outcome}" for outcome, n in sorted(by.items())) or "-"


def _outcome(answer: Answer) -> str:
    if answer.left:
        return "left"
    if answer.cut or not answer.status:
        return "without an answer"
    if answer.status == 200:
        return "complete" if answer.is_whole else "incomplete"
    return f"with {answer.status}"


def _longest(answers: list[Answer]) -> str:
    return f"{max((each.seconds for each in answers), default=0.0):.2f} s"


def _median(answers: list[Answer]) -> str:
    return f"{median([each.seconds for each in answers] or [0.0]):.2f} s"


def _memory(samples: list[int]) -> str:
    if not samples:
        return "-"
    return ", ".join(f"{n // MIB} MiB" for n in (samples[0], max(samples), samples[-1]))


def faults(load: Load) -> list[str]:
    """Returns what was wrong in a scenario whose server this command has started."""
    found: list[str] = []
    allowed = PEAK + PER_REQUEST * load.n_requests
    if load.memory:
        before, most, after = load.memory[0], max(load.memory), load.memory[-1]
        if most - before > allowed:
            found.append(f"the memory grew by {(most - before) // MIB} MiB of {allowed // MIB}")
        if load.name != "ending" and after - before > allowed * KEPT:
            found.append(f"{(after - before) // MIB} MiB were kept")
    for name, answers, limits in (
        ("crowd", load.crowd, {}), ("hostile", load.hostile, LIMITS), ("streams", load.streams, {}),
        ("honest", load.honest, {}),
    ):  # fmt: skip
        found += _faults_of(name, answers, limits, load.name)
    if load.name == "ending":
        return found
    if not all(each.is_whole for each in load.honest):
        found.append("an honest chat was refused or cut")
    if load.name != "leaving" and not load.honest:
        found.append("no honest chat has ended")
    if not all(each.status == 200 for each in load.health):
        found.append("/health failed")
    if load.name != "refused" and any(each.status == 503 for each in load.crowd):
        found.append("a request was refused, although the queue has no limit")
    if load.name == "refused" and not any(each.status == 503 for each in load.crowd):
        found.append("no request was refused")
    if load.name == "waiting" and not all(each.is_whole for each in load.streams + load.crowd):
        found.append("a request that waited was not answered")
    return found


def _faults_of(
    name: str, answers: list[Answer], limits: Mapping[str, int], scenario: str
) -> list[str]:
    """Returns the faults of the refusals, and of answers without a documented end."""
    found: Counter[str] = Counter()
    for each in answers:
        if each.left:
            continue
        if each.status in (429, 503):
            if scenario == "ending" and each.status == 503:
                continue  # a server that ends has no time for a retry
            found[fault_of_refusal(each, limits)] += 1
        elif scenario in ("refused", "waiting") and not each.is_whole:
            found[f"status {each.status}, cut {each.cut!r}, {each.body[-100:]!r}"] += 1
    del found[""]
    return [f"{name}, {n} times: {what}" for what, n in found.most_common(3)]


def table(loads: list[Load]) -> str:
    columns = [dict(each.rows()) for each in loads]
    head = [f"| | {' | '.join(each.name for each in loads)} |", "|---" * (len(loads) + 1) + "|"]
    rows = (f"| {name} | {' | '.join(each[name] for each in columns)} |" for name in columns[0])
    return "\n".join([*head, *rows])
