"""The messages between the server and a process that talks to one MCP server.

`OpenMcpServer` is the first message. The process answers with `McpChild`, if it started a program,
and `McpTools`; or with `McpFailed`, after which it ends. `McpTools` follows again when the list
changes. Then each `CallMcpTool` is answered with one `McpAnswer`, unless a `CancelMcpCall` precedes
it; calls may run side by side.
"""

from typing import Final

import msgspec

MAX_MESSAGE: Final = 8 << 20
"""Bytes of one message of an MCP server, as in llama-server."""
MAX_TOOLS: Final = 1000
"""Tools of one MCP server."""
MAX_DEFINITION: Final = 256 << 10
"""Bytes of the JSON schema of a tool."""
MAX_RESULT: Final = 1 << 20
"""Characters of a result; the rest is cut off."""


class McpServer(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the configuration: a `command` with `args`, `env` and `cwd`, or a `url` with
    `headers`. `seconds` is the time limit of a call."""

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str = ""
    url: str = ""
    headers: dict[str, str] = {}
    seconds: float = 30.0

    def __repr__(self) -> str:
        return f"McpServer(name={self.name!r})"  # the other fields may have secrets


class McpTool(msgspec.Struct, frozen=True):
    """A tool of an MCP server. `schema` is the JSON schema of its arguments, as JSON;
    `is_read_only` is a claim of the server."""

    name: str
    description: str
    schema: bytes
    is_read_only: bool = False


class OpenMcpServer(msgspec.Struct, frozen=True, tag="open"):
    """Starts the program, or connects to the URL, and lists the tools. With `logs`, the program's
    stderr is passed on."""

    server: McpServer
    logs: bool = False


class CallMcpTool(msgspec.Struct, frozen=True, tag="call"):
    """Calls a tool with `arguments`, a JSON object, for at most `seconds`."""

    id: int
    tool: str
    arguments: bytes
    seconds: float


class CancelMcpCall(msgspec.Struct, frozen=True, tag="cancel"):
    """Cancels a `CallMcpTool`."""

    id: int


class McpChild(msgspec.Struct, frozen=True, tag="child"):
    """The process, and the process group, of the started program."""

    pid: int


class McpTools(msgspec.Struct, frozen=True, tag="tools"):
    """All tools that can be used. `left_out` counts the others."""

    tools: tuple[McpTool, ...]
    left_out: int = 0


class McpFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The MCP server can't be used. `reason` is the end of a sentence about it."""

    reason: str


class McpLine(msgspec.Struct, frozen=True, tag="line"):
    """A line of the program's stderr, cut to a moderate length."""

    text: str


class McpAnswer(msgspec.Struct, frozen=True, tag="answer"):
    """The result of a call as text, or the reason of its failure."""

    id: int
    text: str
    failed: bool = False


ToServer = OpenMcpServer | CallMcpTool | CancelMcpCall
FromServer = McpChild | McpTools | McpFailed | McpLine | McpAnswer

order_decoder = msgspec.msgpack.Decoder(ToServer)
event_decoder = msgspec.msgpack.Decoder(FromServer)
