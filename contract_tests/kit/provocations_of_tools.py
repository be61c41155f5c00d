"""Provokes statuses of the server's tools: on a server without any, and on one that has some."""

from typing import Any

import httpx

from contract_tests.kit import contract
from contract_tests.kit.bodies import BODIES, path
from contract_tests.kit.server import Server
from contract_tests.kit.situations import Situations, send


def tools_off(server: Server, name: str) -> list[httpx.Response]:
    """Asks a server that was started without tools."""
    response = send(server, name)
    assert response.json()["error"]["type"] == "feature_disabled"
    return [response]


def listed_tools(situations: Situations, name: str) -> list[httpx.Response]:
    response = send(situations.open, name)
    tools = {each["tool"]: each for each in contract.check(response)}
    assert tools.keys() == {"read_file", "get_info"}
    for tool, each in tools.items():
        assert each["type"] == "server"
        assert each["definition"]["function"]["name"] == tool
    return [response]


def tools_run(situations: Situations, name: str) -> list[httpx.Response]:
    """Runs tools that succeed, and tools that fail."""
    server = situations.open
    calls: list[Any] = [
        {"tool": "get_info"},
        {"tool": "get_info", "params": None, "stream": None, "other": 1},
        BODIES[name],
        {"tool": "read_file", "params": {"path": "../../etc/passwd"}},
        {"tool": "read_file", "params": {"path": 7, "cwd": "/", "runtime": "x"}},
    ]
    responses = [server.post(path(name), call) for call in calls]
    found = [contract.check(response) for response in responses]
    assert all("cwd" in each for each in found[:2])
    assert all("error" in each for each in found[2:])
    return responses


def no_tool(situations: Situations, name: str) -> list[httpx.Response]:
    server = situations.open
    calls: list[Any] = [
        {"tool": "read_mail"},
        {"tool": "write_file"},  # not one of this server
        {"tool": ""},
        {"tool": "read_file", "stream": True},
    ]
    return [server.post(path(name), call) for call in calls]


def bad_call(server: Server, name: str) -> list[httpx.Response]:
    """Sends wrong calls. They are checked before the tool is."""
    wrong: list[Any] = [
        *({}, [], "read_file", {"tool": 5}, {"tool": None}, {"tool": "x" * 1025}),
        *({"tool": "a", "params": []}, {"tool": "a", "stream": "yes"}),
    ]
    raw = (b"", b"{", b"\xff", b"NaN")
    headers = {"Content-Type": "application/json"}
    long = {"x-tool-cwd": "a" * 4097}
    return [
        *(server.post(path(name), each) for each in wrong),
        *(server.post(path(name), content=each, headers=headers) for each in raw),
        server.post(path(name), BODIES[name], headers=long),
    ]


def no_runtime(situations: Situations, name: str) -> list[httpx.Response]:
    """Asks for a tool in a container or on another machine: it must not run here instead."""
    runtimes = ("docker-container:a", "podman-container:--privileged", "ssh:-oProxyCommand=a", "x")
    return [
        situations.open.post(path(name), {"tool": "get_info"}, headers={"x-tool-runtime": each})
        for each in runtimes
    ]
