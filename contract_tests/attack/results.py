"""The results of the attacks as tables, and the page with them:

python -m contract_tests.attack.results > docs/reports/attack.md
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from contract_tests.attack.campaign import MARGIN, MEANWHILE, Outcome
from contract_tests.attack.shape import Shape
from contract_tests.attack.shapes import SHAPES
from contract_tests.attack.target import MIB

RESULTS = Path(__file__).with_name("results.json")
PAGE = Path(__file__).parents[2] / "docs" / "reports" / "attack.md"
SIDES = ("specllama", "llama-server")
NO_ANSWER = "-"
HEAD = ("attack", "how many", "answers", "longest gap", "peak MiB", "kept MiB", "what went wrong")
INTRODUCTION = f"""# Attacks

Written by `python -m contract_tests.attack.results`; edit that, not this page.

`nox -s attack` starts a server with four slots and attacks it in one way after the other: with
small requests that are meant to freeze, fill or expose a server, with odd bytes, and by killing or
stopping processes. At the same time four honest clients send a greedy completion, the same as a
stream, a chat, and an object with a new schema each time.

A server passes an attack if

- each honest client gets {MEANWHILE} answers during it, with the texts of an undisturbed run,
- the processes stay the same, except one that is killed on purpose,
- their memory stays within {MARGIN // MIB} MiB of its size before the first attack,
- every answer to an attack is a documented one. For llama-server, statuses aren't judged.

Each process has a limited address space. A server that failed an attack is started again.

The columns:

- *answers*: the statuses of the answers to the attackers. `{NO_ANSWER}` means that the attackers
  closed their connections without reading, or that there was no response. An attacker waits for two
  minutes, and until each honest client has had as many answers as in two undisturbed minutes, so
  that a busy machine isn't taken for a fault.
- *longest gap*: the longest wait of an honest client, divided by that of the undisturbed run. It is
  reported only, and never a failure.
- *peak MiB*, *kept MiB*: the memory of all processes above their memory before the attack.

The tables come from a machine with two busy processors.
"""


def entry(outcome: Outcome) -> dict[str, Any]:
    return asdict(outcome)


def stored() -> dict[str, dict[str, Any]]:
    """Returns the outcomes of each side, by the names of the shapes."""
    found: dict[str, dict[str, Any]] = {}
    if RESULTS.is_file():
        found = json.loads(RESULTS.read_text("utf-8"))
    return found


def store(side: str, outcomes: Mapping[str, Outcome]) -> None:
    known = stored()
    kept = {**known.get(side, {}), **{name: entry(each) for name, each in outcomes.items()}}
    known[side] = {each.name: kept[each.name] for each in SHAPES if each.name in kept}
    RESULTS.write_text(json.dumps(known, indent=1) + "\n", "utf-8")
    PAGE.write_text(page(), "utf-8")


def table(outcomes: Mapping[str, Any]) -> str:
    lines = [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
    rows = (cells(each, outcomes[each.name]) for each in SHAPES if each.name in outcomes)
    lines += (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join(lines)


def verdict(outcomes: Mapping[str, Outcome]) -> str:
    """Returns the last line of a campaign."""
    wrong = [name for name, each in outcomes.items() if each.problems]
    said = f"{len(wrong)} of {len(outcomes)} shapes did harm"
    return f"{said}: {', '.join(wrong)}" if wrong else said


def cells(shape: Shape, outcome: Mapping[str, Any]) -> list[str]:
    answers = ", ".join(f"{status}" for status in outcome["answers"])
    gap, peak, kept = (outcome[name] for name in ("gap", "peak", "kept"))
    return [
        shape.what,
        str(shape.times),
        answers or NO_ANSWER,
        NO_ANSWER if gap is None else f"{gap:.1f}",
        NO_ANSWER if peak is None else str(peak),
        NO_ANSWER if kept is None else str(kept),
        "; ".join(each.replace("|", "\\|") for each in outcome["problems"]) or "nothing",
    ]


def page() -> str:
    results = stored()
    parts = [INTRODUCTION]
    for side in SIDES:
        failed = sum(bool(each["problems"]) for each in results.get(side, {}).values())
        said = f"{failed} of {len(results.get(side, {}))} shapes did harm."
        parts += [f"## {side}\n", f"{said}\n", table(results.get(side, {})) + "\n"]
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
