"""The options of tools: what makes a server with tools start, and what doesn't."""

import json
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from specllama.engine.options import OptionError
from specllama.handlers.options import parse, remarks
from specllama.handlers.options.tables import tools
from specllama.handlers.options.tables.tools import NAMES

MCP = ["--mcp-servers-json", '{"mcpServers": {"a": {"command": "b"}}}']


@pytest.fixture(autouse=True)
def sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with bubblewrap."""
    monkeypatch.setattr(tools, "problem", lambda directory: "")


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        ([], ()),
        (["--tools", "read_file,grep_search"], ("read_file", "grep_search")),
        (["--tools", "all"], NAMES),
        (["--agent"], NAMES),
        (["-ag"], NAMES),
        (["--agent", "--no-agent"], ()),
        (MCP, ()),
    ],
)
def test_tools_are_off_unless_named(argv: list[str], names: tuple[str, ...]) -> None:
    options = parse(argv, {}).tools
    assert options.names() == names
    assert options.is_on() == bool(names or argv == MCP)


def test_variables_name_tools() -> None:
    assert parse([], {"LLAMA_ARG_TOOLS": "get_info"}).tools.names() == ("get_info",)
    assert parse([], {"LLAMA_ARG_AGENT": "1"}).tools.agent
    assert parse([], {"LLAMA_ARG_MCP_SERVERS_JSON": MCP[1]}).tools.has_mcp()


def test_an_unknown_tool_is_refused() -> None:
    with pytest.raises(OptionError, match=r'unknown tool "fly"\. available tools: read_file, '):
        parse(["--tools", "read_file,fly"], {})


@pytest.mark.parametrize("given", [["--tools", "get_info"], ["--agent"], MCP])
def test_without_keys_only_this_machine_may_reach_tools(given: list[str]) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "127.0.0.1,10.0.0.1"):
        with pytest.raises(OptionError, match="needs an API key"):
            parse([*given, "--host", host], {})
        assert parse([*given, "--host", host, "--api-key", "k"], {}).tools.is_on()
    with pytest.raises(OptionError, match="any web page could use"):
        parse([*given, "--allowed-hosts", "*"], {})
    for host in ("127.0.0.1", "::1", "localhost", "/tmp/a.sock"):
        assert parse([*given, "--host", host, "--allowed-hosts", "a.example"], {}).tools.is_on()


def test_the_directory_is_real(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    argv = ["--tools", "all", "--tools-dir", str(tmp_path / "link")]
    assert parse(argv, {}).tools.directory() == str(tmp_path)
    with pytest.raises(OptionError, match="--tools-dir"):
        parse(["--tools", "all", "--tools-dir", str(tmp_path / "missing")], {})
    with pytest.raises(OptionError, match="is the whole system"):
        parse(["--tools", "all", "--tools-dir", "/"], {})


def test_a_system_must_be_able_to_hold_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.supports_dir_fd", set())
    with pytest.raises(OptionError, match="this system can't keep tools below a directory"):
        parse(["--tools", "get_info"], {})
    assert parse(MCP, {}).tools.is_on()


def test_without_a_sandbox_there_is_no_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "problem", lambda directory: "needs bubblewrap")
    with pytest.raises(OptionError, match="--tools exec_shell_command needs bubblewrap"):
        parse(["--tools", "exec_shell_command"], {})
    options = parse(["--tools", "all"], {})
    assert options.tools.names() == tuple(each for each in NAMES if each != "exec_shell_command")
    assert "exec_shell_command is left out: it needs bubblewrap" in str(remarks(options, [], {}))


def test_without_the_library_the_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = util.find_spec

    def find_spec(name: str, package: str | None = None) -> Any:
        return None if name == "mcp" else found(name, package)

    monkeypatch.setattr("specllama.handlers.options.tables.tools.find_spec", find_spec)
    with pytest.raises(OptionError, match=r'pip install "specllama\[mcp\]"'):
        parse(MCP, {})
    assert parse(["--tools", "all"], {}).tools.is_on()


def test_a_wrong_file_ends_the_start(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"a": {"command": "b", "env": {"T": ["s3cr3t"]}}}}))
    with pytest.raises(OptionError) as caught:
        parse(["--mcp-servers-config", str(path)], {})
    assert str(caught.value) == "--mcp-servers-config: mcpServers.a.env.T is not a text"
    with pytest.raises(OptionError, match="--mcp-servers-json: it is not valid JSON"):
        parse(["--mcp-servers-json", "{s3cr3t"], {})


def test_entries_that_are_left_out_are_reported() -> None:
    argv = ["--mcp-servers-json", '{"mcpServers": {"a": {}}}']
    assert "mcpServers.a has neither a command nor a url" in str(remarks(parse(argv, {}), argv, {}))
