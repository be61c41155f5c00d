"""MCP servers in processes: friendly ones and hostile ones."""

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from contract_tests.kit.server import SECONDS, wait_until
from specllama.engine.helpers.tools.servers import McpResult, McpServers
from specllama.engine.helpers.tools.tools_jobs import MAX_RESULT, McpServer
from specllama.engine.wire.commands import bare_environment, environment

pytestmark = pytest.mark.slow

SERVERS = Path(__file__).parents[3] / "support" / "mcp_servers"
SOON = 0.5
"""A limit for servers that never answer."""


def friendly(**changes: Any) -> McpServer:
    fields = {"command": sys.executable, "args": (str(SERVERS / "friendly.py"),), **changes}
    return McpServer(name="friend", **fields)


def hostile(mode: str, notes: Path, **changes: Any) -> McpServer:
    words = (str(SERVERS / "hostile.py"), mode, str(notes / mode))
    return McpServer(name=mode, command=sys.executable, args=words, **changes)


def run(
    use: Callable[[McpServers], Awaitable[None]],
    *servers: McpServer,
    start: float = SECONDS,
    wait: float = SECONDS,
    retry: float = 0.0,
) -> None:
    """Runs `use`. After it, no process of the servers may exist."""

    async def main() -> None:
        found = McpServers(servers, start=start, retry=retry, wait=wait)
        try:
            await use(found)
        finally:
            pids = found.pids
            await found.stop()
            assert not [pid for pid in pids if psutil.pid_exists(pid)]

    asyncio.run(main())


async def call(servers: McpServers, name: str, /, **arguments: Any) -> McpResult:
    tool = (await servers.tools())[name]
    return await tool.connection.call(tool.tool.name, json.dumps(arguments).encode())


def noted(notes: Path, mode: str) -> list[int]:
    return [int(line) for line in (notes / mode).read_text().split()]


# ---- friendly ones


def test_tools_are_listed_and_called() -> None:
    async def use(servers: McpServers) -> None:
        tools = await servers.tools()
        assert {"friend_echo", "friend_add", "friend_variable", "friend_fail"} < tools.keys()
        assert tools["friend_echo"].tool.description == "Repeats a message."
        schema = json.loads(tools["friend_echo"].tool.schema)
        assert schema["required"] == ["message"]
        assert tools["friend_add"].tool.is_read_only
        assert not tools["friend_echo"].tool.is_read_only
        assert await call(servers, "friend_echo", message="hé") == McpResult("echo: hé")
        assert (await call(servers, "friend_add", a=3, b=5)).text == "8.0"
        picture = await call(servers, "friend_picture")
        assert picture == McpResult("[image: image/png, 6 bytes]")
        failed = await call(servers, "friend_fail", reason="because")
        assert failed.failed
        assert (await call(servers, "friend_echo")).failed  # no argument

    run(use, friendly())


def test_calls_run_side_by_side() -> None:
    async def use(servers: McpServers) -> None:
        await servers.tools()
        calls = [call(servers, "friend_echo", message=str(number)) for number in range(40)]
        found = await asyncio.gather(*calls)
        assert [each.text for each in found] == [f"echo: {number}" for number in range(40)]

    run(use, friendly())


def test_the_configured_variables_reach_that_program_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OWN_SECRET", "of the server")

    async def use(servers: McpServers) -> None:
        assert (await call(servers, "friend_variable", name="TOKEN")).text == "for one"
        assert (await call(servers, "other_variable", name="TOKEN")).text == "(none)"
        assert (await call(servers, "friend_variable", name="OWN_SECRET")).text == "(none)"
        assert (await call(servers, "friend_variable", name="PATH")).text == os.environ["PATH"]

    other = McpServer(name="other", command=sys.executable, args=friendly().args)
    run(use, friendly(env={"TOKEN": "for one"}), other)


def test_http_serves_as_well() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, str(SERVERS / "friendly.py"), str(port)]
    server = McpServer(name="web", url=f"http://127.0.0.1:{port}/mcp", headers={"X-A": "b"})

    async def use(servers: McpServers) -> None:
        while "web_echo" not in (tools := await servers.tools()):  # until it listens
            await asyncio.sleep(0.1)
        assert tools["web_echo"].tool.description == "Repeats a message."
        assert await call(servers, "web_echo", message="x") == McpResult("echo: x")

    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as process:
        try:
            run(use, server)
        finally:
            process.kill()


def test_no_other_process_inherits_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_MCP_SERVERS_JSON", "s3cr3t-value")
    for inherited in (environment(), bare_environment()):
        assert "s3cr3t-value" not in inherited.values()
        assert inherited["PATH"] == os.environ["PATH"]


# ---- sick ones


def test_a_sick_server_harms_no_other(tmp_path: Path) -> None:
    async def use(servers: McpServers) -> None:
        assert "friend_echo" in await servers.tools()
        assert (await call(servers, "friend_echo", message="x")).text == "echo: x"

    sick = McpServer(name="missing", command="no-such-program-of-the-tests")
    web = McpServer(name="web", url="http://127.0.0.1:1/mcp")
    run(use, sick, web, hostile("dies_at_start", tmp_path), friendly())


def test_a_program_that_ends_at_once_is_reported_with_its_last_words(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def use(servers: McpServers) -> None:
        assert await servers.tools() == {}

    run(use, hostile("dies_at_start", tmp_path, env={"TOKEN": "s3cr3t-value"}))
    assert "dies_at_start ended with code 1: no configuration for ***" in caplog.text


def test_a_list_does_not_wait_for_a_silent_server(tmp_path: Path) -> None:
    async def use(servers: McpServers) -> None:
        assert await servers.tools() == {}
        assert await servers.tools() == {}

    run(use, hostile("is_silent", tmp_path), wait=SOON)


def test_a_silent_server_is_ended_in_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def use(servers: McpServers) -> None:
        assert await servers.tools() == {}
        assert servers.pids == []

    run(use, hostile("is_silent", tmp_path), start=8 * SOON)
    assert "took more than 4 s to start" in caplog.text


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("never", "the call took more than 0.5 s"),
        ("dies", "the MCP server ended with code 3"),
        ("is_endless", "the MCP server sent a message of more than 8 MiB"),
        ("floods", "the MCP server sent more than 64 MiB without an answer"),
        ("answers_nonsense", "the answer of the MCP server is not valid"),
    ],
)
def test_a_hostile_call_fails(mode: str, reason: str, tmp_path: Path) -> None:
    async def use(servers: McpServers) -> None:
        for _ in range(2):  # it is started again
            result = await call(servers, f"{mode}_act")
            assert result == McpResult(reason, failed=True)

    seconds = SOON if mode == "never" else SECONDS
    run(use, hostile(mode, tmp_path, seconds=seconds))
    pids = noted(tmp_path, mode)
    wait_until(lambda: not any(map(psutil.pid_exists, pids)), "no process is left")


def test_requests_of_a_server_end_with_the_call(tmp_path: Path) -> None:
    async def use(servers: McpServers) -> None:
        assert (await call(servers, "asks_act")).failed

    run(use, hostile("asks", tmp_path, seconds=SOON))


def test_a_long_result_is_cut(tmp_path: Path) -> None:
    async def use(servers: McpServers) -> None:
        result = await call(servers, "is_large_act")
        assert not result.failed
        assert result.text == "y" * MAX_RESULT + "\n[output truncated]"

    run(use, hostile("is_large", tmp_path))


def test_other_lines_are_skipped(tmp_path: Path) -> None:
    async def use(servers: McpServers) -> None:
        assert await call(servers, "prints_act") == McpResult("done")

    run(use, hostile("prints", tmp_path))


def test_secrets_are_neither_in_the_log_nor_in_errors(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def use(servers: McpServers) -> None:
        result = await call(servers, "leaks_act")
        assert result == McpResult("no access with ***", failed=True)
        while "the token is ***" not in caplog.text:
            await asyncio.sleep(0.01)

    with caplog.at_level(logging.DEBUG, "specllama.engine.helpers.tools"):
        run(use, hostile("leaks", tmp_path, env={"TOKEN": "s3cr3t-value"}))
    assert "s3cr3t-value" not in caplog.text


def test_all_descendants_end(tmp_path: Path) -> None:
    async def use(servers: McpServers) -> None:
        assert await call(servers, "has_children_act") == McpResult("started")

    run(use, hostile("has_children", tmp_path))
    pids = noted(tmp_path, "has_children")
    assert len(pids) == 2
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


def test_a_program_ends_with_its_process(tmp_path: Path) -> None:
    async def use(servers: McpServers) -> None:
        await servers.tools()
        process, program = servers.pids
        os.kill(process, signal.SIGKILL)
        while psutil.pid_exists(program):
            await asyncio.sleep(0.01)
        assert await call(servers, "prints_act") == McpResult("done")

    run(use, hostile("prints", tmp_path))


def test_a_server_that_ends_after_each_answer_is_started_again(tmp_path: Path) -> None:
    async def use(servers: McpServers) -> None:
        for _ in range(3):
            result = await call(servers, "answers_then_dies_act")
            assert result == McpResult("last words")
            while servers.pids:
                await asyncio.sleep(0.01)

    # It has answered: no pause.
    run(use, hostile("answers_then_dies", tmp_path), retry=SECONDS)
    assert len(noted(tmp_path, "answers_then_dies")) == 3


def test_after_a_failure_there_is_a_pause(tmp_path: Path) -> None:
    async def use(servers: McpServers) -> None:
        assert (await call(servers, "dies_act")).failed
        result = await call(servers, "dies_act")
        assert result.text.startswith("the MCP server dies ended with code 3; another try")

    run(use, hostile("dies", tmp_path), retry=SECONDS)
    assert len(noted(tmp_path, "dies")) == 1


def test_a_changed_list_is_read_again(tmp_path: Path) -> None:
    async def use(servers: McpServers) -> None:
        assert await call(servers, "changes_act") == McpResult("changed")
        while "changes_other" not in await servers.tools():
            await asyncio.sleep(0.01)

    run(use, hostile("changes", tmp_path))


def test_tools_that_no_model_can_call_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def use(servers: McpServers) -> None:
        assert (await servers.tools()).keys() == {"has_bad_tools_act"}

    run(use, hostile("has_bad_tools", tmp_path))
    assert "1 tools can't be used" in caplog.text
    assert "has_bad_tools_a b" in caplog.text


def test_pages_end(tmp_path: Path) -> None:
    async def use(servers: McpServers) -> None:
        assert (await servers.tools()).keys() == {"has_endless_pages_act"}

    run(use, hostile("has_endless_pages", tmp_path))


def test_cancelling_a_call_leaves_the_server(tmp_path: Path) -> None:
    async def use(servers: McpServers) -> None:
        await servers.tools()
        task = asyncio.create_task(call(servers, "never_act"))
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()
        assert len(servers.pids) == 2

    run(use, hostile("never", tmp_path))


def test_stopping_fails_open_calls(tmp_path: Path) -> None:
    async def use(servers: McpServers) -> None:
        await servers.tools()
        task = asyncio.create_task(call(servers, "never_act"))
        await asyncio.sleep(0.1)
        await servers.stop()
        assert await task == McpResult("the server is shutting down", failed=True)
        assert (await call(servers, "never_act")).text == "the server is shutting down"

    run(use, hostile("never", tmp_path))
    pids = noted(tmp_path, "never")
    assert pids
    wait_until(lambda: not any(map(psutil.pid_exists, pids)), "no process is left")
