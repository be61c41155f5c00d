"""The configuration of MCP servers: files of other clients, and faults with their places."""

import json
from pathlib import Path
from typing import Any

import pytest

from specllama.engine.helpers.tools.configuration import McpConfiguration, read_configuration
from specllama.engine.options import OptionError


def read(servers: Any, **others: Any) -> McpConfiguration:
    return read_configuration("", json.dumps({"mcpServers": servers, **others}))


def test_a_program_and_a_url() -> None:
    found = read(
        {
            "files": {
                "command": "npx",
                "args": ["-y", "server"],
                "env": {"TOKEN": "x"},
                "cwd": "/tmp",
                "timeout_ms": 500,
                "alwaysAllow": ["read"],
            },
            "web": {"type": "http", "url": "https://a.example/mcp", "headers": {"X-Key": "y"}},
        },
        inputs=[],
    )
    files, web = found.servers
    assert (files.name, files.command, files.args) == ("files", "npx", ("-y", "server"))
    assert (files.env, files.cwd, files.seconds) == ({"TOKEN": "x"}, "/tmp", 0.5)
    assert (web.url, web.headers, web.command) == ("https://a.example/mcp", {"X-Key": "y"}, "")
    assert web.seconds == 30.0
    assert found.remarks == ()


@pytest.mark.parametrize(
    ("entry", "remark"),
    [
        ({"command": "a", "disabled": True}, None),
        ({"command": "a", "enabled": False}, None),
        ({}, "mcpServers.a has neither a command nor a url"),
        ({"type": "sse", "url": "https://a.example"}, "the old transport 'sse' is not served"),
    ],
)
def test_entries_without_effect(entry: Any, remark: str | None) -> None:
    found = read({"a": entry, "b": {"command": "b"}})
    assert [each.name for each in found.servers] == ["b"]
    assert remark is None or remark in " ".join(found.remarks)


@pytest.mark.parametrize("kind", ["http", "streamable-http", "streamableHttp", "HTTP", None])
def test_names_of_http(kind: str | None) -> None:
    [server] = read({"a": {"type": kind, "url": "http://a.example"}}).servers
    assert server.url == "http://a.example"


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        ("{", "it is not valid JSON"),
        ("[" * 100_000, "it is not valid JSON"),
        ("[]", "it is not an object"),
        ('{"mcpServers": []}', "mcpServers is not an object"),
        ('{"mcpServers": {"a": 5}}', "mcpServers.a is not an object"),
        ('{"mcpServers": {"": {}}}', "mcpServers: the name ''"),
        ('{"mcpServers": {"a": {"command": 5}}}', "mcpServers.a.command is not a text"),
        ('{"mcpServers": {"a": {"command": "b\\u0000"}}}', "mcpServers.a.command is not a text"),
        ('{"mcpServers": {"a": {"command": "b", "args": "c"}}}', "mcpServers.a.args is not a list"),
        ('{"mcpServers": {"a": {"command": "b", "args": [1]}}}', "mcpServers.a.args[0] is not"),
        ('{"mcpServers": {"a": {"command": "b", "env": {"K": 1}}}}', "mcpServers.a.env.K is not"),
        ('{"mcpServers": {"a": {"command": "b", "env": {"=": ""}}}}', "'=' is not a valid name"),
        ('{"mcpServers": {"a": {"type": "pigeon"}}}', "mcpServers.a.type is neither"),
        ('{"mcpServers": {"a": {"url": "ftp://secret"}}}', "mcpServers.a.url is not an address"),
        (
            '{"mcpServers": {"a": {"url": "http://b", "headers": {"K": "secret\\n"}}}}',
            "mcpServers.a.headers.K is not valid",
        ),
        (
            '{"mcpServers": {"a": {"command": "b", "timeout_ms": -1}}}',
            "mcpServers.a.timeout_ms is not a positive number",
        ),
    ],
)
def test_a_fault_has_a_place_and_no_value(document: str, fault: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_configuration("", document)
    assert str(caught.value).startswith("--mcp-servers-json: ")
    assert fault in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_file_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {"a": {"command": "1"}, "b": {"command": "2"}}}')
    text = '{"mcpServers": {"b": {"command": "3"}, "c": {"command": "4"}}}'
    found = read_configuration(str(path), text)
    assert [(each.name, each.command) for each in found.servers] == [
        ("a", "1"),
        ("b", "2"),
        ("c", "4"),
    ]
    assert "mcpServers.b: another server has this name" in found.remarks[0]
    with pytest.raises(OptionError, match="--mcp-servers-config: cannot open"):
        read_configuration(str(tmp_path / "missing"), "")


def test_a_document_without_servers_is_a_remark() -> None:
    assert read_configuration("", "{}").remarks == (
        "the configuration of MCP servers has no 'mcpServers'",
        "the configuration of MCP servers has no server that can be used",
    )
    assert read_configuration("", "") == McpConfiguration()


def test_a_server_hides_its_secrets() -> None:
    [server] = read({"a": {"command": "b", "env": {"TOKEN": "hidden"}}}).servers
    assert "hidden" not in repr(server)
