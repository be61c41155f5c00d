"""The connections to MCP servers: a program's pipes, or HTTP. All that arrives is bounded before
the library reads it.

A program runs in a session of its own. It gets the few variables of `INHERITED` and its configured
`env`, and no other variable of the server.
"""

import asyncio
import ctypes
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from specllama.engine import system
from specllama.engine.helpers.tools.tools_jobs import MAX_MESSAGE, McpServer

INHERITED: Final = (
    *("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LANG", "TZ", "TMPDIR"),
    # Windows
    *("APPDATA", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATHEXT", "PROCESSOR_ARCHITECTURE"),
    *("SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "USERNAME", "USERPROFILE"),
)
"""The variables of a user's session that programs expect."""
FLOOD: Final = 64 << 20
"""Bytes that may arrive between two answers."""
MAX_LINE: Final = 1000  # characters of a line of stderr that are passed on
GRACE: Final = 1.0  # s that a program gets to end after its stdin was closed
LAST_LINE: Final = 0.2  # s that the rest of stderr gets after the program's end
CONNECT: Final = 10.0  # s
READ: Final = 600.0  # s of silence in an HTTP answer; calls have limits of their own

Received = MemoryObjectReceiveStream[SessionMessage | Exception]
Sent = MemoryObjectSendStream[SessionMessage]


class ConnectionFailedError(Exception):
    """The connection to an MCP server is over. The message is the end of a sentence about it."""


# ---- A program


class Program:
    """A running MCP server program. `failure` is the reason why the connection is over, or "".
    `last_line` is the last line of its stderr, which usually has the reason of its end."""

    def __init__(
        self, process: asyncio.subprocess.Process, on_line: Callable[[str], None] | None
    ) -> None:
        self.failure = ""
        self.last_line = ""
        self.over = asyncio.Event()
        self._log_is_read = asyncio.Event()
        self._process = process
        self._on_line = on_line
        self._n_bytes = 0  # since the last answer

    @classmethod
    async def start(
        cls, server: McpServer, environ: Mapping[str, str], on_line: Callable[[str], None] | None
    ) -> "Program":
        """Starts the program of `server`. Raises ConnectionFailedError."""
        env = {name: environ[name] for name in INHERITED if name in environ} | server.env
        command = shutil.which(server.command, path=env.get("PATH")) or server.command
        _adopt_orphans()
        try:
            process = await asyncio.create_subprocess_exec(
                command,
                *server.args,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=MAX_MESSAGE,
                env=env,
                cwd=server.cwd or None,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "its command is not valid"
            raise ConnectionFailedError(f"can't be started: {reason}") from None
        return cls(process, on_line)

    @property
    def pid(self) -> int:
        return self._process.pid

    def answered(self) -> None:
        """Notes that an answer arrived: the program may send `FLOOD` bytes again."""
        self._n_bytes = 0

    @asynccontextmanager
    async def streams(self) -> AsyncIterator[tuple[Received, Sent]]:
        """The program's messages, and the messages for it. Ends the program at the end."""
        to_session, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        sent, from_session = anyio.create_memory_object_stream[SessionMessage](0)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._read, to_session)
                tasks.start_soon(self._write, from_session)
                tasks.start_soon(self._read_log)
                yield received, sent
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self._end()
            for stream in (to_session, received, sent, from_session):
                stream.close()

    async def _read(self, to_session: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        async with to_session:
            try:
                self.failure = await self._pass_on(to_session)
            finally:
                self.over.set()

    async def _pass_on(self, to_session: MemoryObjectSendStream[SessionMessage | Exception]) -> str:
        """Passes messages on until the connection is over. Returns the reason."""
        assert self._process.stdout is not None
        while True:
            try:
                line = await self._process.stdout.readuntil(b"\n")
            except asyncio.LimitOverrunError:
                return f"sent a message of more than {MAX_MESSAGE >> 20} MiB"
            except asyncio.IncompleteReadError:
                return await self._how_it_ended()
            self._n_bytes += len(line)
            if self._n_bytes > FLOOD:
                return f"sent more than {FLOOD >> 20} MiB without an answer"
            with suppress(anyio.BrokenResourceError):
                if (message := _parsed(line)) is not None:
                    await to_session.send(message)

    async def _how_it_ended(self) -> str:
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE):
                code = await self._process.wait()
                with suppress(TimeoutError):
                    async with asyncio.timeout(LAST_LINE):
                        await self._log_is_read.wait()
                return f"ended with code {code}"
        return "closed its output"

    async def _write(self, from_session: MemoryObjectReceiveStream[SessionMessage]) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        async with from_session:
            async for each in from_session:
                text = each.message.model_dump_json(by_alias=True, exclude_unset=True)
                with suppress(OSError):  # the reader reports the end
                    stdin.write(text.encode() + b"\n")
                    await stdin.drain()

    async def _read_log(self) -> None:
        stderr = self._process.stderr
        assert stderr is not None
        rest = b""
        while data := await stderr.read(1 << 16):
            *lines, rest = (rest + data).split(b"\n")
            rest = rest[:MAX_LINE]
            for line in [*lines[:15], *lines[15:][-1:]]:  # of a flood, a part is enough
                self._log_line(line)
        self._log_line(rest)
        self._log_is_read.set()

    def _log_line(self, line: bytes) -> None:
        if text := line[:MAX_LINE].decode(errors="replace").strip():
            self.last_line = text
            if self._on_line is not None:
                self._on_line(text)

    async def _end(self) -> None:
        """Ends the program, and all that it has started."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(0 if self.failure else GRACE):
                    await self._process.wait()
        finally:  # also if the task is cancelled meanwhile
            system.kill_group(self.pid)
            _kill_orphans()


def _parsed(line: bytes) -> SessionMessage | None:
    """Returns the message in a line; None for a line that isn't one, such as a print."""
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except (ValueError, RecursionError):
        return None


_SET_CHILD_SUBREAPER: Final = 36  # of Linux' prctl.h


def _adopt_orphans() -> None:
    """Makes this process the parent of orphans among its descendants, where the system can: Linux.
    A program that has left the process group can be found that way."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _kill_orphans() -> None:
    """Kills all children of this process, until none is left."""
    for _ in range(1000):
        children: list[str] = []
        with suppress(OSError):
            for task in Path("/proc/self/task").iterdir():
                children += (task / "children").read_text().split()
        for each in children:
            with suppress(OSError):
                os.kill(int(each), signal.SIGKILL)
                os.waitpid(int(each), 0)
        if not children:
            return


# ---- HTTP


class _BoundedStream(httpx2.AsyncByteStream):
    """The body of an answer, of at most `FLOOD` bytes, or `MAX_MESSAGE` if it is one document."""

    def __init__(self, inner: httpx2.AsyncByteStream, most: int) -> None:
        self._inner = inner
        self._most = most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        n_bytes = 0
        async for chunk in self._inner:
            n_bytes += len(chunk)
            if n_bytes > self._most:
                raise httpx2.ReadError(f"the answer has more than {self._most >> 20} MiB")
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()


class BoundedTransport(httpx2.AsyncBaseTransport):
    """Limits the sizes of answers. Compressed ones are refused: a few bytes could become very
    many."""

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["Accept-Encoding"] = "identity"
        answer = await self._inner.handle_async_request(request)
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        if answer.headers.get("content-encoding", "identity").lower() != "identity":
            await answer.aclose()
            raise httpx2.DecodingError("the answer is compressed")
        assert isinstance(answer.stream, httpx2.AsyncByteStream)
        most = FLOOD if kind == "text/event-stream" else MAX_MESSAGE
        answer.stream = _BoundedStream(answer.stream, most)
        return answer

    async def aclose(self) -> None:
        await self._inner.aclose()


@asynccontextmanager
async def http_streams(server: McpServer) -> AsyncIterator[tuple[Received, Sent]]:
    """The messages of an MCP server at a URL (streamable HTTP), and the messages for it."""
    async with (
        httpx2.AsyncClient(
            headers=server.headers,
            timeout=httpx2.Timeout(CONNECT, read=READ),
            transport=BoundedTransport(httpx2.AsyncHTTPTransport()),
        ) as client,
        streamable_http_client(
            server.url, http_client=client, max_sse_event_size=MAX_MESSAGE
        ) as streams,
    ):
        yield streams  # type: ignore[misc]  # the same streams, with a context
