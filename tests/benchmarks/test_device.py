"""The requests of the benchmark for a card, and its evaluation of the answers."""

import asyncio
import io
import json
from collections.abc import AsyncIterator

import pytest
from rich.console import Console

from benchmarks import device
from benchmarks.device import OURS, PEER, Phase, Rows, measure, phases
from benchmarks.device_requests import Counts, DeviceSteps, Metrics, Plan
from benchmarks.device_scenarios import SCENARIOS
from benchmarks.device_states import LOGPROB, TOLERANCE, difference, n_wrong
from benchmarks.servers import Server
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
    rows = Rows(file, Console(file=io.StringIO()), "8b")
    rows.add("a", OURS, 0, {"tokens/s": 2.0})
    rows.fail("a", PEER, "start", "no card")
    first, second = map(json.loads, file.getvalue().splitlines())
    key = {"model": "8b", "phase": "a", "server": OURS, "row": "tokens/s"}
    assert first == {**key, "round": 0, "value": 2.0}
    assert second["error"] == "no card"


def test_the_table_compares_probabilities_and_shows_none() -> None:
    shown = io.StringIO()
    rows = Rows(io.StringIO(), Console(file=shown, width=150), "8b")
    rows.add("a", OURS, 0, {"tokens/s": 3.0, f"{LOGPROB}text 0, token 5": -1.0})
    rows.add("a", PEER, 0, {"tokens/s": 2.0, f"{LOGPROB}text 0, token 5": -1.25})
    rows.show()
    assert "1.50" in shown.getvalue()
    assert "largest difference" in shown.getvalue()
    assert LOGPROB not in shown.getvalue()


def test_a_failure_and_a_scenario_without_end_are_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    async def breaks(server: Server, plan: Plan, seed: int) -> AsyncIterator[Metrics]:
        yield {"before it": 1.0}
        raise IndexError("no gap")

    async def hangs(server: Server, plan: Plan, seed: int) -> AsyncIterator[Metrics]:
        yield {"in time": 1.0}
        await asyncio.Event().wait()

    async def no_metrics(server: Server) -> None:
        return None

    monkeypatch.setattr(device, "SCENARIOS", {"breaks": breaks, "hangs": hangs})
    monkeypatch.setattr(device, "SCENARIO_SECONDS", 0.0)
    monkeypatch.setattr(device, "device_steps", no_metrics)
    file = io.StringIO()
    rows = Rows(file, Console(file=io.StringIO()), "8b")
    server = Server(OURS, "http://127.0.0.1:1")
    measure([server], Phase("a", (), ("breaks", "hangs")), Plan(Counts.quick()), rows, 0)
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    assert [line["row"] for line in lines] == ["before it", "breaks", "in time", "hangs"]
    assert "no gap" in lines[1]["error"]
    assert "TimeoutError" in lines[3]["error"]


def test_texts_without_a_common_token_are_not_compared() -> None:
    assert difference({f"{LOGPROB}a, token 1": 1.0}, {f"{LOGPROB}b, token 1": 1.0}) == {}


def test_wrong_texts_are_counted() -> None:
    near = {1: -0.5, 2: -1.0}
    far = {1: -0.5, 2: -1.1 - TOLERANCE}
    others = {3: -0.5, 4: -1.0}
    assert n_wrong([near, near, near], [near, far, others]) == 2
    ours = {f"{LOGPROB}a, token {token}": value for token, value in near.items()}
    peers = {f"{LOGPROB}a, token {token}": value for token, value in far.items()}
    found = difference(ours, peers)
    assert found["to the other server: wrong texts"] == 1
    assert found["to the other server: largest difference of logprobs"] > TOLERANCE


def test_the_share_of_idle_time_is_of_the_time_between() -> None:
    before, after = DeviceSteps(10.0, 100, 1.0), DeviceSteps(12.0, 300, 1.5)
    found = after.since(before)
    assert found["device idle ms/step"] == pytest.approx(2.5)
    assert found["device idle %"] == pytest.approx(25)
    assert before.since(before) == {}
