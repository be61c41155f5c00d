"""The results of all cases, kept in a file, and their table for docs/reports/gpu.md."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from contract_tests.gpu.cases import CASES

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
KIT = HERE.parent / "kit"
PASSED = "passed"
ENDED = "pytest printed no result"

Results = dict[str, str]


def stored(path: Path = RESULTS) -> Results:
    """Returns the results by the names of cases and the files of the kit; empty if there are
    none."""
    found: Results = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return found


def store(results: Results, path: Path = RESULTS) -> None:
    """Writes the results after each case, so that an interrupted run can be continued."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(results, indent=2) + "\n", "utf-8")
    part.replace(path)


def table(results: Results) -> str:
    rows = ["| configuration | options | result |", "|---|---|---|"]
    for case in CASES:
        said = results.get(case.name, "not tried").replace("|", "\\|")
        if case.refusal and said == PASSED:
            said = f"refused: {case.refusal.replace('.*', '... ')}"
        rows.append(f"| {case.name} | `{' '.join(case.options)}` | {said} |")
    return "\n".join(rows) + "\n"


def of_pytest(lines: Sequence[str]) -> str:
    """Returns pytest's summary of a file, `152 passed, 3 skipped`, and the failed tests."""
    counts = re.findall(r"\d+ (?:passed|skipped|failed|errors?)\b", lines[-1] if lines else "")
    counts.sort(key=lambda each: ("passed" not in each, "skipped" not in each))
    found = (re.match(r"(?:FAILED|ERROR) \S*?::(.+?)(?: - |$)", each) for each in lines)
    return ", ".join([*counts, *(match[1] for match in found if match)]) or ENDED


def is_fine(said: str | None) -> bool:
    """True if this is the result of a file of the kit, and no test of it failed."""
    return re.fullmatch(r"\d+ passed(, \d+ skipped)?|\d+ skipped", said or "") is not None


def kit_files() -> list[str]:
    """Returns all files of the contract kit, by their paths in its folder."""
    return sorted(each.relative_to(KIT).as_posix() for each in KIT.glob("*/test_*.py"))


def kit_table(results: Results) -> str:
    rows = ["| file of the kit | result |", "|---|---|"]
    rows += [f"| {each} | {results.get(each, 'not tried')} |" for each in kit_files()]
    return "\n".join(rows) + "\n"
