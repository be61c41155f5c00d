"""The tools of a server: built-in ones, and those of MCP servers, over HTTP."""

import contextlib
import json
import os
import shutil
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from contract_tests.kit import contract
from contract_tests.kit.server import SECONDS, OwnServer, Start, wait_until
from specllama.engine.helpers.files.shell import problem

SERVERS = Path(__file__).parents[2] / "tests" / "support" / "mcp_servers"
SECRET = "s3cr3t-of-one-server"
needs_sandbox = pytest.mark.skipif(bool(problem("/tmp")), reason=problem("/tmp") or "it works")


def configuration(notes: Path, **limits: int) -> dict[str, Any]:
    friendly, hostile = str(SERVERS / "friendly.py"), str(SERVERS / "hostile.py")

    def sick(mode: str) -> dict[str, Any]:
        words = [hostile, mode, str(notes / mode)]
        limit = {"timeout_ms": limits[mode]} if mode in limits else {}
        return {"command": sys.executable, "args": words, "env": {"TOKEN": SECRET}, **limit}

    return {
        "mcpServers": {
            "friend": {"command": sys.executable, "args": [friendly], "env": {"TOKEN": SECRET}},
            "missing": {"command": "no-such-program-of-the-tests"},
            "off": {"command": sys.executable, "args": [friendly], "disabled": True},
            **{each: sick(each) for each in ("never", "dies", "leaks", "has_children", "prints")},
        }
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tools")


@pytest.fixture(scope="module")
def root(folder: Path) -> Path:
    root = folder / "root"
    (root / "sub").mkdir(parents=True)
    (root / "f.txt").write_text("hello\n")
    (root / "sub" / "g.txt").write_text("deep\n")
    (folder / "outside.txt").write_text("secret")
    return root


@pytest.fixture(scope="module")
def server(module_server: Start, root: Path, folder: Path) -> OwnServer:
    """A server with all tools, and with friendly and sick MCP servers."""
    path = folder / "mcp.json"
    path.write_text(json.dumps(configuration(folder, never=500)), "utf-8")
    options = ("--tools", "all", "--tools-dir", str(root), "--mcp-servers-config", str(path))
    found = module_server(*options, "-v", api_key="key")

    def is_listed() -> bool:  # a slow machine may need longer than a list waits
        return "friend_echo" in tools(found) and "prints_act" in tools(found)

    wait_until(is_listed, "the MCP servers are listed")
    return found


def tools(server: OwnServer) -> dict[str, Any]:
    return {each["tool"]: each for each in contract.check(server.get("/tools"))}


def call(
    server: OwnServer, name: str, headers: Mapping[str, str] | None = None, /, **params: Any
) -> Any:
    body = {"tool": name, "params": params}
    return contract.check(server.post("/tools", body, headers=headers or {}))


# ---- lists ---------------------------------------------------------------------------------


def test_the_list_has_the_reference_s_form(server: OwnServer) -> None:
    found = tools(server)
    builtin = [name for name, each in found.items() if each["type"] == "server"]
    shell = [] if problem("/tmp") else ["exec_shell_command"]
    assert builtin == [
        *("read_file", "file_glob_search", "grep_search"),
        *shell,
        *("write_file", "edit_file", "get_info"),
    ]
    assert {name for name in builtin if found[name]["permissions"]["write"]} == {
        *shell,
        "write_file",
        "edit_file",
    }
    assert found["friend_add"]["permissions"] == {"write": False}
    assert found["friend_echo"]["permissions"] == {"write": True}
    assert found["friend_echo"]["display_name"] == "friend_echo"
    function = found["friend_echo"]["definition"]["function"]
    assert function["description"] == "Repeats a message."
    assert function["parameters"]["properties"]["message"]["type"] == "string"
    assert not [name for name in found if name.startswith(("missing_", "off_"))]


def test_a_model_can_be_offered_all_tools(server: OwnServer) -> None:
    offered = [each["definition"] for each in tools(server).values()]
    message = {"role": "user", "content": "Repeat hello."}
    choice = {"type": "function", "function": {"name": "friend_echo"}}
    body = {"messages": [message], "tools": offered, "tool_choice": choice, "max_tokens": 60}
    found = server.ask("/v1/chat/completions", body)
    asked = found["choices"][0]["message"]["tool_calls"][0]
    assert asked["function"]["name"] == "friend_echo"


# ---- built-in tools ------------------------------------------------------------------------


def test_files_are_written_read_and_edited(server: OwnServer, root: Path) -> None:
    written = call(server, "write_file", path="new/a.log", content="line1\nline2\n")
    assert written == {"result": "file written successfully", "path": "new/a.log", "bytes": 12}
    edits = [{"old_text": "line2", "new_text": "edited"}]
    assert call(server, "edit_file", path="new/a.log", edits=edits)["edits_applied"] == 1
    read = call(server, "read_file", path=str(root / "new" / "a.log"))
    assert read == {"plain_text_response": "line1\nedited\n"}
    assert (root / "new" / "a.log").read_text() == "line1\nedited\n"
    shutil.rmtree(root / "new")


def test_the_directory_comes_from_the_header_alone(server: OwnServer, root: Path) -> None:
    sub = {"x-tool-cwd": "sub"}
    assert call(server, "read_file", sub, path="g.txt")["plain_text_response"] == "deep\n"
    assert "error" in call(server, "read_file", path="g.txt", cwd="sub")
    assert call(server, "get_info", {"x-tool-cwd": str(root / "sub")})["cwd"] == str(root / "sub")
    found = call(server, "file_glob_search", sub, path=".")
    assert (found["base"], found["entries"][0]["path"]) == (str(root / "sub"), "g.txt")
    for outside in ("..", "/etc", "sub/../.."):
        assert "outside" in call(server, "get_info", {"x-tool-cwd": outside})["error"]


def test_bytes_come_with_the_header_alone(server: OwnServer) -> None:
    headers = {"x-resp-type": "base64"}
    assert call(server, "read_file", headers, path="f.txt") == {
        "base64": "aGVsbG8K",
        "size_bytes": 6,
    }
    plain = call(server, "read_file", path="f.txt", resp_type="base64")
    assert plain == {"plain_text_response": "hello\n"}


@pytest.mark.parametrize("path", ["../outside.txt", "/etc/passwd", "link", "link/x", "fifo", "/"])
def test_no_path_leaves_the_directory(path: str, server: OwnServer, root: Path) -> None:
    if not (root / "fifo").exists():
        (root / "link").symlink_to("../outside.txt")
        os.mkfifo(root / "fifo")
    assert "error" in call(server, "read_file", path=path)
    assert "error" in call(server, "write_file", path=path, content="changed")
    assert "error" in call(
        server, "edit_file", path=path, edits=[{"old_text": "s", "new_text": ""}]
    )
    assert "secret" not in json.dumps(call(server, "grep_search", path=".", pattern="secret"))
    assert (root.parent / "outside.txt").read_text() == "secret"


def test_a_catastrophic_expression_delays_no_request(server: OwnServer, root: Path) -> None:
    (root / "evil").write_text("a" * 60 + "!")
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(call, server, "grep_search", path="evil", pattern="(a+)+$")
        assert server.get("/health").status_code == 200
        assert call(server, "read_file", path="f.txt")["plain_text_response"] == "hello\n"
        assert slow.result(SECONDS) == {"error": "the tool took more than 30 s"}


@needs_sandbox
def test_a_command_streams(server: OwnServer) -> None:
    body = {"tool": "exec_shell_command", "params": {"command": "echo hello"}, "stream": True}
    *chunks, last = contract.check(server.post("/tools", body))
    assert "".join(each["chunk"] for each in chunks) == "hello\n\n[exit code: 0]"
    assert last == {"done": True}
    wrong = {"tool": "exec_shell_command", "params": {}, "stream": True}
    [failed] = contract.check(server.post("/tools", wrong))
    assert failed == {"done": True, "error": '"command" must be a string'}


@needs_sandbox
def test_a_command_ends_with_its_client(server: OwnServer) -> None:
    mark = "sleep 87654"

    def running() -> list[psutil.Process]:
        every = psutil.process_iter(["cmdline"])
        return [each for each in every if (each.info["cmdline"] or [])[-2:] == mark.split()]

    params = {"command": f"echo begun; {mark}", "timeout": 60}
    with server.stream("/tools", {"tool": "exec_shell_command", "params": params}) as (_, events):
        assert json.loads(next(events).data) == {"chunk": "begun\n"}
        wait_until(running, "the command runs")
    wait_until(lambda: not running(), "the command has ended")


@needs_sandbox
def test_a_command_is_in_a_sandbox(server: OwnServer, root: Path) -> None:
    command = "cat ../outside.txt; env; echo made > here"
    found = call(server, "exec_shell_command", {"x-tool-cwd": "sub"}, command=command)
    assert "secret" not in found["plain_text_response"].replace("outside", "")
    assert (root / "sub" / "here").read_text() == "made\n"
    (root / "sub" / "here").unlink()


# ---- MCP servers ---------------------------------------------------------------------------


def test_mcp_tools_are_called(server: OwnServer) -> None:
    assert call(server, "friend_echo", message="hi") == {"plain_text_response": "echo: hi"}
    assert call(server, "friend_add", a=3, b=5) == {"plain_text_response": "8.0"}
    # An argument of that name is the tool's own.
    assert "error" in call(server, "friend_echo", cwd="x")
    assert call(server, "friend_variable", {"x-tool-cwd": "sub"}, name="TOKEN") == {
        "plain_text_response": SECRET
    }


def test_mcp_tools_are_called_side_by_side(server: OwnServer) -> None:
    with ThreadPoolExecutor(10) as pool:
        calls = [pool.submit(call, server, "friend_echo", message=str(n)) for n in range(30)]
        found = [each.result(SECONDS)["plain_text_response"] for each in calls]
    assert found == [f"echo: {n}" for n in range(30)]


def test_sick_servers_harm_no_other(server: OwnServer) -> None:
    with ThreadPoolExecutor(8) as pool:
        sick = [pool.submit(call, server, name) for name in ("never_act", "dies_act") * 4]
        for _ in range(5):
            assert "error" not in call(server, "friend_echo", message="x")
            assert server.get("/health").status_code == 200
        assert all("error" in each.result(SECONDS) for each in sick)
    assert call(server, "prints_act") == {"plain_text_response": "done"}


def test_secrets_are_nowhere(server: OwnServer) -> None:
    assert call(server, "leaks_act") == {"error": "no access with ***"}
    for path in ("/props", "/models", "/tools", "/slots", "/metrics"):
        assert SECRET not in server.get(path).text
    assert SECRET not in server.log.read_text("utf-8")


def test_the_server_ends_with_all_of_its_programs(own_server: Start, tmp_path: Path) -> None:
    text = json.dumps(configuration(tmp_path))
    server = own_server("--mcp-servers-json", text, api_key="key")
    wait_until(lambda: "never_act" in tools(server), "the MCP servers are listed")
    assert call(server, "has_children_act") == {"plain_text_response": "started"}
    asked = threading.Thread(target=_ignore_failure, args=(server,))
    asked.start()
    pids = [
        int(line)
        for mode in ("never", "has_children")
        for line in (tmp_path / mode).read_text().split()
    ]
    assert all(map(psutil.pid_exists, pids))
    server.stop()
    asked.join(SECONDS)
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


def _ignore_failure(server: OwnServer) -> None:
    """Calls a tool that never answers."""
    with contextlib.suppress(httpx.HTTPError):
        server.post("/tools", {"tool": "never_act"})


# ---- who may ask ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def keyless(module_server: Start, root: Path) -> OwnServer:
    """A server without API keys, on a loopback address."""
    return module_server("--tools", "all", "--tools-dir", str(root))


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost.evil.example"},
        {"Host": "evil.example"},
        {"Host": "evil.example", "Origin": "http://evil.example"},
    ],
)
def test_pages_of_other_origins_never_reach_tools(
    headers: dict[str, str], keyless: OwnServer, root: Path
) -> None:
    body = {"tool": "write_file", "params": {"path": "page.txt", "content": "x"}}
    for response in (
        keyless.get("/tools", headers=headers),
        keyless.post("/tools", body, headers=headers),
        # A form, or `fetch` without CORS, needs no preflight.
        keyless.post(
            "/tools",
            content=json.dumps(body).encode(),
            headers={**headers, "Content-Type": "text/plain"},
        ),
    ):
        contract.check_envelope(response, 403, "permission_error")
    assert not (root / "page.txt").exists()


def test_without_tools_nothing_runs(module_server: Start) -> None:
    server = module_server()
    for response in (server.get("/tools"), server.post("/tools", {"tool": "get_info"})):
        assert contract.check(response, 403)["error"]["type"] == "feature_disabled"
