"""The evaluation through a live server."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from specllama.testing import llm_server
from tools.models import evaluate
from tools.models.evaluate import LESSONS
from tools.models.lessons.held_out import calls
from tools.models.lessons.held_out.calls_of_other_schemas import UNKNOWN
from tools.models.lessons.held_out.extractions import MISSING
from tools.models.lessons.held_out.family import EXTRACTION

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


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


def test_each_ability_has_held_out_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    few = [replace(each, tasks=each.tasks[:3]) for each in (UNKNOWN, calls.NO_TOOL, MISSING)]
    monkeypatch.setattr(evaluate, "FAMILIES", few)
    with llm_server("--threads", "1", "--ctx-size", "8192") as server:
        found = evaluate.evaluate_held_out(server.base_url, 0.0, 7, list(LESSONS))
        extracted = evaluate.evaluate_held_out(server.base_url, 0.0, 7, [EXTRACTION])
    assert [each.kind for each in found] == [each.name for each in few for _ in range(3)]
    for i, each in enumerate(found[:3]):
        assert {"tool", "right", "ends"} <= each.marks.keys()
        # Each request offers all tools, beginning with another one.
        offered = each.request["tools"]
        assert offered[0] == UNKNOWN.tools[i]
        assert len(offered) == len(UNKNOWN.tools)
        assert each.request["chat_template_kwargs"]["enable_thinking"] == (i % 2 == 0)
    formats = [each.request.get("response_format", {}).get("type") for each in found[6:]]
    assert formats == [None, "json_object", "json_schema"]
    assert ["valid" in each.marks for each in found[6:]] == [False, False, True]
    assert [each.kind for each in extracted] == 3 * [MISSING.name]


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
