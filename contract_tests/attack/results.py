"""What came of the attacks, as tables; the page that tells it:

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

`nox -s attack` sends small requests that are meant to freeze, fill or expose a server, odd bytes,
and harm to processes, one shape after the other, to a server with four slots. Beside them four
honest clients go on: a greedy completion, the same as a stream, a chat, and an object that follows
a schema, a new one each time. Each of them has to get {MEANWHILE} answers while a shape lasts, with
the texts of an undisturbed run. The processes have to stay the same (but for one that is killed on
purpose), their memory within {MARGIN // MIB} MiB of what it was before the first shape, and every
answer to an attack has to be a documented one. Each process has a limit of address space. A server
that failed a shape is started again.

Where no answer is told, the attackers went away without reading one, or there was none. It is
waited for two minutes, and until each honest client has had as many answers as it has in two
minutes when nobody attacks: a machine with much other work isn't taken for a fault. The longest gap
is the longest time that one of the honest clients had no answer, by that of the undisturbed run: it
is told, and never judged. The memory is that of all processes, above what they had before the
shape. Of llama-server everything is judged but which status it answers. The tables are of two
processors that had much other work.
"""


def entry(outcome: Outcome) -> dict[str, Any]:
    return asdict(outcome)


def stored() -> dict[str, dict[str, Any]]:
    """The outcomes of each side, by the names of the shapes."""
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
    told = (cells(each, outcomes[each.name]) for each in SHAPES if each.name in outcomes)
    lines += (f"| {' | '.join(row)} |" for row in told)
    return "\n".join(lines)


def verdict(outcomes: Mapping[str, Outcome]) -> str:
    """The last line of a campaign."""
    wrong = [name for name, each in outcomes.items() if each.problems]
    said = f"{len(wrong)} of {len(outcomes)} shapes left something wrong"
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
        said = f"{failed} of {len(results.get(side, {}))} shapes left something wrong."
        parts += [f"## {side}\n", f"{said}\n", table(results.get(side, {})) + "\n"]
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
