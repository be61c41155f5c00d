"""An MCP server for tests, by the library itself: `friendly.py` on stdio, `friendly.py PORT` over
HTTP."""

import os
import sys

from mcp.server.mcpserver import Image, MCPServer
from mcp_types import ToolAnnotations

server = MCPServer("friendly")


@server.tool()
def echo(message: str) -> str:
    """Repeats a message."""
    return f"echo: {message}"


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: float, b: float) -> float:
    """Adds two numbers."""
    return a + b


@server.tool()
def variable(name: str) -> str:
    """Returns an environment variable of this process."""
    return os.environ.get(name, "(none)")


@server.tool()
def fail(reason: str) -> str:
    """Fails."""
    raise ValueError(reason)


@server.tool()
def picture() -> Image:
    """Returns a part that isn't text."""
    return Image(data=b"12345", format="png")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")
