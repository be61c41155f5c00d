"""The tools that the server runs for clients: the built-in ones, and those of MCP servers.

A tool runs when a client asks for it, once, and never otherwise.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Final, cast

import msgspec

from specllama.engine.errors import EngineError, not_supported
from specllama.engine.helpers.files.definitions import BuiltinTool
from specllama.engine.helpers.files.files_jobs import SHELL, ToolError
from specllama.engine.helpers.files.toolbox import Toolbox
from specllama.engine.helpers.tools.servers import McpServers, NamedTool
from specllama.handlers.http import schemas
from specllama.handlers.options.tables.tools import ToolOptions

_OF_HEADERS: Final = ("cwd", "runtime", "resp_type")
"""Arguments that built-in tools never take from a model: headers set them."""


class ServerTools:
    """All tools of a server."""

    def __init__(self, toolbox: Toolbox, mcp: McpServers) -> None:
        self.toolbox = toolbox
        self.mcp = mcp

    @classmethod
    def of(cls, options: ToolOptions) -> "ServerTools":
        """Returns the tools that options name. Raises OptionError."""
        toolbox = Toolbox(options.names(), options.directory())
        return cls(toolbox, McpServers(options.mcp_servers().servers))

    async def listed(self) -> list[schemas.ServerTool]:
        """Returns the built-in tools, then those of MCP servers. A name counts once."""
        builtin = self.toolbox.tools
        found = [_builtin(tool) for tool in builtin.values()]
        named = await self.mcp.tools()
        return found + [_of_mcp(tool) for name, tool in named.items() if name not in builtin]

    async def run(
        self, name: str, params: dict[str, Any], *, directory: str, base64: bool
    ) -> schemas.ToolResult:
        """Returns the result of a tool, or an object with `error`. Raises EngineError
        (not_found_error) for an unknown tool. Cancelling ends the tool."""
        if name in self.toolbox.tools:
            done = await self.toolbox.run(
                name, _arguments(params), directory=directory, base64=base64
            )
            return cast("schemas.ToolResult", done)
        tool = await self._of_mcp(name)
        result = await tool.connection.call(tool.tool.name, msgspec.json.encode(params))
        return {"error": result.text} if result.failed else {"plain_text_response": result.text}

    async def stream(
        self, name: str, params: dict[str, Any], *, directory: str
    ) -> AsyncGenerator[schemas.ToolEvent, None]:
        """Returns the events of a tool with a stream. Raises EngineError (not_found_error) for an
        unknown tool, and for one without a stream. Closing the iterator ends the tool."""
        if name != SHELL or name not in self.toolbox.tools:
            if name not in self.toolbox.tools:
                await self._of_mcp(name)
            raise EngineError.of(
                "not_found_error", f'tool "{name[:128]}" does not support stream = true'
            )
        return self._events(_arguments(params), directory)

    async def stop(self) -> None:
        """Ends all processes; open calls fail."""
        await asyncio.gather(self.toolbox.stop(), self.mcp.stop())

    async def _events(
        self, params: dict[str, Any], directory: str
    ) -> AsyncGenerator[schemas.ToolEvent, None]:
        try:
            async for piece in self.toolbox.stream(params, directory):
                yield {"chunk": piece}
        except ToolError as error:
            yield {"done": True, "error": str(error)}
        else:
            yield {"done": True}

    async def _of_mcp(self, name: str) -> NamedTool:
        found = (await self.mcp.tools()).get(name)
        if found is None:
            raise EngineError.of("not_found_error", f'unknown tool "{name[:128]}"')
        return found


def check_runtime(runtime: str) -> None:
    """Raises EngineError (not_supported_error) for a request to run a tool elsewhere, which must
    never run here instead."""
    if runtime:
        raise not_supported(
            "x-tool-runtime: unknown tool runtime; this server runs tools in its own sandbox alone"
        )


def _arguments(params: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if name not in _OF_HEADERS}


def _builtin(tool: BuiltinTool) -> schemas.ServerTool:
    return {
        "tool": tool.name,
        "display_name": tool.title,
        "type": "server",
        "permissions": {"write": tool.writes},
        "uses_cwd": True,
        "definition": _definition(tool.name, tool.description, tool.parameters),
    }


def _of_mcp(named: NamedTool) -> schemas.ServerTool:
    tool = named.tool
    schema = cast("dict[str, Any]", msgspec.json.decode(tool.schema))
    return {
        "tool": named.name,
        "display_name": named.name,
        "type": "mcp",
        "permissions": {"write": not tool.is_read_only},
        "uses_cwd": False,
        "definition": _definition(named.name, tool.description, schema),
    }


def _definition(
    name: str, description: str, parameters: dict[str, Any]
) -> schemas.ServerToolDefinition:
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }
