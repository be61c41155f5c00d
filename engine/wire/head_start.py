"""Processes that are started before the server imports its own modules.

Importing the engine's modules takes as long as importing the server's, and the model has to be
loaded; a head start does this in parallel. So this module imports almost nothing. The processes end
when their pipe closes, so a server that fails to start leaves no process behind.
"""

import os
import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from specllama.engine.wire.commands import Command, environment

if TYPE_CHECKING:
    import asyncio

STDIN, STDOUT, STDERR = 0, 1, 2  # file descriptors
PIPE_ROOM = 4096  # bytes that a pipe can buffer on every system


@dataclass
class _Early:
    process: "subprocess.Popen[bytes]"
    sent: bytes = b""  # the frame that was sent to it


_early: dict[Command, _Early] = {}


def begin(command: Command, frame: bytes = b"", *, logs: bool = False) -> None:
    """Start a process that the first `adopt` of this command takes over, unless it has been started
    already; only on systems where asyncio can do that. Sends `frame` to it, unless that is too long
    for a pipe that isn't read yet. With `logs`, its stderr is a pipe as well.

    To be called from the main thread. If the process can't be started, `begin` does nothing: the
    later attempt without a head start reports the reason.
    """
    if os.name != "posix":
        return
    if command not in _early:
        _start(command, logs=logs)
    early = _early.get(command)
    if early is None or early.sent or len(frame) > PIPE_ROOM:
        return
    early.sent = frame
    if frame and early.process.stdin is not None:
        with suppress(BrokenPipeError):  # `adopt` handles its end
            early.process.stdin.write(frame)


def _start(command: Command, *, logs: bool) -> None:
    # Ctrl-C is only for the server. SIGINT is blocked here so that the process inherits the blocked
    # signal: the process can't ignore it before its own code runs.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process = subprocess.Popen(
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if logs else None,
            env=environment(),
        )
    except OSError:
        return
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    _early[command] = _Early(process)


async def adopt(
    command: Command, protocol: "asyncio.SubprocessProtocol", frame: bytes = b""
) -> "Adopted | None":
    """The process that `begin` has started, after `frame` was sent to it; None if there is none
    (any more), or if another frame was sent to it. `protocol` receives its output and its end, as
    with `loop.subprocess_exec`."""
    early = _early.pop(command, None)
    if early is None:
        return None
    if early.sent not in (b"", frame):
        early.process.kill()
        early.process.communicate()
        return None
    adopted = await Adopted.of(early.process, protocol)
    if frame and not early.sent:
        adopted.sink.write(frame)
    return adopted


def withdraw() -> None:
    """End the processes that were not adopted."""
    while _early:
        _, early = _early.popitem()
        early.process.kill()
        early.process.communicate()


class Adopted:
    """A process that asyncio didn't start, with the interface of asyncio's subprocess transport."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        sources: "list[asyncio.ReadTransport]",
        sink: "asyncio.WriteTransport",
    ) -> None:
        self.sink = sink
        self._sources = sources  # stdout, and maybe stderr
        self._process = process

    @classmethod
    async def of(
        cls, process: "subprocess.Popen[bytes]", protocol: "asyncio.SubprocessProtocol"
    ) -> "Adopted":
        """Take over a process whose pipes haven't been read yet."""
        import asyncio

        loop = asyncio.get_running_loop()
        early: list[Callable[[], None]] = []
        connected = False

        def notify(event: Callable[..., None], *arguments: Any) -> None:
            """Pass an event to `protocol`, but not before `connection_made`."""
            if connected:
                event(*arguments)
            else:
                early.append(partial(event, *arguments))

        class Output(asyncio.Protocol):
            def __init__(self, fd: int) -> None:
                self._fd = fd

            def data_received(self, data: bytes) -> None:
                notify(protocol.pipe_data_received, self._fd, data)

            def connection_lost(self, exc: Exception | None) -> None:
                notify(protocol.pipe_connection_lost, self._fd, exc)

        class Input(asyncio.BaseProtocol):
            def pause_writing(self) -> None:
                notify(protocol.pause_writing)

            def resume_writing(self) -> None:
                notify(protocol.resume_writing)

            def connection_lost(self, exc: Exception | None) -> None:
                notify(protocol.pipe_connection_lost, STDIN, exc)

        def wait() -> None:
            process.wait()
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(protocol.process_exited)

        sink, _ = await loop.connect_write_pipe(Input, process.stdin)
        sources = []
        for fd, pipe in ((STDOUT, process.stdout), (STDERR, process.stderr)):
            if pipe is not None:
                source, _ = await loop.connect_read_pipe(partial(Output, fd), pipe)
                sources.append(source)
        adopted = cls(process, sources, sink)
        protocol.connection_made(adopted)  # type: ignore[arg-type]  # has the same methods
        connected = True
        for event in early:
            event()
        threading.Thread(target=wait, daemon=True, name="end of a process").start()
        return adopted

    def get_pid(self) -> int:
        return self._process.pid

    def get_returncode(self) -> int | None:
        return self._process.returncode

    def get_pipe_transport(self, fd: int) -> "asyncio.BaseTransport | None":
        return (self.sink, *self._sources)[fd] if fd <= len(self._sources) else None

    def close(self) -> None:
        self.sink.close()
        for source in self._sources:
            source.close()
