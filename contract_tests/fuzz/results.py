"""The results of fuzzing as tables, and the page with them:

python -m contract_tests.fuzz.results > docs/reports/fuzz.md
"""

import json
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from contract_tests.fuzz.campaign import CLIENTS, Outcome, as_data
from contract_tests.fuzz.configurations import CONFIGURATIONS
from contract_tests.fuzz.found import FOUND
from contract_tests.fuzz.talking import PATIENCE
from contract_tests.fuzz.watching import MARGIN
from contract_tests.kit import contract

RESULTS = Path(__file__).with_name("results.json")
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reports" / "fuzz.md"
GOAL = 1_000_000
HEAD = (
    *("server", "requests", "a second", "2xx", "3xx and 4xx", "501", "503", "left"),
    *("slowest", "grown", "faults"),
)
INTRODUCTION = f"""# Fuzzing

Written by `python -m contract_tests.fuzz.results`; edit that, not this page.

`nox -s fuzz` sends random requests to eight servers, one after the other, from {CLIENTS} clients at
once, over plain sockets. Most requests are made from the description. Their bodies have typical
values, values at the edge of a schema and just beyond it, values of other types, and values that
often break programs (half characters, markers of templates, numbers beyond 64 bits). Other requests
are changed as bytes: they are cut, repeat keys, have other encodings, odd chunks, other paths or
methods, or are no HTTP. In a *story*, a request builds on the answer to the one before: a response
is stored, continued and deleted; tools are called in four APIs; slots are saved and restored;
models are loaded and unloaded; a client leaves a stream and resumes it.

The checks of the contract tests compare every answer with the description. These are faults:

- a status that is not documented, a 5xx other than 501, and 503 unless models load or sleep,
- an accepted body that the description rejects,
- no answer within {PATIENCE:.0f} seconds,
- between rounds: another process, a slot that is still busy, an error or a traceback in the log,
- growth from the first third of a run to its end by more than {MARGIN["engine"]} MiB (the engine
  process, which keeps compiled grammars), {MARGIN["server"]} MiB (the server process) or
  {MARGIN["helpers"]} MiB (all helper processes).

A story depends only on a configuration, a seed and its number; `--only N` repeats it. The server's
answers also depend on earlier requests, so not every fault can be repeated like that.
"""

Run = Mapping[str, Any]


def line(outcome: Outcome) -> str:
    """Returns the figures of one configuration in one line."""
    data = as_data(outcome)
    rate = outcome.requests / max(outcome.seconds, 1)
    return (
        f"{outcome.requests} requests in {outcome.stories} stories, {outcome.seconds:.0f} s, "
        f"{rate:.0f} a second, {data['operations']} operations, {len(outcome.found)} faults; "
        f"{data['statuses']}; grown by {data['growth']} MiB"
    )


def verdict(outcomes: Mapping[str, Outcome]) -> str:
    """Returns the last line of a run."""
    n = sum(each.requests for each in outcomes.values())
    wrong = {name: len(each.found) for name, each in outcomes.items() if each.found}
    faults = ", ".join(f"{name} {n_faults}" for name, n_faults in wrong.items())
    said = f"{n} requests, {sum(wrong.values())} faults"
    return f"{said}: {faults}" if faults else said


# ---- recorded runs ------------------------------------------------------------------------------


def stored() -> list[Run]:
    """Returns all recorded runs, oldest first."""
    found: list[Run] = []
    if RESULTS.is_file():
        found = json.loads(RESULTS.read_text("utf-8"))
    return found


def store(commit: str, seed: int, outcomes: Mapping[str, Outcome]) -> None:
    """Adds a run, and writes the page. `commit` is the commit at the beginning of the run."""
    servers = {name: as_data(each) for name, each in outcomes.items()}
    runs = [*stored(), {"commit": commit, "seed": seed, "servers": servers}]
    RESULTS.write_text(json.dumps(runs, indent=1) + "\n", "utf-8")
    PAGE.write_text(page(), "utf-8")


def current_commit() -> str:
    """Returns the commit of this checkout, with `-dirty` if files other than the results differ
    from it."""
    results = [f":(exclude){path.relative_to(ROOT)}" for path in (RESULTS, PAGE)]
    commit = _git("rev-parse", "--short=9", "HEAD") or "unknown"
    return f"{commit}-dirty" if _git("diff", "--name-only", "HEAD", "--", ".", *results) else commit


def _git(*command: str) -> str:
    done = subprocess.run(
        ("git", *command), cwd=ROOT, capture_output=True, encoding="utf-8", check=False
    )
    return done.stdout.strip()


def table(servers: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Returns a table with a row for each configuration, over all its runs."""
    lines = [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
    known = [name for name in CONFIGURATIONS if servers.get(name)]
    lines += (f"| {name} | {' | '.join(cells(servers[name]))} |" for name in known)
    return "\n".join(lines)


def cells(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the figures of one configuration's runs: sums, and maxima of times and growth."""
    statuses: Counter[str] = Counter()
    for each in runs:
        statuses.update(each["statuses"])
    n = sum(each["requests"] for each in runs)
    seconds = sum(each["seconds"] for each in runs)
    grown = [max(each["growth"].values()) for each in runs if each["growth"]]
    return [
        f"{n:,}",
        f"{n / max(seconds, 1):.0f}",
        f"{_sum(statuses, '2'):,}",
        f"{_sum(statuses, '34'):,}",
        f"{statuses['501']:,}",
        f"{statuses['503']:,}",
        f"{statuses['left']:,}",
        f"{max(each['slowest'] for each in runs):.1f} s",
        f"{max(grown)} MiB" if grown else "-",
        str(sum(len(each["faults"]) for each in runs)),
    ]


def _sum(statuses: Counter[str], first: str) -> int:
    return sum(n for status, n in statuses.items() if status[0] in first)


def by_server(runs: Iterable[Run]) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        for name, data in run["servers"].items():
            found.setdefault(name, []).append(data)
    return found


def page() -> str:
    runs = stored()
    servers = by_server(runs)
    total = sum(data["requests"] for each in servers.values() for data in each)
    faults = sum(len(data["faults"]) for each in servers.values() for data in each)
    parts = [
        INTRODUCTION,
        "## The servers\n",
        "\n".join(f"- **{each.name}**: {each.what}." for each in CONFIGURATIONS.values()) + "\n",
        "## The figures\n",
        f"{total:,} requests in {len(runs)} recorded runs; the goal is {GOAL:,}. {faults} faults.\n"
        f"The description has {len(contract.operations())} operations. The column `left` counts\n"
        "clients that left before their answer was complete, `slowest` is the longest time until\n"
        "a complete answer, and `grown` the largest growth of one kind of processes in a run. The\n"
        "runs were made on two busy processors.\n",
        table(servers) + "\n",
        "## The runs\n",
        "| commit | seed | servers | requests | faults |\n|---|---|---|---|---|\n"
        + "\n".join(map(_row, runs))
        + "\n",
        "## What it found\n",
        "The faults that fuzzing found, recorded runs or not. Each has a test now.\n",
        "| what | whose fault | test |\n|---|---|---|\n"
        + "\n".join(f"| {each.what} | {each.whose} | `{each.test}` |" for each in FOUND)
        + "\n",
    ]
    return "\n".join(parts)


def _row(run: Run) -> str:
    servers = run["servers"]
    named = "all" if len(servers) == len(CONFIGURATIONS) else ", ".join(servers)
    n = sum(each["requests"] for each in servers.values())
    faults = sum(len(each["faults"]) for each in servers.values())
    return f"| `{run['commit']}` | {run['seed']} | {named} | {n:,} | {faults} |"


if __name__ == "__main__":
    print(page(), end="")
