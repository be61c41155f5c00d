"""The event loop of a simulated server, and the processes that it starts: pipes with real frames,
cut anywhere, and ends at any moment."""

import asyncio
import errno
from collections.abc import Callable, Sequence
from concurrent import futures
from contextlib import suppress
from functools import partial
from typing import Any

from specllama.engine.wire.framing import frame
from tests.simulation.threads import SimulatedPool, _Waiting
from tests.simulation.world import Process, World

STDIN, STDOUT, STDERR = 0, 1, 2
ROOM = 1 << 16
"""Bytes that a pipe holds."""
KILLED = -9
FIRST_PID = 1000
NONSENSE = (b"\xff" * 5, frame({"of": "another version"}), frame(["unknown", 1]), b"\x01\0\0\0{")
"""No messages of this version: a frame that is too long, and bodies that can't be read."""


class EventLoop(asyncio.BaseEventLoop):
    """asyncio's loop as a task of `world`. Its child processes run `program`, which gets the child
    and returns the exit status."""

    def __init__(
        self,
        world: World,
        program: "Callable[[Child], int]",
        fails: Callable[[str], bool],
    ) -> None:
        """`fails` decides each time whether a process doesn't start, or dies at a message."""
        super().__init__()
        self.world = world
        self.children: list[Child] = []
        self.fails = fails
        self._program = program
        self._waiting = _Waiting(world)
        self._selector: Any = self  # `asyncio.BaseEventLoop` waits by `select`
        self._threads = SimulatedPool(world, 4, "to_thread")

    def abandon(self) -> None:
        """Ends the remaining processes of a history that has failed."""
        for task in asyncio.all_tasks(self):
            with suppress(BaseException):
                task.get_coro().close()
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.close()

    def time(self) -> float:
        return self.world.now

    def select(self, timeout: float | None) -> list[Any]:
        if timeout == 0:
            self.world.pause()
        else:
            self._waiting.wait(timeout)
        return []

    def _process_events(self, events: list[Any]) -> None:
        """Does nothing: data arrives by `call_soon_threadsafe`, not by events."""

    def _write_to_self(self) -> None:
        self._waiting.wake()

    def run_in_executor(  # type: ignore[override]  # a future, as asyncio's own
        self, executor: futures.Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        return asyncio.wrap_future((executor or self._threads).submit(func, *args), loop=self)

    async def subprocess_exec(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.SubprocessProtocol], *command: Any, **_: Any
    ) -> "tuple[Child, asyncio.SubprocessProtocol]":
        await asyncio.sleep(0)
        if self.fails("start"):
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        protocol = protocol_factory()
        child = Child(self, protocol, len(self.children), command)
        self.children.append(child)
        protocol.connection_made(child)
        self.world.start(partial(child.run, self._program), "main", child.process)
        return child, protocol

    def send_signal(self, pid: int, number: int) -> None:
        """Ends the child process, unless it has ended."""
        self.children[pid - FIRST_PID].process.end(-number)


class Child(asyncio.SubprocessTransport):
    """Both ends of a process: the methods of asyncio's transport for the server, and `read` and
    `write` for the process itself."""

    def __init__(
        self,
        loop: EventLoop,
        protocol: asyncio.SubprocessProtocol,
        number: int,
        command: Sequence[str],
    ) -> None:
        super().__init__()
        self.process = Process(f"process {number}")
        self.process.on_end.append(self._ended)
        self.number = number
        self.command = command
        self._loop = loop
        self._world = loop.world
        self._protocol = protocol
        self._stdin = Sink(self._world, self)
        self._output = bytearray()
        self._has_room = _Waiting(self._world)
        self._is_reading = False  # the process's output is on its way to the server

    # ---- for the server ------------------------------------------------------------------

    def get_pid(self) -> int:
        return FIRST_PID + self.number

    def get_returncode(self) -> int | None:
        return self.process.returncode

    def get_pipe_transport(self, fd: int) -> asyncio.BaseTransport | None:
        return self._stdin if fd == STDIN else None

    def close(self) -> None:
        self._stdin.close()

    # ---- for the process -----------------------------------------------------------------

    def run(self, program: "Callable[[Child], int]") -> None:
        code = program(self)
        self.process.end(code)

    def read(self, n: int) -> bytes:
        return self._stdin.read(n)

    def write(self, data: "memoryview | bytes") -> int:
        """Writes a part of `data` and returns its length, as a pipe does. Waits while the pipe is
        full."""
        random = self._world.random
        while len(self._output) >= ROOM:
            self._has_room.wait()
        dies = self._loop.fails("death")
        n = len(data)
        if n > 1 and (dies or random.random() < 0.02):
            n = random.randrange(1, n)
        n = min(n, ROOM - len(self._output))
        self._output += data[:n]
        if self._loop.fails("nonsense"):
            self._output += self._world.random.choice(NONSENSE)
        if dies:  # in the middle of a message
            self.process.end(KILLED)
        self._deliver_soon()
        self._world.pause()
        return n

    def _deliver_soon(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        """Passes on written data, in full or in part."""
        self._is_reading = False
        n, random = len(self._output), self._world.random
        if n > 1 and random.random() < 0.05:
            n = random.randrange(1, n)
        data, self._output = bytes(self._output[:n]), self._output[n:]
        self._has_room.wake()
        if data:
            self._protocol.pipe_data_received(STDOUT, data)
        if self._output:
            self._deliver_soon()
        elif self.process.returncode is not None:
            self._tell_end()

    def _ended(self) -> None:
        self._deliver_soon()

    def _tell_end(self) -> None:
        """Reports the end of the pipes and the end of the process, in random order."""
        calls: list[Callable[[], None]] = [
            partial(self._protocol.pipe_connection_lost, STDOUT, None),
            partial(self._protocol.pipe_connection_lost, STDERR, None),
            self._protocol.process_exited,
        ]
        self._world.random.shuffle(calls)
        for call in calls:
            self._loop.call_later(self._world.random.choice([0.0, 0.0, 0.01, 0.3]), call)


class Sink(asyncio.WriteTransport):
    """The server's end of a process's stdin."""

    def __init__(self, world: World, child: Child) -> None:
        super().__init__()
        self._world = world
        self._child = child
        self._data = bytearray()
        self._is_closed = False
        self._waiting = _Waiting(world)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._is_closed and self._child.process.returncode is None:
            self._data += data
            self._waiting.wake()

    def is_closing(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        self._is_closed = True
        self._waiting.wake()

    def get_write_buffer_size(self) -> int:
        return 0

    def read(self, n: int) -> bytes:
        """Returns at most `n` received bytes; empty at the end."""
        while not self._data and not self._is_closed:
            self._waiting.wait()
        self._world.pause()
        n, random = min(n, len(self._data)), self._world.random
        if n > 1 and random.random() < 0.05:
            n = random.randrange(1, n)
        data, self._data = bytes(self._data[:n]), self._data[n:]
        return data
