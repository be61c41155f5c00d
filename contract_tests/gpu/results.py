"""What came of each case, kept in a file, and the table of it for docs/gpu.md."""

import json
from pathlib import Path

from contract_tests.gpu.cases import CASES

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
PASSED = "passed"

Results = dict[str, str]


def stored(path: Path = RESULTS) -> Results:
    """By the names of cases; empty if nothing was tried."""
    found: Results = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return found


def store(results: Results, path: Path = RESULTS) -> None:
    """At once after each case: a run that is interrupted goes on there."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(results, indent=2) + "\n", "utf-8")
    part.replace(path)


def table(results: Results) -> str:
    rows = ["| configuration | options | result |", "|---|---|---|"]
    for case in CASES:
        said = results.get(case.name, "not tried").replace("|", "\\|")
        if case.refusal and said == PASSED:
            said = f"refused: it {case.refusal}"
        rows.append(f"| {case.name} | `{' '.join(case.options)}` | {said} |")
    return "\n".join(rows) + "\n"
