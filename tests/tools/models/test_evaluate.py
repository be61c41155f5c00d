"""The evaluation: its table, and one through a live server."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specllama.testing import llm_server
from tools.models import evaluate
from tools.models.evaluate import LESSONS, Outcome, table

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


def outcome(ability: str, **marks: bool) -> Outcome:
    return Outcome(ability=ability, kind="k", marks=marks, request={}, wanted=None, got=None)


def test_the_table_has_shares() -> None:
    text = table(
        {
            0.0: [outcome("a", right=True), outcome("a", right=False)],
            0.8: [outcome("a", right=True), outcome("a", right=True)],
        }
    )
    assert "| Ability | Mark | Tasks | greedy | temperature 0.8 |" in text
    assert "| a | right | 2 | 50.0 % | 100.0 % |" in text
    assert "| a | right: k | 2 | 50.0 % | 100.0 % |" in text


def test_each_ability_is_asked_for() -> None:
    with llm_server("--threads", "1", "--ctx-size", "8192") as server:
        found = evaluate.evaluate(server.base_url, 3, 0.0, 7, list(LESSONS))
    assert {each.ability for each in found} == set(LESSONS)
    assert len(found) == 3 * len(LESSONS)
    for each in found:
        assert {"right", "ends"} <= set(each.marks)
    formats = {each.kind for each in found if each.ability == "extraction"}
    assert formats == {"free", "object", "schema"}
    assert all("valid" in each.marks for each in found if each.kind == "schema")


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="there are no such signals here")
def test_a_terminated_evaluation_leaves_no_server(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.models.evaluate", "-n", "1000"]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
    )
    try:
        while not any("listening on" in each.read_text("utf-8") for each in logs(tmp_path)):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 128 + signal.SIGTERM
        # It had a process group of its own, which is empty now.
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)
        assert not logs(tmp_path)
    finally:
        if process.poll() is None:
            process.kill()


def logs(directory: Path) -> list[Path]:
    return list(directory.glob("specllama-*/server.log"))
