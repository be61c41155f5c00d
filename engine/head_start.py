"""An engine process that is started before the server has imported what it needs itself.

Python takes as long to import the engine's modules as the server's: side by side they take half
the time. This module imports next to nothing, so that it can be called first of all. The process
waits for its first message; it ends by itself when its pipe closes, so that a server which can't
start, after all, leaves none behind.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

WAIT_POLICY = {"GOMP_SPINCOUNT": "20000"}
"""llama.cpp's OpenMP threads spin while they wait for each other. By default they do so for
milliseconds, which starves the server process (and themselves) on a busy machine; without
spinning a step of a small model takes twice as long. This is some tens of microseconds."""
STDIN, STDOUT = 0, 1  # file descriptors

_early: "subprocess.Popen[bytes] | None" = None


def command() -> tuple[str, ...]:
    """That of an engine process."""
    return (sys.executable, "-P", "-m", "engine.worker")


def environment() -> dict[str, str]:
    return {**WAIT_POLICY, **os.environ}


def begin() -> None:
    """Start a process for the next that asks for one (`adopt`), where asyncio can take it over.
    Call it from the main thread. One that can't be started now is started when it is needed,
    and whoever needs it is told why that fails."""
    global _early
    if os.name != "posix" or _early is not None:
        return
    # Until it ignores Ctrl-C by itself, which is for the server, it inherits that.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _early = subprocess.Popen(
            command(), bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
        )
    except OSError:
        pass
    finally:
        signal.signal(signal.SIGINT, before)


async def adopt(protocol: "asyncio.SubprocessProtocol") -> "Adopted | None":
    """The process of `begin`, if there is one that nobody has taken; `protocol` hears of its
    output and its end, as with `loop.subprocess_exec`."""
    global _early
    process, _early = _early, None
    return None if process is None else await Adopted.of(process, protocol)


class Adopted:
    """A process that asyncio didn't start, with the methods of its transport for one."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        source: "asyncio.ReadTransport",
        sink: "asyncio.WriteTransport",
    ) -> None:
        self._process = process
        self._source = source
        self._sink = sink

    @classmethod
    async def of(
        cls, process: "subprocess.Popen[bytes]", protocol: "asyncio.SubprocessProtocol"
    ) -> "Adopted":
        import asyncio

        class Output(asyncio.Protocol):
            def data_received(self, data: bytes) -> None:
                protocol.pipe_data_received(STDOUT, data)

            def connection_lost(self, exc: Exception | None) -> None:
                protocol.pipe_connection_lost(STDOUT, exc)

        loop = asyncio.get_running_loop()
        sink, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, process.stdin)
        source, _ = await loop.connect_read_pipe(Output, process.stdout)
        watch = threading.Thread(
            target=_wait, args=(process, loop, protocol.process_exited), daemon=True
        )
        watch.start()
        return cls(process, source, sink)

    def get_pid(self) -> int:
        return self._process.pid

    def get_returncode(self) -> int | None:
        return self._process.returncode

    def get_pipe_transport(self, fd: int) -> "asyncio.BaseTransport | None":
        return {STDIN: self._sink, STDOUT: self._source}.get(fd)

    def kill(self) -> None:
        """Nothing, if it has ended already."""
        self._process.kill()

    def close(self) -> None:
        self._sink.close()
        self._source.close()


def _wait(
    process: "subprocess.Popen[bytes]",
    loop: "asyncio.AbstractEventLoop",
    tell: Callable[[], None],
) -> None:
    process.wait()
    try:
        loop.call_soon_threadsafe(tell)
    except RuntimeError:
        pass  # the loop is closed: nobody is left who would like to know
