"""The conversation with one MCP server, by the library `mcp`: the handshake, the list, calls."""

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import Any, Final

import mcp_types as types
from mcp import ClientSession, MCPError
from mcp_types import METHOD_NOT_FOUND, UNSUPPORTED_PROTOCOL_VERSION
from pydantic import ValidationError

from specllama.engine.helpers.tools.tools_jobs import (
    MAX_DEFINITION,
    MAX_RESULT,
    MAX_TOOLS,
    McpServer,
    McpTool,
    McpTools,
)
from specllama.engine.helpers.tools.transports import ConnectionFailedError, Received, Sent

MAX_PAGES: Final = 100
MAX_DESCRIPTION: Final = 16 << 10  # characters
CUT: Final = "\n[output truncated]"
_SHORTEST: Final = 4  # characters of a text that is worth hiding
_MAX_REASON: Final = 1000  # characters


class McpSession:
    """A session with an MCP server, which is an async context manager. `on_change` is called when
    the server's list of tools has changed."""

    def __init__(
        self, streams: tuple[Received, Sent], server: McpServer, on_change: Callable[[], None]
    ) -> None:
        self._on_change = on_change
        self._secrets = sorted({*server.env.values(), *server.headers.values()}, key=len)
        received, sent = streams
        self.session = _Session(
            received,
            sent,
            message_handler=self._handle,
            client_info=types.Implementation(name="specllama", version="1"),
        )

    async def open(self) -> McpTools:
        """Makes the handshake, and returns the tools. Raises ConnectionFailedError."""
        try:
            await self._shake_hands()
            return await self.tools()
        except MCPError as error:
            reason = self.redacted(error.error.message)
            raise ConnectionFailedError(f"refused the connection: {reason}") from None
        except (ValidationError, RuntimeError, ValueError):
            raise ConnectionFailedError("doesn't follow the protocol") from None

    async def _shake_hands(self) -> None:
        try:
            await self.session.initialize()
        except MCPError as error:
            if error.error.code not in (UNSUPPORTED_PROTOCOL_VERSION, METHOD_NOT_FOUND):
                raise
            await self.session.discover()

    async def tools(self) -> McpTools:
        """Returns the current tools, from all pages. Raises MCPError, ValidationError."""
        found: list[types.Tool] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            try:
                page = await self.session.list_tools(
                    params=types.PaginatedRequestParams(cursor=cursor) if cursor else None
                )
            except MCPError as error:
                if error.error.code == METHOD_NOT_FOUND:
                    break  # a server of resources or prompts alone
                raise
            found += page.tools
            cursor = page.next_cursor
            if not cursor or len(found) > MAX_TOOLS:
                break
        usable = [tool for each in found[:MAX_TOOLS] if (tool := _tool(each)) is not None]
        return McpTools(tuple(usable), left_out=len(found) - len(usable))

    async def call(self, tool: str, arguments: dict[str, Any], seconds: float) -> tuple[str, bool]:
        """Returns the text of a result, and whether the call failed."""
        try:
            async with asyncio.timeout(seconds):
                result = await self.session.call_tool(tool, arguments)
        except TimeoutError:
            return f"the call took more than {seconds:g} s", True
        except MCPError as error:
            return self.redacted(error.error.message) or "the call failed", True
        except (ValidationError, RuntimeError, ValueError):
            return "the answer of the MCP server is not valid", True
        text = text_of(result)
        if result.is_error:
            return cut(self._without_secrets(text)) or "the tool failed", True
        return cut(text), False

    def redacted(self, text: str) -> str:
        """Returns `text`, shortened, without the values of the server's `env` and `headers`."""
        return self._without_secrets(text)[:_MAX_REASON]

    def _without_secrets(self, text: str) -> str:
        for secret in reversed(self._secrets):
            if len(secret) >= _SHORTEST:
                text = text.replace(secret, "***")
        return text

    async def _handle(self, message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._on_change()


class _Session(ClientSession):
    async def validate_tool_result(self, name: str, result: types.CallToolResult) -> None:
        """Accepts every result: a model reads it as text."""


def _tool(each: types.Tool) -> McpTool | None:
    try:
        schema = json.dumps(each.input_schema, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return None
    if len(schema) > MAX_DEFINITION:
        return None
    hints = each.annotations
    description = (each.description or each.title or "")[:MAX_DESCRIPTION]
    return McpTool(each.name, description, schema, bool(hints and hints.read_only_hint))


def text_of(result: types.CallToolResult) -> str:
    """Returns the text of a result. Parts that aren't text are named in brackets; without any part,
    structured content is written as JSON."""
    texts = list(_texts(result.content))
    if not texts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(texts)


def _texts(content: Iterable[types.ContentBlock]) -> Iterable[str]:
    for part in content:
        match part:
            case types.TextContent():
                yield part.text
            case types.ImageContent() | types.AudioContent():
                yield f"[{part.type}: {part.mime_type}, {len(part.data) * 3 // 4} bytes]"
            case types.ResourceLink():
                yield f"[resource: {part.uri}]"
            case types.EmbeddedResource(resource=types.TextResourceContents() as resource):
                yield resource.text
            case types.EmbeddedResource():
                yield f"[resource: {part.resource.uri}]"


def cut(text: str) -> str:
    """Returns at most `MAX_RESULT` characters of a text, and a note if there were more."""
    return text if len(text) <= MAX_RESULT else text[:MAX_RESULT] + CUT
