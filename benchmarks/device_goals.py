"""The goals on a card, and their table in Markdown from the rows that `benchmarks.device` wrote."""

import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.device_states import ASLEEP, LOGPROB, TOLERANCE, difference

OURS, PEER = "specllama", "llama-server"
MISSING = "not measured yet"
BEFORE, HELD = "card: in use before MiB", "card: held MiB"


@dataclass
class Found:
    """The rows of one model: `values` of all rounds by phase, server and row, and the reasons for
    which scenarios failed, by phase and server."""

    values: dict[tuple[str, str, str], list[float]] = field(
        default_factory=lambda: defaultdict(list)
    )
    errors: dict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))
    n_rounds: int = 0

    def value(self, phase: str, server: str, row: str) -> float | None:
        """Returns the median of the rounds."""
        values = self.values.get((phase, server, row))
        return statistics.median(values) if values else None


@dataclass(frozen=True)
class Goal:
    """A row of the table: the row of a phase, and the goal. `x` is how many times better than the
    peer; with `against`, how many times better than specllama's own row of that phase. `most` is
    the largest value instead."""

    name: str
    phase: str
    row: str
    x: float | None = None
    most: float | None = None
    against: str = ""

    @property
    def goal(self) -> str:
        if self.most is not None:
            return f"at most {self.most:g}"
        return "-" if self.x is None else f"{self.x:g}x"


def _streams(n: int, x: float) -> Goal:
    row = f"{n} streams: tokens/s"
    return Goal(row.replace("1 streams", "1 stream"), "throughput", row, x)


def _idle(n: int) -> Goal:
    row = f"{n} streams: device idle %"
    return Goal(row.replace("1 streams", "1 stream"), "throughput", row, most=5.0)


def _sampled(name: str, phase: str = "throughput", against: str = "") -> Goal:
    row = f"32 streams, {name}: tokens/s"
    suffix = ", with --backend-sampling: " if against else ": "
    return Goal(row.replace(": ", suffix), phase, row, against=against)


KINDS = ("default", "greedy", "5 logprobs", "penalties", "grammar")
BACKEND, LONG = "backend sampling", "long prompts"
ALONE = "sleep"
"""The phase in which one server runs after the other, with the files in the page cache."""
BESIDE = "32768 tokens beside 8 streams"
GOALS = (
    *(_streams(n, 1.0 if n < 16 else 1.15) for n in (1, 8, 32, 64, 4, 16)),
    *(_idle(n) for n in (1, 8, 32, 64)),
    Goal("8 streams, then a 32k prompt: worst gap ms", LONG, f"{BESIDE}: worst gap ms", 7.0),
    Goal("the same: the prompt's first token ms", LONG, f"{BESIDE}: first token ms", 0.8),
    *(
        Goal(row, LONG, row, 1.0)
        for row in (f"prompt of {n} alone: first token ms" for n in (512, 4096, 32_768))
    ),
    Goal(
        "8 with 4096 tokens in common: first token ms",
        LONG,
        "8 with 4096 tokens in common, cold: first token ms",
        4.0,
    ),
    *(
        Goal(f"JSON, {n} at once: documents/s", "JSON", f"JSON, {n} at once: documents/s", x)
        for n, x in ((1, 1.5), (8, 2.0), (32, 2.0))
    ),
    *(_sampled(each) for each in KINDS),
    *(_sampled(each, BACKEND, "throughput") for each in KINDS),
    Goal("memory of the card MiB", ALONE, HELD, 0.98),
    Goal("memory of the card, asleep MiB", ALONE, ASLEEP, most=0.0),
    Goal("start: first token s", ALONE, "start: first token s", 0.9),
    Goal("dictated text: tokens/s", "proposals", "dictated, 1 streams: tokens/s", 2.0),
    Goal(
        "dictated text, with proposals: tokens/s",
        "proposals",
        "dictated, 1 streams: tokens/s",
        against="no proposals",
    ),
    Goal("alone and in company: wrong texts", LONG, "in company: wrong texts", most=0.0),
    Goal("both servers: wrong texts", LONG, "to the other server: wrong texts", most=0.0),
    Goal(
        "after a minute of load: difference of logprobs",
        "load",
        "mixed load: difference of logprobs after it",
        most=TOLERANCE,
    ),
    Goal("after a minute of load: card grows MiB", "load", "mixed load: card grows MiB", most=0.0),
)
"""Part 2 of the table; the cases of `contract_tests.gpu` are the rest."""


def stored(path: Path) -> dict[str, Found]:
    """Returns the rows of a file by model; empty if there is none."""
    models: dict[str, Found] = defaultdict(Found)
    for line in _lines(path):
        found, key = models[line["model"]], (line["phase"], line["server"])
        if "error" in line:
            found.errors[key].append(f"{line['row']}: {line['error']}")
        else:
            found.values[*key, line["row"]].append(line["value"])
            found.n_rounds = max(found.n_rounds, line["round"] + 1)
    for found in models.values():
        _derive(found)
    return models


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the lines of a file. The last one may be incomplete, as of a run that was killed."""
    for text in path.read_text("utf-8").splitlines() if path.is_file() else []:
        try:
            yield json.loads(text)
        except ValueError:
            continue


def _derive(found: Found) -> None:
    """Adds the rows that compare other rows: the memory of a sleeping model apart from that of
    other processes, and the log probabilities of both servers."""
    texts: dict[str, dict[str, float]] = {OURS: {}, PEER: {}}
    for (phase, server, row), values in [*found.values.items()]:
        if row == ASLEEP and (before := found.value(phase, server, BEFORE)) is not None:
            found.values[phase, server, row] = [value - before for value in values]
        if row.startswith(LOGPROB):
            texts[server][row] = values[0]
    for row, value in difference(texts[OURS], texts[PEER]).items():
        found.values[LONG, OURS, row] = [value]


def tables(path: Path) -> str:
    """Returns one table for each model in the file; a table without values if there is none."""
    models = stored(path) or {"no model": Found()}
    return "\n".join(f"{name}:\n\n{_table(found)}" for name, found in models.items())


def _table(found: Found) -> str:
    lines = [f"| | {OURS} | {PEER} | x | goal |", "|---|--:|--:|--:|--:|"]
    for goal in GOALS:
        cells = [_cell(found, goal, OURS), _cell(found, goal, PEER), _factor(found, goal)]
        lines.append(f"| {' | '.join([goal.name, *cells, goal.goal])} |")
    return "\n".join([*lines, "", *_failures(found)])


def _cell(found: Found, goal: Goal, server: str) -> str:
    value = found.value(goal.phase, server, goal.row)
    if value is not None:
        return f"{value:,.2f}"
    return MISSING if server == OURS else ""


def _factor(found: Found, goal: Goal) -> str:
    ours = found.value(goal.phase, OURS, goal.row)
    if goal.most is not None:
        return "" if ours is None else ("reached" if ours <= goal.most else "missed")
    other = found.value(goal.against or goal.phase, OURS if goal.against else PEER, goal.row)
    if not ours or not other:
        return ""
    better: Callable[[float, float], float] = (
        (lambda a, b: a / b) if goal.row.endswith("/s") else (lambda a, b: b / a)
    )
    return f"{better(ours, other):.2f}{' (own)' if goal.against else ''}"


def _failures(found: Found) -> list[str]:
    lines = []
    for (phase, server), reasons in found.errors.items():
        lines += [f"- {phase}, {server}: {' '.join(each.split())[:300]}" for each in reasons]
    return [*lines, ""] if lines else []
