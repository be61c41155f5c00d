"""The page with the server's own tools: built-in ones, and those of a program that speaks MCP."""

import json
import re
import sys
from pathlib import Path

import pytest

from contract_tests.kit.server import OwnServer, Start, wait_until
from contract_tests.own.page.test_hostile import HOSTILE, check
from contract_tests.own.page.visits import Visit, call, expect

pytest.importorskip("mcp", reason="the extra mcp is not installed")

PROGRAM = '''
"""An MCP server whose texts are hostile."""

import os, time
from pathlib import Path
from typing import Literal

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

HOSTILE = {hostile!r}
server = MCPServer("colours")

@server.tool(description="Paints a wall. " + HOSTILE)
def paint(colour: Literal["red"]) -> str:
    return f"painted {{colour}}\\u202e" + HOSTILE

@server.tool()
def fail() -> str:
    raise ToolError(HOSTILE)

@server.tool()
def sleep() -> str:
    Path({started!r}).write_text("started")
    time.sleep(10_000)
    return "never"

@server.tool()
def end() -> str:
    os._exit(1)

server.run("stdio")
'''

ANSWER = [{"content": "It says so."}]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tools")


@pytest.fixture(scope="module")
def equipped(browser: object, module_server: Start, directory: Path) -> OwnServer:
    """A server with a built-in tool and an MCP server; `browser` comes first, so that no server
    starts without one."""
    (directory / "notes.txt").write_text("Llamas carry wool.")
    program = directory / "colours.py"
    program.write_text(PROGRAM.format(hostile=HOSTILE, started=str(directory / "started")))
    servers = {"colours": {"command": sys.executable, "args": [str(program)]}}
    configuration = directory / "mcp.json"
    configuration.write_text(json.dumps({"mcpServers": servers}))
    return module_server(
        *("--mcp-servers-config", str(configuration)),
        *("--tools", "read_file", "--tools-dir", str(directory)),
    )


def test_the_model_calls_a_tool_of_an_mcp_server(visit: Visit, equipped: OwnServer) -> None:
    """The shipped model makes a forced call, with the only arguments that its schema allows."""
    fields = {
        "tool_choice": {"type": "function", "function": {"name": "colours_paint"}},
        "parallel_tool_calls": False,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    visit.open(equipped.url, custom=json.dumps(fields), max_tokens=200, toolRounds=1)
    visit.say("Paint the wall")
    visit.find(".consent", has_text="May the model call this tool of an MCP server").wait_for()
    expect(visit.find(".call pre")).to_have_text('{ "colour": "red" }')
    visit.click("Allow once")
    result = visit.find(".result", has_text="Result of colours_paint")
    expect(result.locator("pre")).to_have_text(re.compile("^painted red⟨202E⟩"))
    # The next answer is a forced call, too.
    visit.find(".results", has_text="Calls that wait: colours_paint").wait_for()
    check(visit)


def test_tools_are_listed(visit: Visit, equipped: OwnServer) -> None:
    visit.open(equipped.url)
    visit.find(".choose-tools").click()
    for name in ("colours_end", "colours_fail", "colours_paint", "colours_sleep", "read_file"):
        visit.find(".tool-list summary code").get_by_text(name, exact=True).wait_for()
    visit.unfold(".tool-list details", 5)
    check(visit)


def test_a_built_in_tool(visit: Visit, equipped: OwnServer) -> None:
    visit.open(equipped.url)
    bodies = visit.script([call("read_file", {"path": "notes.txt"})],
                          [call("read_file", {"path": "../../etc/passwd"})], ANSWER)  # fmt: skip
    visit.say("Read")
    visit.click("Always allow")
    visit.says("It says so.")
    found, refused = [each["content"] for each in bodies[-1]["messages"] if each["role"] == "tool"]
    assert "Llamas carry wool." in found
    assert "error" in json.loads(refused)
    expect(visit.find(".result", has_text="Failed: read_file")).to_have_count(1)


def test_a_running_tool_is_stopped(visit: Visit, equipped: OwnServer, directory: Path) -> None:
    visit.open(equipped.url)
    visit.script([call("colours_sleep")], ANSWER)
    visit.say("Sleep")
    visit.click("Allow once")
    visit.find(".call", has_text="colours_sleep is running").wait_for()
    wait_until((directory / "started").exists, "the tool runs")
    visit.click("Stop")
    visit.find(".result", has_text="Stopped: colours_sleep").wait_for()
    visit.script(ANSWER)
    assert visit.ask("Why?") == "It says so."


def test_failures_go_to_the_model(visit: Visit, equipped: OwnServer) -> None:
    """An error of a tool, and the end of its server: the last test, since a server that has ended
    isn't started again at once."""
    visit.open(equipped.url)
    bodies = visit.script([call("colours_fail")], [call("colours_end")], ANSWER)
    visit.say("Fail")
    visit.click("Allow once")
    visit.find(".result", has_text="Failed: colours_fail").wait_for()
    visit.click("Allow once")
    visit.find(".result", has_text="Failed: colours_end").wait_for()
    visit.says("It says so.")
    results = [each["content"] for each in bodies[-1]["messages"] if each["role"] == "tool"]
    assert "window.hit" in json.loads(results[0])["error"]
    assert json.loads(results[1])["error"]
    check(visit)
