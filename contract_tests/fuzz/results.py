"""What came of fuzzing, as tables; the page that tells it:

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

`nox -s fuzz` sends random requests to eight servers, one after the other. {CLIENTS} clients ask
at once, over plain sockets. They send requests that are made of the description. Their bodies
have typical values, values at the edge of what a schema allows and just beyond, values of other
types, and values that programs are known to stumble over (half characters, markers of templates,
numbers beyond 64 bits). Other requests are changed as bytes: they are cut, have keys twice, come in
other encodings, in odd chunks, with other paths and methods, or are no HTTP. In stories, a request
builds on the answer to the one before: a response is kept, gone on with and deleted; tools are
called in four APIs; slots are saved and restored; models are loaded and unloaded; a stream is left
and comes back.

Every answer is held against the description, by the checks of the contract tests. A status that is
not documented is a fault, and so is a 5xx other than 501, and 503 where models load or sleep; a
body that the description refuses and the server doesn't; an answer that doesn't come within
{PATIENCE:.0f} seconds. Between rounds the processes have to be the same, no slot may work any
longer, and the log may have no error and no traceback. Processes may grow from the first third of a
run to its end by no more than {MARGIN["engine"]} MiB (the engine process, which keeps compiled
grammars), {MARGIN["server"]} MiB (the server process) and {MARGIN["helpers"]} MiB (helpers,
together).

A story is made of a configuration, a seed and its number: `--only N` tells it again. What a server
answers also depends on what others have asked before, so not every fault comes back by that.
"""

Run = Mapping[str, Any]


def line(outcome: Outcome) -> str:
    """The figures of one configuration in one line."""
    data = as_data(outcome)
    rate = outcome.requests / max(outcome.seconds, 1)
    return (
        f"{outcome.requests} requests in {outcome.stories} stories, {outcome.seconds:.0f} s, "
        f"{rate:.0f} a second, {data['operations']} operations, {len(outcome.found)} faults; "
        f"{data['statuses']}; grown by {data['growth']} MiB"
    )


def verdict(outcomes: Mapping[str, Outcome]) -> str:
    """The last line of a run."""
    n = sum(each.requests for each in outcomes.values())
    wrong = {name: len(each.found) for name, each in outcomes.items() if each.found}
    told = ", ".join(f"{name} {n_faults}" for name, n_faults in wrong.items())
    said = f"{n} requests, {sum(wrong.values())} faults"
    return f"{said}: {told}" if told else said


# ---- what is kept ------------------------------------------------------------------------------


def stored() -> list[Run]:
    """All recorded runs, the oldest first."""
    found: list[Run] = []
    if RESULTS.is_file():
        found = json.loads(RESULTS.read_text("utf-8"))
    return found


def store(commit: str, seed: int, outcomes: Mapping[str, Outcome]) -> None:
    """Adds a run, and writes the page. The `commit` is that of the run's beginning."""
    servers = {name: as_data(each) for name, each in outcomes.items()}
    runs = [*stored(), {"commit": commit, "seed": seed, "servers": servers}]
    RESULTS.write_text(json.dumps(runs, indent=1) + "\n", "utf-8")
    PAGE.write_text(page(), "utf-8")


def current_commit() -> str:
    """Of this checkout; `-dirty` if files differ from it, other than the results."""
    results = [f":(exclude){path.relative_to(ROOT)}" for path in (RESULTS, PAGE)]
    commit = _git("rev-parse", "--short=9", "HEAD") or "unknown"
    return f"{commit}-dirty" if _git("diff", "--name-only", "HEAD", "--", ".", *results) else commit


def _git(*command: str) -> str:
    done = subprocess.run(
        ("git", *command), cwd=ROOT, capture_output=True, encoding="utf-8", check=False
    )
    return done.stdout.strip()


def table(servers: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """A row for each configuration, of all its runs together."""
    lines = [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
    known = [name for name in CONFIGURATIONS if servers.get(name)]
    lines += (f"| {name} | {' | '.join(cells(servers[name]))} |" for name in known)
    return "\n".join(lines)


def cells(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The figures of the runs of one configuration: sums, and the most of times and growth."""
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
        f"{total:,} requests in {len(runs)} recorded runs, of {GOAL:,} that are to be sent by and\n"
        f"by; {faults} faults. The description has {len(contract.operations())} operations. The\n"
        "column `left` counts clients that went away before their answer was whole. The column\n"
        "`slowest` has the longest time that a whole answer took, and `grown` the most that one\n"
        "kind of processes grew in a run. The runs had two processors with much other work.\n",
        table(servers) + "\n",
        "## The runs\n",
        "| commit | seed | servers | requests | faults |\n|---|---|---|---|---|\n"
        + "\n".join(map(_row, runs))
        + "\n",
        "## What it found\n",
        "Before and in these runs; each fault has a test now.\n",
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
