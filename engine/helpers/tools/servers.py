"""The server's side of MCP servers: one process (`engine.helpers.tools.tools_main`) for each, which
is started when it is first needed.

A process that fails is started again at the next request, after a time that doubles with each
failure in a row. Nothing here waits longer than its limit, whatever an MCP server does.
"""

import asyncio
import itertools
import logging
import os
import re
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import Final, NamedTuple

from specllama.engine import system
from specllama.engine.helpers.tools.tools_jobs import (
    CallMcpTool,
    CancelMcpCall,
    FromServer,
    McpAnswer,
    McpChild,
    McpFailed,
    McpLine,
    McpServer,
    McpTool,
    McpTools,
    OpenMcpServer,
    event_decoder,
)
from specllama.engine.options.values import legible
from specllama.engine.wire.commands import bare_environment, tools_command
from specllama.engine.wire.framing import FrameError, frame
from specllama.engine.wire.process import Child

log = logging.getLogger("specllama.engine.helpers.tools")

MEMORY_LIMIT: Final = 2 << 30  # bytes of address space of the process, not of the program
START_SECONDS: Final = 60.0  # to start and to list the tools: `npx` downloads its packages first
RETRY_SECONDS: Final = 5.0  # from a failure to the next start; doubled by each further one
MAX_RETRY_SECONDS: Final = 300.0
LIST_SECONDS: Final = 10.0  # that a list waits for servers that start for the first time
GRACE: Final = 5.0  # s that the process gets in addition to the limit of a call
STOP_SECONDS: Final = 3.0
MAX_CALLS: Final = 16  # of one server at a time; others wait
MAX_EVENT: Final = 512 << 20  # bytes of a message: a list of MAX_TOOLS large tools
_SESSION: Final = ("LOGNAME", "SHELL", "TERM", "USER")
_CALLABLE: Final = re.compile(r"[A-Za-z0-9_.:/@$+-]{1,128}")
_OTHERS: Final = re.compile(r"[^A-Za-z0-9_.-]")
_STOPPING: Final = "the server is shutting down"
_WHY: Final = "another tool has this name, or a model couldn't call it"
_MANY: Final = 16  # failures, after which the pause no longer grows
_MANY_NAMES: Final = 1000  # that are reported


class McpResult(NamedTuple):
    """The text of a result, or the reason of a failure."""

    text: str
    failed: bool = False


class _UnavailableError(Exception):
    """An MCP server can't be used now. The message is a sentence."""


class McpConnection:
    """One MCP server. `tools` are those of its last list, by their names in that server."""

    def __init__(self, server: McpServer, *, start: float, retry: float) -> None:
        self.server = server
        self.tools: dict[str, McpTool] = {}
        self.is_known = False  # it has been started, or has failed to start
        self._start_seconds = start
        self._retry = retry
        self._child: Child[FromServer] | None = None
        self._running: dict[Child[FromServer], int] = {}  # with their programs, or 0
        self._opening: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: dict[int, tuple[Child[FromServer], asyncio.Future[McpResult]]] = {}
        self._ids = itertools.count()
        self._turns = asyncio.Semaphore(MAX_CALLS)
        self._has_answered = False  # the process that runs, or ran last
        self._n_failures = 0  # of processes in a row that have never answered
        self._retry_at = 0.0
        self._failure = ""
        self._stopped = False

    @property
    def pids(self) -> list[int]:
        """The ids of the running processes: our own, and the program."""
        found = [pid for each, program in self._running.items() for pid in (each.pid, program)]
        return [pid for pid in found if pid]

    async def start(self) -> None:
        """Starts it, unless it runs, or has failed a short time ago. Failures are logged."""
        with suppress(_UnavailableError):
            await self._process()

    async def call(self, tool: str, arguments: bytes) -> McpResult:
        """Returns the result of a call; `arguments` are a JSON object. Cancelling ends the call."""
        async with self._turns:
            try:
                child = await self._process()
            except _UnavailableError as error:
                return McpResult(str(error), failed=True)
            id, seconds = next(self._ids), self.server.seconds
            answer: asyncio.Future[McpResult] = asyncio.get_running_loop().create_future()
            self._open[id] = child, answer
            try:
                child.say(frame(CallMcpTool(id, tool, arguments, seconds)))
                async with asyncio.timeout(seconds + GRACE):
                    return await answer
            except TimeoutError:
                self._lose(child, "doesn't answer")
                self._end(child)
                return McpResult(f"the call took more than {seconds:g} s", failed=True)
            except asyncio.CancelledError:
                child.say(frame(CancelMcpCall(id)))
                raise
            finally:
                self._open.pop(id, None)

    async def stop(self) -> None:
        """Ends the process; open calls fail."""
        self._stopped = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait((self._opening,))
        for child in [*self._running]:
            self._end(child)
        while self._tasks:
            await asyncio.gather(*self._tasks)

    async def _process(self) -> Child[FromServer]:
        """Returns the process. Raises _UnavailableError."""
        if self._child is None:
            if self._opening is None:
                self._check_pause()
                self._opening = asyncio.create_task(self._open_server())
            # A client that disconnects leaves the start to others.
            await asyncio.shield(asyncio.wait((self._opening,)))
        if self._child is None:
            raise _UnavailableError(self._sentence())
        return self._child

    def _check_pause(self) -> None:
        if self._stopped:
            raise _UnavailableError(_STOPPING)
        seconds = self._retry_at - system.now()
        if seconds > 0:
            raise _UnavailableError(
                f"{self._sentence()}; another try is possible in {seconds:.0f} s"
            )

    def _sentence(self) -> str:
        reason = self._failure or "is not available"
        return f"the MCP server {legible(self.server.name)} {reason}"

    async def _open_server(self) -> None:
        """Starts a process. Its end, or its failure, leaves `_child` None."""
        child: Child[FromServer] | None = None
        self._has_answered = False
        reason = ""
        try:
            child = await self._started()
            async with asyncio.timeout(self._start_seconds):
                while not isinstance(event := await child.receive(), McpTools):
                    if isinstance(event, McpFailed):
                        reason = event.reason
                    self._take(child, event)
            self._take(child, event)
            self._failure, self._child = "", child
            self._follow(self._read(child))
        except TimeoutError:
            reason = f"took more than {self._start_seconds:g} s to start"
        except (EOFError, FrameError):
            reason = reason or "ended during its start"
        except OSError as error:
            reason = f"can't be started: {error.strerror}"
        finally:
            self.is_known = True
            self._opening = None
            if self._child is None and child is not None:
                self._end(child)
        if self._child is None:
            self._lose(None, reason)

    async def _started(self) -> Child[FromServer]:
        session = {name: os.environ[name] for name in _SESSION if name in os.environ}
        child = await Child.start(
            tools_command(MEMORY_LIMIT),
            event_decoder,
            first=frame(OpenMcpServer(self.server, log.isEnabledFor(logging.DEBUG))),
            env=bare_environment() | session,
            limit=MAX_EVENT,
        )
        self._running[child] = 0
        return child

    async def _read(self, child: Child[FromServer]) -> None:
        try:
            while True:
                self._take(child, await child.receive())
        except (EOFError, FrameError):
            self._lose(child, "ended")
        self._end(child)

    def _take(self, child: Child[FromServer], event: FromServer) -> None:
        match event:
            case McpChild() if child in self._running:
                self._running[child] = event.pid
            case McpChild():  # the process is being ended, so its program is, too
                system.kill_group(event.pid)
            case McpTools():
                self.tools = {tool.name: tool for tool in event.tools}
                if event.left_out:
                    log.warning(
                        "MCP server %s: %d tools can't be used", self.server.name, event.left_out
                    )
            case McpFailed():
                self._lose(child, event.reason)
            case McpLine():
                log.debug("MCP server %s: %s", self.server.name, legible(event.text))
            case McpAnswer():
                self._has_answered |= self._child is child
                self._settle(event.id, McpResult(event.text, event.failed))

    def _settle(self, id: int, result: McpResult) -> None:
        if id in self._open and not (future := self._open[id][1]).done():
            future.set_result(result)

    def _lose(self, child: Child[FromServer] | None, reason: str) -> None:
        """Notes a failure of the current process, or of one that starts: later calls need another
        one. The next start is delayed if this one has never answered."""
        if self._child is not child or self._stopped:
            return
        self._child = None
        self._failure = reason
        log.warning("MCP server %s %s", self.server.name, legible(reason))
        if self._has_answered:
            self._n_failures, self._retry_at = 0, system.now()
            return
        pause = self._retry * 2.0**self._n_failures
        self._retry_at = system.now() + min(pause, MAX_RETRY_SECONDS)
        self._n_failures = min(self._n_failures + 1, _MANY)

    def _end(self, child: Child[FromServer]) -> None:
        """Ends a process, unless that has been done. Its open calls fail."""
        program = self._running.pop(child, None)
        if self._child is child:
            self._child = None
        text = _STOPPING if self._stopped else self._sentence()
        for id, (owner, _) in self._open.items():
            if owner is child:
                self._settle(id, McpResult(text, failed=True))
        if program is not None:
            self._follow(_end(child, program))

    def _follow(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _end(child: Child[FromServer], program: int) -> None:
    """Ends the process, which ends its program; or both, if the process doesn't."""
    await child.end(STOP_SECONDS)
    if await child.reap():
        for pid in filter(None, (program, *await _unread_programs(child))):
            system.kill_group(pid)


async def _unread_programs(child: Child[FromServer]) -> list[int]:
    """Returns the programs that an ended process has reported, but nothing has read yet."""
    found: list[int] = []
    with suppress(EOFError, FrameError):
        while True:
            event = await child.receive()
            if isinstance(event, McpChild):
                found.append(event.pid)
    return found


class NamedTool(NamedTuple):
    """A tool by the name that clients use, `<server>_<tool>`."""

    name: str
    connection: McpConnection
    tool: McpTool


class McpServers:
    """All configured MCP servers."""

    def __init__(
        self,
        servers: Iterable[McpServer] = (),
        *,
        start: float = START_SECONDS,
        retry: float = RETRY_SECONDS,
        wait: float = LIST_SECONDS,
    ) -> None:
        """`start` limits the time to start a server, `retry` is the first pause after a failure,
        and `wait` the time that `tools` waits; all in seconds."""
        self.connections = [McpConnection(each, start=start, retry=retry) for each in servers]
        self._wait = wait
        self._starting: set[asyncio.Task[None]] = set()
        self._reported: set[str] = set()

    @property
    def pids(self) -> list[int]:
        """The ids of the running processes."""
        return [pid for each in self.connections for pid in each.pids]

    async def tools(self) -> dict[str, NamedTool]:
        """Returns the tools of all servers that have ever listed theirs, by name. Starts the
        others, and waits for servers that start for the first time."""
        first: list[asyncio.Task[None]] = []
        for each in self.connections:
            if not each.tools:
                task = asyncio.create_task(each.start())
                self._starting.add(task)
                task.add_done_callback(self._starting.discard)
                if not each.is_known:
                    first.append(task)
        if first:
            await asyncio.wait(first, timeout=self._wait)
        return self._named()

    async def stop(self) -> None:
        """Ends all processes; open calls fail."""
        await asyncio.gather(*(each.stop() for each in self.connections), *self._starting)

    def _named(self) -> dict[str, NamedTool]:
        found: dict[str, NamedTool] = {}
        for each in self.connections:
            for tool in each.tools.values():
                name = f"{_OTHERS.sub('_', each.server.name)}_{tool.name}"
                if name not in found and _CALLABLE.fullmatch(name):
                    found[name] = NamedTool(name, each, tool)
                elif name not in self._reported and len(self._reported) < _MANY_NAMES:
                    self._reported.add(name)
                    log.warning("the tool %s is left out: %s", legible(name), _WHY)
        return found
