"""The requests of the benchmark of proposals, and its evaluation of the answers."""

import io
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks import speculation
from benchmarks.speculation import N_DRAFT, SCENARIOS, Models, Plan, Turn, rates, rows, table
from specllama.engine.options.tables.speculation import read_rates
from tests.support.options_support import layered

MODELS = Models(Path("model.gguf"), Path("draft.gguf"))
PLAN = Plan(rounds=1, streams=(1,), tokens=20, texts=3)
PEER = ("other", "server -m {model} --port {port} -t {threads} --name 'a b'")


@pytest.mark.parametrize("name", SCENARIOS)
def test_variants_are_servers_that_start(name: str) -> None:
    """Their names tell them apart, and their options are some that this server has."""
    variants, references = rows(SCENARIOS[name], MODELS, [], [PEER])
    names = [each.name for each in variants]
    assert len(set(names)) == len(names)
    assert set(references) <= set(names)
    assert not variants[0].peer
    for each in variants:
        options = layered({}, [], [*each.options], files=False)
        has_draft = bool(options.engine.draft.model_draft)
        rates_of = options.engine.speculation.synthetic_rates(has_draft=has_draft)
        assert bool(rates_of) == ("right" in each.name)


@pytest.mark.parametrize("name", SCENARIOS)
def test_streams_have_different_texts(name: str) -> None:
    scenario = SCENARIOS[name]
    texts = [scenario.requests(PLAN, 1000 + 17 * stream) for stream in range(8)]
    assert len({requests[0]["prompt"] for requests in texts}) == 8
    assert all(len(requests) > scenario.n_unmeasured for requests in texts)
    assert all(each["n_predict"] == 20 for requests in texts for each in requests)


def test_some_variants_only() -> None:
    """The one that others are compared with is always there."""
    variants, references = rows(SCENARIOS["draft"], MODELS, ["0.75 right", "other 0 right"], [PEER])
    names = [each.name for each in variants]
    assert names == ["without", "0.75 right", "other 0 right", "other"]
    assert references == ["without", "other"]


def test_both_servers_make_up_the_same() -> None:
    variants, _ = rows(SCENARIOS["draft"], MODELS, [], [PEER])
    ours = {each.name: each.options for each in variants if not each.peer}
    theirs = {each.name: each.options for each in variants if each.peer}
    assert ours["0.75 right"] == theirs["other 0.75 right"]
    assert read_rates(rates(0.75)) == (0.75, 0.5625, 0.421875)
    assert read_rates(rates(0.0)) == N_DRAFT * (0.0,)


def test_the_command_of_another_server() -> None:
    command = speculation._peer_command(PEER[1], ("--more", "{}"), Path("m.gguf"), 8080, 2)
    assert command == [
        *("server", "-m", "m.gguf", "--port", "8080", "-t", "2"),
        *("--name", "a b", "--more", "{}"),
    ]


def turn(seconds: float, n_tokens: int, *, n_proposed: int = 0, n_accepted: int = 0) -> Turn:
    found = Turn(seconds)
    timings = {"predicted_n": n_tokens, "draft_n": n_proposed, "draft_n_accepted": n_accepted}
    found.add({"timings": timings, "content": "x" * n_tokens, "stop_type": "eos"})
    return found


def test_ratios_are_those_of_the_rounds() -> None:
    results = {
        "without": [turn(1.0, 10), turn(2.0, 10), turn(1.0, 20)],
        "with": [turn(1.0, 30), turn(1.0, 10), turn(1.0, 20, n_proposed=8, n_accepted=6)],
    }
    printed = io.StringIO()
    Console(file=printed, width=160).print(table("a title", results, ["without"]))
    [row] = [line for line in printed.getvalue().splitlines() if "with " in line]
    cells = [cell.strip() for cell in row.split("│")[1:-1]]
    assert cells == ["with", "20.0", "1.0", "20.0", "8", "75%", "2.00, 1.00"]


def test_an_answer_without_proposals_is_counted() -> None:
    found = Turn(1.0)
    found.add({"timings": {"predicted_n": 3}, "content": "abc", "stop_type": "limit"})
    assert (found.n_tokens, found.n_texts, found.n_characters) == (3, 0, 3)
    assert (found.n_proposed, found.n_accepted) == (0, 0)


def arguments(monkeypatch: pytest.MonkeyPatch, *argv: str) -> Any:
    monkeypatch.setattr(sys, "argv", ["speculation", *argv])
    return speculation.parse_arguments()


def test_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    found = arguments(monkeypatch, "--peer", "a=b --c=d", "--streams", "2", "--streams", "3")
    assert found.peer == [("a", "b --c=d")]
    assert found.streams == [2, 3]
    for wrong in (["--peer", "nothing"], ["--streams", "0"], ["--scenario", "none"]):
        with pytest.raises(SystemExit):
            arguments(monkeypatch, *wrong)
