"""The results of the evaluation's tasks, and their tables."""

import hashlib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.models.judging import Marks
from tools.models.lessons.held_out.barrier import of_ability
from tools.models.lessons.held_out.family import EXTRACTION, TOOLS, Family

OPENING = """# What the shipped model can do

Written by `python -m tools.models.evaluate` (`nox -s evaluate`); edit that, not this page.

The tasks are sent to the API of a live server. There are two sets of them. Tasks of known kinds
come from the generator of the training's lessons, with other words and phrasings. The held-out
families are written by hand: no lesson has a word of their values, and none has their phrasings
or a schema like theirs. Plain requests of your own will do as well as the family with other words
in plain requests; free ones as the other families.

"""
KNOWN_TO_US = """The tools, parameters, words and phrasings were not in the training, but the same
generator makes these tasks and the lessons. Also, the authors of the lessons saw the failures of
earlier models in the first 200 tasks of each ability, and wrote similar lessons, also with tools
that do the same under other names.

"""
NAMES = {"tool": "right tool", "right": "all right"}
"""Marks as the tables name them."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a task. `marks` are true or false: `right`, and further marks of this kind of
    task. `kind` is the kind of a known task, or the name of a held-out family."""

    ability: str
    kind: str
    marks: Marks
    request: dict[str, Any] = field(repr=False)
    wanted: Any
    got: Any


Outcomes = dict[float, list[Outcome]]
"""Outcomes by temperature."""
Scores = dict[tuple[str, str], list[bool]]


def scores(outcomes: list[Outcome]) -> Scores:
    """Returns the marks by ability and name, and the right ones by kind."""
    found: Scores = defaultdict(list)
    for each in outcomes:
        for name, mark in each.marks.items():
            found[each.ability, name].append(mark)
        found[each.ability, f"right: {each.kind}"].append(each.marks["right"])
    return found


def table(by_temperature: Outcomes) -> str:
    """Returns the scores as Markdown."""
    columns = {temperature: scores(each) for temperature, each in by_temperature.items()}
    rows = [
        "| Ability | Mark | Tasks | " + " | ".join(_title(each) for each in columns) + " |",
        "| --- | --- | --: |" + " --: |" * len(columns),
    ]
    keys = {key: None for each in columns.values() for key in each}
    for ability, name in sorted(keys, key=lambda key: (key[0], ":" in key[1], key[1])):
        marks = [each.get((ability, name), []) for each in columns.values()]
        shares = " | ".join(_share(each) for each in marks)
        rows.append(f"| {ability} | {name} | {max(map(len, marks))} | {shares} |")
    return "\n".join(rows) + "\n"


def summary(known: Outcomes, held_out: Outcomes) -> str:
    """Returns how many answers to known kinds and to held-out families are right, as Markdown."""
    rows = [
        "| Right answers | Temperature | Known kinds | Held out |",
        "| --- | --- | --: | --: |",
    ]
    for ability, title in ((TOOLS, "tool and arguments"), (EXTRACTION, "all fields")):
        for temperature in {**known, **held_out}:
            found = [
                [e.marks["right"] for e in each.get(temperature, ()) if e.ability == ability]
                for each in (known, held_out)
            ]
            if any(found):
                cells = " | ".join(map(_count, found))
                rows.append(f"| {ability}: {title} | {_title(temperature)} | {cells} |")
    return "\n".join(rows) + "\n"


def table_of_families(ability: str, by_temperature: Outcomes) -> str:
    """Returns the right answers to each held-out family of an ability as Markdown. Calls have a
    column for right tools, whatever their arguments."""
    marks = ("tool", "right") if ability == TOOLS else ("right",)
    columns = [(temperature, mark) for temperature in by_temperature for mark in marks]
    heads = [f"{NAMES.get(mark, mark)}, {_title(each)}" for each, mark in columns]
    rows = [
        "| Family | Held out | " + " | ".join(heads) + " |",
        "| --- | --- |" + " --: |" * len(columns),
    ]
    for family in of_ability(ability):
        cells = [
            _parts([e.marks[mark] for e in by_temperature[each] if _is_of(e, family)])
            for each, mark in columns
        ]
        rows.append(f"| {family.name} | {family.holds_out} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def report(known: Outcomes, held_out: Outcomes) -> str:
    """Returns all tables as Markdown: first how both sets compare."""
    parts = []
    if held_out:
        parts.append(f"## Known kinds and held-out families\n\n{summary(known, held_out)}")
        abilities = {e.ability for each in held_out.values() for e in each}
        for ability in sorted(abilities, reverse=True):
            tables = table_of_families(ability, held_out)
            parts.append(f"## Held-out families: {ability}\n\n{tables}")
    if known:
        parts.append(f"## Known kinds\n\n{KNOWN_TO_US}{table(known)}")
    return "\n".join(parts)


def write(path: Path, model: Path | None, text: str) -> None:
    """Writes the page with the report of a model's file, or of a running server if it is None."""
    named = ""
    if model is not None:
        digest = hashlib.sha256(model.read_bytes()).hexdigest()
        named = f"The file's SHA-256 is `{digest}`.\n\n"
    path.write_text(f"{OPENING}{named}{text}", "utf-8", newline="\n")


def _is_of(outcome: Outcome, family: Family) -> bool:
    return (outcome.ability, outcome.kind) == (family.ability, family.name)


def _title(temperature: float) -> str:
    return "greedy" if temperature == 0 else f"temperature {temperature}"


def _share(marks: list[bool]) -> str:
    return f"{100 * sum(marks) / len(marks):.1f} %" if marks else "-"


def _parts(marks: list[bool]) -> str:
    return f"{sum(marks)} of {len(marks)}" if marks else "-"


def _count(marks: list[bool]) -> str:
    return f"{_parts(marks)} ({_share(marks)})" if marks else "-"
