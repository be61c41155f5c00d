"""The built-in tools in their processes."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from contract_tests.kit.server import SECONDS
from specllama.engine.helpers.files.definitions import TOOLS
from specllama.engine.helpers.files.files_jobs import SHELL
from specllama.engine.helpers.files.shell import MAX_COMMAND
from specllama.engine.helpers.files.toolbox import Toolbox

pytestmark = pytest.mark.slow


def run(root: Path, use: Callable[[Toolbox], Awaitable[None]], time_limit: float = SECONDS) -> None:
    async def main() -> None:
        tools = Toolbox(TOOLS, str(root), time_limit=time_limit)
        try:
            await use(tools)
        finally:
            pids = tools.pids
            await tools.stop()
            assert not [pid for pid in pids if psutil.pid_exists(pid)]

    asyncio.run(main())


def test_each_tool_works(tmp_path: Path) -> None:
    async def use(tools: Toolbox) -> None:
        written = await tools.run("write_file", {"path": "a/f.txt", "content": "one\n"})
        assert written["bytes"] == 4
        edits = [{"old_text": "one", "new_text": "two"}]
        assert "result" in await tools.run("edit_file", {"path": "a/f.txt", "edits": edits})
        read = await tools.run("read_file", {"path": "f.txt"}, directory="a")
        assert read == {"plain_text_response": "two\n"}
        encoded = await tools.run("read_file", {"path": "a/f.txt"}, base64=True)
        assert encoded == {"base64": "dHdvCg==", "size_bytes": 4}
        found = await tools.run("file_glob_search", {"path": "."})
        assert found["entries"] == [{"path": "a/f.txt", "type": "file"}]
        lines = await tools.run("grep_search", {"path": ".", "pattern": "t.o"})
        assert lines["plain_text_response"].startswith("a/f.txt:two\n")
        info = await tools.run("get_info", {}, directory="a")
        assert info["cwd"] == str(tmp_path / "a")
        assert os.uname().sysname in info["os"]

    run(tmp_path, use)


@pytest.mark.parametrize("name", TOOLS)
def test_wrong_calls_have_a_reason(name: str, tmp_path: Path) -> None:
    async def use(tools: Toolbox) -> None:
        for directory in ("..", "nothing", "/etc"):
            assert "error" in await tools.run(
                name, {"path": "f", "command": "x"}, directory=directory
            )
        if name != "get_info":
            assert "error" in await tools.run(name, {})
            assert "error" in await tools.run(name, {"path": 5, "command": None})

    run(tmp_path, use)


def test_a_catastrophic_expression_ends_in_time(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a" * 60 + "!")

    async def use(tools: Toolbox) -> None:
        slow = asyncio.create_task(tools.run("grep_search", {"path": "f", "pattern": "(a+)+$"}))
        await asyncio.sleep(0)
        # Another process answers meanwhile.
        assert "cwd" in await tools.run("get_info", {})
        assert await slow == {"error": "the tool took more than 4 s"}
        assert "cwd" in await tools.run("get_info", {})

    run(tmp_path, use, time_limit=4.0)


def test_an_expression_that_needs_all_memory_fails(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a")

    async def use(tools: Toolbox) -> None:
        pattern = "((((a{1000}){1000}){1000}){1000})"
        found = await tools.run("grep_search", {"path": "f", "pattern": pattern})
        assert found.keys() <= {"error", "plain_text_response"}
        assert "cwd" in await tools.run("get_info", {})

    run(tmp_path, use)


def test_a_killed_process_is_replaced(tmp_path: Path) -> None:
    async def use(tools: Toolbox) -> None:
        assert "cwd" in await tools.run("get_info", {})
        for pid in tools.pids:
            os.kill(pid, signal.SIGKILL)
        assert "cwd" in await tools.run("get_info", {})

    run(tmp_path, use)


def test_cancelling_ends_the_work(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a" * 60 + "!")

    async def use(tools: Toolbox) -> None:
        slow = asyncio.create_task(tools.run("grep_search", {"path": "f", "pattern": "(a+)+$"}))
        while not tools.pids:
            await asyncio.sleep(0.01)
        pids = tools.pids
        slow.cancel()
        await asyncio.wait((slow,))
        while any(psutil.pid_exists(pid) for pid in pids):
            await asyncio.sleep(0.01)

    run(tmp_path, use)


def test_a_stopped_toolbox_says_so(tmp_path: Path) -> None:
    async def use(tools: Toolbox) -> None:
        await tools.stop()
        assert await tools.run("get_info", {}) == {"error": "the server is shutting down"}

    run(tmp_path, use)


def test_a_command_that_cannot_start_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def missing(*_: Any, **__: Any) -> Any:
        raise FileNotFoundError(2, "No such file or directory")

    async def use(tools: Toolbox) -> None:
        monkeypatch.setattr(asyncio, "create_subprocess_exec", missing)
        found = await tools.run(SHELL, {"command": "true"})
        assert found == {"error": "failed to spawn process: No such file or directory"}
        long = await tools.run(SHELL, {"command": "x" * (MAX_COMMAND + 1)})
        assert "more than 100000 bytes" in long["error"]

    run(tmp_path, use)
