"""An engine process that is started before the server has imported what it needs itself.

Python takes as long to import the engine's modules as it takes for the server's, and the model
has to be loaded: all that goes on side by side. So this module imports next to nothing. The
process ends by itself when its pipe closes: a server that can't start, after all, leaves none
behind.
"""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

WAIT_POLICY = {"GOMP_SPINCOUNT": "20000"}
"""llama.cpp's OpenMP threads spin while they wait for each other. By default they do so for
milliseconds, which starves the server process (and themselves) on a busy machine; without
spinning a step of a small model takes twice as long. This is some tens of microseconds."""
STDIN, STDOUT = 0, 1  # file descriptors
PIPE_ROOM = 4096  # bytes that every pipe holds, on every system

_early: "subprocess.Popen[bytes] | None" = None
_said = b""  # what it was told


def command() -> tuple[str, ...]:
    """That of an engine process."""
    return (sys.executable, "-P", "-m", "engine.worker")


def environment() -> dict[str, str]:
    """That of an engine process."""
    return {**WAIT_POLICY, **os.environ}


def begin() -> None:
    """Start a process for the first who asks for one (`adopt`), where asyncio can take it over.

    To be called from the main thread. If there is no starting one, whoever asks is told why,
    by the next attempt.
    """
    global _early
    if os.name != "posix" or _early is not None:
        return
    # Ctrl-C is for the server. Until the process ignores it by itself, it inherits that.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _early = subprocess.Popen(
            command(), bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
        )
    except OSError:
        pass
    finally:
        signal.signal(signal.SIGINT, before)


def tell(frame: bytes) -> None:
    """Say the first thing to the process of `begin`, unless it is so long that this would have
    to wait until the process reads."""
    global _said
    if _early is not None and _early.stdin is not None and len(frame) <= PIPE_ROOM:
        try:
            _early.stdin.write(frame)
            _said = frame
        except BrokenPipeError:
            pass  # its end is seen by whoever takes it


async def adopt(frame: bytes, protocol: "asyncio.SubprocessProtocol") -> "Adopted | None":
    """The process of `begin` for one who wants to say `frame` to it, which has been said then;
    None if there is none, or no longer, or if it was told something else. `protocol` hears of
    its output and its end, as with `loop.subprocess_exec`."""
    global _early, _said
    (process, said), (_early, _said) = (_early, _said), (None, b"")
    if process is None:
        return None
    if said not in (b"", frame):
        process.kill()
        process.communicate()
        return None
    adopted = await Adopted.of(process, protocol)
    if not said:
        adopted.sink.write(frame)
    return adopted


class Adopted:
    """A process that asyncio didn't start, with the methods of its transport for one."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        source: "asyncio.ReadTransport",
        sink: "asyncio.WriteTransport",
    ) -> None:
        self.sink = sink
        self._source = source
        self._process = process

    @classmethod
    async def of(
        cls, process: "subprocess.Popen[bytes]", protocol: "asyncio.SubprocessProtocol"
    ) -> "Adopted":
        """Take over a process whose pipes nobody has read from."""
        import asyncio

        class Output(asyncio.Protocol):
            def data_received(self, data: bytes) -> None:
                protocol.pipe_data_received(STDOUT, data)

            def connection_lost(self, exc: Exception | None) -> None:
                protocol.pipe_connection_lost(STDOUT, exc)

        loop = asyncio.get_running_loop()

        def wait() -> None:
            process.wait()
            with suppress(RuntimeError):  # the loop is closed: nobody is left to be told
                loop.call_soon_threadsafe(protocol.process_exited)

        sink, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, process.stdin)
        source, _ = await loop.connect_read_pipe(Output, process.stdout)
        threading.Thread(target=wait, daemon=True, name="engine process").start()
        return cls(process, source, sink)

    def get_pid(self) -> int:
        return self._process.pid

    def get_returncode(self) -> int | None:
        return self._process.returncode

    def get_pipe_transport(self, fd: int) -> "asyncio.BaseTransport | None":
        return {STDIN: self.sink, STDOUT: self._source}.get(fd)

    def kill(self) -> None:
        """Nothing, if it has ended already."""
        self._process.kill()

    def close(self) -> None:
        self.sink.close()
        self._source.close()
