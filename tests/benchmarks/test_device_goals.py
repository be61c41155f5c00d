"""The table of goals on a card, from the rows of a file."""

import io
import re
from pathlib import Path

from rich.console import Console

from benchmarks.device import Rows, phases
from benchmarks.device_goals import (
    BEFORE,
    GOALS,
    HELD,
    MISSING,
    OURS,
    PEER,
    stored,
    tables,
)
from benchmarks.device_requests import Counts, Metrics
from benchmarks.device_states import ASLEEP, LOGPROB

ROOT = Path(__file__).parents[2]
Written = tuple[str, str, Metrics]


def write(path: Path, *found: Written, model: str = "8b", number: int = 0) -> Path:
    with path.open("a", encoding="utf-8") as file:
        rows = Rows(file, Console(file=io.StringIO()), model)
        for phase, server, metrics in found:
            rows.add(phase, server, number, metrics)
    return path


def row(path: Path, name: str) -> list[str]:
    [line] = [line for line in tables(path).splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_goals_are_of_phases_that_exist(tmp_path: Path) -> None:
    names = {phase.name for phase in phases(Counts())}
    assert {goal.phase for goal in GOALS} <= names
    assert {goal.against for goal in GOALS} <= {*names, ""}
    assert len({goal.name for goal in GOALS}) == len(GOALS)
    text = tables(tmp_path / "rows.jsonl")
    assert text.count(MISSING) == len(GOALS)


def test_more_tokens_and_less_time_are_better(tmp_path: Path) -> None:
    path = write(
        tmp_path / "rows.jsonl",
        ("throughput", OURS, {"8 streams: tokens/s": 300.0}),
        ("throughput", PEER, {"8 streams: tokens/s": 200.0}),
        ("sleep", OURS, {"start: first token s": 1.0}),
        ("sleep", PEER, {"start: first token s": 2.0}),
    )
    assert row(path, "8 streams: tokens/s") == ["300.00", "200.00", "1.50", "1x"]
    assert row(path, "start: first token s") == ["1.00", "2.00", "2.00", "0.9x"]


def test_rounds_have_a_median_and_models_a_table_each(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for number, value in enumerate((1.0, 9.0, 2.0)):
        write(path, ("throughput", OURS, {"8 streams: tokens/s": value}), number=number)
    assert row(path, "8 streams: tokens/s")[0] == "2.00"
    assert stored(path)["8b"].n_rounds == 3
    write(path, ("throughput", OURS, {"8 streams: tokens/s": 5.0}), model="30b-a3b")
    assert [*stored(path)] == ["8b", "30b-a3b"]


def test_a_card_has_memory_of_other_processes(tmp_path: Path) -> None:
    found = ("sleep", OURS, {BEFORE: 4.0, HELD: 100.0, ASLEEP: 4.0})
    path = write(tmp_path / "rows.jsonl", found)
    assert row(path, "memory of the card, asleep MiB") == ["0.00", "", "reached", "at most 0"]


def test_log_probabilities_of_both_servers_are_compared(tmp_path: Path) -> None:
    path = write(
        tmp_path / "rows.jsonl",
        ("long prompts", OURS, {f"{LOGPROB}text 0, token 5": -1.0}),
        ("long prompts", PEER, {f"{LOGPROB}text 0, token 5": -2.0}),
    )
    assert row(path, "both servers: wrong texts") == ["1.00", "", "missed", "at most 0"]


def test_specllama_is_compared_with_itself(tmp_path: Path) -> None:
    name = "32 streams, greedy"
    path = write(
        tmp_path / "rows.jsonl",
        ("throughput", OURS, {f"{name}: tokens/s": 100.0}),
        ("backend sampling", OURS, {f"{name}: tokens/s": 150.0, "1 streams, greedy: tokens/s": 9}),
    )
    assert row(path, f"{name}, with --backend-sampling: tokens/s")[2] == "1.50 (own)"


def test_reasons_are_listed_and_a_broken_line_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with path.open("w", encoding="utf-8") as file:
        Rows(file, Console(file=io.StringIO()), "8b").fail("sleep", PEER, "start", "no\ncard")
        file.write('{"model": "8b", "pha')
    assert "- sleep, llama-server: start: no card" in tables(path)


def test_the_report_has_all_goals() -> None:
    text = (ROOT / "docs" / "reports" / "gpu.md").read_text("utf-8")
    assert [(each.name, each.goal) for each in GOALS] == re.findall(
        r"(?m)^\| (.+?) \|(?:[^|]*\|){3} (at most [\d.]+|[\d.]+x|-) \|$", text
    )
