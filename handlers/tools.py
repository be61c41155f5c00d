"""GET /tools: the tools that the server runs for clients. POST /tools: runs one of them."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.responses import Response

from specllama.engine.errors import EngineError
from specllama.handlers.http import schemas
from specllama.handlers.http.current import current_scope, until_disconnect
from specllama.handlers.http.json_answer import JSONAnswer
from specllama.handlers.http.streams import event_stream, sse_event
from specllama.handlers.running.runtime import runtime

if TYPE_CHECKING:
    from specllama.handlers.running.server_tools import ServerTools

_OFF = (
    "this feature is disabled: start the server with --tools, --mcp-servers-config or "
    "--mcp-servers-json"
)


async def list_server_tools() -> Response:
    """The built-in tools, and those of MCP servers, which are started if they don't run. Raises
    EngineError (feature_disabled) for a server without tools."""
    return JSONAnswer(await until_disconnect(_tools().listed()))


async def run_server_tool(body: schemas.ToolRun) -> Response:
    """Runs a tool, whose failure is an answer. Raises EngineError: feature_disabled for a server
    without tools, not_found_error for an unknown tool or one without a stream,
    not_supported_error for `x-tool-runtime`."""
    from specllama.handlers.running.server_tools import check_runtime

    tools, headers = _tools(), Headers(scope=current_scope())
    check_runtime(headers.get("x-tool-runtime", ""))
    name, params = body["tool"], body.get("params") or {}
    directory = headers.get("x-tool-cwd", "")
    if body.get("stream"):
        events = await until_disconnect(tools.stream(name, params, directory=directory))
        return event_stream(_frames(events))
    base64 = headers.get("x-resp-type") == "base64"
    running = tools.run(name, params, directory=directory, base64=base64)
    return JSONAnswer(await until_disconnect(running))


async def _frames(events: AsyncGenerator[schemas.ToolEvent, None]) -> AsyncIterator[bytes]:
    async with aclosing(events) as each:
        async for event in each:
            yield sse_event(event)


def _tools() -> "ServerTools":
    tools = runtime().tools
    if tools is None:
        raise EngineError.of("feature_disabled", _OFF)
    return tools
