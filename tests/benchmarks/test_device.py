"""The requests of the benchmark for a card, and its evaluation of the answers."""

import io
import json

import pytest
from rich.console import Console

from benchmarks.device import OURS, PEER, Rows, phases
from benchmarks.device_scenarios import LOGPROB, SCENARIOS, Counts, DeviceSteps, difference
from tests.support.options_support import layered


@pytest.mark.parametrize("counts", [Counts(), Counts.quick()], ids=["all", "quick"])
def test_phases_are_servers_that_start(counts: Counts) -> None:
    found = phases(counts)
    assert len({phase.name for phase in found}) == len(found)
    for phase in found:
        assert {*phase.scenarios} <= SCENARIOS.keys()
        options = layered({}, [], [*phase.options, *phase.of_ours], files=False)
        assert options.engine.context.parallel >= 8


def test_slots_are_enough_for_all_streams() -> None:
    counts = Counts()
    assert max(*counts.streams, *counts.json, counts.sampled) <= counts.slots
    assert counts.beside + 8 * counts.tokens_beside < counts.long_context


def test_each_row_is_in_the_file_at_once() -> None:
    file = io.StringIO()
    rows = Rows(file, Console(file=io.StringIO()))
    rows.add("a", OURS, 0, {"tokens/s": 2.0})
    rows.fail("a", PEER, "start", "no card")
    first, second = map(json.loads, file.getvalue().splitlines())
    assert first == {"phase": "a", "round": 0, "server": OURS, "row": "tokens/s", "value": 2.0}
    assert second["error"] == "no card"


def test_the_table_compares_probabilities_and_shows_none() -> None:
    shown = io.StringIO()
    rows = Rows(io.StringIO(), Console(file=shown, width=150))
    rows.add("a", OURS, 0, {"tokens/s": 3.0, f"{LOGPROB}text 0, token 5": -1.0})
    rows.add("a", PEER, 0, {"tokens/s": 2.0, f"{LOGPROB}text 0, token 5": -1.25})
    rows.show()
    assert "1.50" in shown.getvalue()
    assert "largest difference" in shown.getvalue()
    assert LOGPROB not in shown.getvalue()


def test_servers_without_a_token_in_common_are_not_compared() -> None:
    assert difference({f"{LOGPROB}a": 1.0}, {f"{LOGPROB}b": 1.0}) == {}


def test_the_share_of_idle_time_is_of_the_time_between() -> None:
    before, after = DeviceSteps(10.0, 100, 1.0), DeviceSteps(12.0, 300, 1.5)
    found = after.since(before)
    assert found["device idle ms/step"] == pytest.approx(2.5)
    assert found["device idle %"] == pytest.approx(25)
    assert before.since(before) == {}
