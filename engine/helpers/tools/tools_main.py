"""A process that talks to one MCP server, until its stdin ends.

    python -m specllama.engine.helpers.tools.tools_main BYTES   (started by the server)

BYTES is the limit of the address space, if the platform supports one. The MCP server's program, if
it has one, is a child of this process, with other limits, and ends with it.
"""

import asyncio
import os
import sys
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import msgspec

import specllama.engine.wire.startup as startup  # the very first of ours
from specllama.engine import system
from specllama.engine.helpers.tools.session import McpSession
from specllama.engine.helpers.tools.tools_jobs import (
    CallMcpTool,
    CancelMcpCall,
    FromServer,
    McpAnswer,
    McpChild,
    McpFailed,
    McpLine,
    OpenMcpServer,
    ToServer,
    order_decoder,
)
from specllama.engine.helpers.tools.transports import (
    ConnectionFailedError,
    Program,
    http_streams,
)
from specllama.engine.wire.link import Link, take_over

ServerLink = Link[ToServer, FromServer]


class Talk:
    """Carries out the orders of the server."""

    def __init__(self, link: ServerLink, order: OpenMcpServer, memory: int) -> None:
        self._link = link
        self._server = order.server
        self._logs = order.logs
        self._memory = memory
        self._program: Program | None = None
        self._session: McpSession | None = None
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._is_reported = False
        self._background: set[asyncio.Task[None]] = set()

    async def run(self, orders: "asyncio.Queue[ToServer | None]") -> None:
        """Talks until there are no more orders, or the connection is over."""
        try:
            async with AsyncExitStack() as stack:
                await self._open(stack)
                failed = asyncio.create_task(self._wait_for_failure())
                taking = asyncio.create_task(self._take(orders))
                self._background |= {failed, taking, asyncio.create_task(self._watch_list())}
                await asyncio.wait((failed, taking), return_when=asyncio.FIRST_COMPLETED)
                for task in (*self._background, *self._calls.values()):
                    task.cancel()
                await asyncio.gather(*self._background, return_exceptions=True)
                self._report_failure()
        except Exception as error:  # of any library: the server waits for an answer
            self._send(McpFailed(_reason(error)))

    async def _open(self, stack: AsyncExitStack) -> None:
        if self._server.command:
            on_line = self._log if self._logs else None
            self._program = await Program.start(self._server, os.environ, on_line)
            self._send(McpChild(self._program.pid))
            streams = await stack.enter_async_context(self._program.streams())
        else:
            streams = await stack.enter_async_context(http_streams(self._server))
        startup.limit_memory(self._memory)  # not before: the program would inherit it
        self._session = McpSession(streams, self._server, self._changed.set)
        await stack.enter_async_context(self._session.session)
        try:
            tools = await self._session.open()
        except ConnectionFailedError as error:
            raise ConnectionFailedError(self._failure_at_start() or str(error)) from None
        self._send(tools)

    def _failure_at_start(self) -> str:
        """Returns why the program ended before it could be used, with the last line of its stderr;
        "" if it runs."""
        assert self._session is not None
        if self._program is None or not self._program.failure:
            return ""
        line = self._session.redacted(self._program.last_line)
        return f"{self._program.failure}: {line}" if line else self._program.failure

    async def _take(self, orders: "asyncio.Queue[ToServer | None]") -> None:
        while (order := await orders.get()) is not None:
            if isinstance(order, CallMcpTool):
                task = self._calls[order.id] = asyncio.create_task(self._call(order))
                task.add_done_callback(lambda _, id=order.id: self._calls.pop(id))  # type: ignore[misc]
            elif isinstance(order, CancelMcpCall) and (known := self._calls.get(order.id)):
                known.cancel()

    async def _call(self, order: CallMcpTool) -> None:
        assert self._session is not None
        arguments = msgspec.json.decode(order.arguments)
        text, failed = await self._session.call(order.tool, arguments, order.seconds)
        if self._program is not None:
            if failed and self._program.failure:
                text = f"the MCP server {self._program.failure}"
                self._report_failure()  # first, so that the next call doesn't come here
            self._program.answered()
        self._send(McpAnswer(order.id, text, failed))

    def _report_failure(self) -> None:
        if self._program is not None and self._program.failure and not self._is_reported:
            self._is_reported = True
            self._send(McpFailed(self._program.failure))

    async def _wait_for_failure(self) -> None:
        """Returns when the program has ended; never for a URL."""
        await (asyncio.Event() if self._program is None else self._program.over).wait()
        await asyncio.gather(*self._calls.values(), return_exceptions=True)

    async def _watch_list(self) -> None:
        assert self._session is not None
        while await self._changed.wait():
            self._changed.clear()
            with suppress(Exception):  # then the old list stays
                self._send(await self._session.tools())
            await asyncio.sleep(1)

    def _log(self, line: str) -> None:
        text = line if self._session is None else self._session.redacted(line)
        self._send(McpLine(text))

    def _send(self, message: FromServer) -> None:
        with suppress(BrokenPipeError):  # the server has ended: the orders end, too
            self._link.send(message)


def _reason(error: BaseException) -> str:
    """Returns the reason of a failure. The task groups of the streams wrap errors in groups."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    if isinstance(error, ConnectionFailedError):
        return str(error)
    return f"can't be reached ({type(error).__name__})"


def give_way() -> None:
    """Lets the system end this process and its children before others when memory is short, and
    forbids core dumps, which have secrets."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("700")
    with suppress(ImportError, OSError, ValueError):
        import resource  # not on Windows

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


async def serve(link: ServerLink, memory: int) -> None:
    """Talks to the MCP server of the first order."""
    orders: asyncio.Queue[ToServer | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read() -> None:
        while messages := link.receive():
            for message in messages:
                loop.call_soon_threadsafe(orders.put_nowait, message)
        loop.call_soon_threadsafe(orders.put_nowait, None)

    reading = loop.run_in_executor(None, read)
    order = await orders.get()
    if isinstance(order, OpenMcpServer):
        talking = asyncio.create_task(Talk(link, order, memory).run(orders))
        await asyncio.wait((talking, reading), return_when=asyncio.FIRST_COMPLETED)
        # The server has closed the pipe: the connection may still be opening.
        talking.cancel()
        await asyncio.wait((talking,))


def main() -> None:
    link: ServerLink = take_over(order_decoder)
    give_way()
    startup.resume_gc()
    # Not `asyncio.run`, which waits at its end for the thread that reads.
    asyncio.new_event_loop().run_until_complete(serve(link, int(sys.argv[1])))


if __name__ == "__main__":
    main()
    system.leave()
