"""The engine process's stderr on its way into the log."""

import asyncio
import logging
import os
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.models.supervisor import Supervisor
from specllama.engine.wire import engine_log
from specllama.engine.wire.engine_log import (
    BURST,
    LAST_LINES,
    LINES_PER_SECOND,
    MAX_LINE,
    EngineLog,
    Rate,
)
from tests.support.options_support import model_options

pytestmark = pytest.mark.slow

CHILD = """
import logging, os, sys
from specllama.engine.wire.engine_log import send_log
send_log(logging.INFO)
log = logging.getLogger("specllama.engine.llama")
log.debug("not wanted")
log.info("two\\nlines")
log.warning("\\ud800 \\x1b[31m red")
log.error("x" * 100_000 + "the end")
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("specllama.engine.worker").exception("it failed")
os.write(2, b"GGML_ASSERT(n > 0) failed\\n\\n   \\nlast words")
"""


def records(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    return [(each.name, each.levelname, each.getMessage()) for each in caplog.records]


def test_lines_keep_their_level_and_their_name(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, check=True)
    reader = EngineLog()
    reader.feed(done.stderr)
    reader.close()
    two, red, long, failed, *raw = records(caplog)
    assert two == ("specllama.engine.llama", "INFO", "two\nlines")
    assert red == ("specllama.engine.llama", "WARNING", "\\ud800 \x1b[31m red")
    assert long[:2] == ("specllama.engine.llama", "ERROR")
    assert long[2].endswith("xthe end")
    assert len(long[2]) < 5000
    assert failed[:2] == ("specllama.engine.worker", "ERROR")
    assert failed[2].startswith("it failed\nTraceback")
    assert failed[2].endswith("ZeroDivisionError: division by zero")
    assert raw == [
        ("specllama.engine", "WARNING", "GGML_ASSERT(n > 0) failed"),
        ("specllama.engine", "WARNING", "last words"),
    ]


@given(
    st.lists(st.text(st.characters(exclude_characters="\n", codec="utf-8")).map(str.encode)),
    st.data(),
)
def test_lines_come_out_whole_however_they_are_cut(lines: list[bytes], data: st.DataObject) -> None:
    text = b"\n".join(lines)
    logged: list[bytes] = []
    reader = EngineLog()
    reader._log = logged.append  # type: ignore[method-assign,assignment]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True):
        reader.feed(text[start:stop])
    reader.close()
    assert logged == [line for line in lines if line.strip()]


def test_a_line_without_an_end_takes_no_memory(caplog: pytest.LogCaptureFixture) -> None:
    reader = EngineLog()
    for _ in range(100):
        reader.feed(b"x" * MAX_LINE)
    assert len(reader._rest) <= 2 * (MAX_LINE + 1)
    reader.feed(b"\nnext\n")
    reader.close()
    cut, following = [message for _, _, message in records(caplog)]
    assert cut == "x" * MAX_LINE + "..."
    assert following == "next"


def test_foreign_lines_are_logged_unchanged(caplog: pytest.LogCaptureFixture) -> None:
    reader = EngineLog("m")
    for line in (b"", b"[1]", b'[30,"a"', b'[30,"a","b"]assert\x1b[0m'):
        reader.feed(engine_log.MARK + line + b"\n")
    assert [level for _, level, _ in records(caplog)] == ["WARNING"] * 4
    assert all(name == "specllama.engine" for name, _, _ in records(caplog))
    assert records(caplog)[-1][2] == 'm:  [30,"a","b"]assert [0m'
    assert caplog.records[-1].fields == {"model": "m"}  # type: ignore[attr-defined]


@given(st.lists(st.floats(0, 100), max_size=50), st.integers(1, 300))
def test_a_rate_is_kept_in_the_long_run(steps: list[float], n: int) -> None:
    rate, now, admitted = Rate(0.0), 0.0, 0
    for step in steps:
        now += step
        admitted += sum(rate.admits(now) for _ in range(n))
    assert admitted <= BURST + LINES_PER_SECOND * now + 1
    assert Rate(0.0).admits(0.0)


def test_of_too_many_lines_the_last_are_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specllama.engine.system.now", lambda: 0.0)
    n = BURST + 10 * LAST_LINES
    lines = [f"line {i}" for i in range(n)]
    reader = EngineLog()
    reader.feed("\n".join(lines).encode())
    reader.close()
    logged = [message for _, _, message in records(caplog)]
    assert logged[:BURST] == lines[:BURST]
    assert logged[BURST] == f"{n - BURST - LAST_LINES} more lines were left out"
    assert logged[BURST + 1 :] == lines[-LAST_LINES:]
    caplog.clear()
    reader = EngineLog(everything=True)
    reader.feed("\n".join(lines).encode())
    reader.close()
    assert [message for _, _, message in records(caplog)] == lines


def test_a_crash_during_the_start_is_reported(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here of Python itself, before our log is set up there."""
    monkeypatch.setenv("PYTHONHOME", "/nowhere")

    async def run() -> str:
        supervisor = Supervisor(model_options())
        supervisor.model = "tiny"
        supervisor.start()
        await supervisor.loaded()
        await supervisor.stop()
        return supervisor.failure

    assert "while it loaded the model" in asyncio.run(run())
    lines = [each.getMessage() for each in caplog.records if each.name == "specllama.engine"]
    assert any("encodings" in line for line in lines), lines
    assert all(line.startswith("tiny: ") for line in lines)


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_the_supervisor_names_the_model(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        supervisor = Supervisor(model_options())
        supervisor.model = "tiny"
        supervisor.start()
        await supervisor.loaded()
        assert supervisor.pid is not None
        os.kill(supervisor.pid, signal.SIGKILL)
        while supervisor.state == "ready":
            await asyncio.sleep(0.005)
        await supervisor.stop()

    asyncio.run(run())
    assert "tiny: the engine process was ended by SIGKILL; a new one is started" in caplog.messages
