"""Processes that are started before the server has imported what it needs itself.

Python takes as long to import the engine's modules as it takes for the server's, and the model
has to be loaded: all that goes on side by side. So this module imports next to nothing. The
processes end by themselves when their pipe closes: a server that can't start, after all, leaves
none behind.
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
PIPE_ROOM = 4096  # bytes that every pipe holds, on every system


@dataclass
class _Early:
    process: "subprocess.Popen[bytes]"
    said: bytes  # the message that it was sent


_early: dict[Command, _Early] = {}


def begin(command: Command, frame: bytes = b"", *, logs: bool = False) -> None:
    """Start a process for the first who asks for one with this command (`adopt`), where asyncio
    can take it over, and say `frame` to it, unless that is too long for a pipe which nobody
    reads yet. With `logs`, its stderr is a pipe as well.

    To be called from the main thread. If the process can't be started, the next
    attempt, without a head start, shows why.
    """
    if os.name != "posix" or command in _early:
        return
    # Ctrl-C is for the server, which gets it as soon as the process has inherited that it does
    # not: until then that process could not ignore it by itself.
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
    said = frame if len(frame) <= PIPE_ROOM else b""
    if said and process.stdin is not None:
        with suppress(BrokenPipeError):  # `adopt` sees its end
            process.stdin.write(said)
    _early[command] = _Early(process, said)


async def adopt(
    command: Command, protocol: "asyncio.SubprocessProtocol", frame: bytes = b""
) -> "Adopted | None":
    """The process of `begin` for one who wants to say `frame` to it, which has been said then;
    None if there is none, or no longer, or if it was sent something else. `protocol` hears of
    its output and its end, as with `loop.subprocess_exec`."""
    early = _early.pop(command, None)
    if early is None:
        return None
    if early.said not in (b"", frame):
        early.process.kill()
        early.process.communicate()
        return None
    adopted = await Adopted.of(early.process, protocol)
    if frame and not early.said:
        adopted.sink.write(frame)
    return adopted


def withdraw() -> None:
    """End the processes that were not taken."""
    while _early:
        _, early = _early.popitem()
        early.process.kill()
        early.process.communicate()


class Adopted:
    """A process that asyncio didn't start, with the methods of its transport for one."""

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
        """Take over a process whose pipes nobody has read from."""
        import asyncio

        loop = asyncio.get_running_loop()
        early: list[Callable[[], None]] = []
        connected = False

        def notify(event: Callable[..., None], *arguments: Any) -> None:
            """Let `protocol` hear of what it can understand only once it is connected."""
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
        protocol.connection_made(adopted)  # type: ignore[arg-type]  # in all but name
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
